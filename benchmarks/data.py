"""What is measured on: servers of its own, a table of six columns, workers in this process and as processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pymysql
import redis
import sqlalchemy

from benchmarks.jobs import TABLE
from shardworker import config
from shardworker.claim.lease import Lease
from shardworker.cli import assembly
from shardworker.cli.opening import open_database, store_of
from shardworker.clock import SystemClock
from shardworker.events import Emit, ignore
from shardworker.jobs import Job
from shardworker.worker import Worker
from tests import services

BATCH = 10_000
COLUMNS = "id, created_at, amount, name, email, status"
_CREATE = f"""CREATE TABLE {TABLE} (id BIGINT NOT NULL PRIMARY KEY, created_at DATETIME NOT NULL,
    amount DECIMAL(12,2) NOT NULL, name VARCHAR(60) NOT NULL, email VARCHAR(80) NOT NULL, status INT NOT NULL)"""
_FILL = f"""INSERT INTO {TABLE} SELECT seq, '2020-01-01' + INTERVAL seq MINUTE, seq % 100000 / 100,
    CONCAT('Customer number ', seq), CONCAT('customer.', seq, '@example.com'), 0 FROM seq_1_to_{{rows}}"""
_AT_WORK = "--innodb-buffer-pool-size=512M"  # the table fits, as the part in work does on a real server


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The servers, the table with ids from 1 to `rows`, and how much is to be measured."""

    database_url: str
    redis_url: str
    rows: int
    is_quick: bool
    folder: Path

    def few(self, quick: int, full: int) -> int:
        return quick if self.is_quick else full

    def connect(self) -> Any:
        """A plain PyMySQL connection."""
        url = sqlalchemy.make_url(self.database_url)
        return pymysql.connect(
            host=url.host, port=url.port or 3306, user=url.username, password=url.password or "", database=url.database,
            charset="utf8mb4", autocommit=True,
        )  # fmt: skip

    def redis(self) -> redis.Redis:
        return redis.Redis.from_url(self.redis_url, decode_responses=True)

    def variables(self, settings: dict[str, object]) -> dict[str, str]:
        """The environment of a worker: each of its runs has a name of its own."""
        given = {"database_url": self.database_url, "redis_url": self.redis_url, "batch_size": BATCH}
        given |= {"run": f"bench-{time.monotonic_ns()}"} | settings
        return {f"SHARDWORKER_{name.upper()}": str(value) for name, value in given.items()}

    @contextlib.contextmanager
    def worker(self, job: Job[..., Any], settings: dict[str, object], *, emit: Emit = ignore) -> Iterator[Worker]:
        """A worker of a new run in this process, ready to run."""
        checked = config.load(self.variables(settings), job_settings=job.spec.settings, folder=self.folder)
        process = assembly.Process(
            settings=checked,
            job=job,
            store=store_of(checked, self.redis_url),
            engine=open_database(checked),
            clock=SystemClock(),
            emit=emit,
            stop=threading.Event(),
            owner="bench",
        )
        with assembly.worker(process, assembly.prepare(process), _die) as worker:
            yield worker
        process.engine.dispose()

    def seconds_of(self, job: Job[..., Any], **settings: object) -> float:
        """How long one worker in this process takes for a run, from its first pick to its end."""
        with self.worker(job, settings) as worker:
            began = time.perf_counter()
            worker.run()
            return time.perf_counter() - began

    @contextlib.contextmanager
    def process(self, job: str, **settings: object) -> Iterator[subprocess.Popen[bytes]]:
        """A worker as a process; SIGKILL at the end, if it still runs. Its log is the file `log`."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SHARDWORKER_")}
        root = str(Path(__file__).parent.parent)
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "shardworker", "run", f"benchmarks.jobs:{job}"],
                env=clean | self.variables(settings) | {"BENCH_FOLDER": str(self.folder), "PYTHONPATH": root},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def first_row_at(self, process: subprocess.Popen[bytes]) -> float:
        """The moment (`time.monotonic`) at which a process's job `note_first` had its first row; waits for it."""
        note, end = self.folder / str(process.pid), time.monotonic() + 120
        while not note.exists():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the worker had no row; its log:\n{(self.folder / 'log').read_text()[-3000:]}")
            time.sleep(0.005)
        return float(note.read_text())


@contextlib.contextmanager
def bench(*, is_quick: bool) -> Iterator[Bench]:
    """Servers and table, gone at the end. SHARDWORKER_TEST_MARIADB_URL: a server that there is already."""
    rows = 100_000 if is_quick else 1_000_000
    try:
        with contextlib.ExitStack() as stack:
            given = "SHARDWORKER_TEST_MARIADB_URL" in os.environ
            mariadb = services.get("mariadb") if given else stack.enter_context(services.private("mariadb", _AT_WORK))
            store = stack.enter_context(services.private("redis"))
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="shardworker-bench-"))
            url = services.fresh_database(mariadb)
            stack.callback(services.drop_database, url)
            made = Bench(database_url=url, redis_url=store.url, rows=rows, is_quick=is_quick, folder=Path(folder))
            _fill(made)
            yield made
    finally:
        services.stop_all()


def _fill(made: Bench) -> None:
    with contextlib.closing(made.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(_CREATE)
        cursor.execute(_FILL.format(rows=made.rows))
        cursor.execute(f"ANALYZE TABLE {TABLE}")


def _die(lease: Lease) -> NoReturn:
    print(f"the lease of slot {lease.slot} ended during a measurement", file=sys.stderr, flush=True)
    os._exit(75)
