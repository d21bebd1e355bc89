"""What is done with a part in the pool: the function is called, then the changes that it returned are written."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from loguru import logger
from sqlalchemy import Connection, Engine

from shardworker.clock import Clock
from shardworker.errors import HandlerError, Stopped
from shardworker.handler import Context
from shardworker.process.calls import Calls
from shardworker.process.database import transaction
from shardworker.process.guarded import HandleAgain, write_parts
from shardworker.process.ledger import Fence, Ledger
from shardworker.process.parts import Done, Handled, Part
from shardworker.process.pipeline import Guard
from shardworker.process.pool import Pool
from shardworker.process.table import Table
from shardworker.retry import Patience

T = TypeVar("T")


async def off_the_loop(pool: Pool, blocking: Callable[[], T]) -> T:
    """What waits for the database must not hold up the other awaits; it keeps the fields of log lines."""
    if pool.blocking is None:
        return blocking()
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(pool.blocking, lambda: context.run(blocking))


class Handling:
    """Calls the function; `checkpoint="database"` writes the changes later, in the transaction of the checkpoint."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def handle(self, part: Part, context: Context, _guard: Guard) -> Handled:
        with logger.contextualize(slot=context.slot, batch=part.batch):
            return await self._calls.handle(part.ids, part.rows, context)


class HandlingAndWriting:
    """Calls the function and writes at once: `checkpoint="redis"`."""

    def __init__(
        self,
        calls: Calls,
        again: HandleAgain,
        table: Table,
        engine: Engine,
        pool: Pool,
        *,
        patience: Patience,
        clock: Clock,
        abandoned: threading.Event,
        observe_write: Callable[[float], None],
    ) -> None:
        self._calls = calls
        self._again = again
        self._table = table
        self._engine = engine
        self._pool = pool
        self._patience = patience
        self._clock = clock
        self._abandoned = abandoned  # set: the slot is given back while handlers still run
        self._observe_write = observe_write  # is told how many seconds a part's writing took
        # SQLite has one writer at a time; those who find it busy sleep longer and longer.
        one_at_a_time = engine.dialect.name == "sqlite"
        self._turn: AbstractContextManager[object] = threading.Lock() if one_at_a_time else nullcontext()

    async def handle(self, part: Part, context: Context, guard: Guard) -> Handled:
        with logger.contextualize(slot=context.slot, batch=part.batch):
            handled = await self._calls.handle(part.ids, part.rows, context)
            if handled.changes:
                await self._write(_own(part, handled), context, guard)
            return handled

    async def _write(self, part: Part, context: Context, guard: Guard) -> None:
        began = self._clock.now()
        await self._write_until_settled(part, context, guard)
        self._observe_write(self._clock.now() - began)

    async def _write_until_settled(self, part: Part, context: Context, guard: Guard) -> None:
        for attempt in range(1, self._again.attempts + 1):
            if not await off_the_loop(self._pool, lambda: self._patience.call(lambda: self._write_once(part, guard))):
                return
            if attempt < self._again.attempts:
                await self._again.handle(part, context)
        self._again.give_up(part)
        await off_the_loop(self._pool, lambda: self._patience.call(lambda: self._write_once(part, guard)))

    def _write_once(self, part: Part, guard: Guard) -> bool:
        """Whether rows were stale, and nothing was written."""
        with self._turn:
            guard.check()
            if self._abandoned.is_set():
                raise Stopped
            # One statement commits by itself; on SQLite it is one for each row, and each would wait for the disk.
            if not self._table.spec.guard and self._engine.dialect.name != "sqlite":
                with self._engine.connect() as connection:
                    return bool(write_parts(connection, self._table, [part]))
            with transaction(self._engine) as connection:
                return bool(write_parts(connection, self._table, [part]))


class BatchesInTransactions:
    """Batch handlers with `checkpoint="database"`: the function runs inside the transaction of the checkpoint.

    One batch at a time, in order. `fence` moves on with each of them.
    """

    def __init__(
        self, calls: Calls, table: Table, ledger: Ledger, pool: Pool, *, attempts: int, most_failed: int
    ) -> None:
        self._calls = calls
        self._table = table
        self._ledger = ledger
        self._pool = pool
        self._attempts = attempts
        self._most_failed = most_failed
        self.fence: Fence | None = None  # set by the checkpoint at each claim

    async def handle(self, part: Part, context: Context, guard: Guard) -> Handled:
        with logger.contextualize(slot=context.slot, batch=part.batch):
            attempt = 1
            while True:
                context.attempt = attempt
                try:
                    return await off_the_loop(self._pool, lambda: self._commit(part, context, guard))
                except HandlerError as error:
                    if attempt >= self._attempts:
                        raise
                    await self._calls.back_off(part.ids[0], attempt, error)
                    attempt += 1

    def committed(self) -> Fence:
        assert self.fence is not None
        return self.fence

    def _commit(self, part: Part, context: Context, guard: Guard) -> Handled:
        assert self.fence is not None

        mine = _own(part)

        def work(connection: Connection) -> Done:
            guard.check()
            context.connection = connection
            mine.handled = self._pool.run(self._calls.handle(part.ids, part.rows, context))
            write_parts(connection, self._table, [mine])
            return Done([mine])

        try:
            answer = self._ledger.commit(self.fence, work, most_failed=self._most_failed)
        finally:
            context.connection = None
        if isinstance(answer, int):
            raise HandlerError(
                f"rows of the batch {part.ids[0]}..{part.ids[-1]} failed and MAX_FAILED_ROWS allows no more"
            )
        self.fence = answer[0]
        assert mine.handled is not None
        return mine.handled


def _own(part: Part, handled: Handled | None = None) -> Part:
    """A copy to work with: once `handled` stands in the part itself, the feed takes it for done."""
    return Part(part.batch, part.ids, part.rows, part.ends_batch, part.began, handled)
