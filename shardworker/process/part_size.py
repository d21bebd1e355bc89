"""How many rows a part has."""

from __future__ import annotations

import threading

from shardworker.handler import Each

SHORTEST_PART_S = 0.010  # long against the cost of handing a part out (20 µs), short against a tail of slow rows
LONGEST_PART_S = 0.200
WRITES_IN_A_PART = 4  # handlers take at least so many times as long as the statement that writes their changes
PARTS_FOR_A_THREAD = 4  # in a batch, so that uneven parts even out


class PartSize:
    """Rows in the next part. For row handlers it follows the time that their rows take, since nobody sees it; part
    handlers get what PART_SIZE says; batch handlers the whole batch."""

    def __init__(self, each: Each, part_size: int | None, parallelism: int) -> None:
        self._each = each
        self._fixed = part_size
        self._parallelism = parallelism
        self._adapted = 1
        self._wanted_s = SHORTEST_PART_S
        self._lock = threading.Lock()

    def __call__(self, batch_rows: int) -> int:
        if self._each == "batch":
            return batch_rows
        if self._fixed is not None:
            return self._fixed
        if self._each == "part":
            return -(-batch_rows // (self._parallelism * PARTS_FOR_A_THREAD))
        return min(self._adapted, max(1, batch_rows // self._parallelism))

    def observe_write(self, seconds: float) -> None:
        """Writing a part's changes took so long."""
        self._wanted_s = min(max(SHORTEST_PART_S, WRITES_IN_A_PART * seconds), LONGEST_PART_S)

    def observe(self, rows: int, seconds: float) -> None:
        """A part of so many rows took its handler so long."""
        if self._each != "row" or self._fixed is not None or rows < self._adapted // 2:
            return
        wanted = int(rows * self._wanted_s / max(seconds, 1e-6))
        with self._lock:  # at most doubled at a time: one quick row says little of the next hundred
            self._adapted = max(1, min(wanted, self._adapted * 2))
