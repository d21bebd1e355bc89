"""One process's life: claim a slot, process it, finish it, take the next; until the run is complete.

    pick ─► claim ─► pipeline ─► finish ─► pick ...        the run is finished: exit 0
      │                 ├─ asked to stop: drain, release    exit 143 or 130
      │                 ├─ a row failed for good: park      the others go on
      │                 └─ lease lost: drop it, touch nothing
      ├─ others hold what is left: wait, pick again
      └─ only parked slots are left: exit 65 (whoever starts then puts them back once)

A crash at any point leaves the slot to the end of its lease; the next holder goes on at its checkpoint.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass

from shardworker.claim.board import Board, Claimed, Finished, OnlyParked, Picked, Wait
from shardworker.claim.holder import Holder
from shardworker.claim.lease import Lease
from shardworker.claim.renewal import Renewal
from shardworker.clock import Clock
from shardworker.errors import LeaseLost, ParkedSlots, Stopped, Unavailable
from shardworker.events import (
    Emit,
    HoleJumped,
    SlotClaimed,
    SlotFinished,
    SlotLost,
    SlotParked,
    SlotReleased,
    Waiting,
)
from shardworker.handler import Context
from shardworker.process.parts import Done
from shardworker.process.pipeline import Ending, How, Pipeline
from shardworker.process.table import Table
from shardworker.retry import Patience
from shardworker.run.checkpoints import SlotCheckpoint
from shardworker.run.create import Run

LONGEST_WAIT_S = 1.0  # between two looks for a free slot; also how soon a waiting worker sees a signal
PICK_SHARE = 3  # a pick that is not followed by a claim is forgotten after this part of the lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The settings that a worker needs by itself."""

    lease_s: float
    keep_run_s: float
    slot_attempts: int
    max_failed_rows: int


