"""One claimed slot and the numbered writes of its holder.

Each write carries a running number one above the last that was answered. One whose answer is in doubt is repeated,
before any other, until it is answered or the lease is over: the script knows a repeat by its number.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal, TypeVar

from shardworker.claim.board import Board, Claimed, NotHeld, OtherEnd, TooManyFailed, Write, WriteAnswer, Written
from shardworker.claim.connect import passing_code
from shardworker.claim.lease import Lease
from shardworker.clock import Clock
from shardworker.errors import LeaseLost
from shardworker.events import Emit, Recovered, Retrying
from shardworker.outcomes import FailedRow, Tally

A = TypeVar("A")


class Holder:
    """Writes to a slot under its lease. One thread at a time."""

    def __init__(
        self, board: Board, claimed: Claimed, lease: Lease, *, most_failed: int, clock: Clock, emit: Emit
    ) -> None:
        self.slot = claimed.slot
        self.bounds = claimed.bounds
        self.last_id = claimed.last_id
        self.tally = claimed.tally
        self.attempts = claimed.attempts
        self.lease = lease
        self._seq = claimed.seq
        self._board = board
        self._most_failed = most_failed
        self._clock = clock
        self._emit = emit

    def save(self, last_id: int, fresh: Tally, failed: list[FailedRow]) -> TooManyFailed | None:
        """Records that every row up to `last_id` (inclusive) is done. `fresh` counts those since the last write.

        Raises:
            LeaseLost: the slot has another holder, or Redis did not answer before the lease ended.
        """
        write = self._write(last_id, fresh, failed)
        ttl_ms = round(self.lease.ttl_s * 1000)
        sent_at = self._clock.now()  # of the first request: a repeat of one that was done extends nothing
        answer = self._until_answered(
            lambda: self._board.save(
                self.slot, self.lease.token, self._seq + 1, write, ttl_ms=ttl_ms, most_failed=self._most_failed
            )
        )
        if isinstance(answer, Written):
            self.lease.extend(sent_at)
        return self._taken(answer, write)

    def finish(
        self, last_id: int | None, fresh: Tally, failed: list[FailedRow], *, jump_to: int | None
    ) -> TooManyFailed | OtherEnd | None:
        """Enters the slot into the ledger of the run; the lease is over then."""
        write = self._write(last_id, fresh, failed)
        self.lease.is_closing = True
        answer = self._until_answered(
            lambda: self._board.finish(
                self.slot,
                self.lease.token,
                self._seq + 1,
                write,
                end=self.bounds.last,
                jump_to=jump_to,
                most_failed=self._most_failed,
            )
        )
        if isinstance(answer, OtherEnd):
            self.lease.is_closing = False
            return answer
        return self._taken(answer, write)

    def give_back(
        self, how: Literal["release", "park"], last_id: int | None, fresh: Tally, failed: list[FailedRow], *, why: str
    ) -> TooManyFailed | None:
        """Releases or parks the slot at `last_id`; the lease is over then."""
        write = self._write(last_id, fresh, failed)
        self.lease.is_closing = True
        answer = self._until_answered(
            lambda: self._board.give_back(
                how, self.slot, self.lease.token, self._seq + 1, write, why=why, most_failed=self._most_failed
            )
        )
        return self._taken(answer, write)

    def _write(self, last_id: int | None, fresh: Tally, failed: list[FailedRow]) -> Write:
        return Write(
            last_id=self.last_id if last_id is None else last_id,
            tally=Tally.total((self.tally, fresh)),
            fresh=fresh,
            failed=failed,
        )

    def _taken(self, answer: WriteAnswer, write: Write) -> TooManyFailed | None:
        if isinstance(answer, NotHeld):
            self.lease.lose("Redis has another token, or none, under its key")
            raise LeaseLost(self.slot, self.lease.reason)
        if isinstance(answer, TooManyFailed):
            self.lease.is_closing = False
            return answer
        self._seq += 1
        self.last_id, self.tally = write.last_id, write.tally
        return None

    def _until_answered(self, send: Callable[[], A]) -> A:
        tries, began = 0, self._clock.now()
        while True:
            self.lease.check()
            try:
                answer = send()
            except Exception as error:
                code = passing_code(error)
                if code is None:
                    raise
                tries += 1
                wait_s = min(0.05 * 2**tries, 1.0) * random.uniform(0.7, 1.0)
                self._emit(Retrying(target="redis", code=code, error=str(error), attempt=tries, wait_s=wait_s))
                self._clock.wait(self.lease.lost, wait_s)
            else:
                if tries:
                    self._emit(Recovered(target="redis", after_s=self._clock.now() - began))
                return answer
