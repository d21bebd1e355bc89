"""How much goes into one statement that writes, and what else the server must be asked for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy
from sqlalchemy import bindparam, text
from sqlalchemy.engine import Connection, Engine

_NO_PACKET_LIMIT = 32 << 20  # PostgreSQL takes a gigabyte, and is quicker with less

# A value is cast to the column's type without its length or precision: a cast to varchar(3) cuts, where the assignment
# raises. A domain stands for its base type for the same reason. The names are qualified since `bit` and `character`
# alone mean bit(1) and character(1).
_CASTS = text("""
    SELECT a.attname, quote_ident(n.nspname) || '.' || quote_ident(t.typname)
    FROM pg_catalog.pg_attribute a
    JOIN pg_catalog.pg_type d ON d.oid = a.atttypid
    JOIN pg_catalog.pg_type t ON t.oid = CASE WHEN d.typtype = 'd' THEN d.typbasetype ELSE d.oid END
    JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
    WHERE a.attrelid = CAST(CAST(:name AS text) AS regclass) AND a.attnum > 0 AND NOT a.attisdropped
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteLimits:
    packet: int  # bytes that the server takes at once
    casts: Mapping[str, str]  # PostgreSQL: the type to cast a column's values to, quoted; elsewhere empty

    @classmethod
    def ask(cls, engine: Engine, columns: sqlalchemy.Table) -> WriteLimits:
        with engine.connect() as connection:
            if engine.dialect.name == "mysql":
                packet = connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one()
                return cls(packet=int(packet), casts={})
            if engine.dialect.name == "postgresql":
                return cls(packet=_NO_PACKET_LIMIT, casts=_casts(connection, columns))
        return cls(packet=_NO_PACKET_LIMIT, casts={})


def _casts(connection: Connection, columns: sqlalchemy.Table) -> dict[str, str]:
    quote = connection.dialect.identifier_preparer.quote_identifier
    name = ".".join(quote(part).replace("%%", "%") for part in (columns.schema, columns.name) if part)
    return {row[0]: row[1] for row in connection.execute(_CASTS.bindparams(bindparam("name", name)))}