class Worker:
    """Works on slots of a run until there are none left. Its collaborators are built in `cli/assembly.py`."""

    def __init__(
        self,
        *,
        run: Run,
        board: Board,
        waiting_board: Board,
        renewal: Renewal,
        pipeline: Pipeline,
        table: Table,
        checkpoint_of: Callable[[Holder], SlotCheckpoint],
        context_of: Callable[[str, int], Context],
        limits: Limits,
        patience: Patience,
        database_patience: Patience,
        stop: threading.Event,
        clock: Clock,
        emit: Emit,
        owner: str,
    ) -> None:
        self._run = run
        self._board = board
        self._waiting_board = waiting_board  # its client's time-out is longer than the wait
        self._renewal = renewal
        self._pipeline = pipeline
        self._table = table
        self._checkpoint_of = checkpoint_of
        self._context_of = context_of
        self._limits = limits
        self._patience = patience
        self._database_patience = database_patience
        self._stop = stop
        self._clock = clock
        self._emit = emit
        self._owner = owner
        self._has_looked = False
        self.found_it_complete = False  # there was nothing to do from the beginning
        self.left_running = False  # a drain ended with handlers still at work: the process must not wait for them

    def run(self) -> Finished:
        """Works until the run is complete.

        Raises:
            Stopped: asked to stop; everything begun is saved and given back.
            ParkedSlots: all others are done.
            RunStateLost, Unavailable, ConfigurationError: see there.
        """
        while True:
            if self._stop.is_set():
                raise Stopped
            if self._renewal.failure is not None:
                raise self._renewal.failure
            found = self._patience.call(self._pick)
            is_first_look, self._has_looked = not self._has_looked, True
            match found:
                case Picked():
                    self._take(found)
                case Wait():
                    self._wait(found)
                case OnlyParked():
                    parked = self._patience.call(self._board.parked)
                    if not is_first_look:
                        raise ParkedSlots(parked)
                    # A start is a person's, or a Job's, wish to try them once more.
                    self._patience.call(lambda: self._board.requeue(parked))  # noqa: B023
                case Finished():
                    self.found_it_complete = is_first_look and not found.found_now
                    return found

    # Claiming ----------------------------------------------------------------------------------------------------
    def _pick(self) -> Picked | Wait | OnlyParked | Finished:
        return self._board.pick(
            provisional_ms=round(self._limits.lease_s * 1000 / PICK_SHARE),
            keep_ms=round(self._limits.keep_run_s * 1000),
        )

    def _wait(self, found: Wait) -> None:
        hint_s = found.hint_s if found.hint_s is not None else LONGEST_WAIT_S
        wait_s = min(hint_s + random.uniform(0.01, 0.2), LONGEST_WAIT_S)
        self._emit(Waiting(open_slots=found.open_slots, wait_s=wait_s))
        self._patience.call(lambda: self._waiting_board.wait_for_wake(wait_s))

    def _take(self, picked: Picked) -> None:
        token = secrets.token_hex(16)

        def claim() -> Claimed | str:
            return self._board.try_claim(
                picked,
                token=token,
                ttl_ms=round(self._limits.lease_s * 1000),
                bounds=self._run.slot_map.range_of(int(picked.slot)) if picked.slot.isdigit() else None,
                owner=self._owner,
                attempts=self._limits.slot_attempts,
            )

        sent_at = self._clock.now()  # of the first request: if its answer was lost, the key's time runs since then
        claimed = self._patience.call(claim)
        if isinstance(claimed, str):
            if claimed == "parked":
                self._emit(SlotParked(slot=picked.slot, last_id=None, reason="it ended too many workers"))
            return
        lease = Lease(claimed.slot, token, ttl_s=self._limits.lease_s, sent_at=sent_at, clock=self._clock)
        self._renewal.add(lease)
        try:
            lease.check()
            self._work_on(claimed, lease)
        except LeaseLost as lost:
            lease.lose(lost.reason)  # as a rule it is known by now: to whoever found out
            if lease.try_report():
                self._emit(SlotLost(slot=claimed.slot, reason=lost.reason))
        finally:
            lease.lose("the slot was given back")  # a handler that still runs writes nothing any more
            self._renewal.remove(lease)

    # Working -----------------------------------------------------------------------------------------------------
    def _work_on(self, claimed: Claimed, lease: Lease) -> None:
        began = self._clock.now()
        holder = Holder(
            self._board,
            claimed,
            lease,
            most_failed=self._limits.max_failed_rows,
            clock=self._clock,
            emit=self._emit,
        )
        checkpoint = self._checkpoint_of(holder)
        slot, bounds, last_id = claimed.slot, checkpoint.bounds, checkpoint.last_id
        self._emit(
            SlotClaimed(slot=slot, first=bounds.first, last=bounds.last, last_id=last_id, attempt=claimed.attempts)
        )
        try:
            ending = self._pipeline.run(
                slot,
                bounds,
                last_id,
                guard=lease,
                checkpoint=checkpoint,
                context=lambda batch: self._context_of(slot, batch),
            )
            jump_to = self._hole_after(bounds.first) if ending.how is How.FINISHED and not ending.found_rows else None
            closed = checkpoint.close(ending, jump_to=jump_to)
        except (Unavailable, Stopped):
            # Nothing may be known of what was done since the last save; the slot is given back at that.
            with contextlib.suppress(Exception):
                checkpoint.close(Ending(how=How.STOPPED, done=Done(), why="unavailable"), jump_to=None)
            raise
        self.left_running = ending.still_running
        self._tell(slot, holder, closed, self._clock.now() - began)
        if closed.how is How.STOPPED:
            raise Stopped

    def _hole_after(self, first: int) -> int | None:
        """The slot to jump to: the one with the smallest id at or after `first`, which may be this very one."""
        next_id = self._database_patience.call(lambda: self._table.next_id(first))
        slot_map = self._run.slot_map
        jump_to = slot_map.slots if next_id is None else slot_map.slot_of(next_id)
        here = slot_map.slot_of(first)
        if jump_to > here + 1:
            self._emit(HoleJumped(slots=jump_to - here - 1, next_slot=jump_to))
        return jump_to

    def _tell(self, slot: str, holder: Holder, ending: Ending, seconds: float) -> None:
        if ending.how is How.FINISHED:
            self._emit(SlotFinished(slot=slot, rows=holder.tally.rows, seconds=seconds))
        elif ending.how is How.PARKED:
            self._emit(SlotParked(slot=slot, last_id=holder.last_id, reason=ending.why))
        else:
            self._emit(SlotReleased(slot=slot, last_id=holder.last_id))
