"""The user's table, on every database."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
import sqlalchemy
from sqlalchemy.engine import Engine

from shardworker.errors import ConfigurationError
from shardworker.handler import JobSpec, columns_of
from shardworker.ids import IdRange
from shardworker.process.database import cancel, open_engine
from shardworker.process.faults import Fault, fault_of
from shardworker.process.table import Table

AS_OF = datetime(2026, 5, 17, 12)
ALL = IdRange(1, 10**6)
ITEMS = (
    "CREATE TABLE items (id BIGINT NOT NULL PRIMARY KEY, status SMALLINT NOT NULL DEFAULT 0, "
    "payload VARCHAR(200) NOT NULL DEFAULT '')"
)


def execute(engine: Engine, *statements: str) -> None:
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def insert(engine: Engine, ids: list[int], **values: Any) -> None:
    table = sqlalchemy.Table("items", sqlalchemy.MetaData(), autoload_with=engine)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.insert(table), [{"id": row_id, **values} for row_id in ids])


def spec(table: str = "items", **options: Any) -> JobSpec:
    return JobSpec(name="job", function=print, table=table, **options)


def problems(engine: Engine, job: JobSpec) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Table.reflect(engine, job)
    return str(caught.value)


@pytest.fixture
def items(engine: Engine) -> Engine:
    execute(engine, ITEMS)
    insert(engine, [*range(1, 251), 300, 1000])
    return engine


def test_pages_follow_the_key_and_end_with_an_empty_one(items: Engine) -> None:
    table = Table.reflect(items, spec())
    seen: list[int] = []
    after = None
    while True:
        ids, rows = table.read(IdRange(1, 300), after, 100, AS_OF)
        assert [row.id for row in rows] == ids
        if not ids:
            break
        seen += ids
        after = ids[-1]
    assert seen == [*range(1, 251), 300]


def test_both_ends_of_a_range_are_in(items: Engine) -> None:
    table = Table.reflect(items, spec())
    assert table.read(IdRange(10, 12), None, 100, AS_OF)[0] == [10, 11, 12]
    assert table.read(IdRange(10, 12), 10, 100, AS_OF)[0] == [11, 12]
    assert table.read(IdRange(10, 12), 12, 100, AS_OF)[0] == []
    assert table.read(IdRange(10, 12), None, 2, AS_OF)[0] == [10, 11]


def test_case_12_no_connection_is_kept_and_no_transaction_stays_open(items: Engine) -> None:
    table = Table.reflect(items, spec())
    table.read(ALL, None, 10, AS_OF)
    assert items.pool.checkedout() == 0  # type: ignore[attr-defined]
    insert(items, [400])
    assert 400 in table.read(ALL, 300, 10, AS_OF)[0]


def test_case_05_bounds_beyond_the_type_are_cut_to_it(engine: Engine) -> None:
    execute(engine, ITEMS)
    top = 2**63 - 1
    insert(engine, [top - 807, top - 1, top])
    table = Table.reflect(engine, spec())
    assert table.limits == IdRange(-(2**63), top)
    assert table.read(IdRange(top - 7, top + 992), None, 100, AS_OF)[0] == [top - 1, top]
    assert table.read(IdRange(top + 1, top + 992), None, 100, AS_OF)[0] == []
    assert table.read(IdRange(top - 7, top + 992), top, 100, AS_OF)[0] == []
    assert (table.next_id(top), table.next_id(top + 1)) == (top, None)
    assert table.bounds() == IdRange(top - 807, top)


def test_unsigned_and_negative_ids_are_exact(engine: Engine) -> None:
    if engine.dialect.name == "mysql":
        execute(engine, ITEMS.replace("BIGINT", "BIGINT UNSIGNED"))
        ids, limits = [0, 2**63 + 1, 2**64 - 1], IdRange(0, 2**64 - 1)
    else:
        execute(engine, ITEMS)
        ids, limits = [-(2**63), -1, 0], IdRange(-(2**63), 2**63 - 1)
    insert(engine, ids)
    table = Table.reflect(engine, spec())
    assert table.limits == limits
    assert table.read(limits, None, 10, AS_OF)[0] == ids
    assert table.read(limits, ids[0], 10, AS_OF)[0] == ids[1:]
    assert table.read_ids(ids[1:], AS_OF)[0] == ids[1:]


def test_case_06_next_id_jumps_over_a_hole(engine: Engine) -> None:
    execute(engine, ITEMS)
    table = Table.reflect(engine, spec())
    assert table.bounds() is None
    insert(engine, [1, 2, 5_000_000_000, 9_000_000_000])
    assert table.bounds() == IdRange(1, 9_000_000_000)
    assert [table.next_id(at) for at in (-5, 2, 3, 9_000_000_000, 9_000_000_001)] == [
        1,
        2,
        5_000_000_000,
        9_000_000_000,
        None,
    ]


def test_case_07_a_key_of_text_is_refused_with_its_type_and_the_supported_ones(engine: Engine) -> None:
    execute(engine, "CREATE TABLE docs (id CHAR(36) NOT NULL PRIMARY KEY, body VARCHAR(50))")
    message = problems(engine, spec("docs"))
    assert "table docs" in message
    assert "'id'" in message
    assert "CHAR(36)" in message
    assert "BIGINT" in message


def test_case_08_a_key_without_a_unique_index_is_refused(engine: Engine) -> None:
    execute(engine, "CREATE TABLE events (id BIGINT NOT NULL PRIMARY KEY, batch_no BIGINT NOT NULL)")
    execute(engine, "CREATE INDEX by_batch ON events (batch_no)", "CREATE UNIQUE INDEX wide ON events (batch_no, id)")
    assert "no unique index" in problems(engine, spec("events", key="batch_no"))


def test_a_unique_not_null_column_can_be_the_key(engine: Engine) -> None:
    execute(engine, "CREATE TABLE t (a BIGINT NOT NULL, b BIGINT NOT NULL, c BIGINT, PRIMARY KEY (a, b))")
    execute(engine, "CREATE UNIQUE INDEX ub ON t (b)", "CREATE UNIQUE INDEX uc ON t (c)")
    execute(engine, "INSERT INTO t VALUES (1, 7, 1), (1, 5, NULL)")
    assert "primary key of several columns (a, b)" in problems(engine, spec("t"))
    assert "may be NULL" in problems(engine, spec("t", key="c"))
    table = Table.reflect(engine, spec("t", key="b", columns=[], where="a = 1"))
    assert table.read(ALL, None, 10, AS_OF)[0] == [5, 7]


def test_a_partial_unique_index_is_none(engine: Engine) -> None:
    if engine.dialect.name == "mysql":
        pytest.skip("has no partial indexes")
    execute(engine, "CREATE TABLE t (a BIGINT NOT NULL, b BIGINT NOT NULL)", "CREATE UNIQUE INDEX u ON t (b) WHERE a=1")
    assert "no unique index" in problems(engine, spec("t", key="b"))


def test_all_problems_are_told_at_once(items: Engine) -> None:
    message = problems(items, spec(key="payload", columns=["statsu"], guard=["nothing"]))
    assert "VARCHAR(200)" in message
    assert "no unique index" in message
    assert "'statsu' (did you mean 'status'?)" in message
    assert "'nothing'" in message


def test_a_missing_table_is_told_with_names_like_it(items: Engine) -> None:
    assert "no table 'itmes'" in problems(items, spec("itmes"))
    assert "'items'" in problems(items, spec("itmes"))
    assert "no schema 'nowhere'" in problems(items, spec(schema="nowhere"))


def test_case_09_reserved_words_and_odd_characters_in_names(engine: Engine) -> None:
    quote = engine.dialect.identifier_preparer.quote_identifier
    schema, columns = "app-data", ["key", "group", "a b", "50%", "x:y"]
    if engine.dialect.name == "sqlite":
        schema = None  # type: ignore[assignment]
        name = quote("order")
    else:
        execute(engine, f"DROP SCHEMA IF EXISTS {quote(schema)}" + (" CASCADE" if "post" in str(engine.url) else ""))
        execute(engine, f"CREATE SCHEMA {quote(schema)}")
        name = f"{quote(schema)}.{quote('order')}"
    key, *others = map(quote, columns)
    with engine.connect() as connection:
        connection.execute(
            sqlalchemy.text(
                f"CREATE TABLE {name} ({key} BIGINT NOT NULL PRIMARY KEY, "
                f"{', '.join(f'{other} INT' for other in others)})".replace("%%", "%").replace(":y", "\\:y")
            )
        )
        connection.execute(sqlalchemy.text(f"INSERT INTO {name} VALUES (1,2,3,4,5), (2,3,4,5,6)"))
    try:
        job = spec("order", schema=schema, where=f"{others[3].replace('%%', '%')} >= 5 AND '50%' = '50%'")
        table = Table.reflect(engine, job)
        ids, rows = table.read(ALL, None, 10, AS_OF)
        assert ids == [1, 2]
        assert [columns_of(row) for row in rows] == [
            {"key": 1, "group": 2, "a b": 3, "50%": 4, "x:y": 5},
            {"key": 2, "group": 3, "a b": 4, "50%": 5, "x:y": 6},
        ]
        assert table.read_ids([2, 9], AS_OF)[0] == [2]
    finally:
        if schema:
            execute(engine, f"DROP TABLE {name}", f"DROP SCHEMA {quote(schema)}")


def test_only_as_of_is_a_parameter_of_a_filter(items: Engine) -> None:
    where = "payload <> '{\"a\":1, \"b\": :x}' AND payload <> '12:30:00%s %'"
    where += " AND CAST(:as_of AS CHAR(10)) = '2026-05-17'"
    if items.dialect.name == "postgresql":
        where += " AND '5'::int = 5"
    if items.dialect.name == "sqlite":
        where = where.replace("CAST(:as_of AS CHAR(10))", "substr(:as_of, 1, 10)")
    table = Table.reflect(items, spec(where=where + " -- a comment"))
    table.check_filter(AS_OF)
    assert table.read(ALL, 249, 10, AS_OF)[0] == [250, 300, 1000]


def test_a_filter_cannot_widen_the_range(items: Engine) -> None:
    table = Table.reflect(items, spec(where="1 = 0 OR 1 = 1"))
    assert table.read(IdRange(10, 12), None, 100, AS_OF)[0] == [10, 11, 12]


def test_a_filter_that_does_not_compile_is_refused_with_the_servers_words(items: Engine) -> None:
    table = Table.reflect(items, spec(where="statos = 0"))
    with pytest.raises(ConfigurationError, match=r"(?s)statos.*where='statos = 0'"):
        table.check_filter(AS_OF)


@pytest.mark.parametrize("where", [None, "status = 0", "status IN (0, 1) AND payload = ''"])
def test_the_query_walks_the_keys_index_and_sorts_nothing(items: Engine, where: str | None) -> None:
    execute(items, "CREATE INDEX by_status ON items (status)", "CREATE INDEX by_payload ON items (payload, status)")
    insert(items, list(range(2000, 6000)))
    execute(items, "ANALYZE" + (" TABLE items" if items.dialect.name == "mysql" else ""))
    plan = Table.reflect(items, spec(where=where)).explain(IdRange(1, 5000), AS_OF)
    text = "\n".join(plan)
    used = {
        "mysql": "key: PRIMARY",
        "postgresql": "Index Scan using items_pkey",
        "sqlite": "(id>? AND id<?)",
    }[items.dialect.name]
    assert used in text
    assert not any(word in text for word in ("filesort", "Sort", "TEMP B-TREE", "temporary"))


def test_the_sql_for_people_names_its_parameters(items: Engine) -> None:
    sql = Table.reflect(items, spec(columns=["status"], where="status = 50 % 7")).sql()
    assert "items.id > :begin" in sql
    assert "status = 50 % 7" in sql


def test_ids_are_read_whatever_the_filter_says(items: Engine) -> None:
    table = Table.reflect(items, spec(where="status = 99"))
    ids, rows = table.read_ids([300, 7, 8888], AS_OF)
    assert ids == [7, 300]
    assert rows[0].payload == ""


class Pair(NamedTuple):
    payload: str
    status: int


class Keyed(NamedTuple):
    status: int
    id: int


@dataclass
class Item:
    id: int
    payload: str


@dataclass(kw_only=True, slots=True)
class Worded:
    status: int


@pytest.mark.parametrize(
    ("columns", "row"),
    [(Pair, Pair("", 0)), (Keyed, Keyed(0, 7)), (Item, Item(7, "")), (Worded, Worded(status=0))],
)
def test_rows_arrive_as_the_users_class(items: Engine, columns: type, row: Any) -> None:
    ids, rows = Table.reflect(items, spec(columns=columns)).read(IdRange(7, 7), None, 10, AS_OF)
    assert (ids, rows, type(rows[0])) == ([7], [row], columns)


def test_a_class_with_a_field_that_is_no_column_is_refused(items: Engine) -> None:
    @dataclass
    class Wrong:
        id: int
        colour: str

    assert "no column 'colour'" in problems(items, spec(columns=Wrong))
    assert "no such field" in problems(items, spec(columns=Pair, guard=["id"]))
    assert "NamedTuple or dataclass" in problems(items, spec(columns=int))


def test_guard_columns_are_read_and_compared_as_they_were_read(items: Engine) -> None:
    table = Table.reflect(items, spec(columns=["payload"], guard=["status", "payload"]))
    ids, rows = table.read(IdRange(1, 5), None, 10, AS_OF)
    assert table.names == ("id", "payload", "status")
    with items.connect() as connection:
        now = table.select_guard(connection, [*ids, 7777])
    assert now == {row_id: table.guard_of(row) for row_id, row in zip(ids, rows, strict=True)}


def test_the_estimate_is_near(items: Engine) -> None:
    execute(items, "ANALYZE" + (" TABLE items" if items.dialect.name == "mysql" else ""))
    assert 200 <= Table.reflect(items, spec()).estimated_rows() <= 300


def test_case_30_a_cut_connection_is_an_error_and_the_next_read_works(items: Engine) -> None:
    """A killed query must never look like the end of the data, and the pool must recover by itself."""
    if items.dialect.name == "sqlite":
        pytest.skip("has no connections to cut")
    sleep = "sleep(5) = 0" if items.dialect.name == "mysql" else "pg_sleep(5) IS NOT NULL"
    slow = Table.reflect(items, spec(where=sleep))
    kill_all_later(items)
    with pytest.raises(Exception, match=r".") as caught:
        slow.read(ALL, None, 10, AS_OF)
    found = fault_of(caught.value)
    assert found is not None
    assert found[0] is Fault.LOST
    assert Table.reflect(items, spec()).read(ALL, None, 10, AS_OF)[0] == list(range(1, 11))


def kill_all_later(engine: Engine) -> None:
    def kill() -> None:
        other = open_engine(engine.url.render_as_string(hide_password=False))
        with other.connect() as connection:
            if engine.dialect.name == "mysql":
                query = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
                for (each,) in connection.exec_driver_sql(query).all():
                    connection.exec_driver_sql(f"KILL {each}")
            else:
                connection.exec_driver_sql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
        other.dispose()

    threading.Timer(0.5, kill).start()


def test_a_cancelled_read_ends_as_too_slow(items: Engine) -> None:
    endless = {
        "mysql": "sleep(60) = 0",
        "postgresql": "pg_sleep(60) IS NOT NULL",
        "sqlite": "(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM s) SELECT max(n) FROM s) > 0",
    }[items.dialect.name]
    table = Table.reflect(items, spec(where=endless))
    timer = threading.Timer(0.5, cancel, [items])
    timer.start()
    began = time.monotonic()
    with pytest.raises(Exception, match=r".") as caught:
        table.read(ALL, None, 10, AS_OF)
    timer.join()
    found = fault_of(caught.value)
    assert found is not None
    assert found[0] is Fault.SLOW
    assert time.monotonic() - began < 20


def test_case_32_odd_values_arrive_in_their_documented_forms(engine: Engine) -> None:
    if engine.dialect.name != "mysql":
        pytest.skip("the types are MySQL's")
    execute(
        engine,
        "CREATE TABLE v (id BIGINT PRIMARY KEY, d DATE, dt DATETIME, ts TIMESTAMP NULL, n DECIMAL(20,4), j JSON, "
        "t TIME, b BIT(8), bl BLOB, e VARCHAR(20)) DEFAULT CHARSET=utf8mb4",
    )
    with engine.connect() as connection:
        connection.exec_driver_sql("SET sql_mode = ''")
        connection.exec_driver_sql(
            "INSERT INTO v VALUES (1,'0000-00-00','0000-00-00 00:00:00','0000-00-00 00:00:00',1.2345,'{\"a\": 1}',"
            "'838:59:59',b'101',x'00ff','hi😀'), (2,'2016-00-00','2024-01-01 00:00:00','2024-01-01 00:00:00',"
            "99999999999999.9999,NULL,'-01:00:00',b'1',NULL,''), "
            "(3,'2024-02-29','2024-01-01 00:00:00','2024-01-01 00:00:00',0,'[]','00:00:00',b'0','','x')"
        )
        connection.invalidate()
    new_year = datetime(2024, 1, 1)
    rows = Table.reflect(engine, spec("v")).read(ALL, None, 10, AS_OF)[1]
    assert [tuple(row)[1:] for row in rows] == [
        (
            "0000-00-00",
            "0000-00-00 00:00:00",
            "0000-00-00 00:00:00",
            Decimal("1.2345"),
            '{"a": 1}',
            timedelta(hours=838, minutes=59, seconds=59),
            b"\x05",
            b"\x00\xff",
            "hi😀",
        ),
        (
            "2016-00-00",
            new_year,
            new_year,
            Decimal("99999999999999.9999"),
            None,
            timedelta(hours=-1),
            b"\x01",
            None,
            "",
        ),
        (date(2024, 2, 29), new_year, new_year, Decimal("0.0000"), "[]", timedelta(0), b"\x00", b"", "x"),
    ]
