"""Batches go in, parts come out in order; a watermark knows the contiguous finished prefix.

One lock for the three who meet here: the reader (`has_room`, `put`, `close`), the handler threads (`take`, `done`) and
the pipeline (`wait`, `collect`, `saved`). Invariants:

- At most two batches are in work (a part was taken, its save not answered) and one more has been read.
- Parts are taken in order, and marked as taken under the lock: after `stop` the parts taken are a prefix of all, so
  what a drain leaves behind is contiguous.
- There is no barrier: parts of the next batch are taken while the last ones of this batch still run.
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
    __slots__ = ("ids", "number", "offset", "rows")

    def __init__(self, number: int, ids: Sequence[int], rows: Sequence[Any]) -> None:
        self.number, self.ids, self.rows, self.offset = number, ids, rows, 0


class Feed:
    """The rows of one slot between its reader and its handlers."""

    def __init__(self, clock: Clock, part_size: Callable[[int], int]) -> None:
        self._clock = clock
        self._part_size = part_size  # rows in the batch → rows in the next part
        self._changed = threading.Condition()
        self._batches: deque[_Batch] = deque()  # read, not wholly taken
        self._taken: deque[Part] = deque()  # in order, those not yet collected
        self._running = 0
        self._read = 0  # batches
        self._saved = 0
        self._is_closed = False  # nothing more will be put
        self._is_stopped = False  # nothing more will be taken
        self._failure: BaseException | None = None
        self.on_more: Callable[[], None] = lambda: None  # called when there may be more to take

    # The reader --------------------------------------------------------------------------------------------------
    def wait_for_room(self) -> bool:
        """Waits until one more batch may be read; False: the feed was stopped."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_stopped or self._read < self._saved + MOST_BATCHES_IN_WORK + MOST_BATCHES_READ_AHEAD
            )
            return not self._is_stopped

    def put(self, ids: Sequence[int], rows: Sequence[Any]) -> None:
        with self._changed:
            self._read += 1
            self._batches.append(_Batch(self._read, ids, rows))
            self._changed.notify_all()
        self.on_more()

    def close(self) -> None:
        """The end of the slot has been read."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Something broke that is not one row's or part's fault; the pipeline raises it."""
        with self._changed:
            self._failure = self._failure or error
            self._is_stopped = True
            self._changed.notify_all()

    # The handlers ------------------------------------------------------------------------------------------------
    def try_take(self) -> Part | None:
        """The next part, marked as taken; None if there is none now."""
        with self._changed:
            return self._next_part()

    def take(self, seconds: float) -> Part | None:
        """Waits for the next part, at most so long."""
        with self._changed:
            part = self._next_part()
            if part is None:
                self._changed.wait(seconds)
                part = self._next_part()
            return part

    def done(self, part: Part, result: Handled | HandlerError) -> None:
        with self._changed:
            self._running -= 1
            if isinstance(result, HandlerError):
                part.error = result
                self._is_stopped = True
            else:
                part.handled = result
            # Most parts change nothing that anybody waits for; waking all threads for each would cost a scan its speed.
            if part.error or self._is_stopped or self._taken[0].handled is not None:
                self._changed.notify_all()

    def _next_part(self) -> Part | None:
        if self._is_stopped or not self._batches:
            return None
        batch = self._batches[0]
        if batch.number > self._saved + MOST_BATCHES_IN_WORK:
            return None
        begin = batch.offset
        end = min(len(batch.ids), begin + max(1, self._part_size(len(batch.ids))))
        batch.offset = end
        is_last = end == len(batch.ids)
        part = Part(batch.number, batch.ids[begin:end], batch.rows[begin:end], is_last, self._clock.now())
        if is_last:
            self._batches.popleft()
        self._taken.append(part)
        self._running += 1
        return part

    # The pipeline ------------------------------------------------------------------------------------------------
    def stop(self) -> None:
        """No part is taken any more; those that were go on."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Waits until something has changed, at most so long."""
        with self._changed:
            if not self._is_due():
                self._changed.wait(seconds)

    def wait_until_idle(self, seconds: float) -> bool:
        """Waits until no part runs, at most so long; says whether none does."""
        with self._changed:
            return self._changed.wait_for(lambda: self._running == 0, seconds)

    def _is_due(self) -> bool:
        return self._failure is not None or self.has_failed_part or self.has_batch_end or self.is_complete

    @property
    def has_batch_end(self) -> bool:
        """The finished prefix reaches the end of a batch."""
        for part in self._taken:
            if part.handled is None:
                return False
            if part.ends_batch:
                return True
        return False

    @property
    def has_failed_part(self) -> bool:
        return any(part.error for part in self._taken)

    @property
    def first_error(self) -> HandlerError | None:
        return next((part.error for part in self._taken if part.error), None)

    @property
    def is_complete(self) -> bool:
        """Everything up to the end of the slot was read and is done."""
        return self._is_closed and not self._batches and all(part.handled for part in self._taken)

    @property
    def batches_read(self) -> int:
        return self._read

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def collect(self) -> Done:
        """Takes the finished prefix out: what may be saved now."""
        with self._changed:
            finished = []
            while self._taken and self._taken[0].handled is not None:
                finished.append(self._taken.popleft())
            return Done(finished)

    def saved(self, done: Done) -> None:
        """A checkpoint stands behind `done`: more batches may come into work."""
        with self._changed:
            self._saved += done.batch_ends
            self._changed.notify_all()
        self.on_more()
