"""What shardworker costs: time against plain loops, commands to Redis, memory, time to start."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from benchmarks import jobs
from benchmarks.data import BATCH, COLUMNS, Bench
from benchmarks.figures import Figure, paired_ratio, seconds
from shardworker.claim.board import Board, Claimed, Picked
from shardworker.claim.keys import Keys
from shardworker.claim.slots import SlotMap
from shardworker.events import BatchDone, Event
from shardworker.ids import IdRange

PARALLELISM = 64


def figures(bench: Bench) -> Iterator[Figure]:
    yield from start(bench)
    yield scan(bench)
    yield changes(bench)
    yield sleeping(bench, "20,000 rows of 5 ms, parallelism 64", jobs.sleep, jobs.SLEEPING_ROWS * jobs.ROW_S)
    slow = len(jobs.SLOW_IDS)
    work_s = slow * jobs.SLOW_ROW_S + (jobs.SLEEPING_ROWS - slow) * jobs.ROW_S
    yield sleeping(bench, "the same, 1 % of the rows 100 ms", jobs.sleep_with_tail, work_s)
    yield redis_commands(bench)
    yield from last_claim(bench)
    yield from memory(bench)


# Against a plain loop ------------------------------------------------------------------------------------------------
def plain_loop(connection: Any, last: int, update: str | None = None) -> None:
    """What one writes without any tool: a page, the next page, and perhaps one UPDATE for each."""
    cursor, after = connection.cursor(), 0
    while after < last:
        cursor.execute(
            f"SELECT {COLUMNS} FROM {jobs.TABLE} WHERE id > %s AND id <= %s ORDER BY id LIMIT %s", (after, last, BATCH)
        )
        rows = cursor.fetchall()
        if not rows:
            break
        if update is not None:
            ids = ",".join(str(row[0]) for row in rows)
            cursor.execute(f"UPDATE {jobs.TABLE} SET {update} WHERE id IN ({ids})")
        after = rows[-1][0]


def scan(bench: Bench) -> Figure:
    with contextlib.closing(bench.connect()) as connection:
        ratio = paired_ratio(
            lambda: bench.seconds_of(jobs.nothing),
            lambda: seconds(lambda: plain_loop(connection, bench.rows)),
            rounds=bench.few(3, 5),
        )
    return Figure(figure="no-op part handler against a plain loop", value=ratio, unit="of its time", goal=0.90)


def changes(bench: Bench) -> Figure:
    last = bench.few(100_000, 200_000)

    def ours() -> float:
        jobs.status += 1
        return bench.seconds_of(jobs.set_status, last_id=last)

    def plain() -> float:
        jobs.status += 1
        return seconds(lambda: plain_loop(connection, last, f"status = {jobs.status}"))

    with contextlib.closing(bench.connect()) as connection:
        ratio = paired_ratio(ours, plain, rounds=bench.few(3, 7))
    return Figure(figure=f"changes of {last:,} rows against a plain loop", value=ratio, unit="of its time", goal=0.90)


def sleeping(bench: Bench, name: str, job: Any, work_s: float) -> Figure:
    best_s = max(work_s / PARALLELISM, jobs.SLOW_ROW_S)
    took = [
        bench.seconds_of(job, last_id=jobs.SLEEPING_ROWS, parallelism=PARALLELISM) / best_s
        for _ in range(bench.few(3, 5))
    ]
    return Figure(figure=name, value=statistics.median(took), unit="of the best time", goal=1.10)


# Redis ---------------------------------------------------------------------------------------------------------------
class Monitor:
    """The commands that clients send to Redis between two marks; those inside scripts are not among them."""

    def __init__(self, bench: Bench) -> None:
        self._client = bench.redis()
        self._marks = bench.redis()
        self._seen: list[str] = []
        self._is_listening = threading.Event()
        self._thread = threading.Thread(target=self._listen)

    def __enter__(self) -> Monitor:
        self._thread.start()
        self._is_listening.wait()
        return self

    def __exit__(self, *_error: object) -> None:
        self.mark("end")
        self._thread.join()
        self._client.close()
        self._marks.close()

    def mark(self, name: str) -> None:
        self._marks.echo(f"mark {name}")

    def between(self, first: str, last: str) -> int:
        at = self._seen.index(f"mark {first}")
        return self._seen.index(f"mark {last}", at) - at - 1

    def _listen(self) -> None:
        with self._client.monitor() as monitor:  # type: ignore[no-untyped-call]
            self._is_listening.set()
            for seen in monitor.listen():
                if seen["client_type"] != "lua":
                    self._seen.append(str(seen["command"]).removeprefix("ECHO "))
                if self._seen and self._seen[-1] == "mark end":
                    return


def redis_commands(bench: Bench) -> Figure:
    """From the first save of the only slot to the last but one: after the very last there may be only the finish."""
    batch, saved = bench.few(2_000, BATCH), list[int]()

    def mark_saves(event: Event) -> None:
        if isinstance(event, BatchDone):
            saved.append(event.rows)
            monitor.mark(f"save {len(saved)}")

    settings: dict[str, object] = {"slot_size": bench.rows, "batch_size": batch, "lease": "6s"}
    with bench.worker(jobs.nothing, settings, emit=mark_saves) as worker, Monitor(bench) as monitor:
        worker.run()
    between = saved[1:-1]
    commands = monitor.between("save 1", f"save {len(saved) - 1}") - (len(between) - 1)  # less the marks
    value = commands / (sum(between) / batch)
    return Figure(figure="Redis commands inside a slot, with renewals", value=value, unit="a batch", goal=1.1)


def last_claim(bench: Bench) -> Iterator[Figure]:
    """The last of 100,000 slots, the others done: as the scripts leave them, but written at once."""
    client, slots = bench.redis(), 100_000
    board = Board(client, Keys("bench", "claim", "main"))
    slot_map = SlotMap.even(IdRange(1, 10 * slots), 10)
    board.create({"segments": slot_map.encode(), "slots": str(slots), "frontier": str(slots - 1)})
    for at in range(0, slots - 1, 10_000):
        some = range(at, min(at + 10_000, slots - 1))
        done: Any = {str(n): f"{10 * n + 1} {10 * n + 10} 0,10,0,0,0,0,0 token" for n in some}
        client.hset(board.keys["done"], mapping=done)

    def claim() -> None:
        picked = board.pick(provisional_ms=10_000, keep_ms=60_000)
        assert isinstance(picked, Picked)
        bounds = slot_map.range_of(int(picked.slot))
        found = board.try_claim(picked, token="t", ttl_ms=30_000, bounds=bounds, owner="bench", attempts=1_000)
        assert isinstance(found, Claimed)
        assert found.slot == str(slots - 1)

    def forget() -> None:
        client.hset(board.keys["meta"], "frontier", str(slots - 1))
        client.delete(board.keys["open"], board.keys.slot(str(slots - 1)), board.keys.lease(str(slots - 1)))

    took = []
    for _ in range(200):
        took.append(seconds(claim))
        forget()
    with Monitor(bench) as monitor:
        monitor.mark("begin")
        claim()
    trips = monitor.between("begin", "end")
    yield Figure(figure="claim of the last of 100,000 slots", value=trips, unit="round trips", goal=3)
    ms = statistics.median(took) * 1000
    yield Figure(figure="claim of the last of 100,000 slots", value=ms, unit="ms", goal=2)


# Processes -----------------------------------------------------------------------------------------------------------
def memory(bench: Bench) -> Iterator[Figure]:
    """Of a worker that does all rows, and against that of one which does a tenth of them."""
    few, all_rows = (_peak_mb(bench, last_id=last) for last in (bench.rows // 10, bench.rows))
    yield Figure(figure="peak memory of a worker, batch 1,000", value=all_rows, unit="MB", goal=90)
    name = f"the same after {bench.rows:,} rows against {bench.rows // 10:,}"
    yield Figure(figure=name, value=all_rows / few, unit="of it", goal=1.05)


def _peak_mb(bench: Bench, **settings: object) -> float:
    """VmHWM when the process was last seen; it only grows."""
    peak_kb = 0
    with bench.process("nothing", batch_size=1000, **settings) as process:
        while process.poll() is None:
            with contextlib.suppress(OSError):  # it ends between two looks
                lines = open(f"/proc/{process.pid}/status").read().splitlines()  # noqa: SIM115
                peak_kb = next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), peak_kb)
            time.sleep(0.005)
        if process.returncode:
            raise RuntimeError(f"the worker ended with {process.returncode}:\n{(bench.folder / 'log').read_text()}")
    return peak_kb / 1024


def start(bench: Bench) -> Iterator[Figure]:
    """Of commands as a shell starts them, bytecode already there."""
    rounds = bench.few(3, 7)
    command = [sys.executable, "-m", "shardworker", "--help"]
    took = [seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)) for _ in range(rounds)]
    yield Figure(figure="start of shardworker --help", value=statistics.median(took), unit="s", goal=0.5)
    took = []
    for _ in range(rounds):
        began = time.monotonic()
        with bench.process("note_first") as process:
            took.append(bench.first_row_at(process) - began)
    yield Figure(figure="start of a worker, to its first row", value=statistics.median(took), unit="s", goal=1.5)
