"""Cases 32 and 48: odd values in rows, and odd characters in messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.harness import World

V = """CREATE TABLE v (id BIGINT PRIMARY KEY, d DATE, dt DATETIME, ts TIMESTAMP NULL, n DECIMAL(20,4), j JSON,
    t TIME, b BIT(8), bl BLOB, e VARCHAR(20)) DEFAULT CHARSET=utf8mb4"""
ROWS = """INSERT INTO v VALUES
    (1,'0000-00-00','0000-00-00 00:00:00','0000-00-00 00:00:00',1.2345,'{"a": 1}','838:59:59',b'101',x'00ff','hi😀'),
    (2,'2016-00-00','2024-01-01 00:00:00','2024-01-01 00:00:00',99999999999999.9999,NULL,'-01:00:00',b'1',NULL,''),
    (3,'2024-02-29','2024-01-01 00:00:00','2024-01-01 00:00:00',0,'[]','00:00:00',b'0','','x')"""
NEW_YEAR = datetime(2024, 1, 1)
# Zero and partial dates are text, in the server's own form; NULL is None; every other date is a date.
AS_DOCUMENTED: dict[int, dict[str, Any]] = {
    1: {
        "id": 1,
        "d": "0000-00-00",
        "dt": "0000-00-00 00:00:00",
        "ts": "0000-00-00 00:00:00",
        "n": Decimal("1.2345"),
        "j": '{"a": 1}',
        "t": timedelta(hours=838, minutes=59, seconds=59),
        "b": b"\x05",
        "bl": b"\x00\xff",
        "e": "hi😀",
    },
    2: {
        "id": 2,
        "d": "2016-00-00",
        "dt": NEW_YEAR,
        "ts": NEW_YEAR,
        "n": Decimal("99999999999999.9999"),
        "j": None,
        "t": timedelta(hours=-1),
        "b": b"\x01",
        "bl": None,
        "e": "",
    },
    3: {
        "id": 3,
        "d": datetime(2024, 2, 29).date(),
        "dt": NEW_YEAR,
        "ts": NEW_YEAR,
        "n": Decimal("0.0000"),
        "j": "[]",
        "t": timedelta(0),
        "b": b"\x00",
        "bl": b"",
        "e": "x",
    },
}


@pytest.fixture(params=["mariadb", pytest.param("mysql", marks=pytest.mark.docker)])
def odd_world(request: pytest.FixtureRequest, make_world: Callable[..., World]) -> World:
    """The case's table, and one for what arrives."""
    world = make_world(database=request.param)
    with world.engine.connect() as connection:  # one connection: the mode is the session's
        connection.exec_driver_sql("SET SESSION sql_mode = ''")
        connection.exec_driver_sql(V)
        connection.exec_driver_sql(ROWS)
        connection.invalidate()
    world.sql("CREATE TABLE arrived (row_id BIGINT, name VARCHAR(10), value VARCHAR(200)) DEFAULT CHARSET=utf8mb4")
    return world


def arrived(world: World) -> dict[int, dict[str, str]]:
    found: dict[int, dict[str, str]] = {}
    for row_id, name, value in world.sql("SELECT row_id, name, value FROM arrived"):
        found.setdefault(int(row_id), {})[name] = value
    return found


def test_case_32_odd_but_legal_values_arrive_in_the_documented_form(odd_world: World) -> None:
    """No charset in the URL is needed for an emoji, and no digit of a DECIMAL is lost."""
    assert odd_world.run("tests.handlers:store_repr") == 0

    expected = {row_id: {name: repr(value) for name, value in row.items()} for row_id, row in AS_DOCUMENTED.items()}
    assert arrived(odd_world) == expected


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_case_32_a_row_with_odd_values_can_be_logged_and_put_on_the_list_of_failed_rows(
    odd_world: World, log_format: str
) -> None:
    """The handler's error shows the row; neither the log line nor the record may break at it."""
    code, said = odd_world.ask(
        "run",
        "tests.handlers:store_repr",
        HANDLER_FAIL="1",
        attempts=2,
        max_failed_rows=1,
        log_level="TRACE",
        log_format=log_format,
    )

    assert code == 0
    assert set(arrived(odd_world)) == {1, 2, 3}
    record = odd_world.failed()[1]
    assert set(odd_world.failed()) == {1}
    assert "e='hi😀'" in record["error"]
    assert "d='0000-00-00'" in record["error"]
    assert "row failed" in said
    assert "e='hi😀'" in said
    assert "Traceback" not in said
    assert "Logging error" not in said


BRACES = '{"user": {id}} 50% {0} {'


def test_case_48_braces_in_an_error_do_not_break_the_log(world: World) -> None:
    """A message is no template: formatted a second time it would raise, most of all in a retry."""
    world.create_items(range(1, 11))
    world.sql("UPDATE items SET payload = '{boom}' WHERE id = 4")

    code, said = world.ask(
        "run",
        "tests.handlers:raise_braces",
        HANDLER_FAIL="3",
        HANDLER_FAIL_TIMES=2,
        HANDLER_FAIL_TEXT=BRACES,
        attempts=3,
        log_level="TRACE",
    )

    assert code == 0
    assert sorted(world.seen()) == list(range(1, 11))
    lines = world.pods[0].lines()
    assert len(lines) == len(said.splitlines()), "a line that is no record"
    retried = [line for line in lines if BRACES in line.get("error", "")]
    assert len(retried) == 2
    for mistake in ("KeyError", "IndexError", "ValueError", "Logging error"):
        assert mistake not in said
    for line in lines:
        assert "{boom}" not in json.dumps(line) or line["level"] in ("DEBUG", "TRACE")


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_case_48_braces_in_the_error_of_a_row_that_fails_for_good_are_kept(world: World, log_format: str) -> None:
    """In the log, and on the list of failed rows."""
    world.create_items(range(1, 11))

    code, said = world.ask(
        "run",
        "tests.handlers:raise_braces",
        HANDLER_FAIL="3",
        HANDLER_FAIL_TEXT=BRACES,
        attempts=2,
        max_failed_rows=1,
        log_level="TRACE",
        log_format=log_format,
    )

    assert code == 0
    assert (json.dumps(BRACES)[1:-1] if log_format == "json" else BRACES) in said
    assert BRACES in world.failed()[3]["error"]
    assert sorted(world.seen()) == [1, 2, 4, 5, 6, 7, 8, 9, 10]
    for mistake in ("KeyError", "IndexError", "ValueError", "Logging error"):
        assert mistake not in said


def test_case_48_braces_in_the_last_words_of_a_process_are_kept(world: World) -> None:
    """The line that says why a worker ended is no template either."""
    world.create_items(range(1, 11))
    assert world.run() == 0
    world.redis.hset(world.key("meta"), "finished_at", "{boom}")

    code = world.run()

    assert code == 1
    last = world.pods[-1].lines()[-1]
    assert "'{boom}'" in last["message"]
    assert last["exit_code"] == 1
