"""Jobs of test_databases.py, over the table `items` of the harness.

What becomes of a row is told by its id, or by environment variables:

HANDLER_FAIL   `57` or `226-250`: these ids raise (as in tests/handlers.py)
HANDLER_GATE   a file; while it is missing, rows from HANDLER_GATE_FROM on hang
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import text

from shardworker import DELETE, Change, Context, Deletion, Row, Skip, job
from tests.handlers import FAILING, POD, ROW_S, connection, note

CHANGED, GONE = 7, 8  # rows that "somebody else" changes or deletes while a handler has them
LONGEST_HANG_S = 60.0


def maybe_fail(row_id: int) -> None:
    if row_id in FAILING:
        raise ValueError("bad row")


# Every outcome, of every kind of handler ---------------------------------------------------------------------------


def words_of(row_id: int) -> str:
    return f"Zoë №{row_id} 😀 'it''s' 100% \\ :x"


def outcome(row: Row) -> Change | Deletion | None:
    match row.id % 5:
        case 0:
            return {"status": row.status + 1}
        case 1:
            return {"status": row.status + 1, "payload": words_of(row.id)}
        case 2:
            raise Skip("a two")
        case 3:
            return DELETE
        case _:
            return None


def outcomes(rows: list[Row]) -> dict[int, Change | Deletion | Skip | None]:
    found: dict[int, Change | Deletion | Skip | None] = {}
    for row in rows:
        try:
            found[row.id] = outcome(row)
        except Skip as skip:
            found[row.id] = skip
    return found


@job(table="items", columns=["status"])
def row_handler(row: Row) -> Change | Deletion | None:
    return outcome(row)


@job(table="items", columns=["status"])
async def row_handler_async(row: Row) -> Change | Deletion | None:
    await asyncio.sleep(0.001)
    return outcome(row)


@job(table="items", columns=["status"], each="part", part_size=4)
def part_handler(rows: list[Row]) -> dict[int, Any]:
    return outcomes(rows)


@job(table="items", columns=["status"], each="part", part_size=4)
async def part_handler_async(rows: list[Row]) -> dict[int, Any]:
    await asyncio.sleep(0.001)
    return outcomes(rows)


@job(table="items", columns=["status"], each="batch")
def batch_handler(rows: list[Row]) -> dict[int, Any]:
    return outcomes(rows)


@job(table="items", columns=["status"], each="batch")
async def batch_handler_async(rows: list[Row]) -> dict[int, Any]:
    await asyncio.sleep(0.001)
    return outcomes(rows)


# Rows as a class of the user's -------------------------------------------------------------------------------------


class Item(NamedTuple):
    id: int
    status: int
    payload: str


@dataclass
class Words:
    """Without the key."""

    payload: str
    status: int


@job(table="items", columns=Item)
def of_named_tuples(item: Item) -> Change:
    return {"status": item.status + 1, "payload": f"{type(item).__name__} {item.payload} {item.id}"}


@job(table="items", columns=Words)
def of_dataclasses(words: Words) -> Change:
    return {"status": words.status + 1, "payload": f"{type(words).__name__} {words.payload}"}


# The context -------------------------------------------------------------------------------------------------------


class Undo(Exception):
    """Ends a transaction that is not wanted."""


@job(table="items", columns=["status"])
def look_around(row: Row, ctx: Context) -> Change:
    """Every fifth row fails once. What is seen goes into the row, one line in `seen` by ctx.engine."""
    if row.id % 5 == 0 and ctx.attempt == 1:
        raise ValueError("once")
    mine = {"id": row.id, "pod": POD}
    with ctx.engine.begin() as transaction:
        transaction.execute(text("INSERT INTO seen (row_id, pod) VALUES (:id, :pod)"), mine)
    try:
        with ctx.engine.begin() as transaction:
            transaction.execute(text("INSERT INTO seen (row_id, pod) VALUES (:id, :pod)"), mine)
            raise Undo
    except Undo:
        pass
    ctx.redis.incr(f"{os.environ['SHARDWORKER_REDIS_PREFIX']}:looked")
    facts = (ctx.job, ctx.run, ctx.slot, ctx.batch, ctx.attempt, ctx.connection, ctx.should_stop)
    return {"payload": " ".join([*map(str, facts), ctx.idempotency_key(row), f"{ctx.as_of:%Y-%m-%dT%H:%M:%S.%f%z}"])}


@job(table="items", columns=["status"], each="batch")
def in_the_transaction(rows: list[Row], ctx: Context) -> dict[int, Any]:
    """Fails once after it has written."""
    _note_all(rows, ctx)
    if rows[0].id == 11 and ctx.attempt == 1:
        raise ValueError("once, after the statement")
    return {row.id: {"status": row.status + 1, "payload": str(ctx.connection is not None)} for row in rows}


@job(table="items", columns=["status"], each="batch", name="in_the_transaction")
async def in_the_transaction_async(rows: list[Row], ctx: Context) -> dict[int, Any]:
    await asyncio.sleep(0.001)
    return in_the_transaction(rows, ctx)


def _note_all(rows: list[Row], ctx: Context) -> None:
    if ctx.connection is not None:
        ctx.connection.execute(
            text("INSERT INTO seen (row_id, pod) VALUES (:id, :pod)"), [{"id": row.id, "pod": POD} for row in rows]
        )


@job(table="items", columns=["status"])
def until_told(row: Row, ctx: Context) -> Change:
    """Works until it is told that nobody wants the result any more, and says so in `seen`."""
    note(row.id)
    end = time.monotonic() + LONGEST_HANG_S
    while not ctx.should_stop:
        if time.monotonic() > end:
            raise TimeoutError("should_stop never came")
        time.sleep(0.01)
    connection().execute(text("INSERT INTO seen (row_id, pod) VALUES (:id, 'told')"), {"id": -row.id})
    return {"status": row.status + 1}


@job(table="items", columns=["status"])
def at_the_gate(row: Row) -> Change:
    """Hangs at some rows, whatever it is told."""
    note(row.id)
    end = time.monotonic() + LONGEST_HANG_S
    if row.id >= int(os.environ["HANDLER_GATE_FROM"]):
        while not Path(os.environ["HANDLER_GATE"]).exists() and time.monotonic() < end:
            time.sleep(0.01)
    return {"status": row.status + 1}


# Guard -------------------------------------------------------------------------------------------------------------


def somebody_else(statement: str, row_id: int) -> None:
    connection().execute(text(statement), {"id": row_id})


def with_guard(row: Row) -> Change:
    note(row.id)
    if row.id == CHANGED and row.payload == "":
        somebody_else("UPDATE items SET payload = 'changed' WHERE id = :id", row.id)
    if row.id == GONE:
        somebody_else("DELETE FROM items WHERE id = :id", row.id)
    return {"status": 1 + len(row.payload)}


@job(table="items", columns=["status"], guard=["payload"])
def guarded(row: Row) -> Change:
    return with_guard(row)


@job(table="items", columns=["status"], guard=["payload"], name="guarded")
async def guarded_async(row: Row) -> Change:
    await asyncio.sleep(0.001)
    return with_guard(row)


@job(table="items", columns=["status"], guard=["payload"], each="part", name="guarded")
def guarded_part(rows: list[Row]) -> dict[int, Any]:
    return {row.id: with_guard(row) for row in rows}


@job(table="items", columns=["status"], guard=["payload"])
def never_the_same(row: Row) -> Change:
    note(row.id)
    if row.id == CHANGED:
        connection().execute(
            text("UPDATE items SET payload = :now WHERE id = :id"), {"id": row.id, "now": str(time.monotonic_ns())}
        )
    return {"status": row.status + 1}


# Counting: what must happen exactly once ---------------------------------------------------------------------------


@job(table="items", columns=["status"], name="count")
def count_row(row: Row) -> Change:
    maybe_fail(row.id)
    note(row.id)
    if ROW_S:
        time.sleep(ROW_S)
    return {"status": row.status + 1}


@job(table="items", columns=["status"], name="count")
async def count_row_async(row: Row) -> Change:
    maybe_fail(row.id)
    note(row.id)
    if ROW_S:
        await asyncio.sleep(ROW_S)
    return {"status": row.status + 1}


def counted(rows: list[Row]) -> dict[int, Any]:
    for row in rows:
        maybe_fail(row.id)
    for row in rows:
        note(row.id)
    if ROW_S:
        time.sleep(ROW_S * len(rows))
    return {row.id: {"status": row.status + 1} for row in rows}


@job(table="items", columns=["status"], each="part", part_size=5, name="count")
def count_part(rows: list[Row]) -> dict[int, Any]:
    return counted(rows)


@job(table="items", columns=["status"], each="part", part_size=5, name="count")
def count_part_by_row(rows: list[Row]) -> dict[int, Any]:
    """A failing row is given as its exception; the others of its part are well."""
    return {row.id: ValueError("bad row") if row.id in FAILING else {"status": row.status + 1} for row in rows}


@job(table="items", columns=["status"], each="batch", name="count")
def count_batch(rows: list[Row], ctx: Context) -> dict[int, Any]:
    _note_all(rows, ctx)
    for row in rows:
        maybe_fail(row.id)
    return {row.id: {"status": row.status + 1} for row in rows}


# Errors of handlers ------------------------------------------------------------------------------------------------


@job(table="items", columns=["status"])
def unknown_column(row: Row) -> Change:
    return {"state": 1}


@job(table="items", columns=["status"])
def the_key(row: Row) -> Change:
    return {"id": row.id + 1}


def _seven(row: Row) -> Any:
    return 7


not_a_mapping = job(table="items", columns=["status"], name="not_a_mapping")(_seven)


@job(table="items", columns=["status"], each="part")
def strangers(rows: list[Row]) -> dict[int, Any]:
    return {rows[-1].id + 1000: {"status": 1}}


@job(table="items", columns=["status"], each="part")
def skip_of_a_part(rows: list[Row]) -> dict[int, Any]:
    raise Skip("all of it")


@job(table="items", columns=["status"])
def too_long(row: Row, ctx: Context) -> Change:
    """More than the column holds; SQLite holds anything, and refuses NULL."""
    return {"payload": None if ctx.engine.dialect.name == "sqlite" else "x" * 300}
