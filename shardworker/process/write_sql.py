"""The texts of the statements that write changes.

Many rows with values of their own are joined to the table:

    MariaDB      UPDATE (SELECT ? AS k, ? AS c0 UNION ALL VALUES (?, ?), ...) AS v STRAIGHT_JOIN t ON t.id = v.k SET ...
    MySQL        UPDATE (VALUES ROW(?, ?), ...) AS v (k, c0) STRAIGHT_JOIN t ON t.id = v.k SET ...
    PostgreSQL   UPDATE t SET ... FROM (VALUES (CAST(? AS bigint), ...), ...) AS v (k, c0) WHERE t.id = v.k
    SQLite       UPDATE t SET ... WHERE id = ?, for many

STRAIGHT_JOIN: the values first, then one look into the key's index for each. SQLAlchemy Core has no such joins for
MySQL, so the text is put together here; it quotes every name, every value is bound, and ids are integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardworker.process.table import Table


def update_alike(table: Table, names: Sequence[str], ids: Sequence[int]) -> str:
    """The same values, in the order of `names`, for all these ids."""
    quote, mark = _quoting(table), _marks(table)
    setting = ", ".join(f"{quote(name)} = {mark(name)}" for name in names)
    return f"UPDATE {_name(table)} SET {setting} WHERE {_among(table, ids)}"


def update_each(table: Table, names: Sequence[str]) -> str:
    """For one row of many (executemany): the values, then the id."""
    quote, mark = _quoting(table), _marks(table)
    setting = ", ".join(f"{quote(name)} = {mark(name)}" for name in names)
    return f"UPDATE {_name(table)} SET {setting} WHERE {quote(table.key)} = {mark(table.key)}"


def update_join(table: Table, names: Sequence[str], count: int) -> str:
    """MySQL and MariaDB: for each of `count` rows the id, then its values."""
    quote = _quoting(table)
    aliases = ["k", *(f"c{index}" for index in range(len(names)))]
    row = f"({', '.join(['%s'] * len(aliases))})"
    if getattr(table.engine.dialect, "is_mariadb", False):
        head = ", ".join(f"%s AS {alias}" for alias in aliases)
        more = f" UNION ALL VALUES {', '.join([row] * (count - 1))}" if count > 1 else ""
        source = f"(SELECT {head}{more}) AS v"
    else:
        source = f"(VALUES {', '.join([f'ROW{row}'] * count)}) AS v ({', '.join(aliases)})"
    setting = ", ".join(f"t.{quote(name)} = v.{alias}" for name, alias in zip(names, aliases[1:], strict=True))
    return f"UPDATE {source} STRAIGHT_JOIN {_name(table)} AS t ON t.{quote(table.key)} = v.k SET {setting}"


def update_from_values(table: Table, names: Sequence[str], count: int) -> str:
    """PostgreSQL: for each of `count` rows the id, then its values."""
    quote, mark = _quoting(table), _marks(table)
    aliases = ["k", *(f"c{index}" for index in range(len(names)))]
    row = f"({', '.join(map(mark, [table.key, *names]))})"
    setting = ", ".join(f"{quote(name)} = v.{alias}" for name, alias in zip(names, aliases[1:], strict=True))
    source = f"(VALUES {', '.join([row] * count)}) AS v ({', '.join(aliases)})"
    return f"UPDATE {_name(table)} AS t SET {setting} FROM {source} WHERE t.{quote(table.key)} = v.k"


def delete(table: Table, ids: Sequence[int]) -> str:
    return f"DELETE FROM {_name(table)} WHERE {_among(table, ids)}"


def _name(table: Table) -> str:
    return table.engine.dialect.identifier_preparer.format_table(table.columns)


def _quoting(table: Table) -> Callable[[str], str]:
    return table.engine.dialect.identifier_preparer.quote


def _marks(table: Table) -> Callable[[str], str]:
    """By column, the place of a value in the text."""
    if table.engine.dialect.name == "sqlite":
        return lambda name: "?"
    casts = table.write_limits.casts
    return lambda name: f"CAST(%s AS {casts[name].replace('%', '%%')})" if name in casts else "%s"


def _among(table: Table, ids: Sequence[int]) -> str:
    """A condition that is true for exactly these ids. Without a hole it is a range, which the server reads quicker."""
    key = _quoting(table)(table.key)
    low, high = min(ids), max(ids)
    if high - low + 1 == len(ids):
        return f"{key} BETWEEN {low} AND {high}"
    return f"{key} IN ({', '.join(map(str, ids))})"
