"""Engines, transactions, and the cancelling of statements.

The engine works in autocommit: no transaction is open unless `transaction` began it, so none stays open while a handler
runs. (A user's `engine.begin()` on such an engine is no transaction; `transactional` is the same pool for users.)
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy
from sqlalchemy import event
from sqlalchemy.engine import Connection, Dialect, Engine, ExceptionContext
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import ArgumentError, DisconnectionError
from sqlalchemy.pool import QueuePool

from shardworker.clock import SystemClock
from shardworker.errors import ConfigurationError, ShardworkerError
from shardworker.process import drivers
from shardworker.process.faults import Fault, fault_of, transient_code

PING_AFTER_IDLE_S = 1.0

# Drivers' connections that are checked out. By dialect: an engine with other execution options shares it, and its pool.
_in_use: WeakKeyDictionary[Dialect, set[Any]] = WeakKeyDictionary()


class CommitInDoubt(ShardworkerError):
    """The reply to a COMMIT was lost: only a locking read can tell whether it happened."""


def open_engine(
    url: str,
    *,
    password: str | None = None,
    connections: int = 4,
    pool_wait_s: float = 600,
    idle_limit_s: float | None = None,
) -> Engine:
    """An engine with at most `connections` connections; nothing is connected yet.

    `password` replaces the URL's. Whoever finds all connections in use waits up to `pool_wait_s`. After `idle_limit_s`
    the server itself ends a connection that is idle (PostgreSQL: idle in a transaction), so that a frozen process does
    not keep its locks; None leaves the server's default.

    Raises:
        ConfigurationError: the URL cannot be read, names no supported database, or its driver is not installed.
    """
    parsed = drivers.parse_url(url, password)
    try:
        engine = sqlalchemy.create_engine(
            parsed,
            isolation_level="AUTOCOMMIT",
            poolclass=QueuePool,
            pool_size=connections,
            max_overflow=0,
            pool_timeout=pool_wait_s,
            pool_use_lifo=True,  # the others grow idle, and the server may close them
            pool_reset_on_return=None,  # `_roll_back_leftovers` asks first whether there is anything to roll back
            hide_parameters=True,
            connect_args=drivers.connect_arguments(parsed),
            **_no_idle_rollback(),
        )
    except ImportError as error:
        raise drivers.missing_driver(parsed) from error
    except (ArgumentError, TypeError, ValueError) as error:
        raise ConfigurationError("SHARDWORKER_DATABASE_URL has an option that its driver does not take") from error
    drivers.prepare_connections(engine, idle_limit_s)
    _watch_pool(engine)
    event.listen(engine, "handle_error", _mark_disconnect)
    return engine


def _no_idle_rollback() -> dict[str, Any]:
    """From SQLAlchemy 2.0.43 on: no ROLLBACK is sent where autocommit says that there is nothing to roll back."""
    known = inspect.signature(DefaultDialect.__init__).parameters
    return {"skip_autocommit_rollback": True} if "skip_autocommit_rollback" in known else {}


def transactional(engine: Engine) -> Engine:
    """The same pool for code that expects `engine.begin()` to be a transaction, as users' does."""
    level = "SERIALIZABLE" if engine.dialect.name == "sqlite" else "READ COMMITTED"
    return engine.execution_options(isolation_level=level)


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """A connection inside BEGIN and COMMIT; any exception rolls back and goes on.

    SQLite takes its write lock at once: two readers that both want to write later would end in an error.

    Raises:
        CommitInDoubt: the reply to the COMMIT was lost, or does not say what became of it.
    """
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if engine.dialect.name == "sqlite" else "BEGIN")
        try:
            yield connection
        except BaseException:
            _roll_back(connection)
            raise
        _commit(connection)


def _commit(connection: Connection) -> None:
    try:
        connection.exec_driver_sql("COMMIT")
    except BaseException as error:
        is_rolled_back = _roll_back(connection)
        found = fault_of(error)
        refused = found is not None and found[0] in (Fault.AGAIN, Fault.VALUE, Fault.PERMANENT)
        if refused or (is_rolled_back and connection.dialect.name == "sqlite"):  # SQLite still had the transaction
            raise
        raise CommitInDoubt("the reply to a COMMIT was lost; it may have happened") from error


def _roll_back(connection: Connection) -> bool:
    """Roll back, or else throw the connection away: the pool gets none with an open transaction."""
    if connection.invalidated:
        return False
    try:
        connection.exec_driver_sql("ROLLBACK")
    except BaseException as error:  # noqa: BLE001 - whatever it was: the error that led here is the one to see
        if not connection.invalidated and not connection.closed:
            connection.invalidate(error)
        return False
    return True


def cancel(engine: Engine) -> int:
    """End the statements that other threads run on connections of `engine`; says how many were told to.

    They fail there with Fault.SLOW. Takes a connection of its own, beyond the pool's limit.
    """
    busy = list(_in_use.get(engine.dialect, ()))
    if not busy:
        return 0
    apart = engine.pool.recreate()
    other = apart.connect() if engine.dialect.name == "mysql" else None
    try:
        for connection in busy:
            drivers.interrupt(engine.dialect.name, connection, other)
    finally:
        if other is not None:
            other.close()
        apart.dispose()
    return len(busy)


def _watch_pool(engine: Engine) -> None:
    now, dialect = SystemClock().now, engine.dialect
    in_use: set[Any] = set()
    _in_use[dialect] = in_use

    @event.listens_for(engine, "checkout")
    def ping_after_idling(connection: Any, record: Any, _proxy: Any) -> None:
        """The server may have closed it meanwhile (wait_timeout, a restart); busy connections are not asked."""
        idle_since = record.info.pop("idle_since", None)
        if idle_since is not None and now() - idle_since > PING_AFTER_IDLE_S:
            try:
                dialect.do_ping(connection)
            except Exception as error:
                raise DisconnectionError("the server closed an idle connection") from error
        in_use.add(connection)

    @event.listens_for(engine, "checkin")
    def note_time(connection: Any, record: Any) -> None:
        if connection is not None:  # None: it was invalidated
            in_use.discard(connection)
            record.info["idle_since"] = now()

    @event.listens_for(engine, "invalidate")
    def forget(connection: Any, _record: Any, _error: Any) -> None:
        in_use.discard(connection)

    @event.listens_for(engine, "reset")
    def roll_back_leftovers(connection: Any, _record: Any, state: Any) -> None:
        """A user's code may have left a transaction open; where rolling back fails, the pool drops the connection."""
        if not state.terminate_only and drivers.is_in_transaction(dialect.name, connection):
            connection.rollback()


def _mark_disconnect(context: ExceptionContext) -> None:
    """Make SQLAlchemy drop the pool's connections also where they are alive but useless: read-only after a failover."""
    found = fault_of(context.original_exception)
    if found is not None and found[0] in (Fault.LOST, Fault.WRONG_SERVER):
        context.is_disconnect = True


def passing_code(error: BaseException) -> str | None:
    """For work that may be done twice: the code of an error after which it may be tried again; None for the others."""
    return "COMMIT" if isinstance(error, CommitInDoubt) else transient_code(error)
