"""What a user's function sees and returns: Row, Context, Change, Skip, DELETE."""

from __future__ import annotations

import enum
import hashlib
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Self, cast

if TYPE_CHECKING:
    import threading

    import redis
    import sqlalchemy

Each = Literal["row", "part", "batch"]

Change = Mapping[str, Any]
"""Column name → new value, for one row."""


class Deletion(enum.Enum):
    """The type of DELETE."""

    DELETE = "DELETE"

    def __repr__(self) -> str:
        return "DELETE"


DELETE = Deletion.DELETE
"""Returned instead of a Change: the row is to be deleted."""

Outcome = Change | Deletion | None
"""What a handler may say of one row; None: nothing to write."""


class Skip(Exception):
    """Raised by a row handler, or given for one row by a part handler: counted by its reason, nothing is written."""

    def __init__(self, reason: str = "skipped") -> None:
        self.reason = str(reason)
        super().__init__(self.reason)


class _RowType(type):
    """`Row(id=1, email="x")` builds a row for a unit test; the classes of queries are made by `row_class`."""

    def __call__(cls, /, **columns: Any) -> Row:
        return tuple.__new__(row_class(tuple(columns)), columns.values())


class Row(tuple[Any, ...], metaclass=_RowType):
    """One row, read-only: each column is an attribute and an item (`row.email`, `row["a b"]`).

    Values are the driver's own (docs/jobs.md has them by column type). No method can hide a column.
    """

    __slots__ = ()
    _columns: tuple[str, ...] = ()

    if TYPE_CHECKING:

        def __new__(cls, /, **columns: Any) -> Self: ...

    def __getattr__(self, name: str) -> Any:  # reached only where there is no such column
        raise AttributeError(_no_column(self, name))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            try:
                return tuple.__getitem__(self, type(self)._columns.index(key))
            except ValueError:
                raise KeyError(_no_column(self, key)) from None
        return tuple.__getitem__(self, key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Row) and type(self)._columns == type(other)._columns and tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:  # that of tuple would look at the values alone
        return not self == other

    def __hash__(self) -> int:
        return tuple.__hash__(self)

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in columns_of(self).items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self)._columns, tuple(self))


def _no_column(row: Row, name: str) -> str:
    return f"no column {name!r} was read; there are {', '.join(type(row)._columns)}"


def _rebuild(names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return tuple.__new__(row_class(names), values)


def columns_of(row: Row) -> dict[str, Any]:
    """The columns of a row by name."""
    return dict(zip(type(row)._columns, row, strict=True))


@lru_cache(maxsize=256)
def row_class(names: tuple[str, ...]) -> type[Row]:
    """The class of the rows of one query.

    Its fields are read by the descriptors of a namedtuple: 27 ns an access, where a property over Row.__getitem__ takes
    170 and a dict behind __getattr__ more than 400.
    """
    getters = namedtuple("getters", [f"c{index}" for index in range(len(names))])  # type: ignore[misc]
    body: dict[str, Any] = {"__slots__": (), "_columns": names}
    for index, name in enumerate(names):
        if name != "_columns" and not (name.startswith("__") and name.endswith("__")):
            body[name] = getattr(getters, f"c{index}")
    return cast("type[Row]", _RowType("Row", (Row,), body))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job as data: which rows, and the function over them. `Job` makes it; the core takes it."""

    name: str
    function: Callable[..., Any]
    table: str
    schema: str | None = None
    key: str | None = None  # None: the primary key
    columns: Sequence[str] | type | None = None  # names, or a class with these fields; None: all
    where: str | None = None  # SQL text; `:as_of` is its only parameter
    each: Each = "row"
    guard: Sequence[str] = ()  # columns that must still hold what the handler saw
    is_async: bool = False
    wants_context: bool = False
    code_version: str = ""  # of the function's module; kept with failed rows
    settings: Mapping[str, object] = field(default_factory=dict)  # those given in the decorator


@dataclass(slots=True, kw_only=True)
class Context:
    """What surrounds the rows that a handler is given; the optional second argument of a handler."""

    job: str
    run: str
    slot: str
    batch: int = 0  # counted from 1 in each slot
    attempt: int = 1
    as_of: datetime  # the instant at which the run was created, UTC; the same in every pod
    engine: sqlalchemy.Engine
    connection: sqlalchemy.Connection | None = None  # batch handlers with checkpoint="database": its transaction
    key: str = "id"
    _stopping: threading.Event | None = None
    _redis: Callable[[], redis.Redis] | None = None

    @property
    def should_stop(self) -> bool:
        """True once what this part returns will not be taken any more: long handlers may then give up."""
        return self._stopping is not None and self._stopping.is_set()

    @property
    def redis(self) -> redis.Redis:
        """A client of the run's Redis, for the handler's own keys; made at the first use, shared by the process."""
        if self._redis is None:
            raise RuntimeError("there is no Redis here: Job.run() works without one")
        return self._redis()

    def idempotency_key(self, row: Any) -> str:
        """A key for calls to other systems, from the job's name and the row's id only: a repeat sends the same."""
        row_id = row if isinstance(row, int) else getattr(row, self.key)
        return hashlib.sha256(f"{self.job}\0{row_id}".encode()).hexdigest()[:32]
