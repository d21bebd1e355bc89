"""`shardworker run`: one worker, from its settings to its exit code."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
from contextlib import AbstractContextManager

from shardworker.claim import look
from shardworker.cli import assembly
from shardworker.cli.ending import end_of, leave_termination_message
from shardworker.cli.opening import load_settings_and_job, open_database, redis_url, store_of
from shardworker.cli.signals import die, draining
from shardworker.clock import SystemClock
from shardworker.errors import ConfigurationError, Exit, Stopped
from shardworker.events import Draining
from shardworker.observe.logs import configure, logger
from shardworker.observe.narrate import narrator
from shardworker.observe.progress import Progress, current_output
from shardworker.run.plan import estimated_rows_in
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
        current_output(),
        secrets=settings.passwords(),
        fields={"job": job.name, "run": settings.run},
    )
    clock, stop = SystemClock(), threading.Event()
    progress = Progress(narrator(job.name, settings.run), clock)
    emit = progress.emit
    left_running = False
    try:
        with draining(stop) as signals, redis_url(settings) as url:
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
                with assembly.worker(process, prepared, die) as worker, _shown(progress, process, prepared):
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


def _shown(progress: Progress, process: assembly.Process, prepared: assembly.Prepared) -> AbstractContextManager[None]:
    job, run, table = process.job, prepared.run, prepared.table
    client = process.store.client()  # its own: a look must not wait for a worker's request, nor a worker for it
    return progress.shown(
        lambda: look.progress(client, process.keys),
        lambda: None if job.spec.where else estimated_rows_in(table, run.slot_map.bounds),
        title=f"{job.name}/{process.settings.run}",
    )


def _end(code: Exit, last_words: str, *, to_log: bool = True) -> int:
    leave_termination_message(last_words)
    if not to_log:
        print(last_words, file=sys.stderr)
    elif code in (Exit.COMPLETE, Exit.TERMINATED, Exit.INTERRUPTED):
        logger.bind(exit_code=int(code)).info(last_words)
    else:
        logger.bind(exit_code=int(code)).error(last_words)
    return code
