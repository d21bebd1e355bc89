"""One slot from its first read to its last checkpoint.

A reader thread reads ahead, the pool's threads handle parts and write their changes, and this thread moves the
checkpoint over the finished prefix. How far each may run ahead of the others is the feed's rule.

A slot ends in one of four ways: FINISHED (an empty answer to a complete query, and all parts done), STOPPED (asked to:
a drain), PARKED (a row or part failed for good), or by an error: LeaseLost, Unavailable and what is unexpected.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Protocol

from shardworker.clock import Clock
from shardworker.errors import HandlerError, LeaseLost, ShardworkerError
from shardworker.events import BatchDone, Emit
from shardworker.handler import Context
from shardworker.ids import IdRange
from shardworker.process.faults import Fault, fault_of
from shardworker.process.feed import Feed
from shardworker.process.part_size import PartSize
from shardworker.process.parts import Done, Handled, Part
from shardworker.process.pool import Pool
from shardworker.process.table import Table
from shardworker.retry import Patience

FIRST_PAGE_ROWS = 1000
LONGEST_UNSAVED_S = 1.0  # finished parts of a long batch are saved at least so often
LOOK_S = 0.1  # how soon a stop or a lost lease is seen


class Guard(Protocol):
    """Whether work may go on: the trust in a lease."""

    def check(self) -> None:
        """Raises LeaseLost where it may not."""


class Checkpoint(Protocol):
    """Where it is stored how far the slot is done."""

    def save(self, done: Done) -> int | None:
        """Stores that `done` is done. None: it is stored; else nothing was, and so many failed rows would fit."""


class PartWork(Protocol):
    """What is done with one part: the function called and, unless the checkpoint does it, the changes written."""

    async def handle(self, part: Part, context: Context, guard: Guard) -> Handled: ...


class How(Enum):
    FINISHED = "finished"
    STOPPED = "stopped"
    PARKED = "parked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    how: How
    done: Done  # finished and not saved yet: it goes with the last write of the slot
    why: str = ""
    found_rows: bool = True  # False: the slot had no checkpoint, and its first read found nothing
    still_running: bool = False  # GRACE ended before the parts in work did


class Pipeline:
    """The machinery of one process; `run` works on one slot at a time."""

    def __init__(
        self,
        *,
        table: Table,
        work: PartWork,
        pool: Pool,
        batch_size: int,
        part_size: PartSize,
        grace_s: float,
        patience: Patience,
        stop: threading.Event,
        abandoned: threading.Event,
        clock: Clock,
        emit: Emit,
        as_of: datetime,
        cancel: Callable[[], object],
    ) -> None:
        self._table = table
        self._work = work
        self._pool = pool
        self._batch_size = batch_size
        self._part_size = part_size
        self._grace_s = grace_s
        self._patience = patience
        self._stop = stop  # drain
        self._abandoned = abandoned  # what still runs will not be taken: lease lost, or GRACE over
        self._clock = clock
        self._emit = emit
        self._as_of = as_of
        self._cancel = cancel  # ends the statements in flight

    def run(
        self,
        slot: str,
        bounds: IdRange,
        last_id: int | None,
        *,
        guard: Guard,
        checkpoint: Checkpoint,
        context: Callable[[int], Context],
    ) -> Ending:
        """Works on a slot until it is done, or cannot be worked on any more. `context(batch)` is for the handler.

        Raises:
            LeaseLost: another worker may hold the slot.
            Unavailable: the database was away for longer than RETRY_FOR.
        """
        return _Slot(self, slot, bounds, last_id, guard, checkpoint, context).run()


class _Slot:
    """The state of one call of Pipeline.run."""

    def __init__(
        self,
        pipeline: Pipeline,
        slot: str,
        bounds: IdRange,
        last_id: int | None,
        guard: Guard,
        checkpoint: Checkpoint,
        context: Callable[[int], Context],
    ) -> None:
        self._p = pipeline
        self._slot = slot
        self._bounds = bounds
        self._last_id = last_id
        self._guard = guard
        self._checkpoint = checkpoint
        self._context = context
        self._feed = Feed(pipeline._clock, pipeline._part_size)
        self._saved_at = pipeline._clock.now()
        self._reader = threading.Thread(target=self._read_guarded, name="shardworker-reader", daemon=True)

    def run(self) -> Ending:
        self._reader.start()
        self._p._pool.lend(self._feed, self._handle)
        ending: Ending | None = None
        try:
            ending = self._steer()
        except LeaseLost:
            self._abandon()
            raise
        finally:
            self._feed.stop()
            if ending is None or not ending.still_running:
                self._end_everything()
            self._p._pool.take_back()
        return ending

    def _abandon(self) -> None:
        """No part writes any more, and statements in flight end: another worker may soon be at these rows."""
        self._p._abandoned.set()
        with contextlib.suppress(Exception):  # the database may be away
            self._p._cancel()

    def _end_everything(self) -> None:
        """What runs under this lease must have ended before the next slot begins. (If the lease is lost, the sentinel
        ends the process where this takes too long.)"""
        self._p._abandoned.set()  # ends back-offs and outages that are waited out; handlers may look at should_stop
        while not self._feed.wait_until_idle(LOOK_S):
            pass
        self._reader.join()
        self._p._abandoned.clear()  # the last writes of the slot, and the next slot, may wait again

    # This thread: the checkpoint ---------------------------------------------------------------------------------
    def _steer(self) -> Ending:
        while True:
            self._feed.wait(LOOK_S)
            self._guard.check()
            self._feed.raise_failure()
            if self._feed.is_complete:
                done = self._feed.collect()
                self._report(done)
                found_rows = self._feed.batches_read > 0 or self._last_id is not None
                return Ending(how=How.FINISHED, done=done, found_rows=found_rows)
            if self._feed.has_failed_part:
                return self._parked(str(self._feed.first_error))
            if self._p._stop.is_set():
                return self._drained()
            if self._feed.has_batch_end or self._p._clock.now() - self._saved_at > LONGEST_UNSAVED_S:
                over = self._save()
                if over is not None:
                    return over

    def _save(self) -> Ending | None:
        # A batch is one checkpoint; parts of the next one that are done go with its own.
        done = self._feed.collect(to_batch_end=self._feed.has_batch_end)
        self._saved_at = self._p._clock.now()
        if not done:
            return None
        room = self._checkpoint.save(done)
        if room is None:
            self._report(done)
            self._feed.saved(done)
            return None
        self._feed.stop()
        self._wait_for_parts(None)
        return Ending(how=How.PARKED, done=done.with_room_for(room), why=too_many_failed(done, room))

    def _report(self, done: Done) -> None:
        last_id = done.last_id
        if last_id is not None:
            now = self._p._clock.now()
            self._emit(BatchDone(slot=self._slot, last_id=last_id, rows=done.rows, seconds=now - done.began))

    def _parked(self, why: str) -> Ending:
        self._feed.stop()
        self._wait_for_parts(None)
        return Ending(how=How.PARKED, done=self._feed.collect(), why=why)

    def _drained(self) -> Ending:
        self._feed.stop()
        is_idle = self._wait_for_parts(self._p._clock.now() + self._p._grace_s)
        if is_idle:
            self._feed.raise_failure()
        done = self._feed.collect()  # first: what handlers return once they are told to give up is no result
        if not is_idle:
            self._abandon()
        return Ending(how=How.STOPPED, done=done, why="drained", still_running=not is_idle)

    def _wait_for_parts(self, until: float | None) -> bool:
        """Waits for the parts that were taken; False: some still run at `until`."""
        while not self._feed.wait_until_idle(LOOK_S):
            self._guard.check()
            if until is not None and self._p._clock.now() >= until:
                return False
        return True

    def _emit(self, event: BatchDone) -> None:
        self._p._emit(event)

    # The reader's thread -----------------------------------------------------------------------------------------
    def _read_guarded(self) -> None:
        try:
            self._read()
        except BaseException as error:  # noqa: BLE001 - the owner raises it
            self._feed.fail(error)

    def _read(self) -> None:
        """Keyset pages until an empty answer: that, and nothing else, is the end of the slot."""
        cursor, limit = self._last_id, self._p._batch_size
        while cursor is None or cursor < self._bounds.last:
            if not self._feed.wait_for_room():
                return
            self._guard.check()
            # All handlers wait for the first page. A batch handler's calls are as large as they can be.
            is_first = not self._feed.batches_read and self._p._table.spec.each != "batch"
            size = min(limit, FIRST_PAGE_ROWS) if is_first else limit
            try:
                ids, rows = self._p._patience.call(lambda: self._page(cursor, size))  # noqa: B023
            except _TooSlow:
                limit = max(1, size // 2)
                continue
            if not ids:
                break
            self._feed.put(ids, rows)
            cursor = ids[-1]
        self._feed.close()

    def _page(self, cursor: int | None, limit: int) -> tuple[list[int], list[Any]]:
        try:
            return self._p._table.read(self._bounds, cursor, limit, self._p._as_of)
        except Exception as error:
            found = fault_of(error)
            if found and found[0] is Fault.SLOW and limit > 1:
                raise _TooSlow from error
            raise

    # The pool's threads ------------------------------------------------------------------------------------------
    async def _handle(self, part: Part) -> None:
        try:
            self._guard.check()
            handled = await self._p._work.handle(part, self._context(part.batch), self._guard)
        except HandlerError as error:
            self._feed.done(part, error)
        except LeaseLost as error:
            self._feed.fail(error)
            self._feed.done(part, HandlerError("not handled: the lease is lost"))
        except BaseException as error:  # noqa: BLE001 - the owner raises it
            self._feed.fail(error)
            self._feed.done(part, HandlerError("not handled"))
        else:
            self._feed.done(part, handled)


class _TooSlow(ShardworkerError):
    """A read went over the database's limit of time: half as many rows may pass."""


def too_many_failed(done: Done, room: int) -> str:
    first = done.failed()[room]
    return f"row {first.row_id} failed and MAX_FAILED_ROWS allows no more: {first.error}"
