"""`shardworker demo`: shows on this machine that no row is lost when a worker is killed."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TextIO

from shardworker.clock import Clock, SystemClock
from shardworker.errors import Exit
from shardworker.local import demo

LINE_EVERY_S = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=_rows, default=200_000, help="rows of the table (default: 200000)")
    parser.add_argument(
        "--json", action="store_true", help="end with one JSON object on standard output; the story goes to the other"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder with the table and the workers' logs")


def _rows(text: str) -> int:
    rows = int(text.replace("_", "").replace(",", ""))
    if rows < demo.FEWEST_ROWS:
        raise argparse.ArgumentTypeError(f"with fewer than {demo.FEWEST_ROWS} nobody could be killed in time")
    return rows


def main(arguments: argparse.Namespace) -> int:
    if arguments.options:
        names = ", ".join(f"--{name}" for name in arguments.options)
        print(f"shardworker demo: {names}: the demo takes no settings", file=sys.stderr)
        return Exit.USAGE
    out = sys.stderr if arguments.json else sys.stdout

    def tell(line: str) -> None:
        print(line, file=out, flush=True)

    clock = SystemClock()
    began = clock.now()
    try:
        with (
            _ending_by_sigterm(),
            _folder(keep=arguments.keep, tell=tell) as folder,
            _progress(arguments.rows, clock, out) as (say, show),
        ):
            outcome = demo.run(folder, arguments.rows, clock=clock, tell=say, show=show)
    except KeyboardInterrupt:
        tell("stopped")
        return Exit.INTERRUPTED
    tell(_verdict(outcome))
    counts = asdict(outcome.proof) | {"seconds": round(clock.now() - began, 1)}
    if arguments.json:
        print(json.dumps(counts), flush=True)
    else:
        tell("   ".join(f"{name} {value:,}" for name, value in counts.items()))
    if outcome.is_proven:
        return Exit.COMPLETE
    return min(outcome.exit_codes) or Exit.UNEXPECTED


def _verdict(outcome: demo.Outcome) -> str:
    if outcome.is_proven:
        return (
            "Every row was handled. Only rows that the killed worker had in work were repeated "
            f"(at most two batches: {outcome.most_repeated:,})."
        )
    return "This is not what was to be shown; the lines above say what happened."


@contextlib.contextmanager
def _ending_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the workers and removes the folder, as Ctrl-C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _folder(*, keep: bool, tell: demo.Tell) -> Iterator[Path]:
    if keep:
        folder = Path(tempfile.mkdtemp(prefix="shardworker-demo-"))
        yield folder
        tell(f"kept: {folder} (the table is in .shardworker/data.db)")
        return
    with tempfile.TemporaryDirectory(prefix="shardworker-demo-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@contextlib.contextmanager
def _progress(rows: int, clock: Clock, out: TextIO) -> Iterator[tuple[demo.Tell, demo.Show]]:
    """How to tell a line and how to show the rows handled: a bar on a terminal, lines elsewhere."""
    if out.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(file=out)) as bar:
            task = bar.add_task("rows handled", total=rows)

            def say(line: str) -> None:
                bar.console.print(line, markup=False, highlight=False)

            yield say, lambda done: bar.update(task, completed=done)
        return
    last_done, silent_until = -1, clock.now()

    def tell(line: str) -> None:
        print(line, file=out, flush=True)

    def show(done: int) -> None:
        nonlocal last_done, silent_until
        if clock.now() >= silent_until and done != last_done:
            last_done, silent_until = done, clock.now() + LINE_EVERY_S
            tell(f"{done:>11,} of {rows:,} rows handled")

    yield tell, show
