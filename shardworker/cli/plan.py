"""`shardworker plan`: what a run would do. Changes nothing, and needs no Redis."""

from __future__ import annotations

import argparse
import threading
from datetime import UTC, datetime

from shardworker import config
from shardworker.cli.ending import command
from shardworker.cli.opening import database_patience, for_a_look, load_settings_and_job, open_database, open_logs
from shardworker.cli.printing import print_facts
from shardworker.clock import SystemClock
from shardworker.jobs import Job
from shardworker.process.table import Table
from shardworker.run.create import plan_slots
from shardworker.run.plan import Plan, plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", nargs="?", help="package.module:name (default: SHARDWORKER_JOB)")


def main(arguments: argparse.Namespace) -> int:
    return command(lambda: _plan(arguments))


def _plan(arguments: argparse.Namespace) -> int:
    settings, job = load_settings_and_job(arguments.options, arguments.job)
    settings = for_a_look(settings)
    clock = SystemClock()
    patience = database_patience(settings, clock, open_logs(settings, job.name), threading.Event())
    engine = open_database(settings)
    try:
        table = patience.call(lambda: Table.reflect(engine, job.spec))
        as_of = datetime.fromtimestamp(clock.wall(), UTC)
        patience.call(lambda: table.check_filter(as_of))
        slot_map = patience.call(
            lambda: plan_slots(
                table,
                first_id=settings.first_id,
                last_id=settings.last_id,
                slot_size=settings.slot_size,
                batch_size=settings.batch_size,
            )
        )
        found = patience.call(lambda: plan(table, slot_map, batch_size=settings.batch_size, as_of=as_of))
    finally:
        engine.dispose()
    print_facts(_facts(settings, job, found))
    return 0


def _facts(settings: config.Settings, job: Job[..., object], found: Plan) -> list[tuple[str, str]]:
    table, slot_map = found.table, found.slot_map
    size = slot_map.segments[0].size if slot_map.segments else 0
    filtered = f"; only those with {job.spec.where}" if job.spec.where else ""
    return [
        ("job", f"{job.name}, run {settings.run}"),
        ("table", f"{table.columns.fullname}, key {table.key} ({table.columns.c[table.key].type})"),
        ("columns", ", ".join(table.names)),
        ("ids", str(slot_map.bounds) if slot_map.bounds else "none: there is no row in the run's bounds"),
        ("rows", f"about {found.rows:,}{filtered}"),
        ("slots", f"{slot_map.slots:,} of {size:,} ids each (SLOT_SIZE={settings.as_written()['SLOT_SIZE']})"),
        ("batches", f"about {found.batches:,} of at most {settings.batch_size:,} rows (BATCH_SIZE)"),
        ("checkpoint", settings.checkpoint),
        ("connections", _connections(settings, found)),
        ("query", found.statement),
        *(("plan" if number == 0 else "", line) for number, line in enumerate(found.explained)),
    ]


def _connections(settings: config.Settings, found: Plan) -> str:
    each = settings.db_connections
    if found.connections is None:
        return f"{each} a worker (DB_CONNECTIONS)"
    most, in_use = found.connections.most, found.connections.in_use
    return (
        f"{each} a worker (DB_CONNECTIONS); the server allows {most}, {in_use} are in use: "
        f"room for {found.connections.free // each} workers"
    )
