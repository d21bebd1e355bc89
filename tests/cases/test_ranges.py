"""Cases 01-09: which ids belong to which slot, and which keys and names will do."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import services
from tests.harness import World

DATABASES = ["mariadb", "mysql", "postgres", "sqlite"]


@pytest.fixture
def logging_world(tmp_path: Path) -> Iterator[World]:
    """A world on a MariaDB of its own that writes down every statement; `statements_on_items` reads them."""
    with services.private("mariadb", "--general-log", "--log-output=TABLE") as server:
        world = World(
            services.fresh_database(server), services.get("redis").url, tmp_path, prefix=f"t{time.time_ns():x}"
        )
        yield world
        world.close()


def statements_on_items(world: World) -> list[str]:
    """What workers have asked about `items`."""
    found = world.sql("SELECT argument FROM mysql.general_log WHERE command_type = 'Query'")
    statements = [row[0].decode() if isinstance(row[0], bytes) else str(row[0]) for row in found]
    return [each for each in statements if re.match(r"\s*(EXPLAIN|SELECT|\()", each) and re.search(r"\bitems\b", each)]


@pytest.mark.parametrize("row_id", [1, 1000, 1001])
def test_case_01_a_table_with_a_single_row_is_no_empty_table(world: World, row_id: int) -> None:
    world.create_items([row_id])

    assert world.run() == 0
    assert world.seen() == [row_id]


def test_case_02_rows_on_the_edges_of_slots_are_handled_once(world: World) -> None:
    ids = [1, 999, 1000, 1001, 1999, 2000, 2001]
    world.create_items(ids)

    pods = [world.start(batch_size=3, parallelism=2) for _ in range(2)]

    assert [pod.wait() for pod in pods] == [0, 0]
    assert sorted(world.seen()) == ids


def test_case_03_a_row_with_id_0_is_handled(world: World) -> None:
    """Ids need not begin at 1: without a bound the table's own lowest id is where the run begins."""
    world.create_items([0, 1, 2])

    assert world.run(slot_size=1000) == 0
    assert sorted(world.seen()) == [0, 1, 2]


def test_case_03_the_report_names_rows_below_a_bound_without_counting_them(logging_world: World) -> None:
    """A bound that was set on purpose may be a mistake all the same; on a huge table only the index may be asked."""
    world = logging_world
    world.create_items([0, 1, 2])

    pod = world.start(slot_size=1000, first_id=1)

    assert pod.wait() == 0
    assert sorted(world.seen()) == [1, 2]
    assert "rows lie outside the run's bounds 1..2: the table has ids 0..2" in pod.lines()[-1]["message"]
    assert statements_on_items(world), "the log of statements is empty"
    assert not [each for each in statements_on_items(world) if "count(" in each.lower()]


@pytest.mark.parametrize("first_id", [None, 1], ids=["slots from the lowest id", "slots from 1"])
def test_case_04_the_row_with_the_highest_id_is_handled(world: World, first_id: int | None) -> None:
    """Counted from 1, the row 1000 closes a slot and 1001 is alone in the next one."""
    ids = [*range(100, 1001, 100), 1001]
    world.create_items(ids)
    settings: dict[str, Any] = {"slot_size": 500, "batch_size": 2, "first_id": first_id}

    assert world.run(**settings) == 0
    assert sorted(world.seen()) == ids
    ends = [entry.split()[:2] for entry in world.redis.hvals(world.key("done"))]
    assert (["501", "1000"] in ends and ["1001", "1001"] in ends) == (first_id == 1)

    world.sql("DELETE FROM seen")
    pods = [world.start(run="again", **settings) for _ in range(3)]
    assert [pod.wait() for pod in pods] == [0, 0, 0]
    assert sorted(world.seen()) == ids


TOP_IDS = [9223372036854775000, 9223372036854775806, 9223372036854775807]
TOP_SETTINGS: dict[str, Any] = {"first_id": 9223372036854770000, "slot_size": 1000}


@pytest.mark.parametrize("database", DATABASES)
def test_case_05_ids_at_the_top_of_64_bits_are_handled(make_world: Callable[..., World], database: str) -> None:
    """The arithmetic end of the last slot is above the largest BIGINT."""
    world = make_world(database)
    world.create_items(TOP_IDS)

    assert world.start(**TOP_SETTINGS).wait(60) == 0
    assert sorted(world.seen()) == TOP_IDS


def test_case_05_no_query_has_a_negative_or_wrapped_bound(logging_world: World) -> None:
    world = logging_world
    world.create_items(TOP_IDS)

    assert world.start(**TOP_SETTINGS).wait(60) == 0

    assert sorted(world.seen()) == TOP_IDS
    statements = statements_on_items(world)
    assert not [each for each in statements if re.search(r"-\s*\d", each)]
    reads = [each for each in statements if not each.startswith("EXPLAIN")]  # that one is never executed
    bounds = [int(number) for read in reads for number in re.findall(r"[<>=] *(\d+)", read)]
    assert bounds
    assert all(TOP_SETTINGS["first_id"] <= bound <= TOP_IDS[-1] for bound in bounds), bounds


