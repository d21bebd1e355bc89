"""The quick decoder gives what PyMySQL's gives."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymysql.converters import convert_datetime

from shardworker.process.values import as_json, datetime_decoder, for_sqlite

decode = datetime_decoder(convert_datetime)


@st.composite
def almost_datetimes(draw: st.DrawFn) -> str:
    text = list(draw(st.sampled_from(["2024-02-29 23:59:59", "2024-02-29 23:59:59.123456", "0000-00-00 00:00:00"])))
    for _ in range(draw(st.integers(0, 4))):
        text[draw(st.integers(0, len(text) - 1))] = draw(st.sampled_from("0123456789-: T.+Z,W٣"))
    return "".join(text)


def same(text: str) -> bool:
    def outcome(function: object) -> object:
        try:
            return function(text)  # type: ignore[operator]
        except Exception as error:
            return type(error)

    ours, theirs = outcome(decode), outcome(convert_datetime)
    return type(ours) is type(theirs) and ours == theirs and getattr(ours, "tzinfo", None) is None


@given(st.datetimes().map(str) | st.datetimes().map(lambda at: at.isoformat(" ", "milliseconds")))
def test_every_datetime_is_decoded_as_pymysql_does(text: str) -> None:
    assert same(text)


@given(almost_datetimes() | st.text(max_size=30))
def test_every_other_text_is_decoded_as_pymysql_does(text: str) -> None:
    assert same(text)


@pytest.mark.parametrize(
    "text",
    [
        "0000-00-00 00:00:00",
        "0000-00-00 00:00:00.000000",
        "2016-00-00 00:00:00",
        "2024-02-30 00:00:00",
        "2024-W01-1 00:00:00",
        "2024-01-01 24:00:00",
        "2024-01-01 00+00:00",
        "2024-01-01 00:00:00.1+0000",
        "2024-01-01 00:00:00.12345Z",
        "2024-01-01T00:00:00",
        "2024-01-01,00:00:00",
        "2024-01-01",
        "",
    ],
)
def test_odd_texts_are_decoded_as_pymysql_does(text: str) -> None:
    assert same(text)


def test_dicts_and_lists_become_json_and_nothing_else_does() -> None:
    assert as_json({"name": "Jürgen 😀", "n": [1, None]}) == '{"name": "Jürgen 😀", "n": [1, null]}'
    assert as_json([]) == "[]"
    assert as_json("text") == "text"
    assert as_json((1, 2)) == (1, 2)


def test_sqlite_is_given_text_for_dates_and_decimals() -> None:
    assert for_sqlite(datetime(2024, 1, 2, 3, 4, 5)) == "2024-01-02 03:04:05"
    assert for_sqlite(datetime(2024, 1, 2).date()) == "2024-01-02"
    assert for_sqlite(Decimal("1.50")) == "1.50"
    assert for_sqlite(7) == 7
