"""Which changed rows go into one statement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from shardworker.errors import HandlerError

ROWS_AT_ONCE = 1000
IDS_AT_ONCE = 10_000
PARAMETERS_AT_ONCE = 65_535  # PostgreSQL counts them in 16 bits

Values = tuple[Any, ...]
Rows = list[tuple[int, Values]]  # id, and the values of the columns that the rows have in common

_KINDS = {int: "number", bool: "number", Decimal: "number", float: "float", bytes: "bytes", bytearray: "bytes"}


def in_lists(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """The ids in lists that one statement may name."""
    for at in range(0, len(ids), IDS_AT_ONCE):
        yield ids[at : at + IDS_AT_ONCE]


def alike_in_type(rows: Rows) -> list[Rows]:
    """The rows by the kinds of their values, where a column has several.

    MySQL gives a column of joined values one type: beside a float an integer would lose its last digits, beside bytes
    a number would become its text. NULL goes with every kind.
    """
    columns = zip(*(values for _, values in rows), strict=True)
    mixed = [at for at, column in enumerate(columns) if len({*map(_kind, set(map(type, column)))} - {None}) > 1]
    if not mixed:
        return [rows]
    groups: defaultdict[tuple[str | None, ...], Rows] = defaultdict(list)
    for row_id, values in rows:
        groups[tuple(_kind(type(values[at])) for at in mixed)].append((row_id, values))
    return list(groups.values())


def _kind(cls: type) -> str | None:
    return None if cls is type(None) else _KINDS.get(cls, "text")


def split(rows: Rows, columns: int, packet: int) -> Iterator[Rows]:
    """Parts of rows that fit into half of what the server takes at once, and into the limits of rows and parameters."""
    most_bytes = packet // 2
    most_rows = min(ROWS_AT_ONCE, PARAMETERS_AT_ONCE // (columns + 1))
    part: Rows = []
    filled = 0
    for row_id, values in rows:
        size = sum(map(_size, values))
        check_size(row_id, values, packet)
        if part and (len(part) == most_rows or filled + size > most_bytes):
            yield part
            part, filled = [], 0
        part.append((row_id, values))
        filled += size
    if part:
        yield part


def _size(value: Any) -> int:
    """An upper bound of a value's bytes in the statement: a character has up to four; bytes travel as two digits."""
    return 40 + (len(value) * 4 if isinstance(value, str | bytes | bytearray) else 0)


def check_size(row_id: int, values: Values, packet: int) -> None:
    """Refuse a row that the server would not take, since it would cut the connection: an outage, again and again.

    Raises:
        HandlerError
    """
    if sum(map(_size, values)) < packet:
        return
    size = 1000 + sum(map(_exact_size, values))
    if size >= packet:
        raise HandlerError(
            f"row {row_id}: its change has {size} bytes, more than the server takes at once "
            f"({packet}; MySQL: max_allowed_packet)",
            ids=[row_id],
        )


def _exact_size(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode()) + sum(map(value.count, "\0\n\r\x1a\"'\\"))
    return 2 * len(value) if isinstance(value, bytes | bytearray) else 40
