"""Servers and worlds for the tests; nothing that a test started is left when it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import services
from tests.harness import World


def pytest_configure(config: pytest.Config) -> None:
    services.open_run()


def pytest_unconfigure(config: pytest.Config) -> None:
    services.stop_all()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Whoever starts a thread joins it."""
    before = set(threading.enumerate())
    yield
    end = time.monotonic() + 5
    left = [
        thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("shardworker")
    ]
    while left and time.monotonic() < end:
        time.sleep(0.02)
        left = [thread for thread in left if thread.is_alive()]
    assert not left, f"threads left: {left}"


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Worlds on chosen servers: `make_world(database="mariadb", redis="redis")`; "sqlite" needs no server."""
    made: list[tuple[World, str | None]] = []

    def make(database: str = "mariadb", redis: str = "redis", prefix: str | None = None) -> World:
        folder = tmp_path / f"world-{len(made)}"
        folder.mkdir()
        if database == "sqlite":
            url, to_drop = f"sqlite:///{folder}/data.db", None
        else:
            url = to_drop = services.fresh_database(services.get(database))
        world = World(url, services.get(redis).url, folder, prefix or f"t{time.time_ns():x}")
        made.append((world, to_drop))
        return world

    yield make
    for world, to_drop in made:
        world.close()
        if to_drop:
            services.drop_database(to_drop)


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    """MariaDB and Redis."""
    return make_world()
