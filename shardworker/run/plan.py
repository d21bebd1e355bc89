"""What a run would do, found out without changing anything."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from shardworker.claim.slots import SlotMap
from shardworker.ids import IdRange
from shardworker.process.server import Connections, connections
from shardworker.process.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    table: Table
    slot_map: SlotMap
    rows: int  # in the run's bounds, estimated; before the filter
    batch_size: int
    statement: str
    explained: list[str]  # the server's plan of the statement for the first slot
    connections: Connections | None

    @property
    def batches(self) -> int:
        """About how many; each slot has at least one."""
        return max(-(-self.rows // self.batch_size), min(self.slot_map.slots, self.rows))


def plan(table: Table, slot_map: SlotMap, *, batch_size: int, as_of: datetime) -> Plan:
    bounds = slot_map.bounds
    return Plan(
        table=table,
        slot_map=slot_map,
        rows=estimated_rows_in(table, bounds),
        batch_size=batch_size,
        statement=table.sql(),
        explained=table.explain(slot_map.range_of(0) if bounds else table.limits, as_of),
        connections=connections(table.engine),
    )


def estimated_rows_in(table: Table, bounds: IdRange | None) -> int:
    """About how many rows lie in the bounds, taking them to lie evenly; no count (but with SQLite)."""
    found = table.bounds()
    if bounds is None or found is None or found.last < bounds.first or bounds.last < found.first:
        return 0
    width = min(bounds.last, found.last) - max(bounds.first, found.first) + 1
    whole = found.last - found.first + 1
    return min(width, max(1, table.estimated_rows() * width // whole))
