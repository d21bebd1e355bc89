"""The two kinds of checkpoint: in Redis, or in the user's database with Redis as its mirror.

A slot's progress is saved, and in the end the slot is closed: finished, released or parked. If failed rows would exceed
MAX_FAILED_ROWS nothing is written; the slot is then parked just before the first row that is one too many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sqlalchemy import Connection

from shardworker.claim.board import OtherEnd
from shardworker.claim.holder import Holder
from shardworker.errors import LeaseLost
from shardworker.ids import IdRange
from shardworker.outcomes import FailedRow, Tally
from shardworker.process.ledger import Fence, FencedOut, Ledger
from shardworker.process.parts import Done, Part
from shardworker.process.pipeline import Ending, How, too_many_failed

UNLIMITED = 1 << 53  # the database has counted the failed rows already


class SlotCheckpoint(Protocol):
    """How far one claimed slot is."""

    @property
    def bounds(self) -> IdRange: ...

    @property
    def last_id(self) -> int | None: ...

    def save(self, done: Done) -> int | None: ...

    def close(self, ending: Ending, *, jump_to: int | None) -> Ending:
        """Finishes, releases or parks the slot; returns how it really ended."""


class RedisCheckpoint:
    """`checkpoint="redis"`."""

    def __init__(self, holder: Holder) -> None:
        self._holder = holder

    @property
    def bounds(self) -> IdRange:
        return self._holder.bounds

    @property
    def last_id(self) -> int | None:
        return self._holder.last_id

    def save(self, done: Done) -> int | None:
        assert done.last_id is not None
        answer = self._holder.save(done.last_id, done.tally(), done.failed())
        return answer.room if answer else None

    def close(self, ending: Ending, *, jump_to: int | None) -> Ending:
        how, done, why = ending.how, ending.done, ending.why
        while True:
            facts = (done.last_id, done.tally(), done.failed())
            if how is How.FINISHED:
                answer = self._holder.finish(*facts, jump_to=jump_to)
            else:
                answer = self._holder.give_back("release" if how is How.STOPPED else "park", *facts, why=why)
            if answer is None:
                return Ending(how=how, done=done, why=why)
            if isinstance(answer, OtherEnd):
                raise LeaseLost(self._holder.slot, f"Redis says that it ends at {answer.last}")
            how, done, why = How.PARKED, done.with_room_for(answer.room), too_many_failed(done, answer.room)


class DatabaseCheckpoint:
    """`checkpoint="database"`: committed with the changes, then mirrored to Redis for `status`.

    What was committed and never mirrored (the process died between the two) is mirrored with the first save.
    """

    def __init__(
        self,
        holder: Holder,
        ledger: Ledger,
        fence: Fence,
        write: Callable[[Connection, Done], list[Part]],
        handle_again: Callable[[list[Part], bool], None],
        *,
        attempts: int,
        most_failed: int,
        is_held: Callable[[], bool],
    ) -> None:
        self._holder = holder
        self._ledger = ledger
        self.fence = fence
        self._write = write
        self._handle_again = handle_again
        self._attempts = attempts
        self._most_failed = most_failed
        self._is_held = is_held
        self._unmirrored = _difference(fence.tally, holder.tally)
        mirrored_to = holder.last_id if holder.last_id is not None else fence.bounds.first - 1
        self._unmirrored_failed: list[FailedRow] = (
            ledger.failed(IdRange(mirrored_to + 1, fence.last_id))
            if fence.last_id is not None and fence.last_id > mirrored_to
            else []
        )

    @property
    def bounds(self) -> IdRange:
        return self.fence.bounds

    @property
    def last_id(self) -> int | None:
        return self.fence.last_id

    def save(self, done: Done) -> int | None:
        answer = self._commit(done)
        if isinstance(answer, int):
            return answer
        self.fence = answer[0]
        self.mirror(done)
        return None

    def mirror(self, done: Done) -> None:
        """Tells Redis what is committed."""
        fresh, failed = self._to_mirror(done)
        assert done.last_id is not None
        self._holder.save(done.last_id, fresh, failed)

    def close(self, ending: Ending, *, jump_to: int | None) -> Ending:
        how, done, why = ending.how, ending.done, ending.why
        if done:
            room = self.save(done)
            if room is not None:
                how, why, done = How.PARKED, too_many_failed(done, room), done.with_room_for(room)
                if done:
                    self.save(done)
        fresh, failed = self._to_mirror(Done())
        if how is How.FINISHED:
            if not self.fence.is_done:
                self.fence = self._ledger.finish(self.fence)
            self._holder.finish(self.fence.last_id, fresh, failed, jump_to=jump_to)
        else:
            self._holder.give_back(
                "release" if how is How.STOPPED else "park", self.fence.last_id, fresh, failed, why=why
            )
        return Ending(how=how, done=done, why=why)

    def _commit(self, done: Done) -> tuple[Fence, Done] | int:
        attempt = 1
        while True:
            try:
                return self._commit_once(done)
            except _Stale as found:  # the batch was rolled back
                self._handle_again(found.parts, attempt >= self._attempts)
                attempt += 1

    def _commit_once(self, done: Done) -> tuple[Fence, Done] | int:
        def work(connection: Connection) -> Done:
            stale = self._write(connection, done)
            if stale:
                raise _Stale(stale)
            return done

        try:
            return self._ledger.commit(self.fence, work, most_failed=self._most_failed)
        except FencedOut:
            # A claim of somebody who died may have arrived late and raised the epoch of a slot that is still ours.
            if not self._is_held():
                raise
            again = self._ledger.claim(self.fence.slot, self.fence.bounds)
            if again.seq != self.fence.seq:
                raise
            self.fence = again
            return self._ledger.commit(again, work, most_failed=self._most_failed)

    def _to_mirror(self, done: Done) -> tuple[Tally, list[FailedRow]]:
        fresh, failed = Tally.total((self._unmirrored, done.tally())), [*self._unmirrored_failed, *done.failed()]
        self._unmirrored, self._unmirrored_failed = Tally(), []
        return fresh, failed


class _Stale(Exception):
    """Rows of these parts have changed since they were read."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts


class BatchCheckpoint(DatabaseCheckpoint):
    """Batch handlers commit by themselves, in `process/work.py`; what is left is to tell Redis."""

    committed: Callable[[], Fence]  # the fence after the last commit

    def save(self, done: Done) -> int | None:
        self.mirror(done)
        return None

    def close(self, ending: Ending, *, jump_to: int | None) -> Ending:
        self.fence = self.committed()
        return super().close(ending, jump_to=jump_to)


def _difference(whole: Tally, part: Tally) -> Tally:
    rest = Tally(id_sum=whole.id_sum - part.id_sum, id_xor=whole.id_xor ^ part.id_xor)
    for outcome, n in whole.counts().items():
        setattr(rest, outcome, n - getattr(part, outcome))
    return rest
