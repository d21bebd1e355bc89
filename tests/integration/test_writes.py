"""Returned changes, written to every database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from shardworker.errors import HandlerError
from shardworker.handler import DELETE, Change, Deletion, JobSpec, columns_of
from shardworker.ids import IdRange
from shardworker.process import write_sql
from shardworker.process.database import transaction
from shardworker.process.faults import Fault, fault_of
from shardworker.process.table import Table
from shardworker.process.writes import check_change, write

AS_OF = datetime(2026, 5, 17, 12)
ALL = IdRange(-(2**63), 2**64)


def make(engine: Engine, columns: str, rows: int = 0, key: str = "BIGINT") -> Table:
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE TABLE t (id {key} NOT NULL PRIMARY KEY, {columns})")
        for row_id in range(1, rows + 1):
            connection.exec_driver_sql(f"INSERT INTO t (id) VALUES ({row_id})")
    return Table.reflect(engine, JobSpec(name="job", function=print, table="t"))


def write_now(table: Table, changes: Mapping[int, Change | Deletion]) -> None:
    with transaction(table.engine) as connection:
        write(connection, table, changes)


def stored(table: Table) -> dict[int, dict[str, Any]]:
    ids, rows = table.read(ALL, None, 100_000, AS_OF)
    return {
        row_id: {name: value for name, value in columns_of(row).items() if name != "id"}
        for row_id, row in zip(ids, rows, strict=True)
    }


def test_each_row_gets_its_own_values_and_no_other_row_is_touched(engine: Engine) -> None:
    table = make(engine, "a INT, b VARCHAR(50)", rows=6)
    write_now(table, {1: {"a": 10, "b": "x"}, 2: {"b": "y", "a": 20}, 3: {"a": 30}, 4: DELETE, 5: {}})
    assert stored(table) == {
        1: {"a": 10, "b": "x"},
        2: {"a": 20, "b": "y"},
        3: {"a": 30, "b": None},
        5: {"a": None, "b": None},
        6: {"a": None, "b": None},
    }


@pytest.mark.parametrize("ids", [range(3, 9), [1, 4, 9]])
def test_the_same_values_for_many_rows_reach_exactly_these(engine: Engine, ids: list[int]) -> None:
    table = make(engine, "a INT", rows=10)
    write_now(table, {row_id: {"a": 1} for row_id in ids})
    assert {row_id for row_id, row in stored(table).items() if row["a"] == 1} == set(ids)
    write_now(table, dict.fromkeys(ids, DELETE))
    assert set(stored(table)) == set(range(1, 11)) - set(ids)


def test_rows_that_are_gone_are_passed_over(engine: Engine) -> None:
    table = make(engine, "a INT", rows=2)
    write_now(table, {1: {"a": 1}, 2: {"a": 2}, 77: {"a": 3}, 78: DELETE})
    assert stored(table) == {1: {"a": 1}, 2: {"a": 2}}


def test_parts_above_the_limits_of_one_statement_are_written_whole(engine: Engine) -> None:
    table = make(engine, "a INT, b VARCHAR(50)")
    with engine.connect() as connection:
        for at in range(0, 3000, 500):
            values = ",".join(f"({row_id})" for row_id in range(at, at + 500))
            connection.exec_driver_sql(f"INSERT INTO t (id) VALUES {values}")
    write_now(table, {row_id: {"a": row_id, "b": f"é{row_id}"} for row_id in range(3000)})
    assert stored(table) == {row_id: {"a": row_id, "b": f"é{row_id}"} for row_id in range(3000)}


def test_negative_and_largest_ids_are_exact(engine: Engine) -> None:
    is_mysql = engine.dialect.name == "mysql"
    table = make(engine, "a INT", key="BIGINT UNSIGNED" if is_mysql else "BIGINT")
    ids = [0, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1] if is_mysql else [-(2**63), -1, 0, 2**63 - 2, 2**63 - 1]
    with engine.connect() as connection:
        for row_id in ids:
            connection.exec_driver_sql(f"INSERT INTO t (id) VALUES ({row_id})")
    for order in (ids, ids[::-1]):
        write_now(table, {row_id: {"a": row_id % 1000 + len(str(order))} for row_id in order})
        assert stored(table) == {row_id: {"a": row_id % 1000 + len(str(order))} for row_id in ids}
    write_now(table, {ids[-1]: DELETE})
    assert list(stored(table)) == ids[:-1]


MYSQL = "n DECIMAL(20,4), d DATETIME(6), bl BLOB, j JSON, b BIT(8), e VARCHAR(50), f DOUBLE, i BIGINT, ti TIME"
POSTGRES = "n NUMERIC(20,4), d TIMESTAMP, bl BYTEA, j JSONB, b BIT(8), e VARCHAR(50), f FLOAT8, i BIGINT, ti INTERVAL"


def test_case_32_every_type_goes_back_as_it_came(engine: Engine) -> None:
    """Whichever row comes first: the types of joined values must not depend on it, NULL least of all."""
    if engine.dialect.name == "sqlite":
        pytest.skip("has four types")
    is_mysql = engine.dialect.name == "mysql"
    table = make(engine, MYSQL if is_mysql else POSTGRES, rows=4)
    names = ["n", "d", "bl", "j", "b", "e", "f", "i", "ti"]
    one, full = (b"\x05", b"\xff") if is_mysql else ("00000101", "11111111")
    json = ('{"a": [1, "x"]}', "[]") if is_mysql else ({"a": [1, "x"]}, [])
    day, long = datetime(2024, 1, 1), timedelta(hours=-1)
    rows = [
        (
            Decimal("9999999999999999.9999"),
            datetime(2024, 2, 29, 1, 2, 3, 5),
            b"\0\xff'",
            json[0],
            one,
            "hi😀",
            1.5,
            7,
            long,
        ),
        (None,) * 9,
        (Decimal("-0.0001"), day, b"", json[1], full, "it's \\ 50% %s :x", 1e300, -(2**63), timedelta(hours=838)),
        (Decimal("5.0000"), None, None, None, None, "", 0.1, 2**63 - 1, None),
    ]
    changes = {row_id: dict(zip(names, row, strict=True)) for row_id, row in enumerate(rows, start=1)}
    for order in ([1, 2, 3, 4], [4, 3, 2, 1], [2, 1, 3, 4]):
        write_now(table, {row_id: dict.fromkeys(names) for row_id in changes})
        write_now(table, {row_id: changes[row_id] for row_id in order})
        assert stored(table) == changes
    for row_id, change in changes.items():  # and alone
        write_now(table, {row_id: change})
    assert stored(table) == changes


def test_values_of_several_kinds_in_one_column_keep_their_digits(engine: Engine) -> None:
    """MySQL would make floats of them all, or text of the numbers beside bytes."""
    if engine.dialect.name == "sqlite":
        pytest.skip("has no column types")
    table = make(engine, "n DECIMAL(30,4), e VARCHAR(40)" if engine.dialect.name == "mysql" else "n NUMERIC, e TEXT", 4)
    exact = Decimal("99999999999999999999.0001")
    write_now(
        table,
        {1: {"n": exact, "e": "x"}, 2: {"n": 1.5, "e": "y"}, 3: {"n": 2**60 + 1, "e": None}, 4: {"n": "2.5", "e": ""}},
    )
    assert [row["n"] for row in stored(table).values()] == [exact, Decimal("1.5"), 2**60 + 1, Decimal("2.5")]


def test_equal_values_of_different_types_are_not_taken_for_one(engine: Engine) -> None:
    table = make(engine, "e VARCHAR(40)", rows=2)
    if engine.dialect.name == "postgresql":
        pytest.skip("has its own text for each of them")
    write_now(table, {1: {"e": 1}, 2: {"e": 1.5 - 0.5}})
    assert stored(table)[1]["e"] == "1"


def test_dicts_and_lists_are_stored_as_json(engine: Engine) -> None:
    table = make(engine, "j JSON" if engine.dialect.name != "sqlite" else "j TEXT", rows=2)
    write_now(table, {1: {"j": {"name": "ü"}}, 2: {"j": [1, None]}})
    values = [row["j"] for row in stored(table).values()]
    assert values == (
        [{"name": "ü"}, [1, None]] if engine.dialect.name == "postgresql" else ['{"name": "ü"}', "[1, null]"]
    )
    with pytest.raises(HandlerError) as caught:
        write_now(table, {2: {"j": {"x": object()}}})
    assert caught.value.ids == [2]


def test_postgres_arrays_domains_and_lengths_are_respected(engine: Engine) -> None:
    if engine.dialect.name != "postgresql":
        pytest.skip("types of PostgreSQL")
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE DOMAIN short AS VARCHAR(3)")
        connection.exec_driver_sql("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    table = make(engine, "a INT[], s short, c CHAR(4), v VARCHAR(3), m mood, bits BIT(3)", rows=2)
    row = {"a": [1, 2], "s": "abc", "c": "wxyz", "v": "abc", "m": "ok", "bits": "101"}
    write_now(table, {1: row, 2: {**row, "a": [], "m": "sad"}})
    assert stored(table) == {1: row, 2: {**row, "a": [], "m": "sad"}}
    for name in ("s", "c", "v"):
        with pytest.raises(Exception, match="too long"):
            write_now(table, {1: {name: "too long"}, 2: {name: "ok"}})


def test_a_value_that_cannot_be_written_is_told_from_an_outage(engine: Engine) -> None:
    table = make(engine, "a INT NOT NULL DEFAULT 0, u INT UNIQUE", rows=3)
    for change in ({"a": None}, {"u": 7}):
        with pytest.raises(Exception, match=r".") as caught:
            write_now(table, {1: change, 2: change})
        found = fault_of(caught.value)
        assert found is not None
        assert found[0] is Fault.VALUE
    assert stored(table)[1] == {"a": 0, "u": None}


def test_a_row_above_max_allowed_packet_is_its_own_fault(engine: Engine) -> None:
    if engine.dialect.name != "mysql":
        pytest.skip("a limit of MySQL")
    table = make(engine, "e LONGTEXT", rows=3)
    large = "é" * (table.write_limits.packet // 5)
    write_now(table, {1: {"e": large}, 2: {"e": "x" + large}, 3: {"e": "y"}})
    assert [len(row["e"]) for row in stored(table).values()] == [len(large), len(large) + 1, 1]
    with pytest.raises(HandlerError) as caught:
        write_now(table, {1: {"e": "x"}, 2: {"e": "'" * (table.write_limits.packet // 2)}})
    assert caught.value.ids == [2]


@pytest.mark.parametrize("value", [{1, 2}, (1,), object(), "\ud800"])
def test_a_value_without_a_form_in_sql_is_told_from_an_outage(engine: Engine, value: object) -> None:
    table = make(engine, "a INT, e VARCHAR(50)", rows=2)
    if type(value) is object and engine.dialect.name == "mysql":
        pytest.skip("PyMySQL writes its text")
    with pytest.raises(Exception, match=r".") as caught:
        write_now(table, {1: {"e": "x"}, 2: {"e": value}})
    found = fault_of(caught.value)
    assert isinstance(caught.value, HandlerError) or (found is not None and found[0] is Fault.VALUE)
    assert [row["e"] for row in stored(table).values()] == [None, None]


def test_case_09_odd_names_are_quoted_in_writes(engine: Engine) -> None:
    quote = engine.dialect.identifier_preparer.quote_identifier
    with engine.connect() as connection:
        names = [quote(name) for name in ("order", "key", "50%", "x:y")]
        connection.exec_driver_sql(
            f"CREATE TABLE {names[0]} ({names[1]} BIGINT NOT NULL PRIMARY KEY, {names[2]} INT, {names[3]} INT)", ()
        )
        connection.exec_driver_sql(f"INSERT INTO {names[0]} VALUES (1, 0, 0), (2, 0, 0), (3, 0, 0)", ())
    table = Table.reflect(engine, JobSpec(name="job", function=print, table="order"))
    write_now(table, {1: {"50%": 5, "x:y": 6}, 2: {"50%": 7, "x:y": 8}, 3: DELETE})
    rows = table.read(ALL, None, 10, AS_OF)[1]
    assert [columns_of(row) for row in rows] == [{"key": 1, "50%": 5, "x:y": 6}, {"key": 2, "50%": 7, "x:y": 8}]
    write_now(table, {1: {"50%": 9}, 2: {"50%": 9}})
    assert [row["50%"] for row in table.read(ALL, None, 10, AS_OF)[1]] == [9, 9]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"statsu": 1}, "'statsu'.*did you mean 'status'"),
        ({"id": 2}, "the key 'id'"),
        (["status"], "returned a list"),
        ("status", "returned a str"),
        ({1: 2}, "no such column"),
    ],
)
def test_a_change_that_breaks_a_rule_is_the_handlers_error(engine: Engine, change: object, words: str) -> None:
    table = make(engine, "status INT")
    with pytest.raises(HandlerError, match=words) as caught:
        check_change(table, 7, change)
    assert caught.value.ids == [7]
    for fine in ({"status": 1}, {}, None, DELETE):
        check_change(table, 7, fine)


def test_writes_find_their_rows_by_the_keys_index(engine: Engine) -> None:
    table = make(engine, "a INT, b INT", rows=300)
    with engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE" + (" TABLE t" if engine.dialect.name == "mysql" else ""))
    for text, arguments in statements(table):
        plan = explain(engine, text, arguments)
        used = {"mysql": "PRIMARY", "postgresql": "t_pkey", "sqlite": "USING"}[engine.dialect.name]
        assert used in plan, plan
        assert "SCAN t" not in plan


def statements(table: Table) -> Iterator[tuple[str, tuple[Any, ...]]]:
    yield write_sql.update_alike(table, ["a"], [1, 2, 3]), (7,)
    yield write_sql.update_alike(table, ["a"], [1, 5, 9]), (7,)
    yield write_sql.delete(table, [1, 5]), ()
    match table.engine.dialect.name:
        case "mysql":
            yield write_sql.update_join(table, ["a", "b"], 3), (1, 10, 20, 2, 20, 40, 3, None, 1)
        case "postgresql":
            yield write_sql.update_from_values(table, ["a", "b"], 3), (1, 10, 20, 2, 20, 40, 3, None, 1)
        case _:
            yield write_sql.update_each(table, ["a", "b"]), (10, 20, 1)


def explain(engine: Engine, text: str, arguments: tuple[Any, ...]) -> str:
    how = {"mysql": "EXPLAIN FORMAT=TRADITIONAL", "postgresql": "EXPLAIN", "sqlite": "EXPLAIN QUERY PLAN"}
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("SET enable_seqscan = off")  # 300 rows are quicker to scan
        rows = connection.exec_driver_sql(f"{how[engine.dialect.name]} {text}", arguments).all()
        connection.invalidate()
    return "\n".join(str(tuple(row)) for row in rows)
