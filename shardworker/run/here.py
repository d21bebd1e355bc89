"""Job.run: a whole table in the calling thread, without Redis; for tests and small tables."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine

from shardworker.clock import SystemClock
from shardworker.errors import DatabaseUnavailable, HandlerError
from shardworker.events import ignore
from shardworker.handler import Context, JobSpec
from shardworker.ids import IdRange
from shardworker.outcomes import FailedRow, Tally
from shardworker.process.calls import Calls, run_to_end
from shardworker.process.faults import transient_code
from shardworker.process.guarded import HandleAgain, write_parts
from shardworker.process.parts import Handled, Part, count
from shardworker.process.table import Table
from shardworker.retry import Patience

BATCH_SIZE = 1000
ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What Job.run did."""

    rows: int
    changed: int
    unchanged: int
    deleted: int
    skipped: int
    failed: int
    failed_rows: tuple[FailedRow, ...]
    skip_reasons: dict[str, int]


def run_here(spec: JobSpec, engine: Engine, *, first_id: int | None, last_id: int | None) -> Summary:
    """See Job.run."""
    run = _Here(spec, engine)
    return asyncio.run(run.all(first_id, last_id)) if spec.is_async else run_to_end(run.all(first_id, last_id))


class _Here:
    def __init__(self, spec: JobSpec, engine: Engine) -> None:
        clock = SystemClock()
        settings: dict[str, Any] = dict(spec.settings)
        attempts = int(settings.get("attempts", ATTEMPTS))
        patience = Patience(
            target="database",
            setting="the engine's URL",
            code_of=transient_code,
            error=DatabaseUnavailable,
            retry_for_s=60,
            clock=clock,
        )
        self._spec = spec
        self._engine = engine
        self._as_of = datetime.now(UTC)
        self._batch_size = int(settings.get("batch_size", BATCH_SIZE))
        self._part_size = settings.get("part_size")
        self._most_failed = int(settings.get("max_failed_rows", 0))
        self._table = Table.reflect(engine, spec)
        self._calls = Calls(
            spec,
            self._table,
            attempts=attempts,
            patience=patience,
            clock=clock,
            emit=ignore,
            abandoned=threading.Event(),
        )
        self._again = HandleAgain(
            self._calls, self._table, attempts=attempts, patience=patience, clock=clock, as_of=self._as_of
        )

    async def all(self, first_id: int | None, last_id: int | None) -> Summary:
        found = self._table.bounds()
        tally, failed = Tally(), list[FailedRow]()
        bounds = found and IdRange(
            found.first if first_id is None else first_id, found.last if last_id is None else last_id
        )
        batch, cursor = 0, None
        while bounds is not None:
            ids, rows = self._table.read(bounds, cursor, self._batch_size, self._as_of)
            if not ids:
                break
            batch, cursor = batch + 1, ids[-1]
            for at in range(0, len(ids), self._rows_at_once()):
                end = at + self._rows_at_once()
                handled = await self._part(Part(batch, ids[at:end], rows[at:end], False, 0.0))
                tally.add(count(ids[at:end], handled))
                failed += handled.failed.values()
                if len(failed) > self._most_failed:
                    raise HandlerError(
                        f"row {failed[self._most_failed].row_id} failed and max_failed_rows allows no more: "
                        f"{failed[self._most_failed].error}",
                        ids=[row.row_id for row in failed],
                    )
        return Summary(rows=tally.rows, **tally.counts(), failed_rows=tuple(failed), skip_reasons=dict(tally.reasons))

    def _rows_at_once(self) -> int:
        return int(self._part_size) if isinstance(self._part_size, int) else self._batch_size

    async def _part(self, part: Part) -> Handled:
        context = Context(
            job=self._spec.name,
            run="here",
            slot="0",
            batch=part.batch,
            as_of=self._as_of,
            engine=self._engine,
            key=self._table.key,
        )
        if self._spec.each == "batch":
            with self._engine.begin() as connection:
                context.connection = connection
                part.handled = await self._calls.handle(part.ids, part.rows, context)
                write_parts(connection, self._table, [part])
                return part.handled
        part.handled = await self._calls.handle(part.ids, part.rows, context)
        for attempt in range(1, self._again.attempts + 1):
            with self._engine.begin() as connection:
                stale = write_parts(connection, self._table, [part])
            if not stale:
                break
            if attempt == self._again.attempts:
                self._again.give_up(part)
                with self._engine.begin() as connection:
                    write_parts(connection, self._table, [part])
                break
            await self._again.handle(part, context)
        return part.handled
