"""Engines, transactions, and what becomes of connections that the server closes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, exc
from sqlalchemy.engine import Engine

from shardworker.errors import ConfigurationError
from shardworker.process import database, drivers
from shardworker.process.database import CommitInDoubt, open_engine, transaction, transactional
from shardworker.process.faults import Fault, fault_of, transient_code


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = open_engine(url)
    execute(engine, "CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY)")
    yield engine
    engine.dispose()


def execute(engine: Engine, *statements: str) -> Any:
    with engine.connect() as connection:
        for statement in statements:
            result = connection.exec_driver_sql(statement)
        return result.scalar() if result.returns_rows else None


def count(engine: Engine) -> int:
    return int(execute(engine, "SELECT COUNT(*) FROM t"))


def kill_connections(engine: Engine) -> None:
    """All connections to this database, as an administrator would."""
    other = open_engine(engine.url.render_as_string(hide_password=False))
    with other.connect() as connection:
        if engine.dialect.name == "mysql":
            mine = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
            for (each,) in connection.exec_driver_sql(mine).all():
                connection.exec_driver_sql(f"KILL {each}")
        else:
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
    other.dispose()


def within(engine: Engine, *steps: str | Callable[[], object]) -> None:
    """Statements and calls, one after another in one transaction."""
    with transaction(engine) as connection:
        for step in steps:
            if isinstance(step, str):
                connection.exec_driver_sql(step)
            else:
                step()


def fail() -> None:
    raise ZeroDivisionError


def needs_a_server(engine: Engine) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("has no server")


def test_a_statement_stands_by_itself(engine: Engine) -> None:
    execute(engine, "INSERT INTO t VALUES (1)")
    other = open_engine(engine.url.render_as_string(hide_password=False))
    assert count(other) == 1
    other.dispose()


def test_sessions_are_read_committed(engine: Engine) -> None:
    needs_a_server(engine)
    if engine.dialect.name == "postgresql":
        question = "SHOW default_transaction_isolation"
    else:
        is_mariadb = "MariaDB" in execute(engine, "SELECT VERSION()")
        question = f"SELECT @@session.{'tx' if is_mariadb else 'transaction'}_isolation"
    assert execute(engine, question).lower().replace("-", " ") == "read committed"


def test_utf8mb4_needs_nothing_in_the_url(engine: Engine) -> None:
    assert execute(engine, "SELECT 'hi😀'") == "hi😀"


def test_a_transaction_is_kept_as_a_whole_or_not_at_all(engine: Engine) -> None:
    within(engine, "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
    with pytest.raises(ZeroDivisionError):
        within(engine, "INSERT INTO t VALUES (3)", fail)
    with pytest.raises(exc.IntegrityError):
        within(engine, "INSERT INTO t VALUES (4)", "INSERT INTO t VALUES (4)")
    assert count(engine) == 2
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_no_statement_is_sent_besides_begin_work_and_commit(engine: Engine) -> None:
    if engine.dialect.name != "mysql":
        pytest.skip("counted on MySQL")
    execute(engine, "SELECT 1")
    before = questions(engine)
    with transaction(engine) as connection:
        connection.exec_driver_sql("INSERT INTO t VALUES (1)")
    assert questions(engine) - before == 1 + 3


def questions(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Questions'").one()[1])


def test_two_writers_of_sqlite_wait_for_each_other(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/data.db")
    execute(engine, "CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY)")

    def fill(first: int) -> None:
        for row_id in range(first, first + 20):
            with transaction(engine) as connection:
                connection.exec_driver_sql("SELECT MAX(id) FROM t").all()
                connection.exec_driver_sql("INSERT INTO t VALUES (?)", (row_id,))

    threads = [threading.Thread(target=fill, args=(first,)) for first in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count(engine) == 60
    assert execute(engine, "PRAGMA journal_mode") == "wal"
    engine.dispose()


def test_a_connection_lost_in_a_transaction_is_dropped_and_told(engine: Engine) -> None:
    needs_a_server(engine)
    with pytest.raises(exc.DBAPIError) as caught:
        within(engine, "INSERT INTO t VALUES (1)", lambda: kill_connections(engine), "INSERT INTO t VALUES (2)")
    assert transient_code(caught.value) is not None
    assert count(engine) == 0


def test_a_lost_reply_to_commit_is_in_doubt(engine: Engine) -> None:
    """The caller must look at the data: to run it again could do it twice, not to could lose it."""
    needs_a_server(engine)
    with pytest.raises(CommitInDoubt) as caught:
        within(engine, "INSERT INTO t VALUES (1)", lambda: kill_connections(engine))
    assert transient_code(caught.value) is None
    assert caught.value.__cause__ is not None
    assert transient_code(caught.value.__cause__) is not None
    assert count(engine) == 0


def test_a_commit_that_the_server_refuses_is_not_in_doubt(engine: Engine) -> None:
    if engine.dialect.name != "postgresql":
        pytest.skip("needs a constraint that is checked at the COMMIT")
    execute(engine, "CREATE TABLE child (t BIGINT REFERENCES t (id) DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(exc.IntegrityError), transaction(engine) as connection:
        connection.exec_driver_sql("INSERT INTO child VALUES (5)")
    assert execute(engine, "SELECT COUNT(*) FROM child") == 0


def test_case_29_users_code_never_meets_a_connection_that_the_server_closed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_a_server(engine)
    monkeypatch.setattr(database, "PING_AFTER_IDLE_S", 0.1)
    connections = [engine.connect() for _ in range(3)]
    for connection in connections:
        connection.close()
    kill_connections(engine)
    time.sleep(0.2)
    for connection in [engine.connect() for _ in range(3)]:
        with connection:
            assert connection.exec_driver_sql("SELECT 1").scalar() == 1


def test_a_busy_connection_is_not_pinged(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    pings: list[Any] = []
    monkeypatch.setattr(engine.dialect, "do_ping", pings.append)
    for _ in range(5):
        count(engine)
    assert pings == []


def test_an_idle_session_is_ended_by_the_server_when_a_limit_is_given(url: str) -> None:
    engine = open_engine(url, idle_limit_s=61)
    if engine.dialect.name == "mysql":
        assert execute(engine, "SELECT @@session.wait_timeout") == 61
    if engine.dialect.name == "postgresql":
        assert execute(engine, "SHOW idle_in_transaction_session_timeout") == "61s"
    engine.dispose()


def test_a_server_that_became_read_only_costs_the_pool_its_connections(engine: Engine) -> None:
    if engine.dialect.name != "postgresql":
        pytest.skip("one session can be made read-only on PostgreSQL alone")
    with engine.connect() as connection:
        old = connection.connection.dbapi_connection
        connection.exec_driver_sql("SET default_transaction_read_only = on")
    with pytest.raises(exc.DBAPIError) as caught:
        execute(engine, "INSERT INTO t VALUES (1)")
    assert fault_of(caught.value) == (Fault.WRONG_SERVER, "25006")
    assert caught.value.connection_invalidated
    with engine.connect() as connection:
        assert connection.connection.dbapi_connection is not old
    assert count(engine) == 0


def test_a_transaction_that_users_code_left_open_does_not_reach_the_pool(engine: Engine) -> None:
    raw = engine.raw_connection()
    cursor = raw.cursor()
    cursor.execute("BEGIN")
    cursor.execute("INSERT INTO t VALUES (1)")
    cursor.close()
    raw.close()
    assert count(engine) == 0


def test_users_transactions_are_transactions(engine: Engine) -> None:
    users = transactional(engine)
    with users.begin() as connection:
        connection.exec_driver_sql("INSERT INTO t VALUES (1)")

    def insert_and_fail() -> None:
        with users.begin() as connection:
            connection.exec_driver_sql("INSERT INTO t VALUES (2)")
            fail()

    with pytest.raises(ZeroDivisionError):
        insert_and_fail()
    with users.connect() as connection:
        connection.exec_driver_sql("INSERT INTO t VALUES (3)")  # and no commit
    assert count(engine) == 1
    execute(engine, "INSERT INTO t VALUES (4)")  # the pool's connections are in autocommit again
    assert count(users) == 2


def test_case_31_a_full_pool_is_waited_for_and_then_told(url: str) -> None:
    engine = open_engine(url, connections=1, pool_wait_s=0.2)
    with engine.connect(), pytest.raises(exc.TimeoutError) as caught:
        engine.connect()
    assert fault_of(caught.value) == (Fault.AWAY, "pool")
    engine.dispose()


def test_the_password_beside_the_url_wins_and_is_never_shown(url: str) -> None:
    parsed = drivers.parse_url(url, None)
    if parsed.password is None:
        pytest.skip("has no passwords")
    engine = open_engine(parsed.set(password="wrong").render_as_string(False), password=str(parsed.password))
    assert execute(engine, "SELECT 1") == 1
    engine.dispose()
    refused = open_engine(url, password="p@ss/%40:word")
    if parsed.get_backend_name() == "postgresql":
        return  # the test server trusts everybody
    with pytest.raises(exc.DBAPIError) as caught:
        refused.connect()
    assert fault_of(caught.value)[0] is Fault.PERMANENT  # type: ignore[index]
    assert "p@ss" not in f"{caught.value} {refused!r} {caught.value.__cause__}"
    refused.dispose()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "no url",
        "mysql://user:secret@host:port/db",
        "oracle://user:secret@host/db",
        "sqlite://",
        "sqlite:///:memory:",
    ],
)
def test_a_url_that_cannot_work_is_refused_with_the_way_out(url: str) -> None:
    with pytest.raises(ConfigurationError, match="SHARDWORKER_DATABASE_URL") as caught:
        open_engine(url)
    assert "secret" not in str(caught.value)
    assert "mysql://" in str(caught.value) or "sqlite:///file" in str(caught.value)


def test_a_missing_driver_is_told_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(ConfigurationError, match=r"SHARDWORKER_DATABASE_URL.*pip install shardworker\[postgres\]"):
        open_engine("postgres://user@host/db")


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("mysql://h/d", "pymysql"),
        ("mariadb://h/d", "pymysql"),
        ("postgres://h/d", "psycopg"),
        ("postgresql://h/d", "psycopg"),
    ],
)
def test_each_scheme_means_one_driver(url: str, driver: str) -> None:
    assert open_engine(url).dialect.driver == driver


def test_connecting_to_mysql_reads_no_bundle_of_authorities(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """28 ms of CPU at each connect; encrypted all the same if the server offers it."""
    if engine.dialect.name != "mysql":
        pytest.skip("a matter of PyMySQL")
    import ssl

    import pymysql

    def loaded(*arguments: Any, **options: Any) -> None:
        raise AssertionError("the bundle was read")

    monkeypatch.setattr(ssl, "create_default_context", loaded)
    with engine.connect() as connection:
        connection.invalidate()
    with engine.connect() as connection:
        cipher = connection.exec_driver_sql("SHOW STATUS LIKE 'Ssl_cipher'").one()[1]
    monkeypatch.undo()
    raw = pymysql.connect(**plain_options(engine))
    cursor = raw.cursor()
    cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
    assert cursor.fetchall() == (("Ssl_cipher", cipher),)
    raw.close()


def plain_options(engine: Engine) -> dict[str, Any]:
    url = engine.url
    return {
        "host": url.host,
        "port": url.port or 3306,
        "user": url.username,
        "password": url.password or "",
        "database": url.database,
    }


EVERY_TYPE = (
    "a TINYINT, b BIGINT UNSIGNED, c FLOAT, d DOUBLE, e DECIMAL(30,10), f BIT(12), g CHAR(5), h VARCHAR(9000), "
    "i TINYBLOB, j LONGTEXT, k JSON, l DATE, m DATETIME(6), n TIMESTAMP NULL, o TIME(3), p YEAR, "
    "q ENUM('x','y'), r SET('x','y'), s BINARY(4), t VARBINARY(10), u DATETIME(2), v LONGBLOB"
)


def test_rows_are_those_of_pymysql_itself(engine: Engine) -> None:
    """The quick decoding replaces private methods of PyMySQL: this is what tells when one of them changed."""
    if engine.dialect.name != "mysql":
        pytest.skip("a matter of PyMySQL")
    import pymysql

    execute(engine, f"CREATE TABLE every (id BIGINT PRIMARY KEY, {EVERY_TYPE}) DEFAULT CHARSET=utf8mb4")
    rows = [
        (1, -128, 2**64 - 1, 1.5, 1e300, "12345678901234567890.0123456789", 5, "é", "😀" * 2000, b"\0", "x" * 70_000,
         '{"a": "ü"}', "2024-02-29", "2024-02-29 23:59:59.000001", "2024-01-01 00:00:00", "-837:59:59.5", 2024, "x",
         "x,y", b"ab", b"\xff\xfe", "2024-01-01 00:00:00.12", b"\x00" * (17 << 20)),
        (2, *[None] * 22),
        (3, 0, 0, 0, -0.0, "-1", 0, "", "", b"", "", "null", "0001-01-01", "9999-12-31 23:59:59.999999",
         "2024-01-01 00:00:01", "00:00:00", 1901, "y", "", b"", b"", "2024-01-01 00:00:00", b"x" * 300),
    ]  # fmt: skip
    with engine.connect() as connection:
        size = connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one()
        if size < 64 << 20:
            rows[0] = (*rows[0][:-1], b"y" * (1 << 20))
        for row in rows:
            connection.exec_driver_sql(f"INSERT INTO every VALUES ({', '.join(['%s'] * 23)})", row)
    raw = pymysql.connect(**plain_options(engine))
    queries = [
        "SELECT * FROM every ORDER BY id",
        "SELECT id FROM every WHERE id < 0",
        "SELECT NULL, NULL",
        "SHOW TABLES",
    ]
    for query in queries:
        theirs = raw.cursor()
        theirs.execute(query)
        expected = theirs.fetchall()
        ours = engine.raw_connection()
        cursor = ours.cursor()
        cursor.execute(query)
        found = cursor.fetchall()
        assert found == expected
        assert [list(map(type, row)) for row in found] == [list(map(type, row)) for row in expected]
        assert (cursor.rowcount, [column[0] for column in cursor.description]) == (
            theirs.rowcount,
            [column[0] for column in theirs.description],
        )
        cursor.close()
        ours.close()
    raw.close()


def test_engines_do_nothing_before_their_first_use() -> None:
    opened: list[Any] = []
    engine = open_engine("mysql://nobody@127.0.0.1:1/nothing")
    event.listen(engine, "connect", lambda *_: opened.append(1))
    assert opened == []
    with pytest.raises(exc.DBAPIError) as caught:
        engine.connect()
    assert fault_of(caught.value) == (Fault.AWAY, "2003")
