"""Statements for the drivers' own cursors: built and quoted by SQLAlchemy Core, compiled once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy
from sqlalchemy.engine import Engine
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.elements import ColumnElement, TextClause

_ID_LIST = "/* ids of shardworker */"  # its place in the compiled text: lists of every length share one compilation


class Query:
    """One statement in the form that the driver's cursor takes."""

    def __init__(self, engine: Engine, clause: ClauseElement) -> None:
        compiled: Any = clause.compile(dialect=engine.dialect)
        self.text: str = compiled.string
        self._order: Sequence[str] | None = compiled.positiontup  # None: the driver takes parameters by name
        self._constants: dict[str, Any] = compiled.params  # SQLAlchemy's own (SQLite's OFFSET 0); None for ours

    def text_for(self, ids: Iterable[int]) -> str:
        """The text with these ids where `id_list` stands. Integers only: they need no quoting."""
        return self.text.replace(_ID_LIST, ",".join(map(str, ids)))

    def arguments(self, **values: Any) -> Any:
        """The values in the driver's order. Also where there are none: only with arguments `%%` becomes `%` again."""
        every = {**self._constants, **values}
        return every if self._order is None else tuple(every[name] for name in self._order)


def id_list(key: ColumnElement[Any]) -> ColumnElement[bool]:
    """`key IN (...)`, to be filled in by `Query.text_for`."""
    return key.in_([sqlalchemy.literal_column(_ID_LIST)])


def user_text(sql: str, *parameters: str) -> TextClause:
    """A user's SQL, in which only these names are parameters (`:as_of`); every other colon stands for itself."""
    parameter = re.compile(rf"(?<![:\w\\]):({'|'.join(parameters)})\b(?!:)")
    parts = parameter.split(sql)  # text, name, text, name, ..., text
    escaped = [f":{part}" if index % 2 else part.replace(":", "\\:") for index, part in enumerate(parts)]
    return sqlalchemy.text("".join(escaped))


def user_filter(sql: str) -> TextClause:
    """A filter with `:as_of`, in brackets; the closing one on a line of its own, since it may end in a comment."""
    return user_text(f"({sql}\n)", "as_of")


def readable(engine: Engine, clause: ClauseElement) -> str:
    """The statement with its parameters by name, for people."""
    dialect: Any = type(engine.dialect)
    return str(clause.compile(dialect=dialect(paramstyle="named")))
