"""The forms in which values of columns arrive and leave, where a driver's own would be slow or ambiguous.

From PyMySQL: zero and partial dates ('0000-00-00', '2016-00-00') are text, every other DATE, DATETIME and TIMESTAMP is
a date or datetime; NULL is None, so the three stay apart. DECIMAL is a Decimal with all its digits, TIME a timedelta,
BIT and BLOB are bytes, JSON is text. psycopg gives date and time types, Decimal, and json as Python objects; infinity
in a timestamp raises. SQLite gives what was stored: int, float, text or bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=1)
def pymysql_conversions() -> dict[Any, Any]:
    """PyMySQL's conversions (`conv=`) with the quick decoder for DATETIME and TIMESTAMP."""
    from pymysql.constants import FIELD_TYPE
    from pymysql.converters import conversions, convert_datetime

    quick = datetime_decoder(convert_datetime)
    return {**conversions, FIELD_TYPE.DATETIME: quick, FIELD_TYPE.TIMESTAMP: quick}


def datetime_decoder(slow: Callable[[str], Any]) -> Callable[[str], Any]:
    """A decoder that gives what `slow` (PyMySQL's) gives, for every text, in a twelfth of its time for usual values.

    fromisoformat takes forms that `slow` does not (week dates, time zones, other separators, from Python 3.14 on the
    hour 24), so only texts that have the server's own shape go to it: those of DATETIME and DATETIME(6).
    """
    quick = datetime.fromisoformat

    def decode(text: str) -> Any:
        if text[4:17:3] == "-- ::" and text[11:13] != "24":
            length = len(text)
            try:
                if length == 19:
                    return quick(text)
                if length == 26 and text[19] == ".":
                    value = quick(text)
                    if value.tzinfo is None:  # it was no ".1+0000"
                        return value
            except ValueError:
                pass
        return slow(text)

    return decode


def as_json(value: Any) -> Any:
    """A dict or list as JSON text; any other value as it is."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def for_sqlite(value: Any) -> Any:
    """A value in a form that the sqlite3 module takes: its own adapters for dates are deprecated."""
    if isinstance(value, datetime):
        return value.isoformat(" ")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    return value
