"""`shardworker failed list` and `failed retry`: the rows whose handling was given up."""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import secrets
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from shardworker import config
from shardworker.claim.board import Board
from shardworker.claim.keys import FAILED_LEASE, Keys
from shardworker.claim.lease import Lease
from shardworker.claim.renewal import Renewal
from shardworker.cli import assembly
from shardworker.cli.ending import command, end_of
from shardworker.cli.opening import (
    check_store,
    database_patience,
    for_a_look,
    job_name,
    load_settings,
    load_settings_and_job,
    open_database,
    open_logs,
    redis_url,
    store_of,
    store_patience,
)
from shardworker.cli.printing import print_json, print_table
from shardworker.cli.signals import die, draining
from shardworker.cli.status import the_run
from shardworker.clock import SystemClock
from shardworker.errors import ConfigurationError, Exit, RunStateLost, Stopped
from shardworker.handler import Context
from shardworker.outcomes import FailedRow
from shardworker.process import database
from shardworker.process.calls import Calls, run_to_end
from shardworker.process.guarded import HandleAgain
from shardworker.process.pool import Pool
from shardworker.process.work import HandlingAndWriting
from shardworker.run.create import Run, fingerprint, join
from shardworker.run.retry_failed import (
    Attempt,
    BatchInTransaction,
    InTransaction,
    Retried,
    RetryFailed,
    WritingAtOnce,
    in_words,
)

MUST_FIT = ("kind", "schema", "table", "key", "CHECKPOINT")  # of the fingerprint; slots and bounds do not matter here


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="list|retry", required=True)
    show = actions.add_parser("list", help="show the failed rows", allow_abbrev=False)
    show.add_argument("job", nargs="?", help="the job's name, or package.module:name (default: SHARDWORKER_JOB)")
    show.add_argument("--json", action="store_true", help="one JSON object")
    retry = actions.add_parser("retry", help="run failed rows again, and no others", allow_abbrev=False)
    retry.add_argument("words", nargs="*", metavar="JOB [ID ...]", help="package.module:name; all rows without ids")


def main(arguments: argparse.Namespace) -> int:
    return command(lambda: _list(arguments) if arguments.action == "list" else _retry(arguments))


# failed list -----------------------------------------------------------------------------------------------------
def _list(arguments: argparse.Namespace) -> int:
    settings = for_a_look(load_settings(arguments.options, arguments.job))
    job = job_name(settings)
    emit = open_logs(settings, job)
    with redis_url(settings, may_be_new=False) as url:
        board = store_of(settings, url).board(Keys(settings.redis_prefix, job, settings.run), timeout_s=5.0)
        patience = store_patience(settings, SystemClock(), emit, threading.Event())
        patience.call(lambda: the_run(board.client, settings, job))
        rows = patience.call(lambda: {row.row_id: row for row in board.failed_rows()})  # a scan may give one twice
    in_order = [rows[row_id] for row_id in sorted(rows)]
    if arguments.json:
        print_json({"job": job, "run": settings.run, "failed": [_data(row) for row in in_order]})
    elif not in_order:
        print(f"no failed rows in run {settings.run} of {job}")
    else:
        print_table(
            ("id", "attempts", "time", "code", "error"),
            [(row.row_id, row.attempts, row.at, row.code_version or "-", row.error) for row in in_order],
        )
    return 0


def _data(row: FailedRow) -> dict[str, Any]:
    return {
        "id": row.row_id,
        "error": row.error,
        "attempts": row.attempts,
        "at": row.at,
        "code_version": row.code_version,
    }


# failed retry ----------------------------------------------------------------------------------------------------
def _retry(arguments: argparse.Namespace) -> int:
    job_path, ids = _job_and_ids(arguments.words)
    settings, job = load_settings_and_job(arguments.options, job_path)
    emit, clock, stop = open_logs(settings, job.name), SystemClock(), threading.Event()
    with draining(stop) as signals, redis_url(settings, may_be_new=False) as url:
        process = assembly.Process(
            settings=settings,
            job=job,
            store=store_of(settings, url),
            engine=open_database(settings),
            clock=clock,
            emit=emit,
            stop=stop,
            owner=f"{socket.gethostname()}/{os.getpid()}",
        )
        try:
            retried = _run(process, ids)
        except Stopped:
            print(f"stopped by {signals.name}; what was handled is off the list", file=sys.stderr)
            return signals.exit_code
        except RunStateLost as error:
            code, last_words = end_of(error, has_database_checkpoint=process.uses_database)
            print(last_words, file=sys.stderr)
            return code
        finally:
            process.engine.dispose()
    if retried is None:
        return Exit.TRY_AGAIN
    for line in in_words(retried):
        print(line)
    return Exit.PARKED if retried.left else Exit.COMPLETE


