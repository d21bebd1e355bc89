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
    options: dict[str, str] = {}
    for name, (module, about) in COMMANDS.items():
        command = commands.add_parser(
            name, help=about, description=about[0].upper() + about[1:] + ".", allow_abbrev=False
        )
        if name == chosen:
            importlib.import_module(f"shardworker.cli.{module}").add_arguments(command)
            at = given.index(name) + 1
            words, options = _split(given[at:], _flags(command), command)
            given[at:] = words
    known = parser.parse_args(given)
    known.options = options
    return int(importlib.import_module(f"shardworker.cli.{COMMANDS[known.command][0]}").main(known))


def _flags(parser: argparse.ArgumentParser) -> set[str]:
    """The options of the command itself, and of its own commands."""
    flags: set[str] = set()
    for action in parser._actions:
        flags.update(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                flags |= _flags(command)
    return flags


def _split(given: Sequence[str], flags: set[str], parser: argparse.ArgumentParser) -> tuple[list[str], dict[str, str]]:
    """The command's own words, and settings (`--name value`, `--name=value`) by name.

    Whether a setting has that name is for `config.load` to say. argparse cannot do this: it would take the value of an
    option that it does not know for an argument.
    """
    words: list[str] = []
    options: dict[str, str] = {}
    rest = list(given)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word.partition("=")[0] in flags:
            words.append(word)
            continue
        name, has_value, value = word[2:].partition("=")
        if not name:
            parser.error(f"unexpected argument {word!r}")
        if not has_value:
            if not rest:
                parser.error(f"option {word} needs a value")
            value = rest.pop(0)
        options[name] = value
    return words, options
