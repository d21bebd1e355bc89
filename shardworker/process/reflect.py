"""The user's table as it is in the database, and whether a job can be done on it. Every problem is found at once."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import sqlalchemy
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, NoSuchTableError, SAWarning

from shardworker.errors import ConfigurationError
from shardworker.handler import JobSpec
from shardworker.ids import IdRange
from shardworker.process.rows import RowShape, fields_of, shape_of_class, shape_of_names

_BITS = {"TINYINT": 8, "SMALLINT": 16, "MEDIUMINT": 24, "INTEGER": 32, "BIGINT": 64}
_SUPPORTED = {
    "mysql": "TINYINT, SMALLINT, MEDIUMINT, INT and BIGINT, signed or UNSIGNED",
    "postgresql": "SMALLINT, INTEGER and BIGINT",
    "sqlite": "INTEGER and BIGINT",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reflected:
    """A table that a job can be done on."""

    columns: sqlalchemy.Table
    key: str
    key_index: str  # the name of its unique index, as MySQL's FORCE INDEX takes it
    limits: IdRange  # what the key's type can hold
    shape: RowShape


def reflect(engine: Engine, spec: JobSpec) -> Reflected:
    """Look up the table and check the job against it.

    Raises:
        ConfigurationError: with every problem that was found.
    """
    table = _load(engine, spec)
    name = _full_name(spec)
    key, problems = _find_key(table, spec, name)
    problems += _unknown_columns(table, spec, name)
    limits, key_index = None, None
    if key is not None:
        limits = _limits(table.c[key], engine)
        key_index = _unique_index(engine, table, key)
        problems += _key_problems(engine, table.c[key], name, has_limits=limits is not None, index=key_index)
    if problems or key is None or limits is None or key_index is None:
        raise ConfigurationError(*problems)
    return Reflected(columns=table, key=key, key_index=key_index, limits=limits, shape=_shape(table, spec, key))


def _full_name(spec: JobSpec) -> str:
    return f"{spec.schema}.{spec.table}" if spec.schema else spec.table


def _load(engine: Engine, spec: JobSpec) -> sqlalchemy.Table:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SAWarning)  # types that SQLAlchemy does not know go through as they are
            return sqlalchemy.Table(
                spec.table, sqlalchemy.MetaData(), schema=spec.schema, autoload_with=engine, resolve_fks=False
            )
    except (NoSuchTableError, DBAPIError) as error:
        problem = _no_such_table(engine, spec)
        if problem is None:
            raise
        raise ConfigurationError(problem) from error


def _no_such_table(engine: Engine, spec: JobSpec) -> str | None:
    """What to say of a table that could not be looked up; None: it is there."""
    look = sqlalchemy.inspect(engine)
    if spec.schema and spec.schema not in look.get_schema_names():
        return f"there is no schema {spec.schema!r}{_meant(spec.schema, look.get_schema_names())}; see schema="
    names = look.get_table_names(schema=spec.schema)
    if spec.table in names:
        return None
    where = f" in schema {spec.schema!r}" if spec.schema else f" in database {engine.url.database!r}"
    return f"there is no table {spec.table!r}{where}{_meant(spec.table, names)}; see table=, schema= and DATABASE_URL"


def _meant(name: str, names: Collection[str]) -> str:
    close = difflib.get_close_matches(name, names, n=3)
    return f" (did you mean {', '.join(map(repr, close))}?)" if close else ""


def _find_key(table: sqlalchemy.Table, spec: JobSpec, name: str) -> tuple[str | None, list[str]]:
    if spec.key is not None:
        if spec.key in table.c:
            return spec.key, []
        return None, [f"table {name} has no column {spec.key!r}{_meant(spec.key, table.c.keys())}; see key="]
    primary = [column.name for column in table.primary_key.columns]
    if len(primary) == 1:
        return primary[0], []
    has = f"a primary key of several columns ({', '.join(primary)})" if primary else "no primary key"
    return None, [f"table {name} has {has}: name a unique integer column that is NOT NULL with key="]


def _unknown_columns(table: sqlalchemy.Table, spec: JobSpec, name: str) -> Iterator[str]:
    columns = spec.columns or ()
    fields = fields_of(columns) if isinstance(columns, type) else tuple(columns)
    if fields is None:
        yield f"columns={columns!r}: give names of columns, or a NamedTuple or dataclass with such fields"
        return
    for option, wanted in (("columns", fields), ("guard", spec.guard)):
        for column in wanted:
            if column not in table.c:
                yield f"table {name} has no column {column!r}{_meant(column, table.c.keys())}; see {option}="
    for column in spec.guard:
        if isinstance(columns, type) and column not in fields:
            yield f"guard= names {column!r}, but {columns.__name__} (columns=) has no such field: add it"


def _key_problems(
    engine: Engine, column: sqlalchemy.Column[object], name: str, *, has_limits: bool, index: str | None
) -> Iterator[str]:
    key = column.name
    if not has_limits:
        yield (
            f"the key {key!r} of table {name} is of type {_type_name(column, engine)}; supported are "
            f"{_SUPPORTED[engine.dialect.name]}: name another unique column with key="
        )
    if index is None:
        yield (
            f"the key {key!r} of table {name} has no unique index on exactly this column, so rows could share one id: "
            "name another column with key=, or add such an index"
        )
    if column.nullable and not _is_rowid(engine, column):
        yield (
            f"the key {key!r} of table {name} may be NULL, and such rows would never be read: declare it NOT NULL, "
            "or name another column with key="
        )


def _is_rowid(engine: Engine, column: sqlalchemy.Column[object]) -> bool:
    """SQLite: an INTEGER PRIMARY KEY is the rowid and never NULL; any other primary key may be."""
    return engine.dialect.name == "sqlite" and column.primary_key and _type_name(column, engine) == "INTEGER"


def _type_name(column: sqlalchemy.Column[object], engine: Engine) -> str:
    if isinstance(column.type, sqlalchemy.types.NullType):
        return "a kind that SQLAlchemy does not know"
    return column.type.compile(engine.dialect)


def _limits(column: sqlalchemy.Column[object], engine: Engine) -> IdRange | None:
    bits = _BITS.get(type(column.type).__visit_name__.upper())
    if bits is None:
        return None
    if engine.dialect.name == "sqlite":
        bits = 64  # whatever the declaration says
    if getattr(column.type, "unsigned", False):
        return IdRange(0, 2**bits - 1)
    return IdRange(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _unique_index(engine: Engine, table: sqlalchemy.Table, key: str) -> str | None:
    if [column.name for column in table.primary_key.columns] == [key]:
        return "PRIMARY"
    look = sqlalchemy.inspect(engine)
    for index in look.get_indexes(table.name, schema=table.schema):
        is_partial = any(option.endswith("_where") for option in index.get("dialect_options", {}))
        if index["unique"] and index["column_names"] == [key] and not is_partial:
            return index["name"] or ""
    for constraint in look.get_unique_constraints(table.name, schema=table.schema):
        if constraint["column_names"] == [key]:
            return constraint["name"] or ""
    return None


def _shape(table: sqlalchemy.Table, spec: JobSpec, key: str) -> RowShape:
    if isinstance(spec.columns, type):
        return shape_of_class(spec.columns, key, spec.guard)
    names = table.c.keys() if spec.columns is None else spec.columns
    return shape_of_names(list(names), key, spec.guard)
