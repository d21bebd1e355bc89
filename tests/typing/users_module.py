"""A module as users write it, with every signature that a job may have; both type checkers must be content with it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NamedTuple, assert_type

from sqlalchemy import Engine, text

from shardworker import DELETE, Change, Context, Deletion, Job, Row, Skip, job
from shardworker.testing import context


class User(NamedTuple):
    id: int
    email: str | None


@dataclass(frozen=True)
class Order:
    id: int
    total: int


# Row handlers
@job(table="users", columns=["email"], where="status = 0")
def normalise(row: Row) -> Change:
    if not row.email:
        raise Skip("no address")
    return {"email": row.email.strip().lower(), "status": 1}


@job(table="users", batch_size=500, checkpoint="database", max_failed_rows=10)
def look(row: Row) -> None:
    assert row.id or row["odd name"]


@job(table="users", where="created_at < :as_of", guard=["updated_at"])
def clean(row: Row, ctx: Context) -> Change | Deletion | None:
    if ctx.should_stop:
        return None
    return DELETE if row.is_spam else {"token": ctx.idempotency_key(row)}


@job(table="users")
def purge(row: Row) -> Deletion:
    return DELETE


@job(table="users", columns=User)
def typed(user: User) -> Change:
    return {"email": user.email.lower() if user.email else None}


@job(table="orders", schema="shop", key="id", columns=Order, name="orders")
def typed_with_context(order: Order, ctx: Context) -> dict[str, int]:
    return {"total": order.total + ctx.attempt}


@job(table="users")
async def enrich(row: Row) -> Change:
    await asyncio.sleep(0)
    return {"score": 1}


@job(table="users", columns=User)
async def enrich_typed(user: User, ctx: Context) -> Change | None:
    await asyncio.sleep(0)
    return {"score": user.id} if ctx.attempt == 1 else None


# Part handlers
@job(table="users", columns=[], each="part", part_size=50)
def bulk(rows: list[Row]) -> dict[int, Change]:
    return {row.id: {"score": 1} for row in rows}


@job(table="users", columns=[], where="score IS NULL", each="part", part_size=50)
async def bulk_async(rows: list[Row], ctx: Context) -> dict[int, Change | Exception]:
    await asyncio.sleep(0)
    return {row.id: Skip("old") if row.id < 10 else {"score": ctx.attempt} for row in rows}


@job(table="users", columns=User, each="part")
def bulk_typed(users: list[User]) -> dict[int, Change | Deletion | Exception | None]:
    return {user.id: DELETE if user.email is None else None for user in users}


@job(table="users", each="part")
def bulk_without_changes(rows: list[Row]) -> None:
    assert rows


# Batch handlers
@job(table="orders", columns=Order, each="batch", checkpoint="database")
def archive(orders: list[Order], ctx: Context) -> None:
    assert ctx.connection is not None
    ctx.connection.execute(text("INSERT INTO archive VALUES (:id)"), [{"id": order.id} for order in orders])


# What they are afterwards
assert_type(normalise(Row(id=1, email=" A@B.C ")), Change)
assert_type(typed(User(1, "x")), Change)
assert_type(purge(Row(id=1)), Deletion)
assert_type(bulk([Row(id=1)]), dict[int, Change])
assert_type(clean(Row(id=1), context()), Change | Deletion | None)
assert_type(typed, Job[[User], Change])


async def test_of_an_async_job() -> None:
    assert_type(await enrich(Row(id=1)), Change)
    assert_type(await bulk_async([Row(id=1)], context()), dict[int, Change | Exception])


def small_table(engine: Engine) -> int:
    summary = normalise.run(engine, first_id=1, last_id=10)
    assert_type(summary.skip_reasons, dict[str, int])
    return summary.changed + summary.failed
