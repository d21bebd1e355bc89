"""Returned changes into the table: a few set-based statements for a part, not one for each row.

Changes of the same columns go together. Where they also have the same values it is one UPDATE with a list of ids.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from typing import Any

import sqlalchemy
from sqlalchemy.engine import Connection

from shardworker.errors import HandlerError
from shardworker.handler import Change, Deletion
from shardworker.process import write_sql
from shardworker.process.table import Table
from shardworker.process.values import as_json, for_sqlite
from shardworker.process.write_parts import Rows, Values, alike_in_type, check_size, in_lists, split

_NO_VALUES = (tuple, set, frozenset)


def check_change(table: Table, row_id: int, change: object) -> None:
    """Whether what a handler returned for a row can be a change of this table.

    Raises:
        HandlerError: it is no mapping, or names the key, a generated column, or no column.
    """
    if change is None or isinstance(change, Deletion):
        return
    if not isinstance(change, Mapping):
        raise HandlerError(
            f"row {row_id}: the handler returned a {type(change).__name__}; what it may return is a mapping of columns "
            "to values, DELETE or None",
            ids=[row_id],
        )
    if not change.keys() <= table.writable:
        raise HandlerError(f"row {row_id}: {_wrong_column(table, change)}", ids=[row_id])


def _wrong_column(table: Table, change: Change) -> str:
    name = next(name for name in change if name not in table.writable)
    if name == table.key:
        return f"the handler changes the key {name!r}: that would move the row out of its slot"
    if name in table.columns.c.keys():  # noqa: SIM118 - the collection itself also takes numbers
        return f"the handler changes {name!r}, which the database computes"
    close = difflib.get_close_matches(str(name), table.writable, n=1)
    meant = f" (did you mean {close[0]!r}?)" if close else ""
    return f"the handler changes {name!r}, but table {table.columns.fullname} has no such column{meant}"


def write(connection: Connection, table: Table, changes: Mapping[int, Change | Deletion]) -> None:
    """Write the changes, which `check_change` has passed, in the connection's transaction.

    Rows that are gone are passed over; an empty change writes nothing.

    Raises:
        HandlerError: a value has no form in SQL, or is larger than the server takes; `ids` are those of its statement.
        sqlalchemy.exc.DBAPIError: what the database said; `fault_of` tells Fault.VALUE.
    """
    deleted = [row_id for row_id, change in changes.items() if isinstance(change, Deletion)]
    groups: defaultdict[frozenset[str], list[tuple[int, Change]]] = defaultdict(list)
    for row_id, change in changes.items():
        if not isinstance(change, Deletion) and change:
            groups[frozenset(change)].append((row_id, change))
    for group in groups.values():
        names = list(group[0][1])
        arrays = frozenset(name for name in names if isinstance(table.columns.c[name].type, sqlalchemy.ARRAY))
        rows = [(row_id, _values(table, row_id, change, names, arrays)) for row_id, change in group]
        _update(connection, table, names, rows)
    _delete(connection, table, deleted)


def _values(table: Table, row_id: int, change: Change, names: Sequence[str], arrays: Set[str]) -> Values:
    try:
        values = tuple([change[name] if name in arrays else as_json(change[name]) for name in names])
    except (TypeError, ValueError) as error:
        raise HandlerError(f"row {row_id}: a returned value has no form in JSON: {error}", ids=[row_id]) from error
    for name, value in zip(names, values, strict=True):
        if isinstance(value, _NO_VALUES):  # PyMySQL would write (1, 2), and take (1,) for 1
            kind = type(value).__name__
            raise HandlerError(f"row {row_id}: the handler changes {name!r} to a {kind}, no value of SQL", ids=[row_id])
    return tuple(map(for_sqlite, values)) if table.engine.dialect.name == "sqlite" else values


def _update(connection: Connection, table: Table, names: Sequence[str], rows: Rows) -> None:
    packet = table.write_limits.packet
    if _are_alike(rows):
        check_size(rows[0][0], rows[0][1], packet)
        for ids in in_lists([row_id for row_id, _ in rows]):
            _execute(connection, write_sql.update_alike(table, names, ids), rows[0][1], ids)
        return
    if table.engine.dialect.name == "sqlite":
        each = [(*values, row_id) for row_id, values in rows]
        _execute(connection, write_sql.update_each(table, names), each, [row_id for row_id, _ in rows])
        return
    is_postgres = table.engine.dialect.name == "postgresql"
    build = write_sql.update_from_values if is_postgres else write_sql.update_join
    for some in [rows] if is_postgres else alike_in_type(rows):
        for part in split(some, len(names), packet):
            parameters = tuple(value for row_id, values in part for value in (row_id, *values))
            _execute(connection, build(table, names, len(part)), parameters, [row_id for row_id, _ in part])


def _are_alike(rows: Rows) -> bool:
    first = rows[0][1]
    kinds = list(map(type, first))  # 1 == True == 1.0, but they are three values to a text column
    return all(values == first and list(map(type, values)) == kinds for _, values in rows)


def _delete(connection: Connection, table: Table, deleted: Sequence[int]) -> None:
    for ids in in_lists(deleted):
        _execute(connection, write_sql.delete(table, ids), (), ids)


def _execute(connection: Connection, text: str, parameters: Any, ids: Sequence[int]) -> None:
    try:
        connection.exec_driver_sql(text, parameters)
    except (TypeError, ValueError, OverflowError) as error:  # the driver has no form for a value
        raise HandlerError(f"a returned value cannot be sent to the database: {error}", ids=ids) from error
