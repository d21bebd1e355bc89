"""`shardworker reset`: forgets a run, so that it can be done again. Refused while a worker is alive.

    mark meta (every script refuses from now on) ─► database's rows ─► all keys but meta ─► meta

A reset that was broken off at any point leaves the mark, or keys without meta: the next one finishes it.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from typing import Any

from shardworker import config
from shardworker.claim.board import Board
from shardworker.claim.keys import Keys
from shardworker.cli.ending import command
from shardworker.cli.opening import (
    database_patience,
    for_a_look,
    job_name,
    load_settings,
    open_database,
    open_logs,
    redis_url,
    store_of,
    store_patience,
)
from shardworker.clock import SystemClock
from shardworker.errors import ConfigurationError, Exit
from shardworker.events import Emit
from shardworker.process.ledger import Ledger, missing_tables


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", nargs="?", help="the job's name, or package.module:name (default: SHARDWORKER_JOB)")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def main(arguments: argparse.Namespace) -> int:
    return command(lambda: _reset(arguments))


def _reset(arguments: argparse.Namespace) -> int:
    settings = for_a_look(load_settings(arguments.options, arguments.job))
    job = job_name(settings)
    if not arguments.yes and not sys.stdin.isatty():
        print("reset asks on a terminal; here it needs --yes", file=sys.stderr)
        return Exit.USAGE
    emit = open_logs(settings, job)
    with redis_url(settings, may_be_new=False) as url:
        board = store_of(settings, url).board(Keys(settings.redis_prefix, job, settings.run), timeout_s=5.0)
        patience = store_patience(settings, SystemClock(), emit, threading.Event())
        meta = patience.call(board.meta)
        if not arguments.yes and not _is_confirmed(settings, job, patience.call(board.totals)):
            print("nothing was changed", file=sys.stderr)
            return Exit.REFUSED
        _forget(settings, job, board, meta, emit)
    return 0


def _is_confirmed(settings: config.Settings, job: str, totals: dict[str, int]) -> bool:
    rows = sum(n for name, n in totals.items() if not name.startswith("skip:"))
    print(
        f"Forget run {settings.run} of {job}? {rows:,} rows are recorded as done; the next start begins at the first."
    )
    return input("Type yes to go on: ").strip().lower() == "yes"


def _forget(settings: config.Settings, job: str, board: Board, meta: dict[str, str], emit: Emit) -> None:
    patience = store_patience(settings, SystemClock(), emit, threading.Event())
    saved = json.loads(meta.get("fingerprint", "{}"))
    uses_database = saved.get("CHECKPOINT", settings.checkpoint) == "database"
    if uses_database:
        _check_database(settings, emit)  # before anything is changed
    alive = patience.call(board.try_mark_reset)
    if alive is not None:
        slot = alive.removeprefix(board.keys.lease(""))
        owner: Any = board.client.hget(board.keys.slot(slot), "owner")
        raise ConfigurationError(
            f"run {settings.run} of {job} is being worked on: {alive} is alive"
            f"{f' ({owner})' if owner else ''}. Stop its workers first; nothing was changed"
        )
    if uses_database:
        _forget_in_database(settings, job, emit)
    keys = patience.call(board.sweep) - (0 if meta else 1)  # without meta there was only the mark of this reset
    print(
        f"run {settings.run} of {job} is forgotten: {keys} keys deleted"
        f"{', and its rows in the database' if uses_database else ''}"
        if keys or uses_database
        else f"there was nothing of run {settings.run} of {job}"
    )


def _check_database(settings: config.Settings, emit: Emit) -> None:
    engine = open_database(settings)
    try:
        missing = database_patience(settings, SystemClock(), emit, threading.Event()).call(
            lambda: missing_tables(engine)
        )
    finally:
        engine.dispose()
    if missing:
        raise ConfigurationError(
            f"the checkpoints of this run are in a database, but the one that SHARDWORKER_DATABASE_URL names has no "
            f"{' and no '.join(missing)}: give the URL of the database that the run was done with"
        )


def _forget_in_database(settings: config.Settings, job: str, emit: Emit) -> None:
    engine = open_database(settings)
    try:
        patience = database_patience(settings, SystemClock(), emit, threading.Event())
        Ledger(engine, f"{settings.redis_prefix}:{job}/{settings.run}", patience).forget_run()
    finally:
        engine.dispose()
