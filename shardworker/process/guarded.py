"""Writing under a guard: a change goes in only where the guard columns still hold what the handler saw.

Rows that have changed meanwhile are read and handled again, ATTEMPTS times; then they failed. Rows that are gone are
counted as unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection

from shardworker.clock import Clock
from shardworker.errors import HandlerError
from shardworker.handler import Context
from shardworker.outcomes import FailedRow
from shardworker.process.calls import Calls
from shardworker.process.faults import Fault, fault_of
from shardworker.process.parts import Part
from shardworker.process.table import Table
from shardworker.process.writes import write
from shardworker.retry import Patience


def write_parts(connection: Connection, table: Table, parts: Sequence[Part]) -> list[Part]:
    """Writes the changes of parts in the connection's transaction; returns the parts with rows that have changed
    since they were read, for which nothing is to be committed.

    Raises:
        HandlerError: the database refuses a value for good.
    """
    stale = []
    for part in parts:
        if part.handled is None or not part.handled.changes:
            continue
        if table.spec.guard:
            _forget_gone(connection, table, part)
            if part.stale:
                stale.append(part)
                continue
        try:
            write(connection, table, part.handled.changes)
        except Exception as error:
            found = fault_of(error)
            if found is None or found[0] is not Fault.VALUE:
                raise
            ids = list(part.handled.changes)
            # The server's text would show the value; the code is enough to look it up.
            raise HandlerError(
                f"the database refuses a value for a row among the ids {ids[0]}..{ids[-1]}: error {found[1]}", ids=ids
            ) from error
    return stale


def _forget_gone(connection: Connection, table: Table, part: Part) -> None:
    assert part.handled is not None
    changes = part.handled.changes
    now = table.select_guard(connection, sorted(changes))
    seen = {row_id: table.guard_of(row) for row_id, row in zip(part.ids, part.rows, strict=True) if row_id in changes}
    for row_id in [row_id for row_id in changes if row_id not in now]:
        del changes[row_id]
    part.stale = {row_id for row_id in changes if now[row_id] != seen[row_id]}


class HandleAgain:
    """Reads and handles stale rows again."""

    def __init__(
        self, calls: Calls, table: Table, *, attempts: int, patience: Patience, clock: Clock, as_of: datetime
    ) -> None:
        self.attempts = attempts
        self._calls = calls
        self._table = table
        self._patience = patience
        self._clock = clock
        self._as_of = as_of

    async def handle(self, part: Part, context: Context) -> None:
        """Puts new rows and new outcomes into the part, where its rows are stale."""
        assert part.handled is not None
        stale = sorted(part.stale)
        ids, rows = await self._calls.off_the_loop(
            lambda: self._patience.call(lambda: self._table.read_ids(stale, self._as_of))
        )
        handled = await self._calls.handle(ids, rows, context) if ids else None
        fresh = dict(zip(ids, rows, strict=True))
        part.rows = [fresh.get(row_id, row) for row_id, row in zip(part.ids, part.rows, strict=True)]
        for row_id in part.stale:
            del part.handled.changes[row_id]
        if handled is not None:
            part.handled.changes |= handled.changes
            part.handled.skipped |= handled.skipped
            part.handled.failed |= handled.failed
        part.stale = set()

    def give_up(self, part: Part) -> None:
        """The rows go on changing: they failed."""
        assert part.handled is not None
        at = datetime.fromtimestamp(self._clock.wall(), UTC).isoformat(timespec="seconds")
        for row_id in part.stale:
            del part.handled.changes[row_id]
            part.handled.failed[row_id] = FailedRow(
                row_id=row_id,
                error="changed meanwhile: a guard column no longer held what the handler saw",
                attempts=self.attempts,
                at=at,
            )
        part.stale = set()
