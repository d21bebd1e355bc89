"""How far a run is, as data and in words; read from Redis alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import redis

from shardworker.claim.keys import Keys
from shardworker.claim.look import Look, OpenSlot, ParkedSlot, look
from shardworker.clock import Clock
from shardworker.outcomes import OUTCOMES
from shardworker.run.create import Run


class State(Enum):
    COMPLETE = "complete"
    RUNNING = "running"
    IDLE = "idle"  # not complete, and nobody works on it
    RESETTING = "resetting"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """One run. Slots: done + open + ready + parked + empty + left is all of them."""

    job: str
    run: str
    state: State
    created_at: datetime | None  # None: only the mark of a reset is left of it
    finished_at: datetime | None
    code_version: str  # of the worker that created the run
    first_id: int | None
    last_id: int | None
    slots: int
    done: int
    open: int
    ready: int  # given back, to be claimed by the next
    parked: int
    empty: int  # jumped over: proven to hold no row
    left: int  # never claimed
    frontier: int  # number of the first of those
    counts: dict[str, int]  # rows by outcome
    skip_reasons: dict[str, int]
    rows_per_s: float  # since the run was created, until it was finished
    failed_rows: int  # on the list
    workers: list[OpenSlot]  # the slots with a living lease
    parked_slots: list[ParkedSlot]  # the first 100

    @property
    def rows(self) -> int:
        return sum(self.counts.values())

    def data(self) -> dict[str, Any]:
        """For `--json`: the names are part of the interface."""
        return {
            "job": self.job,
            "run": self.run,
            "state": self.state.value,
            "created_at": _iso(self.created_at),
            "finished_at": _iso(self.finished_at),
            "code_version": self.code_version,
            "first_id": self.first_id,
            "last_id": self.last_id,
            "slots": {
                "all": self.slots,
                "done": self.done,
                "open": self.open,
                "ready": self.ready,
                "parked": self.parked,
                "empty": self.empty,
                "left": self.left,
            },
            "frontier": self.frontier,
            "rows": {"all": self.rows, **self.counts},
            "skip_reasons": self.skip_reasons,
            "rows_per_s": round(self.rows_per_s, 1),
            "failed_rows": self.failed_rows,
            "workers": [
                {
                    "owner": held.owner,
                    "slot": held.slot,
                    "first": held.first,
                    "last": held.last,
                    "last_id": held.last_id,
                    "lease_ms": held.lease_ms,
                }
                for held in self.workers
            ],
            "parked_slots": [
                {"slot": p.slot, "first": p.first, "last": p.last, "last_id": p.last_id, "why": p.why}
                for p in self.parked_slots
            ],
        }

    def state_in_words(self) -> str:
        match self.state:
            case State.COMPLETE if self.finished_at is not None:
                return f"complete since {_readable(self.finished_at)}"
            case State.IDLE if self.parked and not (self.open or self.ready or self.left):
                return "only parked slots are left: start a worker to try them once more"
            case State.IDLE:
                return "nobody works on it"
            case State.RESETTING:
                return "is being reset; `shardworker reset` finishes a reset that was broken off"
            case _:
                return f"{len(self.workers)} workers" if len(self.workers) != 1 else "1 worker"

    def facts(self) -> list[tuple[str, str]]:
        """Name and value, for a person."""
        counted = ", ".join(f"{n:,} {outcome}" for outcome, n in self.counts.items() if n)
        states = (("done", self.done), ("open", self.open), ("ready", self.ready), ("parked", self.parked))
        slots = ", ".join(f"{n:,} {name}" for name, n in states)
        empty = f", {self.empty:,} empty" if self.empty else ""
        facts = [
            ("state", self.state_in_words()),
            ("created", _readable(self.created_at) if self.created_at else "-"),
            ("ids", "none" if self.first_id is None else f"{self.first_id}..{self.last_id}"),
            ("slots", f"{self.slots:,}: {slots}{empty}, {self.left:,} left (frontier {self.frontier:,})"),
            ("rows", f"{self.rows:,}" + (f" ({counted})" if counted else "")),
            ("speed", f"{self.rows_per_s:,.1f} rows/s since it was created"),
            ("failed rows", f"{self.failed_rows:,}" + (": see `shardworker failed list`" if self.failed_rows else "")),
        ]
        if self.skip_reasons:
            by_number = sorted(self.skip_reasons.items(), key=lambda pair: -pair[1])
            facts.append(("skipped", ", ".join(f"{n:,} {reason}" for reason, n in by_number)))
        return facts


def run_status(client: redis.Redis, keys: Keys, clock: Clock) -> RunStatus | None:
    """None: there is no such run."""
    found = look(client, keys)
    return None if found is None else _status(keys, found, datetime.fromtimestamp(clock.wall(), UTC))


def _status(keys: Keys, found: Look, now: datetime) -> RunStatus:
    meta = found.meta
    run = Run.from_meta(meta) if "uid" in meta else None
    bounds = run.slot_map.bounds if run else None
    slots = (int(meta["slots"]) if run else 0) + _int(meta, "split_off")
    frontier = _int(meta, "frontier")
    finished_at = run.finished_at if run else None
    seconds = ((finished_at or now) - run.created_at).total_seconds() if run else 0.0
    counts = {outcome: found.totals.get(outcome, 0) for outcome in OUTCOMES}
    workers = [held for held in found.open if held.lease_ms is not None]
    return RunStatus(
        job=keys.job,
        run=keys.run,
        state=_state(meta, finished_at, workers),
        created_at=run.created_at if run else None,
        finished_at=finished_at,
        code_version=meta.get("code", ""),
        first_id=bounds.first if bounds else None,
        last_id=bounds.last if bounds else None,
        slots=slots,
        done=found.done,
        open=len(found.open),
        ready=found.ready,
        parked=found.parked,
        empty=_int(meta, "jumped"),
        left=max(0, slots - _int(meta, "split_off") - frontier),
        frontier=frontier,
        counts=counts,
        skip_reasons={name.removeprefix("skip:"): n for name, n in found.totals.items() if name.startswith("skip:")},
        rows_per_s=sum(counts.values()) / max(seconds, 0.001),
        failed_rows=found.failed,
        workers=workers,
        parked_slots=found.parked_slots,
    )


def _state(meta: Mapping[str, str], finished_at: datetime | None, workers: list[OpenSlot]) -> State:
    if "resetting" in meta:
        return State.RESETTING
    if finished_at is not None:
        return State.COMPLETE
    return State.RUNNING if workers else State.IDLE


def _int(meta: Mapping[str, str], name: str) -> int:
    return int(meta.get(name, "0"))


def _iso(at: datetime | None) -> str | None:
    return at.isoformat(timespec="milliseconds") if at else None


def _readable(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
