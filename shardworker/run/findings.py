"""What would go wrong with a job, found before it does: what `run` refuses, and what is only doubtful."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import redis
import sqlalchemy

from shardworker.errors import ConfigurationError, ShardworkerError, Unavailable
from shardworker.handler import JobSpec
from shardworker.process.server import connections, is_read_only
from shardworker.process.table import Table
from shardworker.run.plan import Plan

FARTHEST_CLOCK_S = 1.0
_LARGE = re.compile(r"(?!TINY).*(TEXT|BLOB|CLOB|JSON|BYTEA|XML)")  # by name: the dialects' types have no common parent
FEWEST_ROWS_TO_MATTER = 10_000  # below, servers rightly sort instead of walking an index


class Severity(Enum):
    FATAL = "fatal"  # `run` refuses
    UNREACHABLE = "unreachable"  # `run` would wait for RETRY_FOR and end with 69
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    text: str  # what it is, and what to do


def refusals(step: Callable[[], object]) -> list[Finding]:
    """What a step of `run`'s start refuses; empty: it passes."""
    try:
        step()
    except ConfigurationError as error:
        return [Finding(Severity.FATAL, problem) for problem in error.problems]
    except Unavailable as error:
        return [Finding(Severity.UNREACHABLE, str(error))]
    except ShardworkerError as error:
        return [Finding(Severity.FATAL, str(error))]
    return []


def _warn(text: str) -> Finding:
    return Finding(Severity.WARNING, text)


# Redis -----------------------------------------------------------------------------------------------------------
def of_redis(client: redis.Redis, wall: Callable[[], float] = time.time) -> Iterator[Finding]:
    """Where Redis may lose claims and checkpoints, or is a replica."""
    try:
        info: dict[str, Any] = dict(client.info())
    except redis.ResponseError as error:
        yield _warn(f"Redis does not let this user see INFO ({error}): eviction, persistence and role are unknown")
        info = {}
    policy = info.get("maxmemory_policy")
    if policy not in (None, "noeviction"):
        yield _warn(
            f"Redis has maxmemory-policy {policy}: when memory is short it may evict the state of a run, which then "
            "must be begun again. Set maxmemory-policy noeviction, or use a Redis of its own"
        )
    if info and not int(info.get("aof_enabled", 0)) and not _makes_snapshots(client):
        yield _warn(
            "Redis keeps nothing on disk (appendonly no, save ''): after a restart every run is lost. Set appendonly "
            "yes, or use SHARDWORKER_CHECKPOINT=database"
        )
    if info and info.get("role") not in (None, "master"):
        yield _warn(
            f"this Redis is a {info['role']}, which refuses writes: name the master in SHARDWORKER_REDIS_URL, or the "
            "sentinels (redis+sentinel://)"
        )
    yield from _of_clock(client, wall)


def _makes_snapshots(client: redis.Redis) -> bool:
    try:
        found: Any = client.config_get("save")
        return bool(str(found.get("save", "")).strip())
    except redis.ResponseError:
        return True  # managed servers hide it; taken as configured by those who run them


def _of_clock(client: redis.Redis, wall: Callable[[], float]) -> Iterator[Finding]:
    before = wall()
    seconds, microseconds = (int(part) for part in client.time())
    after = wall()
    off_s = seconds + microseconds / 1e6 - (before + after) / 2
    if abs(off_s) > FARTHEST_CLOCK_S + (after - before) / 2:
        yield _warn(
            f"the clocks of Redis and of this machine differ by {abs(off_s):.1f} s: leases do not depend on it, but "
            "times in `status` and the rate are wrong by as much; run NTP on both"
        )


# The database ----------------------------------------------------------------------------------------------------
def of_database(engine: sqlalchemy.Engine, *, connections_each: int, workers: int) -> Iterator[Finding]:
    if is_read_only(engine):
        yield _warn(
            "the database is read-only (a replica?): changes cannot be written, and a replica that lags ends slots "
            "before their last rows. Name the primary in SHARDWORKER_DATABASE_URL"
        )
    found = connections(engine)
    if found is not None and connections_each * workers > found.free:
        yield _warn(
            f"{workers} workers with SHARDWORKER_DB_CONNECTIONS={connections_each} need {connections_each * workers} "
            f"connections, but of the server's {found.most} only {found.free} are free: start at most "
            f"{found.free // connections_each} workers, lower DB_CONNECTIONS, or raise max_connections"
        )


def of_table(table: Table, plan: Plan) -> Iterator[Finding]:
    large = _large_columns(table.columns)
    if table.spec.columns is None and large:
        yield _warn(
            f"every column of {table.columns.fullname} is read, and {', '.join(large)} may be large: name the columns "
            "that the function needs, @job(columns=[...])"
        )
    if plan.rows >= FEWEST_ROWS_TO_MATTER and _sorts(table.engine.dialect.name, plan.explained):
        yield _warn(
            f"the server does not walk the index of key {table.key!r} for where={table.spec.where!r}: each batch may "
            "read and sort many rows again. Its plan: " + " | ".join(plan.explained)
        )


def _large_columns(columns: sqlalchemy.Table) -> list[str]:
    return [column.name for column in columns.c if _LARGE.match(type(column.type).__name__.upper())]


def _sorts(dialect: str, explained: list[str]) -> bool:
    text = "\n".join(explained)
    match dialect:
        case "mysql":
            return "; key: None;" in text or "filesort" in text
        case "postgresql":
            return "Sort" in text
        case _:
            return "TEMP B-TREE" in text or text.startswith("SCAN")


# The job ---------------------------------------------------------------------------------------------------------
def of_job(spec: JobSpec, *, parallelism: int, connections_each: int) -> Iterator[Finding]:
    if spec.wants_context and parallelism > connections_each:
        yield _warn(
            f"the function takes ctx: if it uses ctx.engine, {parallelism} threads (SHARDWORKER_PARALLELISM) share "
            f"{connections_each} connections (SHARDWORKER_DB_CONNECTIONS) and wait for each other; raise "
            f"DB_CONNECTIONS to about {parallelism + 2}"
        )
