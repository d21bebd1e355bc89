"""The shape of rows: which columns a job reads, and the objects that its function sees them as."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from typing import Any

from shardworker.handler import row_class

Build = Callable[[Iterable[tuple[Any, ...]]], list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShape:
    names: tuple[str, ...]  # the query's columns, in its order
    key_at: int  # where the key stands among them
    build: Build  # the driver's tuples in, the handler's rows out
    guard_of: Callable[[Any], tuple[Any, ...]]  # the guard columns' values of a built row


def fields_of(columns: type) -> tuple[str, ...] | None:
    """The fields of a NamedTuple or dataclass in their order; None: it is neither."""
    if dataclasses.is_dataclass(columns):
        return tuple(each.name for each in dataclasses.fields(columns) if each.init)
    fields: tuple[str, ...] | None = getattr(columns, "_fields", None)
    return fields if issubclass(columns, tuple) else None


def shape_of_names(names: Sequence[str], key: str, guard: Sequence[str]) -> RowShape:
    """Rows are `Row`s of the key, these columns, and those of the guard."""
    every = tuple(dict.fromkeys([key, *names, *guard]))
    positions = [every.index(name) for name in guard]
    return RowShape(
        names=every,
        key_at=0,
        build=_tuples(row_class(every)),
        guard_of=lambda row: tuple(row[position] for position in positions),
    )


def shape_of_class(columns: type, key: str, guard: Sequence[str]) -> RowShape:
    """Rows are of this class, whose fields must hold the guard; the key is read also where it is no field."""
    fields = fields_of(columns) or ()
    build = _dataclasses(columns) if dataclasses.is_dataclass(columns) else _tuples(columns)
    has_key = key in fields
    return RowShape(
        names=fields if has_key else (key, *fields),
        key_at=fields.index(key) if has_key else 0,
        build=build if has_key else lambda rows: build(row[1:] for row in rows),
        guard_of=lambda row: tuple(getattr(row, name) for name in guard),
    )


def _tuples(cls: type) -> Build:
    make = partial(tuple.__new__, cls)  # past every __new__ written in Python: 60 ns a row
    return lambda rows: list(map(make, rows))


def _dataclasses(cls: type) -> Build:
    fields = [each for each in dataclasses.fields(cls) if each.init]
    if any(each.kw_only for each in fields):
        names = [each.name for each in fields]
        return lambda rows: [cls(**dict(zip(names, row, strict=True))) for row in rows]
    return lambda rows: list(starmap(cls, rows))
