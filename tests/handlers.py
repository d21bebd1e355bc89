"""Jobs for the tests. What a handler does is told by the environment:

HANDLER_DATABASE_URL  where `seen` is            HANDLER_POD      name of this process
HANDLER_ROW_S         seconds that a row takes   HANDLER_BATCH_S  seconds that a row takes, times the batch size
HANDLER_FAIL          `57` or `226-250`: these ids raise; HANDLER_FAIL_TEXT: with this text
HANDLER_FAIL_TIMES    only so often for each id
HANDLER_TRIED_FILE    a line for each call that fails
HANDLER_TABLE, HANDLER_SCHEMA, HANDLER_KEY, HANDLER_JOB   of `record_elsewhere`: table, key, and name of the job
HANDLER_GATE          a file: until it is there `record_elsewhere` waits with ids from HANDLER_GATE_ID on
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections import Counter
from typing import Any

import sqlalchemy
from sqlalchemy import text

from shardworker import DELETE, Change, Context, Deletion, Row, job
from shardworker.handler import columns_of

_local = threading.local()
_sqlite_turn = threading.Lock()  # SQLite has one writer; threads that find it busy would sleep longer and longer
_calls: Counter[int] = Counter()
ROW_S = float(os.environ.get("HANDLER_ROW_S", "0"))
POD = os.environ.get("HANDLER_POD", "pod")
FAIL_TEXT = os.environ.get("HANDLER_FAIL_TEXT", "bad row")
GATE = os.environ.get("HANDLER_GATE")
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
    with _sqlite_turn if connection().dialect.name == "sqlite" else contextlib.nullcontext():
        connection().execute(text("INSERT INTO seen (row_id, pod) VALUES (:id, :pod)"), {"id": row_id, "pod": POD})


def _maybe_fail(row_id: int) -> None:
    if row_id in FAILING:
        _calls[row_id] += 1
        if _calls[row_id] <= FAIL_TIMES:
            if "HANDLER_TRIED_FILE" in os.environ:
                with open(os.environ["HANDLER_TRIED_FILE"], "a") as tried:
                    tried.write(f"{row_id}\n")
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


@job(
    table=os.environ.get("HANDLER_TABLE", "items"),
    schema=os.environ.get("HANDLER_SCHEMA"),
    key=os.environ.get("HANDLER_KEY"),
    name=os.environ.get("HANDLER_JOB", "record"),
)
def record_elsewhere(row: Row) -> None:
    """Notes the ids of any table."""
    while GATE and row["id"] >= int(os.environ["HANDLER_GATE_ID"]) and not os.path.exists(GATE):
        time.sleep(0.02)
    note(row["id"])
    if ROW_S:
        time.sleep(ROW_S)


@job(table="order", schema=os.environ.get("HANDLER_SCHEMA"), key="key", name="record")
def keep(row: Row) -> Change:
    """Stores the whole row in `kept`, and changes its columns with the oddest names."""
    columns = json.dumps(columns_of(row))
    connection().execute(text("INSERT INTO kept (text) VALUES (:text)"), {"text": columns})
    return {name: row[name] + 100 for name in ("group", "a b", "50%", "x:y")}


@job(table="items", name="record")
def die_in_third_batch(row: Row, ctx: Context) -> None:
    """Kills its process at the first row of the third batch that it meets. The very first row takes a while: whoever
    hands out the third batch before the first is saved will not have saved anything."""
    note(row.id)
    if ctx.batch == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if not _calls:
        _calls[row.id] += 1
        time.sleep(0.3)


@job(table="items", name="record")
def record_pool(row: Row, ctx: Context) -> None:
    """Notes as `pod` how many of the worker's connections are checked out of its pool when the row's work is over."""
    time.sleep(ROW_S)
    in_use = ctx.engine.pool.checkedout()  # type: ignore[attr-defined]
    connection().execute(text("INSERT INTO seen (row_id, pod) VALUES (:id, :pod)"), {"id": row.id, "pod": str(in_use)})


@job(table="v", name="record")
def store_repr(row: Row) -> None:
    """Stores how each value of the row has arrived."""
    for name, value in columns_of(row).items():
        connection().execute(
            text("INSERT INTO arrived (row_id, name, value) VALUES (:id, :name, :value)"),
            {"id": row.id, "name": name, "value": repr(value)},
        )
    if row.id in FAILING:
        raise ValueError(f"cannot use {row!r}")


@job(table="items", name="record")
def raise_braces(row: Row) -> None:
    """Notes each row; the failing ones raise what a template would stumble over."""
    if row.id in FAILING:
        _calls[row.id] += 1
        if _calls[row.id] <= FAIL_TIMES:
            raise RuntimeError(FAIL_TEXT)
    note(row.id)


@job(table="items", name="record")
def record_batch(row: Row, ctx: Context) -> None:
    """Notes as `pod` in which batch of its slot the row was read."""
    connection().execute(
        text("INSERT INTO seen (row_id, pod) VALUES (:id, :pod)"), {"id": row.id, "pod": str(ctx.batch)}
    )
