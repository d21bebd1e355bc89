"""How long a slot lies idle when its worker ends: from the signal to the first row of the worker that waited."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator

from benchmarks.data import Bench
from benchmarks.figures import Figure

LEASE_S = 6
RENEWED_S = LEASE_S * 0.7  # by then a lease has been renewed: what is left of it at a SIGKILL is anything but the start


def figures(bench: Bench) -> Iterator[Figure]:
    rounds = bench.few(2, 5)
    killed = max(_idle_s(bench, signal.SIGKILL, rounds, held_s=RENEWED_S))
    yield Figure(figure=f"take-over after SIGKILL, lease {LEASE_S} s", value=killed, unit="s", goal=LEASE_S + 2)
    stopped = max(_idle_s(bench, signal.SIGTERM, rounds, held_s=0))
    yield Figure(figure="take-over after SIGTERM", value=stopped, unit="s", goal=2)


def _idle_s(bench: Bench, number: signal.Signals, rounds: int, *, held_s: float) -> list[float]:
    """One slot, and a chain of workers: each is ended, `held_s` after its first row or later, while the next waits."""
    settings = {"lease": f"{LEASE_S}s", "slot_size": bench.rows, "batch_size": 100, "run": f"ended-by-{number.name}"}
    idle = []
    with contextlib.ExitStack() as processes:
        holder = processes.enter_context(bench.process("note_first", **settings))
        holds_since = bench.first_row_at(holder)
        for _ in range(rounds):
            said = _waiting(bench)
            heir = processes.enter_context(bench.process("note_first", **settings))
            while _waiting(bench) == said or time.monotonic() < holds_since + held_s:
                time.sleep(0.02)
            ended_at = time.monotonic()
            holder.send_signal(number)
            holds_since = bench.first_row_at(heir)
            idle.append(holds_since - ended_at)
            holder.wait()
            holder = heir
    return idle


def _waiting(bench: Bench) -> int:
    """How often workers have said that they wait."""
    return (bench.folder / "log").read_text().count("waiting;")
