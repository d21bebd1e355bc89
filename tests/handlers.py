"""Jobs for the tests. What a handler does is told by the environment:

HANDLER_DATABASE_URL  where `seen` is            HANDLER_POD      name of this process
HANDLER_ROW_S         seconds that a row takes   HANDLER_BATCH_S  seconds that a row takes, times the batch size
HANDLER_FAIL          `57` or `226-250`: these ids raise; HANDLER_FAIL_TEXT: with this text
HANDLER_FAIL_TIMES    only so often for each id
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from typing import Any

import sqlalchemy
from sqlalchemy import text

from shardworker import DELETE, Change, Context, Deletion, Row, job

_local = threading.local()
_calls: Counter[int] = Counter()
ROW_S = float(os.environ.get("HANDLER_ROW_S", "0"))
POD = os.environ.get("HANDLER_POD", "pod")
FAIL_TEXT = os.environ.get("HANDLER_FAIL_TEXT", "bad row")
FAIL_TIMES = int(os.environ.get("HANDLER_FAIL_TIMES", "1000000"))


def _failing() -> range:
    first, _, last = (
        os.environ.get("HANDLER_FAIL", "-1").partition("-") if os.environ.get("HANDLER_FAIL") else ("", "", "")
    )
    return range(int(first), int(last or first) + 1) if first else range(0)


FAILING = _failing()


def connection() -> sqlalchemy.Connection:
    """This thread's own connection, which commits each statement."""
    if not hasattr(_local, "connection") or _local.connection.closed:
        engine = sqlalchemy.create_engine(
            os.environ["HANDLER_DATABASE_URL"], isolation_level="AUTOCOMMIT", poolclass=sqlalchemy.NullPool
        )
        _local.connection = engine.connect()
    return _local.connection  # type: ignore[no-any-return]


def note(row_id: int) -> None:
    """One line in `seen`, before anything else."""
    connection().execute(text("INSERT INTO seen (row_id, pod) VALUES (:id, :pod)"), {"id": row_id, "pod": POD})


def _maybe_fail(row_id: int) -> None:
    if row_id in FAILING:
        _calls[row_id] += 1
        if _calls[row_id] <= FAIL_TIMES:
            raise ValueError(FAIL_TEXT)


@job(table="items")
def record(row: Row) -> None:
    """Notes each row (a failing one is not noted)."""
    _maybe_fail(row.id)
    note(row.id)
    if ROW_S:
        time.sleep(ROW_S)


@job(table="items", name="record")
def set_status(row: Row) -> Change:
    """Notes the row and sets its status to 1."""
    note(row.id)
    if ROW_S:
        time.sleep(ROW_S)
    return {"status": 1}


@job(table="items", name="record", where="status = 0")
def set_status_of_new(row: Row) -> Change:
    note(row.id)
    return {"status": 1}


@job(table="items", name="record", columns=["status"])
def count_up(row: Row) -> Change:
    """Adds 1 to status: what `checkpoint="database"` must do exactly once."""
    if ROW_S:
        time.sleep(ROW_S)
    _maybe_fail(row.id)
    return {"status": row.status + 1}


@job(table="items", name="record")
def delete(row: Row) -> Deletion:
    note(row.id)
    if ROW_S:
        time.sleep(ROW_S)
    return DELETE


@job(table="items", name="record", each="part")
def record_part(rows: list[Row], ctx: Context) -> dict[int, Any]:
    for row in rows:
        _maybe_fail(row.id)
    for row in rows:
        note(row.id)
    if ROW_S:
        time.sleep(ROW_S * len(rows))
    return {}
