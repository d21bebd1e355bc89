"""Creates a run, or joins the one that is there after a look at its fingerprint."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from shardworker.claim.board import Board
from shardworker.claim.slots import SlotMap, even_slot_size
from shardworker.errors import RunConflict, RunStateLost
from shardworker.handler import JobSpec
from shardworker.ids import IdRange
from shardworker.process.ledger import Ledger
from shardworker.process.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as it was created; the same for every worker."""

    uid: str
    slot_map: SlotMap
    as_of: datetime  # UTC
    created_at: datetime
    finished_at: datetime | None

    @classmethod
    def from_meta(cls, meta: Mapping[str, str]) -> Run:
        finished = meta.get("finished_at")
        return cls(
            uid=meta["uid"],
            slot_map=SlotMap.decode(meta["segments"]),
            as_of=datetime.fromisoformat(meta["as_of"]),
            created_at=datetime.fromisoformat(meta["created_at"]),
            finished_at=datetime.fromtimestamp(int(finished) / 1000, UTC) if finished else None,
        )


def fingerprint(spec: JobSpec, table: Table, as_written: Mapping[str, str]) -> dict[str, str]:
    """What must not change between two lives of a run. Settings as they were written (`auto`, MAX): every pod may
    compute another number from them."""
    return {
        "kind": "job",
        "schema": spec.schema or "",
        "table": spec.table,
        "key": table.key,
        "where": spec.where or "",
        **as_written,
    }


def plan_slots(
    table: Table, *, first_id: int | None, last_id: int | None, slot_size: int | None, batch_size: int
) -> SlotMap:
    """The slots of a run that would be created now. Two index probes and, for `auto`, an estimate; no count."""
    found = table.bounds()
    first = first_id if first_id is not None else found.first if found else None
    last = last_id if last_id is not None else found.last if found else None
    if first is None or last is None or first > last:
        return SlotMap.even(None, 1)
    bounds = IdRange(first, last)
    return SlotMap.even(
        bounds, slot_size or even_slot_size(bounds, estimated_rows=table.estimated_rows(), batch_size=batch_size)
    )


def create(
    board: Board,
    ledger: Ledger | None,
    *,
    mark: Mapping[str, str],
    slot_map: Callable[[], SlotMap],
    now: float,
    code_version: str,
) -> Run:
    """The run of this board: created, or the one that is there.

    With a ledger the database is asked first: after a loss of Redis the run is created again as it was, with nothing
    claimed, and each claim finds there how far its slot is.

    Raises:
        RunConflict: the run there has another fingerprint.
        RunStateLost: the run is being reset.
    """
    meta = board.meta()
    if "uid" not in meta:
        fields = _fields(mark, slot_map(), now, code_version)
        if ledger is not None:
            fields = json.loads(ledger.remember_run(json.dumps(fields)))
        _compare(board, fields, mark)
        meta = board.create(fields, amid_remains=ledger is not None)  # there the database knows what is done
    _compare(board, meta, mark)
    board.uid = meta["uid"]
    return Run.from_meta(meta)


def join(board: Board, mark: Mapping[str, str]) -> Run | None:
    """The run that is there; None: there is none. Creates nothing. `mark`: the part of the fingerprint that matters.

    Raises:
        RunConflict: it has another fingerprint.
        RunStateLost: it is being reset.
    """
    meta = board.meta()
    if "resetting" in meta:
        raise RunStateLost(
            f"the run {board.keys.job}/{board.keys.run} is being reset; `shardworker reset` finishes a reset that was "
            "broken off"
        )
    if "uid" not in meta:
        return None
    _compare(board, meta, mark)
    board.uid = meta["uid"]
    return Run.from_meta(meta)


def _fields(mark: Mapping[str, str], slot_map: SlotMap, now: float, code_version: str) -> dict[str, str]:
    at = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
    return {
        "fingerprint": json.dumps(mark),
        "segments": slot_map.encode(),
        "slots": str(slot_map.slots),
        "as_of": at,
        "created_at": at,
        "code": code_version,
    }


def _compare(board: Board, meta: Mapping[str, str], mark: Mapping[str, str]) -> None:
    saved = json.loads(meta["fingerprint"])
    other = [name for name, now in mark.items() if saved.get(name) != now]
    if other:
        differences = "; ".join(f"{name}: saved {saved.get(name)!r}, now {mark.get(name)!r}" for name in sorted(other))
        raise RunConflict(
            f"the run {board.keys.job}/{board.keys.run} was begun with another configuration ({differences}). "
            f"Put the old value back, or begin a new run: another name in SHARDWORKER_RUN, or `shardworker reset`"
        )
