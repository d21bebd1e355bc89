"""About how many rows a table has, without reading it."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy
from sqlalchemy import bindparam, column, func, select, table
from sqlalchemy.engine import Connection, Engine

from shardworker.process.queries import Query


def estimated_rows(engine: Engine, columns: sqlalchemy.Table) -> int:
    """The server's own estimate; 0 where it has none. Often off by half, in a changing table by more."""
    with engine.connect() as connection:
        match engine.dialect.name:
            case "mysql":
                return _of_mysql(connection, columns)
            case "postgresql":
                return _of_postgres(connection, columns)
            case _:  # no server to burden, and no estimate without ANALYZE
                return int(connection.execute(select(func.count()).select_from(columns)).scalar_one())


def _of_mysql(connection: Connection, columns: sqlalchemy.Table) -> int:
    tables: Any = table("tables", column("table_rows"), column("table_schema"), column("table_name"))
    tables.schema = "information_schema"
    query = select(tables.c.table_rows).where(
        tables.c.table_schema == func.coalesce(bindparam("schema", columns.schema), func.database()),
        tables.c.table_name == columns.name,
    )
    return int(connection.execute(query).scalar() or 0)


def _of_postgres(connection: Connection, columns: sqlalchemy.Table) -> int:
    """The planner's estimate: unlike reltuples it is there before the first ANALYZE, and for partitioned tables."""
    query = Query(connection.engine, select(sqlalchemy.literal_column("1")).select_from(columns))
    plan = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {query.text}", query.arguments()).scalar_one()
    steps = json.loads(plan) if isinstance(plan, str) else plan
    return int(steps[0]["Plan"]["Plan Rows"])
