"""Opens what the commands need: settings, job, database, Redis. Everything is checked before anything is claimed."""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from shardworker import config
from shardworker.claim.board import Board
from shardworker.claim.connect import connect, passing_code
from shardworker.claim.keys import Keys
from shardworker.clock import Clock
from shardworker.errors import ConfigurationError, DatabaseUnavailable, StoreUnavailable
from shardworker.events import Emit
from shardworker.jobs import Job, load
from shardworker.observe.logs import configure
from shardworker.observe.narrate import narrator
from shardworker.process import database
from shardworker.retry import Patience

LOCAL_FOLDER = Path(".shardworker")
REPLIES_IN_A_LEASE = 6  # a time-out of a request leaves time for others before the lease ends
SLOWEST_REPLY_IN_A_LEASE = 10
LONGEST_LOOK_S = 10.0  # for which `status`, `check` and their like wait for a server


def load_settings_and_job(options: Mapping[str, str], job_path: str | None) -> tuple[config.Settings, Job[..., Any]]:
    """Settings and job, with the problems of both in one error."""
    given = dict(options) | ({"job": job_path} if job_path else {})
    problems: list[str] = []
    settings: config.Settings | None = None
    try:
        settings = config.load(os.environ, options=given)
    except ConfigurationError as error:
        problems += error.problems
    path = settings.job if settings else given.get("job") or os.environ.get("SHARDWORKER_JOB")
    job: Job[..., Any] | None = None
    if not path:
        problems.append("SHARDWORKER_JOB is not given: name the job as `package.module:name`")
    else:
        try:
            job = load(path)
        except ConfigurationError as error:
            problems += error.problems
    if problems or settings is None or job is None:
        raise ConfigurationError(*problems)
    return config.load(os.environ, options=given, job_settings=job.spec.settings), job


def load_settings(options: Mapping[str, str], job_path: str | None) -> config.Settings:
    """The settings, for commands that need no code of the job."""
    return config.load(os.environ, options=dict(options) | ({"job": job_path} if job_path else {}))


def job_name(settings: config.Settings) -> str:
    """The job's own name; of `package.module:name` the code is asked.

    Raises:
        ConfigurationError: no job is given.
        JobNotFound: there is no such code here.
    """
    if settings.job is None:
        raise ConfigurationError("name the job: its own name (`clean`), or `package.module:name` where its code is")
    return load(settings.job).name if ":" in settings.job else settings.job


def for_a_look(settings: config.Settings) -> config.Settings:
    """For commands that only look: somebody waits for the answer, so outages are not waited out for minutes."""
    return settings.model_copy(update={"retry_for_s": min(settings.retry_for_s, LONGEST_LOOK_S)})


def open_logs(settings: config.Settings, job: str = "-") -> Emit:
    """For commands whose standard output is their answer: what they wait for and retry stands on standard error."""
    log_format = "text" if settings.log_format == "auto" else settings.log_format
    configure(settings.log_level, log_format, sys.stderr, secrets=settings.passwords())
    return narrator(job, settings.run)


@contextlib.contextmanager
def redis_url(settings: config.Settings, *, may_be_new: bool = True) -> Iterator[str]:
    """The URL of Redis; with SQLite and none given, that of the local server, which runs while somebody uses it.

    Raises:
        ConfigurationError: `may_be_new` is False, and no local server has been here yet.
    """
    if settings.redis_url is not None:
        yield settings.redis_url.get_secret_value()
        return
    if not may_be_new and not LOCAL_FOLDER.is_dir():
        raise ConfigurationError(
            f"there is no run here: SHARDWORKER_REDIS_URL is not given, and {LOCAL_FOLDER.resolve()}, the folder of a "
            "local server, does not exist"
        )
    from shardworker.local.server import LocalServer

    with LocalServer(LOCAL_FOLDER) as url:
        yield url


@dataclass(frozen=True, slots=True)
class Store:
    """How this process reaches Redis."""

    url: str
    password: str | None
    lease_s: float

    def client(self, timeout_s: float | None = None) -> redis.Redis:
        """A client of its own; by default replies may take a sixth of the lease."""
        return connect(self.url, password=self.password, timeout_s=timeout_s or self.lease_s / REPLIES_IN_A_LEASE)

    def board(self, keys: Keys, *, uid: str = "", timeout_s: float | None = None) -> Board:
        return Board(self.client(timeout_s), keys, uid=uid)


def store_of(settings: config.Settings, url: str) -> Store:
    password = settings.redis_password.get_secret_value() if settings.redis_password else None
    return Store(url, password, settings.lease_s)


def open_database(settings: config.Settings) -> Any:
    """The engine; nothing is connected yet."""
    if settings.database_url.family == "sqlite" and settings.origin("DATABASE_URL").source == "default":
        LOCAL_FOLDER.mkdir(exist_ok=True)
    return database.open_engine(
        settings.database_url.get_secret_value(),
        password=settings.database_password.get_secret_value() if settings.database_password else None,
        connections=settings.db_connections,
        # A frozen holder with an open transaction must not block its successor for hours.
        idle_limit_s=2 * settings.lease_s if settings.checkpoint == "database" else None,
    )


def database_patience(settings: config.Settings, clock: Clock, emit: Emit, stop: threading.Event) -> Patience:
    return Patience(
        target="database",
        setting="SHARDWORKER_DATABASE_URL",
        code_of=database.passing_code,
        error=DatabaseUnavailable,
        retry_for_s=settings.retry_for_s,
        clock=clock,
        emit=emit,
        stop=stop,
    )


def store_patience(settings: config.Settings, clock: Clock, emit: Emit, stop: threading.Event) -> Patience:
    return Patience(
        target="redis",
        setting="SHARDWORKER_REDIS_URL",
        code_of=passing_code,
        error=StoreUnavailable,
        retry_for_s=settings.retry_for_s,
        clock=clock,
        emit=emit,
        stop=stop,
        longest_wait_s=2.0,
    )


def check_store(store: Store, clock: Clock, patience: Patience) -> None:
    """
    Raises:
        ConfigurationError: replies are too slow for the lease, or Redis refuses the password.
        StoreUnavailable: it cannot be reached.
    """
    client = store.client(timeout_s=max(5.0, store.lease_s / REPLIES_IN_A_LEASE))

    def ping() -> float:
        began = clock.now()
        client.ping()
        return clock.now() - began

    try:
        patience.call(ping)
        reply_s = statistics.median(patience.call(ping) for _ in range(5))
    except redis.RedisError as error:
        raise ConfigurationError(
            f"Redis refuses this client ({type(error).__name__}: {error}); see SHARDWORKER_REDIS_URL and "
            "SHARDWORKER_REDIS_PASSWORD"
        ) from error
    finally:
        client.close()
    if reply_s > store.lease_s / SLOWEST_REPLY_IN_A_LEASE:
        raise ConfigurationError(
            f"SHARDWORKER_LEASE={config.duration(store.lease_s)} is too short to be renewed in time: Redis takes "
            f"{reply_s:.2f} s to answer; at least {config.duration(float(round(reply_s * 30) + 1))} would do"
        )