def test_case_06_large_gaps_cost_neither_time_nor_a_lease(world: World) -> None:
    """4500 slots of which three have rows; whoever waited out a lease (30 s) would be far too late."""
    ids = [1, 2, 5_000_000_000, 5_000_000_001, 9_000_000_000]
    world.create_items(ids)
    began = time.monotonic()

    pods = [world.start(slot_size=2_000_000, lease="30s") for _ in range(4)]

    assert [pod.wait(60) for pod in pods] == [0, 0, 0, 0]
    assert time.monotonic() - began < 25
    assert sorted(world.seen()) == ids
    claims = [line for pod in pods for line in pod.lines() if line["message"].startswith("claimed")]
    # Each worker claims at most one slot in each hole before the first of them has jumped over it.
    assert len(claims) <= 3 + 3 * len(pods)


@pytest.mark.parametrize("database", DATABASES)
def test_case_07_a_text_key_is_refused_before_anything_is_claimed(
    make_world: Callable[..., World], database: str
) -> None:
    """The order of a collation is not the order of ranges: rows would be lost or handled twice."""
    world = make_world(database)
    options = " DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci" if database in ("mariadb", "mysql") else ""
    world.sql(f"CREATE TABLE docs (id CHAR(36) NOT NULL PRIMARY KEY, body VARCHAR(50)){options}")
    world.sql("INSERT INTO docs VALUES ('aaaa','1'), ('BBBB','2'), ('cccc','3'), ('ZZZZ','4')")
    world.create_seen()

    pod = world.start("tests.handlers:record_elsewhere", HANDLER_TABLE="docs", HANDLER_KEY="id")

    assert pod.wait() == 78
    for fact in ("docs", "'id'", "CHAR(36)", "supported are", "BIGINT"):
        assert fact in pod.text()
    assert world.seen() == []
    assert world.keys() == set()


def test_case_08_a_key_with_repeated_values_is_refused(world: World) -> None:
    """Keyset pages over a column that is not unique lose rows at a batch's edge, or never end."""
    world.sql(
        "CREATE TABLE events (id BIGINT PRIMARY KEY AUTO_INCREMENT, batch_no BIGINT NOT NULL, KEY (batch_no)) "
        "ENGINE=InnoDB"
    )
    world.sql("INSERT INTO events (batch_no) VALUES " + ",".join(["(7)"] * 1500))
    world.create_seen()

    pod = world.start(
        "tests.handlers:record_elsewhere", HANDLER_TABLE="events", HANDLER_KEY="batch_no", batch_size=1000
    )

    assert pod.wait(30) == 78
    assert "'batch_no' of table events has no unique index" in pod.text()
    assert world.seen() == []
    assert world.keys() == set()


@pytest.mark.parametrize("database", DATABASES)
def test_case_09_reserved_words_and_odd_characters_in_names_are_quoted(
    make_world: Callable[..., World], database: str
) -> None:
    """In the reads and, beyond the case, in the changes that are written."""
    world = make_world(database)
    quote = world.engine.dialect.identifier_preparer.quote_identifier
    schema = None if database == "sqlite" else f"app-data-{secrets.token_hex(4)}"
    table = quote("order") if schema is None else f"{quote(schema)}.{quote('order')}"

    def run(statement: str) -> list[tuple[object, ...]]:
        """As it is: `text()` would take `:y` for a parameter."""
        with world.engine.connect() as connection:
            result = connection.exec_driver_sql(statement)
            return [tuple(row) for row in result] if result.returns_rows else []

    columns = ", ".join(f"{quote(name)} INT" for name in ("group", "a b", "50%", "x:y"))
    if schema is not None:
        run(f"CREATE SCHEMA {quote(schema)}")
    try:
        run(f"CREATE TABLE {table} ({quote('key')} BIGINT NOT NULL PRIMARY KEY, {columns})")
        run(f"INSERT INTO {table} VALUES (1,2,3,4,5), (2,3,4,5,6)")
        run("CREATE TABLE kept (text VARCHAR(500))")
        world.create_seen()

        assert world.run("tests.handlers:keep", **({"HANDLER_SCHEMA": schema} if schema else {})) == 0

        kept = sorted((json.loads(str(text)) for (text,) in run("SELECT text FROM kept")), key=lambda row: row["key"])
        names = ["key", "group", "a b", "50%", "x:y"]
        assert [list(row) for row in kept] == [names, names]
        assert [list(row.values()) for row in kept] == [[1, 2, 3, 4, 5], [2, 3, 4, 5, 6]]
        changed = run(f"SELECT * FROM {table} ORDER BY {quote('key')}")
        assert changed == [(1, 102, 103, 104, 105), (2, 103, 104, 105, 106)]
    finally:
        if schema is not None:
            run(f"DROP SCHEMA {quote(schema)}" + (" CASCADE" if database == "postgres" else ""))
