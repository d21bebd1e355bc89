"""Batches go in, parts come out in order; a watermark knows the contiguous finished prefix.

One lock for the three who meet here: the reader (`wait_for_room`, `put`, `close`), the handler threads (`take`, `done`)
and the pipeline (`wait`, `collect`, `saved`). Each waits on a condition of its own, so that a finished part wakes
nobody who has nothing to do. Invariants:

- At most two batches are in work (a part was taken, its save not answered) and one more has been read.
- Parts are taken in order, and marked as taken under the lock: after `stop` the parts taken are a prefix of all, so
  what a drain leaves behind is contiguous.
- There is no barrier: parts of the next batch are taken while the last ones of this batch still run.
- No call takes longer the more parts are in work: a batch may have as many as it has rows.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from shardworker.clock import Clock
from shardworker.errors import HandlerError
from shardworker.process.parts import Done, Handled, Part

MOST_BATCHES_IN_WORK = 2
MOST_BATCHES_READ_AHEAD = 1


class _Batch:
    __slots__ = ("ids", "left", "number", "offset", "rows")

    def __init__(self, number: int, ids: Sequence[int], rows: Sequence[Any]) -> None:
        self.number, self.ids, self.rows = number, ids, rows
        self.offset = 0  # of the next part
        self.left = len(ids)  # rows that are not done


class Feed:
    """The rows of one slot between its reader and its handlers."""

    def __init__(self, clock: Clock, part_size: Callable[[int, int], int]) -> None:
        self._clock = clock
        self._part_size = part_size  # rows in the batch, and those left of it → rows in the next part
        self._lock = threading.RLock()
        self._for_reader, self._for_handlers, self._for_pipeline = (threading.Condition(self._lock) for _ in range(3))
        self._waiting: deque[_Batch] = deque()  # read, not wholly taken
        self._unsaved: deque[_Batch] = deque()  # read, their end not yet collected; the pipeline removes them
        self._taken: deque[Part] = deque()  # in order, those not yet collected
        self._running = 0
        self._left = 0  # rows that were read and are not done
        self._read = 0  # batches
        self._saved = 0
        self._is_closed = False  # nothing more will be put
        self._is_stopped = False  # nothing more will be taken
        self._failure: BaseException | None = None
        self.has_failed_part = False
        self.on_more: Callable[[], None] = lambda: None  # called when there may be more to take

    # The reader --------------------------------------------------------------------------------------------------
    def wait_for_room(self) -> bool:
        """Waits until one more batch may be read; False: the feed was stopped."""
        with self._lock:
            self._for_reader.wait_for(
                lambda: self._is_stopped or self._read < self._saved + MOST_BATCHES_IN_WORK + MOST_BATCHES_READ_AHEAD
            )
            return not self._is_stopped

    def put(self, ids: Sequence[int], rows: Sequence[Any]) -> None:
        with self._lock:
            self._read += 1
            self._left += len(ids)
            batch = _Batch(self._read, ids, rows)
            self._waiting.append(batch)
            self._unsaved.append(batch)
            self._for_handlers.notify_all()
        self.on_more()

    def close(self) -> None:
        """The end of the slot has been read."""
        with self._lock:
            self._is_closed = True
            self._for_pipeline.notify_all()

    def fail(self, error: BaseException) -> None:
        """Something broke that is not one row's or part's fault; the pipeline raises it."""
        with self._lock:
            self._failure = self._failure or error
            self.stop()

    # The handlers ------------------------------------------------------------------------------------------------
    def try_take(self) -> Part | None:
        """The next part, marked as taken; None if there is none now."""
        with self._lock:
            return self._next_part()

    def take(self) -> Part | None:
        """Waits for the next part; None: nothing more will be taken."""
        with self._lock:
            while (part := self._next_part()) is None and not self._is_stopped:
                self._for_handlers.wait()
            return part

    def done(self, part: Part, result: Handled | HandlerError) -> None:
        with self._lock:
            self._running -= 1
            if isinstance(result, HandlerError):
                part.error = result
                self.has_failed_part = True
                self.stop()
                return
            part.handled = result
            batch = self._unsaved[part.batch - self._unsaved[0].number]
            batch.left -= len(part.ids)
            self._left -= len(part.ids)
            if not batch.left or self._is_stopped:
                self._for_pipeline.notify_all()

    def _next_part(self) -> Part | None:
        if self._is_stopped or not self._waiting:
            return None
        batch = self._waiting[0]
        if batch.number > self._saved + MOST_BATCHES_IN_WORK:
            return None
        begin, rows = batch.offset, len(batch.ids)
        end = batch.offset = min(rows, begin + self._part_size(rows, rows - begin))
        is_last = end == rows
        part = Part(batch.number, batch.ids[begin:end], batch.rows[begin:end], is_last, self._clock.now())
        if is_last:
            self._waiting.popleft()
        self._taken.append(part)
        self._running += 1
        return part

    # The pipeline ------------------------------------------------------------------------------------------------
    def stop(self) -> None:
        """No part is taken any more; those that were go on."""
        with self._lock:
            self._is_stopped = True
            for condition in (self._for_reader, self._for_handlers, self._for_pipeline):
                condition.notify_all()

    def wait(self, seconds: float) -> None:
        """Waits until something is due, at most so long."""
        with self._lock:
            self._for_pipeline.wait_for(self._is_due, seconds)

    def wait_until_idle(self, seconds: float) -> bool:
        """Waits until no part runs, at most so long; says whether none does."""
        with self._lock:
            return self._for_pipeline.wait_for(lambda: self._running == 0, seconds)

    def _is_due(self) -> bool:
        return self._failure is not None or self.has_failed_part or self.has_batch_end or self.is_complete

    @property
    def has_batch_end(self) -> bool:
        """The finished prefix reaches the end of a batch."""
        return bool(self._unsaved) and not self._unsaved[0].left

    @property
    def first_error(self) -> HandlerError | None:
        """That of the first part, in the order of ids, that failed as a whole."""
        with self._lock:
            return next((part.error for part in self._taken if part.error), None)

    @property
    def is_complete(self) -> bool:
        """Everything up to the end of the slot was read and is done."""
        return self._is_closed and not self._left

    @property
    def batches_read(self) -> int:
        return self._read

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def collect(self, *, to_batch_end: bool = False) -> Done:
        """Takes the finished prefix out: what may be saved now. `to_batch_end`: only as far as a batch ends in it."""
        with self._lock:
            size = batches = whole = 0
            for part in self._taken:
                if part.handled is None:
                    break
                size += 1
                if part.ends_batch:
                    batches, whole = batches + 1, size
            finished = [self._taken.popleft() for _ in range(whole if to_batch_end else size)]
            for _ in range(batches):
                self._unsaved.popleft()
            return Done(finished)

    def saved(self, done: Done) -> None:
        """A checkpoint stands behind `done`: more batches may come into work."""
        with self._lock:
            self._saved += done.batch_ends
            self._for_reader.notify_all()
            self._for_handlers.notify_all()
        self.on_more()
