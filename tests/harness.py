"""Whole workers as processes, on real servers: what the tests of behaviour are written with.

`World` is one MySQL-like database and one Redis of a test; `World.start` runs `shardworker run` as a pod would. The
handlers are in `tests/handlers.py`; they are told by environment variables what to do.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import redis
import sqlalchemy
from sqlalchemy import text

ITEMS = """CREATE TABLE items (id BIGINT NOT NULL PRIMARY KEY, status INT NOT NULL DEFAULT 0,
    payload VARCHAR(200) NOT NULL DEFAULT '')"""
SEEN = {
    "mysql": """CREATE TABLE seen (n BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, row_id DECIMAL(20,0) NOT NULL,
        pod VARCHAR(64) NOT NULL, at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), KEY (row_id))""",
    "postgresql": """CREATE TABLE seen (n BIGSERIAL PRIMARY KEY, row_id DECIMAL(20,0) NOT NULL,
        pod VARCHAR(64) NOT NULL, at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP)""",
    "sqlite": """CREATE TABLE seen (n INTEGER PRIMARY KEY AUTOINCREMENT, row_id DECIMAL(20,0) NOT NULL,
        pod VARCHAR(64) NOT NULL, at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP)""",
}
WAIT_S = 60.0

T = TypeVar("T")


def wait_until(condition: Callable[[], Any], what: str, seconds: float = WAIT_S, every: float = 0.02) -> Any:
    """Waits for a condition and returns what it gave; fails with `what` after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(every)
    raise AssertionError(f"not within {seconds:g} s: {what}")


