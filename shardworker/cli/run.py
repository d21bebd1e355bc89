"""`shardworker run`: one worker, from its settings to its exit code."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from shardworker.claim.lease import Lease
from shardworker.cli import assembly
from shardworker.cli.ending import end_of, leave_termination_message
from shardworker.cli.opening import load_settings_and_job, open_database, redis_url, store_of
from shardworker.clock import SystemClock
from shardworker.errors import ConfigurationError, Exit, Stopped
from shardworker.events import Draining
from shardworker.observe.logs import configure, logger
from shardworker.observe.narrate import narrator
from shardworker.run.report import closing_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", nargs="?", help="package.module:name (default: SHARDWORKER_JOB)")


def main(arguments: argparse.Namespace) -> int:
    try:
        settings, job = load_settings_and_job(arguments.options, arguments.job)
    except ConfigurationError as error:
        return _end(Exit.REFUSED, "\n".join(error.problems), to_log=False)
    configure(
        settings.log_level,
        settings.log_format,
        secrets=settings.passwords(),
        fields={"job": job.name, "run": settings.run},
    )
    emit, clock, stop = narrator(job.name, settings.run), SystemClock(), threading.Event()
    left_running = False
    try:
        with _signals(stop) as signals, redis_url(settings) as url:
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
                prepared = assembly.prepare(process)
                with assembly.worker(process, prepared, _die) as worker:
                    try:
                        worker.run()
                    finally:
                        left_running = worker.left_running
                report = closing_report(prepared.board, prepared.table, prepared.run, clock=clock)
                code = Exit.COMPLETE
                last_words = report.was_complete() if worker.found_it_complete else report.text()
            except Stopped:
                emit(Draining(signal=signals.name))
                code, last_words = signals.exit_code, f"stopped by {signals.name}; everything begun is saved"
    except BaseException as error:  # noqa: BLE001 - the edge of the process
        code, last_words = end_of(error, has_database_checkpoint=settings.checkpoint == "database")
        if code is Exit.UNEXPECTED:
            logger.opt(exception=error).error("unexpected error")
    _end(code, last_words)
    if left_running or threading.active_count() > 1:
        # A handler that hangs must not keep the process: its thread can be neither stopped nor joined.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _end(code: Exit, last_words: str, *, to_log: bool = True) -> int:
    leave_termination_message(last_words)
    if not to_log:
        print(last_words, file=sys.stderr)
    elif code in (Exit.COMPLETE, Exit.TERMINATED, Exit.INTERRUPTED):
        logger.bind(exit_code=int(code)).info(last_words.replace("{", "{{").replace("}", "}}"))
    else:
        logger.bind(exit_code=int(code)).error(last_words.replace("{", "{{").replace("}", "}}"))
    return code


def _die(lease: Lease) -> None:
    """Called by the sentinel: another worker may hold the slot from now on, and this one could not be stopped."""
    logger.bind(slot=lease.slot).error("the lease is over and its work goes on: this process ends itself")
    leave_termination_message(f"the lease of slot {lease.slot} was lost and its work could not be stopped")
    os._exit(Exit.TRY_AGAIN)


class _Signals:
    """SIGTERM and Ctrl-C begin a drain; a second Ctrl-C ends at once."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self.received: signal.Signals | None = None

    @property
    def name(self) -> str:
        return self.received.name if self.received else "a request"

    @property
    def exit_code(self) -> Exit:
        return Exit.INTERRUPTED if self.received is signal.SIGINT else Exit.TERMINATED

    def handle(self, number: int, _frame: FrameType | None) -> None:
        # Only flags: a log line could meet the lock of one that was interrupted.
        if self.received is signal.SIGINT and number == signal.SIGINT:
            os._exit(Exit.INTERRUPTED)
        self.received = self.received or signal.Signals(number)
        self._stop.set()


@contextlib.contextmanager
def _signals(stop: threading.Event) -> Iterator[_Signals]:
    signals = _Signals(stop)
    before = {number: signal.signal(number, signals.handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
