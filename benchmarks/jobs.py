"""The jobs that are measured. Workers' processes import this module too, so it imports nothing heavy.

BENCH_FOLDER: a process leaves the moment of its first row there, in a file named by its pid.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

from shardworker import Change, Row, job

TABLE = "bench_rows"
ROW_S = 0.005
SLOW_ROW_S = 0.100
SLEEPING_ROWS = 20_000
SLOW_IDS = frozenset(random.Random(1).sample(range(1, SLEEPING_ROWS + 1), SLEEPING_ROWS // 100))

status = 0  # what `set_status` writes; another one each round, or nothing would change
_has_begun = False


@job(table=TABLE, each="part")
def nothing(_rows: list[Row]) -> None:
    """Leaves all rows as they are."""


@job(table=TABLE)
def sleep(_row: Row) -> None:
    """5 ms for each row."""
    time.sleep(ROW_S)


@job(table=TABLE)
def sleep_with_tail(row: Row) -> None:
    """5 ms for a row, 100 ms for one in a hundred."""
    time.sleep(SLOW_ROW_S if row.id in SLOW_IDS else ROW_S)


@job(table=TABLE)
def set_status(_row: Row) -> Change:
    """A change of each row."""
    return {"status": status}


@job(table=TABLE, each="part")
def note_first(_rows: list[Row]) -> dict[int, Any] | None:
    """Leaves the moment of this process's first row, and takes 20 ms for a part from then on."""
    global _has_begun  # noqa: PLW0603
    if not _has_begun:
        _has_begun = True
        folder = Path(os.environ["BENCH_FOLDER"])
        (folder / "draft").write_text(str(time.monotonic()))
        (folder / "draft").replace(folder / str(os.getpid()))
    time.sleep(0.02)
    return None