@contextmanager
def watched(look: Callable[[], T], every: float = 0.005) -> Iterator[list[tuple[float, T]]]:
    """What `look` gives, again and again while the block runs, each with its moment (time.monotonic())."""
    samples: list[tuple[float, T]] = [(time.monotonic(), look())]
    ended = threading.Event()
    failures: list[Exception] = []

    def watch() -> None:
        try:
            while not ended.wait(every):
                samples.append((time.monotonic(), look()))
        except Exception as error:  # raised below, in the thread of the test
            failures.append(error)

    thread = threading.Thread(target=watch, name="watch", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()
    if failures:
        raise failures[0]


def pause(seconds: float) -> None:
    """How long a fault lasts: the one thing for which a test may let time pass and wait for nothing."""
    time.sleep(seconds)


@dataclass
class Pod:
    """A worker process."""

    process: subprocess.Popen[bytes]
    log: Path
    name: str

    def wait(self, seconds: float = WAIT_S) -> int:
        """The exit code (negative: the signal that ended it)."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"{self.name} did not end within {seconds:g} s; its log:\n{self.text()[-4000:]}"
            ) from None

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and gone."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> None:
        self.process.terminate()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        self.send(signal.SIGSTOP)
        try:
            yield
        finally:
            self.send(signal.SIGCONT)

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def lines(self) -> list[dict[str, Any]]:
        """The log as records."""
        return [json.loads(line) for line in self.text().splitlines() if line.startswith("{")]


@dataclass
class World:
    """One database and one Redis, empty at the beginning; pods are ended with the test."""

    database_url: str
    redis_url: str
    folder: Path
    prefix: str = "t"
    pods: list[Pod] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = sqlalchemy.create_engine(self.database_url, isolation_level="AUTOCOMMIT", pool_size=2)
        self.redis: redis.Redis = redis.Redis.from_url(self.redis_url, decode_responses=True)

    # The table ---------------------------------------------------------------------------------------------------
    def sql(self, statement: str, **values: Any) -> list[Any]:
        with self.engine.connect() as connection:
            result = connection.execute(text(statement), values)
            return list(result) if result.returns_rows else []

    def create_items(self, ids: Sequence[int] | range = ()) -> None:
        """The table `items` with these ids, and an empty `seen`."""
        self.sql(ITEMS)
        self.create_seen()
        self.add_items(ids)

    def create_seen(self) -> None:
        self.sql(SEEN[self.engine.dialect.name])

    def add_items(self, ids: Sequence[int] | range) -> None:
        chosen = list(ids)
        with self.engine.connect() as connection:
            for at in range(0, len(chosen), 5000):
                values = ",".join(f"({row_id})" for row_id in chosen[at : at + 5000])
                connection.exec_driver_sql(f"INSERT INTO items (id) VALUES {values}")

    def seen(self) -> list[int]:
        """The ids that handlers were given, in order, with repeats."""
        return [int(row[0]) for row in self.sql("SELECT row_id FROM seen ORDER BY n")]

    def seen_by(self, pod: Pod) -> list[int]:
        """The ids that the handlers of one worker were given, in order."""
        return [int(row[0]) for row in self.sql("SELECT row_id FROM seen WHERE pod = :pod ORDER BY n", pod=pod.name)]

    def repeated(self) -> set[int]:
        return {int(row[0]) for row in self.sql("SELECT row_id FROM seen GROUP BY row_id HAVING COUNT(*) > 1")}

    # Redis -------------------------------------------------------------------------------------------------------
    def key(self, name: str, job: str = "record", run: str = "main") -> str:
        return f"{self.prefix}:{{{job}/{run}}}:{name}"

    def keys(self) -> set[str]:
        return {str(key) for key in self.redis.scan_iter(f"{self.prefix}:*")}

    def checkpoint(self, slot: int | str = 0, job: str = "record") -> int:
        """The saved last id of a slot; of one that is done, its end; -1: none."""
        done = self.redis.hget(self.key("done", job), str(slot))
        if done:
            return int(str(done).split()[1])
        return int(self.redis.hget(self.key(f"slot:{slot}", job), "last_id") or -1)

    def slot_of(self, pod: Pod, job: str = "record") -> str | None:
        """The slot that a worker holds now."""
        for slot in map(str, self.redis.zrange(self.key("open", job), 0, -1)):
            owner = self.redis.hget(self.key(f"slot:{slot}", job), "owner")
            if str(owner).endswith(f"/{pod.process.pid}"):
                return slot
        return None

    def failed(self, job: str = "record", run: str = "main") -> dict[int, dict[str, Any]]:
        """The list of failed rows: id → its record."""
        records: dict[str, str] = self.redis.hgetall(self.key("failed", job, run))  # type: ignore[assignment]
        return {int(row_id): json.loads(record) for row_id, record in records.items()}

    def lease(self, slot: int | str = 0, job: str = "record") -> str | None:
        return self.redis.get(self.key(f"lease:{slot}", job))  # type: ignore[return-value]

    def script(self, name: str) -> bytes:
        """How requests name one of our Lua scripts (its SHA-1); Redis knows it from now on."""
        folder = resources.files("shardworker.claim") / "lua"
        source = (folder / "prelude.lua").read_text() + (folder / f"{name}.lua").read_text()
        return str(self.redis.script_load(source)).encode()

    # Pods --------------------------------------------------------------------------------------------------------
    def environment(self, **variables: object) -> dict[str, str]:
        """A pod's environment: the servers, settings by name (`batch_size=100`), and HANDLER_* for the handlers."""
        settings = {"redis_prefix": self.prefix, "lease": "6s", "batch_size": 100, "slot_size": 1000, "parallelism": 4}
        settings |= variables
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SHARDWORKER_")}
        clean |= {
            "SHARDWORKER_DATABASE_URL": self.database_url,
            "SHARDWORKER_REDIS_URL": self.redis_url,
            "PYTHONPATH": str(Path(__file__).parent.parent),
            "HANDLER_DATABASE_URL": self.database_url,
            "PYTHONUNBUFFERED": "1",
        }
        for name, value in settings.items():
            if value is None:
                clean.pop(f"SHARDWORKER_{name.upper()}", None)
            elif name.isupper():
                clean[name] = str(value)
            else:
                clean[f"SHARDWORKER_{name.upper()}"] = str(value)
        return clean

    def start(self, job: str = "tests.handlers:record", *arguments: str, **variables: object) -> Pod:
        """Starts a worker. Lower-case names are settings, others plain environment variables."""
        return self.command("run", job, *arguments, **variables)

    def command(self, *arguments: str, **variables: object) -> Pod:
        """Starts any command of shardworker."""
        name = f"pod-{len(self.pods)}"
        log = self.folder / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "shardworker", *arguments],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self.environment(HANDLER_POD=name, **variables),
                cwd=self.folder,
            )
        pod = Pod(process, log, name)
        self.pods.append(pod)
        return pod

    def run(self, job: str = "tests.handlers:record", *arguments: str, **variables: object) -> int:
        """Runs a worker to its end; the exit code."""
        return self.start(job, *arguments, **variables).wait()

    def ask(self, *arguments: str, **variables: object) -> tuple[int, str]:
        """Runs a command to its end; exit code and what it printed."""
        pod = self.command(*arguments, **variables)
        return pod.wait(), pod.text()

    def close(self) -> None:
        for pod in self.pods:
            if pod.is_running:
                pod.send(signal.SIGCONT)
                pod.kill()
        self.engine.dispose()
        for key in self.redis.scan_iter(f"{self.prefix}*", count=1000):
            self.redis.delete(key)
        self.redis.close()
