"""`shardworker ddl`: the tables of checkpoint="database"; no other command creates one."""

from __future__ import annotations

import argparse
import threading

from shardworker.cli.ending import command
from shardworker.cli.opening import database_patience, for_a_look, load_settings, open_database, open_logs
from shardworker.clock import SystemClock
from shardworker.process import ledger


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--apply", action="store_true", help="create the tables that are missing")


def main(arguments: argparse.Namespace) -> int:
    return command(lambda: _ddl(arguments))


def _ddl(arguments: argparse.Namespace) -> int:
    settings = for_a_look(load_settings(arguments.options, None))
    engine = open_database(settings)
    try:
        if not arguments.apply:
            print(";\n\n".join(ledger.ddl(engine)) + ";")
            return 0
        patience = database_patience(settings, SystemClock(), open_logs(settings), threading.Event())
        created = patience.call(lambda: ledger.create_missing(engine))
        for table in ledger.metadata.sorted_tables:
            print(f"{table.name}: {'created' if table.name in created else 'is there'}")
        return 0
    finally:
        engine.dispose()
