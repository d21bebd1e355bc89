"""`shardworker status`: how far a run is, or one line for each run under the prefix. Needs Redis and nothing else."""

from __future__ import annotations

import argparse
import threading

import redis

from shardworker import config
from shardworker.claim.keys import Keys
from shardworker.claim.look import OpenSlot, runs
from shardworker.cli.ending import command
from shardworker.cli.opening import (
    for_a_look,
    job_name,
    load_settings,
    open_logs,
    redis_url,
    store_of,
    store_patience,
)
from shardworker.cli.printing import print_facts, print_json, print_table
from shardworker.clock import SystemClock
from shardworker.errors import ConfigurationError
from shardworker.run.status import RunStatus, run_status

CLOCK = SystemClock()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", nargs="?", help="the job's name, or package.module:name; all runs if not given")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def main(arguments: argparse.Namespace) -> int:
    return command(lambda: _status(arguments))


def _status(arguments: argparse.Namespace) -> int:
    settings = for_a_look(load_settings(arguments.options, arguments.job))
    job = job_name(settings) if settings.job else None
    emit = open_logs(settings, job or "-")
    with redis_url(settings, may_be_new=False) as url:
        patience = store_patience(settings, CLOCK, emit, threading.Event())
        client = store_of(settings, url).client(timeout_s=5.0)
        try:
            if job is not None:
                return _show_one(patience.call(lambda: the_run(client, settings, job)), as_json=arguments.json)
            return _show_all(patience.call(lambda: _all_runs(client, settings)), settings, as_json=arguments.json)
        finally:
            client.close()


def the_run(client: redis.Redis, settings: config.Settings, job: str) -> RunStatus:
    """
    Raises:
        ConfigurationError: there is no such run.
    """
    keys = Keys(settings.redis_prefix, job, settings.run)
    status = run_status(client, keys, CLOCK)
    if status is None:
        raise ConfigurationError(
            f"there is no run {settings.run!r} of job {job!r} under the prefix {settings.redis_prefix!r} (no key "
            f"{keys['meta']}): it was never started, was reset, or has expired; `shardworker status` without a job "
            "lists all runs; see SHARDWORKER_RUN and SHARDWORKER_REDIS_PREFIX"
        )
    return status


def _all_runs(client: redis.Redis, settings: config.Settings) -> list[RunStatus]:
    names = sorted(set(runs(client, settings.redis_prefix)))
    found = (run_status(client, Keys(settings.redis_prefix, job, run), CLOCK) for job, run in names)
    return [status for status in found if status is not None]


def _show_one(status: RunStatus, *, as_json: bool) -> int:
    if as_json:
        print_json(status.data())
        return 0
    print_facts([("run", f"{status.run} of {status.job}"), *status.facts()])
    if status.workers:
        print()
        print_table(("worker", "slot", "ids", "saved up to", "lease"), [_worker_row(held) for held in status.workers])
    if status.parked_slots:
        print()
        print_table(
            ("parked", "ids", "saved up to", "why"),
            [(p.slot, _range(p.first, p.last), _or_dash(p.last_id), p.why) for p in status.parked_slots],
        )
    return 0


def _worker_row(held: OpenSlot) -> tuple[str, ...]:
    lease = f"{(held.lease_ms or 0) / 1000:.1f} s"
    return held.owner, held.slot, _range(held.first, held.last), _or_dash(held.last_id), lease


def _range(first: int | None, last: int | None) -> str:
    return "-" if first is None else f"{first}..{last}"


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)


def _show_all(found: list[RunStatus], settings: config.Settings, *, as_json: bool) -> int:
    if as_json:
        print_json({"runs": [status.data() for status in found]})
    elif not found:
        print(f"no runs under the prefix {settings.redis_prefix!r}")
    else:
        print_table(
            ("job", "run", "state", "rows", "slots done", "failed rows", "created"),
            [
                (
                    status.job,
                    status.run,
                    status.state_in_words(),
                    f"{status.rows:,}",
                    f"{status.done + status.empty:,}/{status.slots:,}",
                    f"{status.failed_rows:,}",
                    status.created_at.isoformat(sep=" ", timespec="seconds") if status.created_at else "-",
                )
                for status in found
            ],
        )
    return 0
