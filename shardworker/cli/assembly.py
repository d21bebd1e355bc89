"""Builds a worker from its settings: the one place where the collaborators are put together."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy
from sqlalchemy import Connection

from shardworker import config
from shardworker.claim.board import Board
from shardworker.claim.holder import Holder
from shardworker.claim.keys import Keys
from shardworker.claim.lease import Lease
from shardworker.claim.renewal import Renewal
from shardworker.cli.opening import Store, check_store, database_patience, store_patience
from shardworker.clock import Clock
from shardworker.errors import ConfigurationError
from shardworker.events import Emit
from shardworker.handler import Context
from shardworker.jobs import Job
from shardworker.process import database
from shardworker.process.calls import Calls
from shardworker.process.guarded import HandleAgain, write_parts
from shardworker.process.ledger import Ledger
from shardworker.process.part_size import PartSize
from shardworker.process.parts import Done, Part
from shardworker.process.pipeline import PartWork, Pipeline
from shardworker.process.pool import Pool
from shardworker.process.table import Table
from shardworker.process.work import BatchesInTransactions, Handling, HandlingAndWriting
from shardworker.run.checkpoints import (
    UNLIMITED,
    BatchCheckpoint,
    DatabaseCheckpoint,
    RedisCheckpoint,
    SlotCheckpoint,
)
from shardworker.run.create import Run, create, fingerprint, plan_slots
from shardworker.worker import LONGEST_WAIT_S, Limits, Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What one process is given."""

    settings: config.Settings
    job: Job[..., Any]
    store: Store
    engine: sqlalchemy.Engine
    clock: Clock
    emit: Emit
    stop: threading.Event  # set: drain
    owner: str  # a label for people: host name and pid

    @property
    def keys(self) -> Keys:
        return Keys(self.settings.redis_prefix, self.job.name, self.settings.run)

    @property
    def uses_database(self) -> bool:
        return self.settings.checkpoint == "database"

    def ledger(self, stop: threading.Event) -> Ledger | None:
        if not self.uses_database:
            return None
        return Ledger(
            self.engine,
            f"{self.settings.redis_prefix}:{self.job.name}/{self.settings.run}",
            database_patience(self.settings, self.clock, self.emit, stop),
            owner=self.owner,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A run that has been checked, and created or joined."""

    table: Table
    run: Run
    board: Board


def check_table(process: Process) -> Table:
    """The job's table; with every problem of table, filter and ledger in one error.

    Raises:
        ConfigurationError, DatabaseUnavailable: see there.
    """
    patience = database_patience(process.settings, process.clock, process.emit, process.stop)
    problems: list[str] = []
    table: Table | None = None
    ledger = process.ledger(process.stop)
    try:
        table = patience.call(lambda: Table.reflect(process.engine, process.job.spec))
        patience.call(lambda: table.check_filter(_now(process.clock)))
    except ConfigurationError as error:
        problems += error.problems
    try:
        if ledger is not None:
            ledger.check_tables()
    except ConfigurationError as error:
        problems += error.problems
    if problems or table is None:
        raise ConfigurationError(*problems)
    return table


def prepare(process: Process) -> Prepared:
    """Checks everything, and only then creates or joins the run.

    Raises:
        ConfigurationError, Unavailable, RunStateLost, Stopped: see there; nothing is left in Redis by the first two.
    """
    settings = process.settings
    table = check_table(process)
    patience = store_patience(settings, process.clock, process.emit, process.stop)
    asking = database_patience(settings, process.clock, process.emit, process.stop)
    check_store(process.store, process.clock, patience)
    board = process.store.board(process.keys)
    slot_map = functools.partial(
        plan_slots,
        table,
        first_id=settings.first_id,
        last_id=settings.last_id,
        slot_size=settings.slot_size,
        batch_size=settings.batch_size,
    )
    run = patience.call(
        lambda: create(
            board,
            process.ledger(process.stop),
            mark=fingerprint(process.job.spec, table, settings.as_written()),
            slot_map=lambda: asking.call(slot_map),
            now=process.clock.wall(),
            code_version=process.job.spec.code_version,
        )
    )
    return Prepared(table=table, run=run, board=board)


@contextlib.contextmanager
def worker(process: Process, prepared: Prepared, die: Callable[[Lease], None]) -> Iterator[Worker]:
    """A worker with its threads running."""
    settings, clock, emit = process.settings, process.clock, process.emit
    renewing = process.store.board(process.keys, uid=prepared.run.uid)  # its own connection
    built = _Assembly(process, prepared)
    with built.pool, Renewal(renewing, ttl_s=settings.lease_s, clock=clock, emit=emit, die=die) as renewal:
        yield built.worker(renewal)


class _Assembly:
    """The collaborators of one worker, each built from those above it."""

    def __init__(self, process: Process, prepared: Prepared) -> None:
        settings, spec = process.settings, process.job.spec
        self._process = process
        self._prepared = prepared
        self._abandoned = threading.Event()  # set: what still runs will not be taken any more
        self._patience = database_patience(settings, process.clock, process.emit, self._abandoned)
        self._ledger = process.ledger(self._abandoned)
        # Batches in the checkpoint's transaction go one after another.
        parallelism = 1 if spec.each == "batch" and self._ledger is not None else settings.parallelism
        self.pool = Pool(parallelism, is_async=spec.is_async)
        self._part_size = PartSize(spec.each, settings.part_size, parallelism)
        self._calls = Calls(
            spec,
            prepared.table,
            attempts=settings.attempts,
            patience=self._patience,
            clock=process.clock,
            emit=process.emit,
            abandoned=self._abandoned,
            observe=self._part_size.observe,
        )
        self._again = HandleAgain(
            self._calls,
            prepared.table,
            attempts=settings.attempts,
            patience=self._patience,
            clock=process.clock,
            as_of=prepared.run.as_of,
        )
        self._work = self._what_is_done_with_a_part()
        self._users_engine = database.transactional(process.engine)
        self._users_client = _Clients(process.store).client

    def worker(self, renewal: Renewal) -> Worker:
        process, prepared, settings = self._process, self._prepared, self._process.settings
        return Worker(
            run=prepared.run,
            board=prepared.board,
            waiting_board=process.store.board(process.keys, uid=prepared.run.uid, timeout_s=LONGEST_WAIT_S + 5.0),
            renewal=renewal,
            pipeline=self._pipeline(),
            table=prepared.table,
            checkpoint_of=self._checkpoint_of,
            context_of=self._context_of,
            limits=Limits(
                lease_s=settings.lease_s,
                keep_run_s=settings.keep_run_s,
                slot_attempts=settings.slot_attempts,
                max_failed_rows=settings.max_failed_rows if self._ledger is None else UNLIMITED,
            ),
            patience=store_patience(settings, process.clock, process.emit, process.stop),
            database_patience=self._patience,
            stop=process.stop,
            clock=process.clock,
            emit=process.emit,
            owner=process.owner,
        )

    def _what_is_done_with_a_part(self) -> PartWork:
        process, settings, table = self._process, self._process.settings, self._prepared.table
        if self._ledger is None:
            return HandlingAndWriting(
                self._calls,
                self._again,
                table,
                process.engine,
                self.pool,
                patience=self._patience,
                clock=process.clock,
                abandoned=self._abandoned,
                observe_write=self._part_size.observe_write,
            )
        if process.job.spec.each != "batch":
            return Handling(self._calls)
        return BatchesInTransactions(
            self._calls,
            table,
            self._ledger,
            self.pool,
            attempts=settings.attempts,
            most_failed=settings.max_failed_rows,
        )

    def _pipeline(self) -> Pipeline:
        process, settings = self._process, self._process.settings
        return Pipeline(
            table=self._prepared.table,
            work=self._work,
            pool=self.pool,
            batch_size=settings.batch_size,
            part_size=self._part_size,
            grace_s=settings.grace_s,
            patience=self._patience,
            stop=process.stop,
            abandoned=self._abandoned,
            clock=process.clock,
            emit=process.emit,
            as_of=self._prepared.run.as_of,
            cancel=lambda: database.cancel(process.engine),
        )

    def _context_of(self, slot: str, batch: int) -> Context:
        return Context(
            job=self._process.job.name,
            run=self._process.settings.run,
            slot=slot,
            batch=batch,
            as_of=self._prepared.run.as_of,
            engine=self._users_engine,
            key=self._prepared.table.key,
            _stopping=self._abandoned,
            _redis=self._users_client,
        )

    def _checkpoint_of(self, holder: Holder) -> SlotCheckpoint:
        if self._ledger is None:
            return RedisCheckpoint(holder)
        batches = self._work if isinstance(self._work, BatchesInTransactions) else None
        kind = DatabaseCheckpoint if batches is None else BatchCheckpoint
        settings = self._process.settings

        def write(connection: Connection, done: Done) -> list[Part]:
            holder.lease.check()
            return write_parts(connection, self._prepared.table, done.parts)

        def is_held() -> bool:
            ttl_ms = round(settings.lease_s * 1000)
            return self._prepared.board.renew({holder.slot: holder.lease.token}, ttl_ms=ttl_ms)[holder.slot]

        checkpoint = kind(
            holder,
            self._ledger,
            self._ledger.claim(holder.slot, holder.bounds),
            write,
            lambda parts, is_last_attempt: self._handle_again(holder.slot, parts, is_last_attempt=is_last_attempt),
            attempts=settings.attempts,
            most_failed=settings.max_failed_rows,
            is_held=is_held,
        )
        if batches is not None and isinstance(checkpoint, BatchCheckpoint):
            batches.fence = checkpoint.fence
            checkpoint.committed = batches.committed
        return checkpoint

    def _handle_again(self, slot: str, parts: list[Part], *, is_last_attempt: bool) -> None:
        for part in parts:
            if is_last_attempt:
                self._again.give_up(part)
            else:
                self.pool.run(self._again.handle(part, self._context_of(slot, part.batch)))


class _Clients:
    """The client that handlers see, made when the first of them asks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._client: Any = None

    def client(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._store.client(timeout_s=5.0)
            return self._client


def _now(clock: Clock) -> datetime:
    return datetime.fromtimestamp(clock.wall(), UTC)
