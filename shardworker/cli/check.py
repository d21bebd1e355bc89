"""`shardworker check`: numbered findings, each with what to do. Works through all that `run` looks at when it starts.

Exit code 78 if `run` would refuse, 69 if a server cannot be reached, 0 otherwise (warnings among it).
"""

from __future__ import annotations

import argparse
import os
import socket
import threading
from datetime import UTC, datetime

from shardworker import config
from shardworker.cli import assembly
from shardworker.cli.ending import command
from shardworker.cli.opening import (
    check_store,
    for_a_look,
    load_settings_and_job,
    open_database,
    open_logs,
    redis_url,
    store_of,
    store_patience,
)
from shardworker.cli.printing import one_line
from shardworker.clock import SystemClock
from shardworker.errors import Exit
from shardworker.jobs import Job
from shardworker.process.table import Table
from shardworker.run.create import fingerprint, join, plan_slots
from shardworker.run.findings import Finding, Severity, of_database, of_job, of_redis, of_table, refusals
from shardworker.run.plan import plan

WORKERS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", nargs="?", help="package.module:name (default: SHARDWORKER_JOB)")
    parser.add_argument(
        "--workers", type=int, default=WORKERS, help=f"how many workers are meant to run at once (default: {WORKERS})"
    )


def main(arguments: argparse.Namespace) -> int:
    return command(lambda: _tell(_check(arguments)))


def _check(arguments: argparse.Namespace) -> list[Finding]:
    loaded: list[tuple[config.Settings, Job[..., object]]] = []
    findings = refusals(lambda: loaded.append(load_settings_and_job(arguments.options, arguments.job)))
    if not loaded:
        return findings
    settings, job = for_a_look(loaded[0][0]), loaded[0][1]
    emit = open_logs(settings, job.name)
    with redis_url(settings) as url:
        process = assembly.Process(
            settings=settings,
            job=job,
            store=store_of(settings, url),
            engine=open_database(settings),
            clock=SystemClock(),
            emit=emit,
            stop=threading.Event(),
            owner=f"{socket.gethostname()}/{os.getpid()}",
        )
        try:
            return [*_of_database(process, arguments.workers), *_of_job(process)]
        finally:
            process.engine.dispose()


def _of_database(process: assembly.Process, workers: int) -> list[Finding]:
    tables: list[Table] = []
    findings = refusals(lambda: tables.append(assembly.check_table(process)))
    if any(finding.severity is Severity.UNREACHABLE for finding in findings):
        return [*findings, *_of_store(process, None)]
    settings = process.settings
    findings += of_database(process.engine, connections_each=settings.db_connections, workers=workers)
    if tables:
        findings += refusals(lambda: findings.extend(_of_plan(process, tables[0])))
    return [*findings, *_of_store(process, tables[0] if tables else None)]


def _of_plan(process: assembly.Process, table: Table) -> list[Finding]:
    settings = process.settings
    slot_map = plan_slots(
        table,
        first_id=settings.first_id,
        last_id=settings.last_id,
        slot_size=settings.slot_size,
        batch_size=settings.batch_size,
    )
    as_of = datetime.fromtimestamp(process.clock.wall(), UTC)
    return list(of_table(table, plan(table, slot_map, batch_size=settings.batch_size, as_of=as_of)))


def _of_store(process: assembly.Process, table: Table | None) -> list[Finding]:
    patience = store_patience(process.settings, process.clock, process.emit, process.stop)
    findings = refusals(lambda: check_store(process.store, process.clock, patience))
    if findings:
        return findings
    board = process.store.board(process.keys)
    findings = list(of_redis(board.client))
    if table is not None:
        mark = fingerprint(process.job.spec, table, process.settings.as_written())
        findings += refusals(lambda: join(board, mark))
    return findings


def _of_job(process: assembly.Process) -> list[Finding]:
    settings = process.settings
    return list(of_job(process.job.spec, parallelism=settings.parallelism, connections_each=settings.db_connections))


def _tell(findings: list[Finding]) -> int:
    worst_first = sorted(findings, key=lambda finding: list(Severity).index(finding.severity))
    for number, finding in enumerate(worst_first, start=1):
        print(f"{number}. {finding.severity.value}: {one_line(finding.text)}")
    severities = {finding.severity for finding in findings}
    if Severity.FATAL in severities:
        print("`run` would refuse to start")
        return Exit.REFUSED
    if Severity.UNREACHABLE in severities:
        print("`run` would wait for RETRY_FOR, and then end")
        return Exit.UNAVAILABLE
    print("`run` can start" if findings else "nothing found: `run` can start")
    return Exit.COMPLETE
