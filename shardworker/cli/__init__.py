"""The command line: one file for each group of commands. Nothing heavy is imported before a command is chosen."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from shardworker import __version__

# command → (module with `add_arguments` and `main`, one line of help)
COMMANDS = {
    "run": ("run", "work on the job's run until it is complete"),
    "plan": ("plan", "show what a run would do: bounds, slots, the query and its plan; changes nothing"),
    "check": ("check", "find what would go wrong"),
    "status": ("status", "how far a run is; without a job: all runs"),
    "failed": ("failed", "list failed rows, or run them again"),
    "reset": ("reset", "forget a run, so that it can be done again"),
    "ddl": ("ddl", 'print or create the tables of checkpoint="database"'),
    "config": ("config", "print the settings in force and where each comes from"),
    "demo": ("demo", "200,000 rows, three workers, one of them killed on the way; proof that none was lost"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="shardworker",
        description="Apply a Python function to every row of a huge SQL table, by many workers that may crash.",
        epilog="Every setting is also an option: --batch-size 500 wins over SHARDWORKER_BATCH_SIZE. "
        "`shardworker config` lists them.",
    )
    parser.add_argument("--version", action="version", version=f"shardworker {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    given = list(sys.argv[1:] if arguments is None else arguments)
    chosen = next((word for word in given if not word.startswith("-")), None)
    for name, (module, about) in COMMANDS.items():
        command = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
        if name == chosen:
            importlib.import_module(f"shardworker.cli.{module}").add_arguments(command)
    known, others = parser.parse_known_args(given)
    known.options = _settings_among(others, parser)
    return int(importlib.import_module(f"shardworker.cli.{COMMANDS[known.command][0]}").main(known))


def _settings_among(words: Sequence[str], parser: argparse.ArgumentParser) -> dict[str, str]:
    """`--name value` and `--name=value`; whether a setting has that name is for `config.load` to say."""
    options: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or len(word) == 2:
            parser.error(f"unexpected argument {word!r}")
        name, has_value, value = word[2:].partition("=")
        if not has_value:
            if not rest:
                parser.error(f"option {word} needs a value")
            value = rest.pop(0)
        options[name] = value
    return options
