"""`shardworker config`: the settings in force, and where each comes from."""

from __future__ import annotations

import argparse
import os
import sys

from shardworker import config
from shardworker.cli.ending import command
from shardworker.cli.opening import load_settings
from shardworker.cli.printing import print_table
from shardworker.errors import JobNotFound
from shardworker.jobs import load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--markdown", action="store_true", help="print the table of all settings for documentation")


def main(arguments: argparse.Namespace) -> int:
    return command(lambda: _markdown() if arguments.markdown else _config(arguments))


def _markdown() -> int:
    print(config.markdown(), end="")
    return 0


def _config(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments.options, None)
    if settings.job and ":" in settings.job:
        try:
            job = load(settings.job)
        except JobNotFound as error:
            print(f"{error}; the settings in its decorator are not shown", file=sys.stderr)
        else:
            settings = config.load(os.environ, options=arguments.options, job_settings=job.spec.settings)
    print_table(("setting", "value", "source"), [(shown.name, shown.value, shown.source) for shown in settings.shown()])
    return 0
