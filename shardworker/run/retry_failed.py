"""`failed retry`: the rows of the failed list once more, and no others, under a lease of its own.

Each row leaves the list as it succeeds; one that fails again stays on it with its new error, attempts and time. With
`checkpoint="database"` the list in the database is the true one: a row leaves it in the transaction of its changes, and
Redis' copy after that. A crash between the two leaves a row in Redis alone, which is taken off by the next retry
without being handled. With `checkpoint="redis"` a crash between the changes and the list repeats a row.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from sqlalchemy import Connection

from shardworker.claim.board import Board
from shardworker.claim.keys import FAILED_LEASE
from shardworker.claim.lease import Lease
from shardworker.clock import Clock
from shardworker.errors import HandlerError, LeaseLost, Stopped
from shardworker.handler import Context, Deletion
from shardworker.outcomes import FailedRow
from shardworker.process.calls import LONGEST_ERROR_TEXT, Calls, run_to_end
from shardworker.process.guarded import HandleAgain, write_parts
from shardworker.process.ledger import Ledger
from shardworker.process.parts import Handled, Part
from shardworker.process.table import Table
from shardworker.process.work import HandlingAndWriting
from shardworker.retry import Patience


@dataclass(slots=True)
class Retried:
    """What became of the rows."""

    handled: int = 0
    failed_again: list[FailedRow] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)  # no longer in the table; taken off the list
    not_listed: list[int] = field(default_factory=list)  # asked for, but not on the list
    left: int = 0  # on the list now


class Attempt(Protocol):
    """Handles the rows of a part and writes their changes; fills in `part.handled`."""

    async def __call__(self, part: Part, context: Context, lease: Lease) -> None: ...


class WritingAtOnce:
    """`checkpoint="redis"`."""

    def __init__(self, work: HandlingAndWriting) -> None:
        self._work = work

    async def __call__(self, part: Part, context: Context, lease: Lease) -> None:
        part.handled = await self._work.handle(part, context, lease)


class InTransaction:
    """`checkpoint="database"`: changes and list in one transaction."""

    def __init__(self, calls: Calls, again: HandleAgain, table: Table, ledger: Ledger) -> None:
        self._calls = calls
        self._again = again
        self._table = table
        self._ledger = ledger

    async def __call__(self, part: Part, context: Context, lease: Lease) -> None:
        part.handled = await self._calls.handle(part.ids, part.rows, context)
        attempt = 1
        while not self._try_commit(part, lease):
            if attempt < self._again.attempts:
                await self._again.handle(part, context)
            else:
                self._again.give_up(part)
            attempt += 1

    def _try_commit(self, part: Part, lease: Lease) -> bool:
        """False: rows have changed since they were read, and nothing was written."""

        def work(connection: Connection) -> list[FailedRow]:
            lease.check()
            if write_parts(connection, self._table, [part]):
                raise _Stale
            return _failed(part)

        try:
            self._ledger.settle(part.ids, work)
        except _Stale:
            return False
        return True


class BatchInTransaction:
    """Batch handlers with `checkpoint="database"`: the function itself runs in the transaction."""

    def __init__(self, calls: Calls, table: Table, ledger: Ledger, *, attempts: int) -> None:
        self._calls = calls
        self._table = table
        self._ledger = ledger
        self._attempts = attempts

    async def __call__(self, part: Part, context: Context, lease: Lease) -> None:
        for attempt in range(1, self._attempts + 1):
            context.attempt = attempt
            try:
                await self._calls.off_the_loop(self._committing(part, context, lease))
                return
            except HandlerError as error:
                if attempt == self._attempts:
                    raise HandlerError(str(error), ids=part.ids, attempts=attempt) from error

    def _committing(self, part: Part, context: Context, lease: Lease) -> Callable[[], None]:
        """The transaction, for a thread in which it may block. An async function runs on the loop meanwhile."""
        loop = asyncio.get_running_loop() if self._table.spec.is_async else None

        def work(connection: Connection) -> list[FailedRow]:
            lease.check()
            context.connection = connection
            call = self._calls.handle(part.ids, part.rows, context)
            part.handled = run_to_end(call) if loop is None else asyncio.run_coroutine_threadsafe(call, loop).result()
            write_parts(connection, self._table, [part])
            return _failed(part)

        def commit() -> None:
            try:
                self._ledger.settle(part.ids, work)
            finally:
                context.connection = None

        return commit


class RetryFailed:
    """One retry. Parts are handled one after another, in the order of their ids."""

    def __init__(
        self,
        *,
        board: Board,
        ledger: Ledger | None,
        table: Table,
        attempt: Attempt,
        lease: Lease,
        rows_at_once: int,
        context_of: Callable[[int], Context],
        as_of: datetime,
        store_patience: Patience,
        database_patience: Patience,
        stop: threading.Event,
        clock: Clock,
    ) -> None:
        self._board = board
        self._ledger = ledger
        self._table = table
        self._attempt = attempt
        self._lease = lease
        self._rows_at_once = rows_at_once
        self._context_of = context_of
        self._as_of = as_of
        self._store_patience = store_patience
        self._database_patience = database_patience
        self._stop = stop
        self._clock = clock
        self._retried = Retried()

    async def run(self, ids: Sequence[int] = ()) -> Retried:
        """Runs these rows, or all that are on the list.

        Raises:
            Stopped: asked to stop, between two parts.
            LeaseLost: another retry may be at work.
        """
        listed = self._listed()
        chosen = sorted(listed.intersection(ids)) if ids else sorted(listed)
        self._retried.not_listed = sorted(set(ids) - listed)
        for number, at in enumerate(range(0, len(chosen), self._rows_at_once), start=1):
            if self._stop.is_set():
                raise Stopped
            self._lease.check()
            await self._part(number, chosen[at : at + self._rows_at_once])
        self._retried.left = self._count_left()
        return self._retried

    def _listed(self) -> set[int]:
        in_redis = {row.row_id for row in self._store_patience.call(lambda: list(self._board.failed_rows()))}
        if self._ledger is None:
            return in_redis
        listed = {row.row_id for row in self._ledger.failed()}
        # Handled by a retry that died before it told Redis; what became of them is not known there.
        self._settle(dict.fromkeys(in_redis - listed, "unchanged"))
        return listed

    def _count_left(self) -> int:
        if self._ledger is not None:
            return len(self._ledger.failed())
        return len(self._store_patience.call(lambda: {row.row_id for row in self._board.failed_rows()}))

    async def _part(self, number: int, wanted: list[int]) -> None:
        ids, rows = self._database_patience.call(lambda: self._table.read_ids(wanted, self._as_of))
        self._take_off_gone(sorted(set(wanted) - set(ids)))
        if not ids:
            return
        part = Part(number, ids, rows, True, self._clock.now())
        try:
            await self._attempt(part, self._context_of(number), self._lease)
        except HandlerError as error:
            self._all_failed(part, error)
        handled = part.handled or Handled()
        failed = {row_id: row.encode() for row_id, row in handled.failed.items()}
        self._settle({row_id: _outcome(handled, row_id) for row_id in ids}, failed | handled.skipped)
        self._retried.handled += len(ids) - len(handled.failed)
        self._retried.failed_again += _failed(part)

    def _take_off_gone(self, gone: list[int]) -> None:
        if gone:
            if self._ledger is not None:
                self._ledger.settle(gone, lambda _connection: None)
            self._settle(dict.fromkeys(gone, "unchanged"))
            self._retried.gone += gone

    def _all_failed(self, part: Part, error: HandlerError) -> None:
        at = datetime.fromtimestamp(self._clock.wall(), UTC).isoformat(timespec="seconds")
        part.handled = Handled(
            failed={
                row_id: FailedRow(
                    row_id=row_id,
                    error=str(error)[:LONGEST_ERROR_TEXT],
                    attempts=error.attempts,
                    at=at,
                    code_version=self._table.spec.code_version,
                )
                for row_id in part.ids
            }
        )
        if self._ledger is not None:
            self._ledger.settle(part.ids, lambda _connection: _failed(part))

    def _settle(self, outcomes: dict[int, str], details: dict[int, str] | None = None) -> None:
        if not outcomes:
            return
        token = self._lease.token
        if not self._store_patience.call(lambda: self._board.settle(token, outcomes, details or {})):
            raise LeaseLost(FAILED_LEASE, "Redis has another token, or none, under its key")


class _Stale(Exception):
    """Rows have changed since they were read."""


def _failed(part: Part) -> list[FailedRow]:
    return [row for _, row in sorted(part.handled.failed.items())] if part.handled else []


def _outcome(handled: Handled, row_id: int) -> str:
    if row_id in handled.failed:
        return "failed"
    if row_id in handled.skipped:
        return "skipped"
    if row_id in handled.changes:
        return "deleted" if isinstance(handled.changes[row_id], Deletion) else "changed"
    return "unchanged"


def in_words(retried: Retried, shown: int = 10) -> Iterable[str]:
    """What became of the rows, for a person."""
    yield f"{retried.handled} handled, {len(retried.failed_again)} failed again, {retried.left} left on the list"
    for row in retried.failed_again[:shown]:
        yield f"row {row.row_id} failed again after {row.attempts} attempts: {row.error}"
    if len(retried.failed_again) > shown:
        yield f"... and {len(retried.failed_again) - shown} more: see `shardworker failed list`"
    if retried.gone:
        yield f"no longer in the table, taken off the list: {_ids(retried.gone, shown)}"
    if retried.not_listed:
        yield f"not on the list: {_ids(retried.not_listed, shown)}"


def _ids(ids: Sequence[int], shown: int) -> str:
    return ", ".join(map(str, ids[:shown])) + (f", ... ({len(ids)} in all)" if len(ids) > shown else "")
