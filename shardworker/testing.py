"""For the unit tests of users: a Context without a run around it.

from shardworker import Row
from shardworker.testing import context

def test_normalise():
    assert normalise(Row(id=1, email=" A@B.C ")) == {"email": "a@b.c", "status": 1}
    assert enrich([Row(id=1)], context(engine)) == {1: {"score": 3}}
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import sqlalchemy

from shardworker.handler import Context


def context(
    engine: sqlalchemy.Engine | None = None,
    *,
    job: str = "test",
    run: str = "test",
    connection: sqlalchemy.Connection | None = None,
    redis: Any = None,
    as_of: datetime | None = None,
    attempt: int = 1,
    should_stop: bool = False,
    key: str = "id",
) -> Context:
    """A Context as a handler would be given one; without an engine, one of an empty SQLite database in memory."""
    stopping = threading.Event()
    if should_stop:
        stopping.set()
    return Context(
        job=job,
        run=run,
        slot="0",
        batch=1,
        attempt=attempt,
        as_of=as_of or datetime.now(UTC),
        engine=engine or sqlalchemy.create_engine("sqlite://"),
        connection=connection,
        key=key,
        _stopping=stopping,
        _redis=(lambda: redis) if redis is not None else None,
    )
