"""Builds a worker from its settings: the one place where the collaborators are put together."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
    settings, spec, clock, emit = process.settings, process.job.spec, process.clock, process.emit
    abandoned = threading.Event()  # what still runs will not be taken any more
    patience = database_patience(settings, clock, emit, abandoned)
    table, run, engine = prepared.table, prepared.run, process.engine
    ledger = process.ledger(abandoned)
    # Batches in the checkpoint's transaction go one after another.
    in_order = spec.each == "batch" and ledger is not None
    parallelism = 1 if in_order else settings.parallelism
    part_size = PartSize(spec.each, settings.part_size, parallelism)
    calls = Calls(
        spec,
        table,
        attempts=settings.attempts,
        patience=patience,
        clock=clock,
        emit=emit,
        abandoned=abandoned,
        observe=part_size.observe,
    )
    again = HandleAgain(calls, table, attempts=settings.attempts, patience=patience, clock=clock, as_of=run.as_of)
    renewing = process.store.board(process.keys, uid=run.uid)  # its own connection
    waiting = process.store.board(process.keys, uid=run.uid, timeout_s=LONGEST_WAIT_S + 5.0)
    with (
        Pool(parallelism, is_async=spec.is_async) as pool,
        Renewal(renewing, ttl_s=settings.lease_s, clock=clock, emit=emit, die=die) as renewal,
    ):
        work: PartWork
        if in_order and ledger is not None:
            batches = BatchesInTransactions(
                calls, table, ledger, pool, attempts=settings.attempts, most_failed=settings.max_failed_rows
            )
            work = batches
        elif ledger is not None:
            batches, work = None, Handling(calls)
        else:
            batches = None
            work = HandlingAndWriting(
                calls,
                again,
                table,
                engine,
                pool,
                patience=patience,
                clock=clock,
                abandoned=abandoned,
                observe_write=part_size.observe_write,
            )

        def checkpoint_of(holder: Holder) -> SlotCheckpoint:
            if ledger is None:
                return RedisCheckpoint(holder)
            kind = DatabaseCheckpoint if batches is None else BatchCheckpoint

            def write(connection: Connection, done: Done) -> list[Part]:
                holder.lease.check()
                return write_parts(connection, table, done.parts)

            def handle_again(parts: list[Part], is_last_attempt: bool) -> None:
                for part in parts:
                    if is_last_attempt:
                        again.give_up(part)
                    else:
                        pool.run(again.handle(part, context_of(holder.slot, part.batch)))

            checkpoint = kind(
                holder,
                ledger,
                ledger.claim(holder.slot, holder.bounds),
                write,
                handle_again,
                attempts=settings.attempts,
                most_failed=settings.max_failed_rows,
                is_held=lambda: prepared.board.renew(
                    {holder.slot: holder.lease.token}, ttl_ms=round(settings.lease_s * 1000)
                )[holder.slot],
            )
            if batches is not None and isinstance(checkpoint, BatchCheckpoint):
                batches.fence = checkpoint.fence
                checkpoint.committed = batches.committed
            return checkpoint

        clients = _Clients(process.store)
        users_engine = database.transactional(engine)

        def context_of(slot: str, batch: int) -> Context:
            return Context(
                job=spec.name,
                run=settings.run,
                slot=slot,
                batch=batch,
                as_of=run.as_of,
                engine=users_engine,
                key=table.key,
                _stopping=abandoned,
                _redis=clients.client,
            )

        pipeline = Pipeline(
            table=table,
            work=work,
            pool=pool,
            batch_size=settings.batch_size,
            part_size=part_size,
            grace_s=settings.grace_s,
            patience=patience,
            stop=process.stop,
            abandoned=abandoned,
            clock=clock,
            emit=emit,
            as_of=run.as_of,
            cancel=lambda: database.cancel(engine),
        )
        yield Worker(
            run=run,
            board=prepared.board,
            waiting_board=waiting,
            renewal=renewal,
            pipeline=pipeline,
            table=table,
            checkpoint_of=checkpoint_of,
            context_of=context_of,
            limits=Limits(
                lease_s=settings.lease_s,
                keep_run_s=settings.keep_run_s,
                slot_attempts=settings.slot_attempts,
                max_failed_rows=settings.max_failed_rows if ledger is None else UNLIMITED,
            ),
            patience=store_patience(settings, clock, emit, process.stop),
            database_patience=patience,
            stop=process.stop,
            clock=clock,
            emit=emit,
            owner=process.owner,
        )


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


def _now(clock: Clock) -> Any:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(clock.wall(), UTC)
