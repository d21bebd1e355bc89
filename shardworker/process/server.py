"""What the database server allows: how many connections, and whether it can be written to."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, text


@dataclass(frozen=True, slots=True)
class Connections:
    most: int  # at the same time, by everybody who has no special rights
    in_use: int  # the one that asked included

    @property
    def free(self) -> int:
        return max(0, self.most - self.in_use)


def connections(engine: Engine) -> Connections | None:
    """None: the server has no limit, or is no server."""
    with engine.connect() as connection:
        match engine.dialect.name:
            case "mysql":
                return _of_mysql(connection)
            case "postgresql":
                return _of_postgres(connection)
            case _:
                return None


def _of_mysql(connection: Connection) -> Connections | None:
    most, of_user = connection.execute(text("SELECT @@max_connections, @@max_user_connections")).one()
    in_use = connection.execute(text("SHOW GLOBAL STATUS LIKE 'Threads_connected'")).first()
    limits = [int(limit) for limit in (most, of_user) if int(limit) > 0]
    return Connections(min(limits), int(in_use[1]) if in_use else 0) if limits else None


def _of_postgres(connection: Connection) -> Connections:
    reserved = "current_setting('superuser_reserved_connections')"
    most, in_use = connection.execute(
        text(
            f"SELECT CAST(current_setting('max_connections') AS int) - CAST({reserved} AS int), "
            "(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')"
        )
    ).one()
    return Connections(int(most), int(in_use))


def is_read_only(engine: Engine) -> bool:
    """Whether this is a replica, or another server or file that cannot be written to."""
    if engine.dialect.name == "sqlite":
        file = engine.url.database
        return file is not None and os.path.exists(file) and not os.access(file, os.W_OK)
    query = {
        "mysql": "SELECT @@global.read_only",
        "postgresql": "SELECT pg_is_in_recovery() OR CAST(current_setting('default_transaction_read_only') AS bool)",
    }[engine.dialect.name]
    with engine.connect() as connection:
        return bool(connection.execute(text(query)).scalar_one())
