"""What people ask of runs: reads that change nothing and need neither a lease nor the job's code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import redis

from shardworker.claim.board import run_script
from shardworker.claim.keys import Keys, any_meta, job_and_run

MOST_PARKED_SHOWN = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a whole run is."""

    rows: int  # done and saved
    failed: int  # on the failed list
    slots: int
    slots_done: int  # those proven empty included


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSlot:
    """A slot that is picked or claimed."""

    slot: str
    first: int | None  # None: picked, and not claimed yet
    last: int | None
    last_id: int | None  # None: nothing of it is saved
    owner: str  # label of its last holder
    since_ms: int | None  # when it was claimed, in ms since 1970
    lease_ms: int | None  # what is left of the lease; None: nobody holds it


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedSlot:
    slot: str
    first: int | None
    last: int | None
    last_id: int | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The state of a run in Redis, read in two requests: numbers may differ by what happened between them."""

    meta: dict[str, str]
    totals: dict[str, int]  # rows by outcome, and `skip:<reason>`
    done: int
    ready: int
    failed: int
    parked: int
    open: list[OpenSlot]
    parked_slots: list[ParkedSlot]  # the first of them


def progress(client: redis.Redis, keys: Keys) -> Progress | None:
    """A few numbers in one command; None: there is no such run."""
    answer = run_script(client, "progress", [keys[name] for name in ("meta", "totals", "done", "failed")], [])
    if not answer:
        return None
    rows, failed, slots, slots_done = map(int, answer)
    return Progress(rows=rows, failed=failed, slots=slots, slots_done=slots_done)


def runs(client: redis.Redis, prefix: str) -> Iterator[tuple[str, str]]:
    """Job and run of every run under the prefix, in no order; now and then one twice. Looks through all keys."""
    for key in client.scan_iter(any_meta(prefix), count=1000):
        yield job_and_run(str(key))


def look(client: redis.Redis, keys: Keys) -> Look | None:
    """None: there is no such run."""
    pipeline: Any = client.pipeline(transaction=False)
    pipeline.hgetall(keys["meta"])
    pipeline.hgetall(keys["totals"])
    pipeline.hlen(keys["done"])
    pipeline.zcard(keys["ready"])
    pipeline.hlen(keys["failed"])
    pipeline.zcard(keys["parked"])
    pipeline.zrange(keys["open"], 0, -1)
    pipeline.zrange(keys["parked"], 0, MOST_PARKED_SHOWN - 1)
    meta, totals, done, ready, failed, parked, open_slots, parked_slots = pipeline.execute()
    if not meta:
        return None
    pipeline = client.pipeline(transaction=False)
    for slot in open_slots:
        pipeline.hmget(keys.slot(slot), "first", "last", "last_id", "owner", "since")
        pipeline.pttl(keys.lease(slot))
    for slot in parked_slots:
        pipeline.hmget(keys.slot(slot), "first", "last", "last_id", "why")
    answers = iter(pipeline.execute() if open_slots or parked_slots else ())
    return Look(
        meta={str(name): str(value) for name, value in meta.items()},
        totals={str(name): int(n) for name, n in totals.items()},
        done=int(done),
        ready=int(ready),
        failed=int(failed),
        parked=int(parked),
        open=[_open_slot(str(slot), next(answers), int(next(answers))) for slot in open_slots],
        parked_slots=[_parked_slot(str(slot), next(answers)) for slot in parked_slots],
    )


def _open_slot(slot: str, fields: list[str | None], lease_ms: int) -> OpenSlot:
    first, last, last_id, owner, since = fields
    return OpenSlot(
        slot=slot,
        first=_number(first),
        last=_number(last),
        last_id=_number(last_id),
        owner=owner or "",
        since_ms=_number(since),
        lease_ms=lease_ms if lease_ms >= 0 else None,
    )


def _parked_slot(slot: str, fields: list[str | None]) -> ParkedSlot:
    first, last, last_id, why = fields
    return ParkedSlot(slot=slot, first=_number(first), last=_number(last), last_id=_number(last_id), why=why or "")


def _number(text: str | None) -> int | None:
    return int(text) if text else None
