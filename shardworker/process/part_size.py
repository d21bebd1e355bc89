"""How many rows a part has."""

from __future__ import annotations

import threading

from shardworker.handler import Each

SHORTEST_PART_S = 0.040  # long against the cost of a part (50 µs, of what all threads share), short for a drain
LONGEST_PART_S = 0.200
WRITES_IN_A_PART = 4  # handlers take at least so many times as long as the statement that writes their changes
LAST_PARTS = 1 / 8  # so much shorter may parts become towards the end of a batch
PARTS_FOR_A_THREAD = 4  # in a batch, so that uneven parts even out
PARTS_REMEMBERED = 16  # one slow row among them must not make the next parts short


class PartSize:
    """Rows in the next part. For row handlers it follows the time that their rows take, since nobody sees it; part
    handlers get what PART_SIZE says; batch handlers the whole batch."""

    def __init__(self, each: Each, part_size: int | None, parallelism: int) -> None:
        self._each = each
        self._fixed = part_size
        self._parallelism = parallelism
        self._adapted = self._least = 1
        self._row_s: float | None = None  # a moving average
        self._wanted_s = SHORTEST_PART_S
        self._lock = threading.Lock()

    def __call__(self, batch_rows: int, left: int) -> int:
        """`left`: rows of the batch that no part has yet."""
        if self._each == "batch":
            return batch_rows
        if self._fixed is not None:
            return self._fixed
        if self._each == "part":
            return -(-batch_rows // (self._parallelism * PARTS_FOR_A_THREAD))
        # Shorter and shorter parts towards the end, so that the threads end together: it may be that of the slot.
        return min(self._adapted, max(self._least, left // self._parallelism))

    def observe_write(self, seconds: float) -> None:
        """Writing a part's changes took so long."""
        self._wanted_s = min(max(SHORTEST_PART_S, WRITES_IN_A_PART * seconds), LONGEST_PART_S)

    def observe(self, rows: int, seconds: float) -> None:
        """A part of so many rows took its handler so long."""
        if self._each != "row" or self._fixed is not None:
            return
        with self._lock:
            row_s = seconds / rows
            self._row_s = row_s if self._row_s is None else self._row_s + (row_s - self._row_s) / PARTS_REMEMBERED
            wanted = int(self._wanted_s / max(self._row_s, 1e-9))
            self._least = max(1, int(wanted * LAST_PARTS))
            # At most doubled at a time, after a part of that size: one quick row says little of the next hundred.
            self._adapted = max(1, min(wanted, self._adapted if rows < self._adapted else self._adapted * 2))