def _job_and_ids(words: Sequence[str]) -> tuple[str | None, list[int]]:
    """The job may also be in SHARDWORKER_JOB; no id looks like one."""
    has_job = bool(words) and not _is_id(words[0])
    ids = words[1:] if has_job else words
    wrong = [word for word in ids if not _is_id(word)]
    if wrong:
        raise ConfigurationError(f"{wrong[0]!r} is no id: `shardworker failed retry JOB [ID ...]`")
    return (words[0] if has_job else None), [int(word) for word in ids]


def _is_id(word: str) -> bool:
    return word.removeprefix("-").isdecimal()


def _run(process: assembly.Process, ids: Sequence[int]) -> Retried | None:
    """None: another retry is at work."""
    settings, clock = process.settings, process.clock
    table = assembly.check_table(process)
    patience = store_patience(settings, clock, process.emit, process.stop)
    check_store(process.store, clock, patience)
    board = process.store.board(process.keys)
    whole = fingerprint(process.job.spec, table, settings.as_written())
    mark = {name: whole[name] for name in MUST_FIT}
    run = patience.call(lambda: join(board, mark))
    if run is None:
        patience.call(lambda: the_run(board.client, settings, process.job.name))  # says what is missing
        raise RunStateLost(f"{process.keys['meta']} has gone")
    with _lease(process, board) as lease:
        if lease is None:
            return None
        retry = _retry_of(process, table, run, board, lease)
        work = retry.run(ids)
        return asyncio.run(work) if process.job.spec.is_async else run_to_end(work)


@contextmanager
def _lease(process: assembly.Process, board: Board) -> Iterator[Lease | None]:
    """The lease of the retry, renewed until the end of the `with`; None: somebody else has it."""
    ttl_s, clock, token = process.settings.lease_s, process.clock, secrets.token_hex(16)
    patience = store_patience(process.settings, clock, process.emit, process.stop)
    sent_at = clock.now()
    if not patience.call(lambda: board.try_claim_failed(token, ttl_ms=round(ttl_s * 1000))):
        left_ms: Any = board.client.pttl(board.keys.lease(FAILED_LEASE))
        print(
            f"another `failed retry` of run {process.settings.run} of {process.job.name} is at work (its lease, "
            f"{board.keys.lease(FAILED_LEASE)}, lasts {max(0, int(left_ms)) / 1000:.1f} s if it is not renewed): "
            "nothing was done; try again when it has ended",
            file=sys.stderr,
        )
        yield None
        return
    lease = Lease(FAILED_LEASE, token, ttl_s=ttl_s, sent_at=sent_at, clock=clock)
    renewing = process.store.board(process.keys, uid=board.uid)
    try:
        with Renewal(renewing, ttl_s=ttl_s, clock=clock, emit=process.emit, die=die) as renewal:
            renewal.add(lease)
            try:
                yield lease
            finally:
                renewal.remove(lease)
    finally:
        if not lease.lost.is_set():
            board.free_failed(token)


def _retry_of(process: assembly.Process, table: Any, run: Run, board: Board, lease: Lease) -> RetryFailed:
    settings, spec, clock = process.settings, process.job.spec, process.clock
    patience = database_patience(settings, clock, process.emit, lease.lost)
    ledger = process.ledger(lease.lost)
    calls = Calls(
        spec,
        table,
        attempts=settings.attempts,
        patience=patience,
        clock=clock,
        emit=process.emit,
        abandoned=lease.lost,
    )
    again = HandleAgain(calls, table, attempts=settings.attempts, patience=patience, clock=clock, as_of=run.as_of)
    attempt: Attempt
    if ledger is None:
        attempt = WritingAtOnce(
            HandlingAndWriting(
                calls,
                again,
                table,
                process.engine,
                Pool(1, is_async=False),  # never entered: one part after another, written where it was handled
                patience=patience,
                clock=clock,
                abandoned=lease.lost,
                observe_write=lambda _seconds: None,
            )
        )
    elif spec.each == "batch":
        attempt = BatchInTransaction(calls, table, ledger, attempts=settings.attempts)
    else:
        attempt = InTransaction(calls, again, table, ledger)
    users_engine = database.transactional(process.engine)
    users_client = functools.cache(lambda: process.store.client(timeout_s=5.0))

    def context_of(part: int) -> Context:
        return Context(
            job=spec.name,
            run=settings.run,
            slot=FAILED_LEASE,
            batch=part,
            as_of=run.as_of,
            engine=users_engine,
            key=table.key,
            _stopping=lease.lost,
            _redis=users_client,
        )

    return RetryFailed(
        board=board,
        ledger=ledger,
        table=table,
        attempt=attempt,
        lease=lease,
        rows_at_once=_rows_at_once(settings, spec.each),
        context_of=context_of,
        as_of=run.as_of,
        store_patience=store_patience(settings, clock, process.emit, lease.lost),
        database_patience=patience,
        stop=process.stop,
        clock=clock,
    )


def _rows_at_once(settings: config.Settings, each: str) -> int:
    if each == "row":
        return 1
    return settings.part_size or settings.batch_size if each == "part" else settings.batch_size
