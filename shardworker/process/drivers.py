"""What differs between the database drivers, and how their connections are opened.

mysql:// and mariadb:// mean PyMySQL, postgres:// and postgresql:// psycopg (3), and
sqlite:/// the standard library's sqlite3.
"""

from __future__ import annotations

import contextlib
from typing import Any

import sqlalchemy
from sqlalchemy import event
from sqlalchemy.engine import URL, Engine
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import PoolProxiedConnection

from shardworker.errors import ConfigurationError
from shardworker.process.faults import fault_of
from shardworker.process.values import pymysql_conversions

CONNECT_TIMEOUT_S = 10
BUSY_WAIT_S = 30.0  # SQLite: how long a writer waits for another one

_DRIVERS = {
    "mysql": "mysql+pymysql",
    "mariadb": "mysql+pymysql",  # SQLAlchemy's own mariadb dialect refuses a MySQL server; this one takes both
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "sqlite": "sqlite",
}
_INSTALL = {"mysql": "pip install PyMySQL", "postgresql": "pip install shardworker[postgres]"}
_IN_TRANSACTION, _AUTOCOMMIT = 1, 2  # bits of MySQL's server status


def parse_url(text: str, password: str | None) -> URL:
    """The URL with the driver of this package in it, and with `password`, if given, instead of its own.

    Raises:
        ConfigurationError: it cannot be read, or names a database that is not supported. The URL itself is not shown.
    """
    way_out = "use mysql://, mariadb://, postgres:// or sqlite:///file"
    try:
        url = sqlalchemy.make_url(text)
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            f"SHARDWORKER_DATABASE_URL cannot be read as a database URL: {way_out}; a password with special "
            "characters goes into SHARDWORKER_DATABASE_PASSWORD"
        ) from None  # the cause shows the password
    driver = _DRIVERS.get(url.get_backend_name())
    if driver is None:
        raise ConfigurationError(
            f"SHARDWORKER_DATABASE_URL names {url.drivername!r}, which is not supported: {way_out}"
        )
    if driver == "sqlite" and (url.database or ":memory:") == ":memory:":
        raise ConfigurationError(
            "SHARDWORKER_DATABASE_URL names a SQLite database in memory, which every connection would see as another "
            "one: name a file (sqlite:///file)"
        )
    return url.set(drivername=driver, password=password or url.password)


def missing_driver(url: URL) -> ConfigurationError:
    """The error to raise where the driver of `url` is not installed."""
    backend = url.get_backend_name()
    return ConfigurationError(
        f"SHARDWORKER_DATABASE_URL names {backend}, whose driver is not installed: {_INSTALL.get(backend, '')}"
    )


def connect_arguments(url: URL) -> dict[str, Any]:
    """What the driver is told besides the URL, whose query wins."""
    match url.get_backend_name():
        case "mysql":
            ours: dict[str, Any] = {
                "conv": pymysql_conversions(),
                "autocommit": True,
                "charset": "utf8mb4",
                "connect_timeout": CONNECT_TIMEOUT_S,
            }
        case "postgresql":
            ours = {"connect_timeout": CONNECT_TIMEOUT_S}
        case _:
            ours = {"timeout": BUSY_WAIT_S, "check_same_thread": False}
    return {name: value for name, value in ours.items() if name not in url.query}


def prepare_connections(engine: Engine, idle_limit_s: float | None) -> None:
    """Listen to `engine` so that each new connection is set up for this package."""
    backend = engine.dialect.name
    if backend == "mysql":
        event.listen(engine, "do_connect", _connect_pymysql)
    statements = _session_statements(backend, idle_limit_s)

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        if backend == "sqlite":
            _use_wal(cursor)
        cursor.close()


def _session_statements(backend: str, idle_limit_s: float | None) -> list[str]:
    if backend == "mysql":  # InnoDB's default, REPEATABLE READ, locks gaps, and reads an old snapshot
        statements = ["SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"]
        if idle_limit_s is not None:
            statements.append(f"SET SESSION wait_timeout = {max(1, round(idle_limit_s))}")
        return statements
    if backend == "postgresql":
        statements = ["SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED"]
        if idle_limit_s is not None:
            statements.append(f"SET SESSION idle_in_transaction_session_timeout = {max(1, round(idle_limit_s * 1000))}")
        return statements
    return []


def _use_wal(cursor: Any) -> None:
    """Let readers go on beside a writer. The mode stays in the file, so it is set once; a busy file keeps its own."""
    if cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        with contextlib.suppress(Exception):
            cursor.execute("PRAGMA journal_mode = WAL").fetchone()


def _connect_pymysql(_dialect: Any, _record: Any, arguments: list[Any], options: dict[str, Any]) -> Any:
    from shardworker.process.quick_pymysql import QuickConnection

    return QuickConnection(*arguments, **options)


def is_in_transaction(backend: str, connection: Any) -> bool:
    """Whether the driver's connection has, or may have, an open transaction; asks no server."""
    if backend == "mysql":
        return int(connection.server_status) & (_IN_TRANSACTION | _AUTOCOMMIT) != _AUTOCOMMIT
    if backend == "postgresql":
        return int(connection.info.transaction_status) != 0
    return bool(connection.in_transaction)


def interrupt(backend: str, connection: Any, other: PoolProxiedConnection | None) -> None:
    """End the statement that another thread runs on `connection`; MySQL needs an `other` one to say so.

    Raises nothing where there is no statement any more, or no connection.
    """
    try:
        if backend == "mysql" and other is not None:
            cursor = other.cursor()
            cursor.execute(f"KILL QUERY {connection.thread_id():d}")
            cursor.close()
        elif backend == "postgresql":
            cancel = getattr(connection, "cancel_safe", connection.cancel)  # psycopg 3.2: over TLS, with a time-out
            cancel()
        elif backend == "sqlite":
            connection.interrupt()
    except Exception as error:
        if fault_of(error) is None:
            raise
