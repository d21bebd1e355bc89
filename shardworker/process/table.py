"""The user's table: keyset reads of its rows, and what else is asked of it before and while a job runs.

Rows come from the driver's own cursor, taken through SQLAlchemy's pool: SQLAlchemy's Row objects and type conversions
cost a tenth more, and only the driver's values can be compared with each other (`guard`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import sqlalchemy
from sqlalchemy import bindparam, select
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from shardworker.errors import ConfigurationError
from shardworker.handler import JobSpec
from shardworker.ids import IdRange
from shardworker.process.estimate import estimated_rows
from shardworker.process.faults import Fault, fault_of
from shardworker.process.queries import Query, id_list, readable, user_filter
from shardworker.process.reflect import Reflected, reflect
from shardworker.process.values import for_sqlite
from shardworker.process.write_limits import WriteLimits

IDS_AT_ONCE = 1000


class Table:
    """A table that a job can be done on. Threads may share it; every call takes a connection and gives it back."""

    def __init__(self, engine: Engine, spec: JobSpec, found: Reflected, limits: WriteLimits) -> None:
        self.engine = engine
        self.spec = spec
        self.columns = found.columns
        self.key = found.key
        self.limits = found.limits  # what the key's type can hold
        self.write_limits = limits
        self.writable = frozenset(
            column.name for column in found.columns.c if column.name != found.key and column.computed is None
        )
        self.guard_of = found.shape.guard_of
        self._shape = found.shape
        self._key_index = found.key_index
        self._first_page = self._query(self._page(first=True))
        self._next_page = self._query(self._page(first=False))

    @classmethod
    def reflect(cls, engine: Engine, spec: JobSpec) -> Table:
        """The table of a job, checked.

        Raises:
            ConfigurationError: there is none, or the job cannot be done on it; with every problem that was found.
        """
        found = reflect(engine, spec)
        return cls(engine, spec, found, WriteLimits.ask(engine, found.columns))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are read, in the query's order."""
        return self._shape.names

    def read(self, bounds: IdRange, after: int | None, limit: int, as_of: datetime) -> tuple[list[int], list[Any]]:
        """Ids and rows of the next `limit` rows of `bounds` in the order of ids; after `after`, if given.

        Fewer than `limit` mean that there are no more: an error in the middle of the answer is raised.
        """
        first, last = max(bounds.first, self.limits.first), min(bounds.last, self.limits.last)
        if first > last or (after is not None and after >= last):
            return [], []
        if after is None or after < first:
            query, begin = self._first_page, first
        else:
            query, begin = self._next_page, after
        arguments = query.arguments(begin=begin, last=last, limit=limit, as_of=self._instant(as_of))
        return self._build(self._fetch(query.text, arguments))

    def read_ids(self, ids: Sequence[int], as_of: datetime) -> tuple[list[int], list[Any]]:
        """Ids and rows of those of `ids` that exist, whether or not the filter matches them."""
        query = self._query(self._select().where(id_list(self._key)).order_by(self._key))
        rows: list[tuple[Any, ...]] = []
        for at in range(0, len(ids), IDS_AT_ONCE):
            rows += self._fetch(query.text_for(sorted(ids[at : at + IDS_AT_ONCE])), query.arguments())
        return self._build(rows)

    def select_guard(self, connection: Connection, ids: Sequence[int]) -> dict[int, tuple[Any, ...]]:
        """The guard columns of those of `ids` that exist, as `guard_of` gives them, locked until the transaction ends.

        (SQLite has no row locks: its transaction holds the whole database.)
        """
        guard = [self.columns.c[name] for name in self.spec.guard]
        query = self._query(select(self._key, *guard).where(id_list(self._key)).with_for_update())
        values: dict[int, tuple[Any, ...]] = {}
        for at in range(0, len(ids), IDS_AT_ONCE):
            text = query.text_for(sorted(ids[at : at + IDS_AT_ONCE]))
            for row in connection.exec_driver_sql(text, query.arguments()):
                values[row[0]] = tuple(row[1:])
        return values

    def bounds(self) -> IdRange | None:
        """The lowest and the highest id, both from the ends of the index; None: the table is empty."""
        # Two subqueries: SQLite looks at the ends only if one of them is asked for.
        ends = [select(each(self._key)).scalar_subquery() for each in (sqlalchemy.func.min, sqlalchemy.func.max)]
        [(first, last)] = self._run(select(*ends))
        return None if first is None else IdRange(first, last)

    def next_id(self, at_or_after: int) -> int | None:
        """The lowest id from `at_or_after` on, whatever the filter says; None: there is none."""
        if at_or_after > self.limits.last:
            return None
        begin = max(at_or_after, self.limits.first)
        nearest = select(self._key).where(self._key >= bindparam("begin", type_=self._key.type))
        found = self._run(nearest.order_by(self._key).limit(sqlalchemy.literal_column("1")), begin=begin)
        return found[0][0] if found else None

    def estimated_rows(self) -> int:
        """About how many rows there are, by the server's statistics (SQLite counts them)."""
        return estimated_rows(self.engine, self.columns)

    def sql(self) -> str:
        """The query that reads a batch, for people."""
        return readable(self.engine, self._page(first=False))

    def explain(self, bounds: IdRange, as_of: datetime) -> list[str]:
        """The server's plan of the query that reads a batch, line by line; MySQL's with the names of its columns."""
        begin, last = max(bounds.first, self.limits.first), min(bounds.last, self.limits.last)
        arguments = self._next_page.arguments(begin=begin, last=last, limit=1000, as_of=self._instant(as_of))
        how = {"mysql": "EXPLAIN FORMAT=TRADITIONAL ", "sqlite": "EXPLAIN QUERY PLAN "}
        with self._cursor() as cursor:
            cursor.execute(how.get(self.engine.dialect.name, "EXPLAIN ") + self._next_page.text, arguments)
            names = [column[0] for column in cursor.description]
            rows = cursor.fetchall()
        if self.engine.dialect.name == "mysql":
            return ["; ".join(f"{name}: {value}" for name, value in zip(names, row, strict=True)) for row in rows]
        return [str(row[-1]) for row in rows]

    def check_filter(self, as_of: datetime) -> None:
        """Let the server compile the query.

        Raises:
            ConfigurationError: it refuses; with its message.
        """
        try:
            self.explain(
                IdRange(0, self.limits.last), as_of
            )  # any range does; a reader of logs wonders at negative ids
        except Exception as error:
            found = fault_of(error)
            if found is None or found[0] not in (Fault.PERMANENT, Fault.VALUE):
                raise
            cause = error.orig if isinstance(error, DBAPIError) else error
            raise ConfigurationError(
                f"the database refuses to read table {self.columns.fullname} ({cause}); see where={self.spec.where!r}"
            ) from error

    # How it is done

    @property
    def _key(self) -> sqlalchemy.Column[Any]:
        return self.columns.c[self.key]

    def _select(self) -> sqlalchemy.Select[Any]:
        return select(*(self.columns.c[name] for name in self._shape.names))

    def _page(self, *, first: bool) -> sqlalchemy.Select[Any]:
        key, begin = self._key, bindparam("begin", type_=self._key.type)
        page = self._select().where(key >= begin if first else key > begin)
        page = page.where(key <= bindparam("last", type_=key.type))
        if self.spec.where is not None:
            page = page.where(user_filter(self.spec.where))
        if self.engine.dialect.name == "mysql":
            # With a filter on another indexed column the plan would change in the middle of the table, and sort. MySQL
            # 9 does so even without a filter where another index holds all the columns.
            index = self.engine.dialect.identifier_preparer.quote_identifier(self._key_index).replace("%", "%%")
            page = page.with_hint(self.columns, f"FORCE INDEX ({index})")
        return page.order_by(key).limit(bindparam("limit", type_=sqlalchemy.Integer))

    def _query(self, clause: sqlalchemy.Select[Any]) -> Query:
        return Query(self.engine, clause)

    def _run(self, clause: sqlalchemy.Select[Any], **values: Any) -> Sequence[tuple[Any, ...]]:
        query = self._query(clause)
        return self._fetch(query.text, query.arguments(**values))

    def _build(self, rows: Sequence[tuple[Any, ...]]) -> tuple[list[int], list[Any]]:
        at = self._shape.key_at
        return [row[at] for row in rows], self._shape.build(rows)

    def _fetch(self, text: str, arguments: Any) -> Sequence[tuple[Any, ...]]:
        with self._cursor() as cursor:
            cursor.execute(text, arguments)
            rows: Sequence[tuple[Any, ...]] = cursor.fetchall()
        return rows

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        connection = self.engine.raw_connection()
        try:
            cursor = connection.cursor()
            yield cursor
            cursor.close()
        except BaseException as error:
            connection.invalidate(error)  # rows of the broken answer may still be on their way
            raise
        connection.close()

    def _instant(self, as_of: datetime) -> Any:
        """As columns without a time zone hold it: UTC."""
        naive = as_of if as_of.tzinfo is None else as_of.astimezone(UTC).replace(tzinfo=None)
        return for_sqlite(naive) if self.engine.dialect.name == "sqlite" else naive
