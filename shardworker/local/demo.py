"""`shardworker demo`: three real workers on one SQLite table, one of them killed on the way, and a proof by counting.

What is told of the workers is read from their own log lines; the proof is counted in the tables (`demo_job.count`).
Everything lies in one folder, where the workers use what they use by default: `.shardworker/data.db`, and the local
server beside it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardworker.clock import Clock
from shardworker.local import demo_job
from shardworker.local.demo_job import Proof

WORKERS = 3
FEWEST_ROWS = 1_000
LEASE_S = 6.0  # short, so that one does not wait long for the killed worker's slot; long against a busy machine
MOST_ROWS_IN_A_BATCH = 500
BATCHES = 400  # so many of them in a table of up to 200,000 rows
PARALLELISM = 4
KILL_AT = 1 / 3  # of the rows are handled
MIDDLE = (0.1, 0.6)  # shares of a slot: a worker that has done so much of it holds it, and will not finish at once
LOOK_S = 0.02
END_S = 10.0

Tell = Callable[[str], None]
Show = Callable[[int], None]  # rows handled so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    proof: Proof
    most_repeated: int
    was_killed: bool
    exit_codes: Sequence[int]  # of the workers that were not killed

    @property
    def is_proven(self) -> bool:
        all_done = self.proof.missing == 0 and self.proof.handled == self.proof.rows
        return all_done and self.proof.repeated <= self.most_repeated and self.was_killed and not any(self.exit_codes)


def run(folder: Path, rows: int, *, clock: Clock, tell: Tell, show: Show) -> Outcome:
    """Makes the table, lets the workers do it, kills one, and counts."""
    data = folder / ".shardworker" / "data.db"
    data.parent.mkdir()
    demo_job.make_table(data, rows)
    typed = demo_job.messy_address(1)
    tell(f"{rows:,} orders with messy addresses, such as {typed!r}, which shall be {demo_job.tidy(typed)!r}")
    batch_size = max(1, min(MOST_ROWS_IN_A_BATCH, rows // BATCHES))
    with _started(folder, batch_size) as workers:
        tell(f"{WORKERS} workers started: {_names(workers)}; batches of {batch_size} rows, leases of {LEASE_S:g} s")
        watched = _Watched(workers, clock=clock, tell=tell)
        while any(worker.is_running for worker in workers):
            watched.look()
            done = demo_job.handled_so_far(data)
            show(min(done, rows))
            if watched.killed is None and done >= rows * KILL_AT:
                watched.kill_one_in_the_middle()
            clock.wait(threading.Event(), LOOK_S)
        watched.look()
    if watched.killed is None:
        tell("no worker could be killed on the way: this proves nothing")
    return Outcome(
        proof=demo_job.count(data),
        most_repeated=2 * batch_size,
        was_killed=watched.killed is not None,
        exit_codes=[worker.exit_code for worker in workers if worker is not watched.killed],
    )


def _names(workers: Sequence[_Worker]) -> str:
    return ", ".join(f"{worker.name} (pid {worker.pid})" for worker in workers)


@contextmanager
def _started(folder: Path, batch_size: int) -> Iterator[Sequence[_Worker]]:
    workers = [_Worker(f"worker {number}", folder, batch_size) for number in range(1, WORKERS + 1)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """A `shardworker run`, and what it says of itself."""

    def __init__(self, name: str, folder: Path, batch_size: int) -> None:
        self.name = name
        log = folder / f"{name.replace(' ', '-')}.log"
        settings = {
            "--lease": f"{LEASE_S:g}s",
            "--batch-size": batch_size,
            "--part-size": max(1, batch_size // 2),
            "--parallelism": PARALLELISM,
            "--log-level": "DEBUG",
            "--log-format": "json",
        }
        # The settings of whoever tries this belong to other tables.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SHARDWORKER_")}
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "shardworker", "run", f"{demo_job.__name__}:clean_addresses"),
                    *(str(word) for setting in settings.items() for word in setting),
                ],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self._log = log.open("rb")
        self._unfinished_line = b""
        self.slot: dict[str, Any] | None = None  # the line by which it claimed the one that it works on
        self.last_id: int | None = None  # saved of it
        self.last_words = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int:
        return self._process.wait()

    @property
    def is_in_the_middle(self) -> bool:
        if self.slot is None or self.last_id is None:
            return False
        share = (self.last_id - self.slot["first"]) / (self.slot["last"] - self.slot["first"] + 1)
        return bool(MIDDLE[0] <= share <= MIDDLE[1])

    def new_lines(self) -> Iterator[dict[str, Any]]:
        """What it has logged since the last call."""
        *lines, self._unfinished_line = (self._unfinished_line + self._log.read()).split(b"\n")
        for line in lines:
            self.last_words = line.decode(errors="replace")
            if line.startswith(b"{"):
                said = json.loads(line)
                self.last_words = said["message"]
                self._follow(said)
                yield said

    def _follow(self, said: dict[str, Any]) -> None:
        if said["message"].startswith("claimed"):
            self.slot, self.last_id = said, said.get("last_id")
        elif said["message"] == "batch done":
            self.last_id = said["last_id"]
        elif said["message"] == "finished":
            self.slot = None

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        """Does nothing to one that has ended."""
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


class _Watched:
    """The workers, and the story of the killed one and of its slot."""

    def __init__(self, workers: Sequence[_Worker], *, clock: Clock, tell: Tell) -> None:
        self._workers = workers
        self._clock = clock
        self._tell = tell
        self._ended: set[str] = set()
        self._killed_at = 0.0
        self.killed: _Worker | None = None

    def look(self) -> None:
        for worker in self._workers:
            is_running = worker.is_running  # before its log is read: the last words are in it
            for said in worker.new_lines():
                self._tell_of_resumption(worker, said)
            if not is_running and worker is not self.killed and worker.name not in self._ended:
                self._ended.add(worker.name)
                self._tell(f"{worker.name} ended with exit code {worker.exit_code}: {worker.last_words}")

    def _tell_of_resumption(self, worker: _Worker, said: dict[str, Any]) -> None:
        lost = self.killed.slot if self.killed else None
        if lost is not None and said["message"].startswith("claimed") and said["slot"] == lost["slot"]:
            after_s = self._clock.now() - self._killed_at
            self._tell(
                f"{worker.name} resumed slot {said['slot']} after id {said.get('last_id')}, {after_s:.1f} s after the "
                "kill (the lease had to end first)"
            )

    def kill_one_in_the_middle(self) -> None:
        """Kills a worker that holds a slot, part of which is done and saved; or nobody, if none does just now."""
        for worker in self._workers:
            if worker.is_running and worker.is_in_the_middle:
                worker.send(signal.SIGSTOP)  # what its log says now stays true
                for _ in worker.new_lines():
                    pass
                if worker.is_in_the_middle:
                    worker.send(signal.SIGKILL)
                    self._remember(worker)
                    return
                worker.send(signal.SIGCONT)

    def _remember(self, worker: _Worker) -> None:
        assert worker.slot is not None
        self.killed, self._killed_at = worker, self._clock.now()
        self._tell(
            f"{worker.name} killed with SIGKILL in slot {worker.slot['slot']} (ids {worker.slot['first']} to "
            f"{worker.slot['last']}), done and saved up to id {worker.last_id}"
        )
