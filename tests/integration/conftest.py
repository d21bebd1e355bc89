"""One database after another, for the suites that hold on each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from shardworker.process.database import open_engine
from tests import services


@pytest.fixture(params=["mariadb", "mysql", "postgres", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/data.db"
        return
    url = services.fresh_database(services.get(request.param))
    yield url
    services.drop_database(url)


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = open_engine(url)
    yield engine
    engine.dispose()
