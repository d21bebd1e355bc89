"""Batch jobs of test_commands.py over the table `items` of the harness; HANDLER_FAIL names the ids that fail."""

from __future__ import annotations

import asyncio
from typing import Any

from shardworker import Context, Row, job
from tests.handlers import FAILING, note


def counted(rows: list[Row], ctx: Context) -> dict[int, Any]:
    for row in rows:
        note(row.id)
    return {row.id: {"status": row.status + 1, "payload": str(ctx.connection is not None)} for row in rows}


@job(table="items", columns=["status"], each="batch", name="count")
def count_batch(rows: list[Row], ctx: Context) -> dict[int, Any]:
    return counted(rows, ctx)


@job(table="items", columns=["status"], each="batch", name="count")
async def count_batch_async(rows: list[Row], ctx: Context) -> dict[int, Any]:
    await asyncio.sleep(0.001)
    return counted(rows, ctx)


@job(table="items", columns=["status"], each="batch", name="count")
def count_batch_by_row(rows: list[Row], ctx: Context) -> dict[int, Any]:
    """A failing row is given as its exception; the others of its batch are well."""
    found = counted(rows, ctx)
    return {row_id: ValueError("bad row") if row_id in FAILING else change for row_id, change in found.items()}
