"""Row: what a handler sees of a row."""

from __future__ import annotations

import copy
import keyword
import pickle
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardworker import Row
from shardworker.handler import columns_of, row_class
from shardworker.process.rows import RowShape, fields_of, shape_of_class, shape_of_names

NAMES = st.dictionaries(
    st.text(min_size=1, max_size=20) | st.sampled_from([*keyword.kwlist, *dir(tuple), "self", "cls", "_columns"]),
    st.integers(),
    max_size=8,
)


def test_columns_are_attributes_and_items() -> None:
    row = Row(id=1, email="x@y.z")

    assert (row.id, row.email) == (1, "x@y.z")
    assert (row["id"], row["email"]) == (1, "x@y.z")


@given(NAMES)
def test_each_column_is_an_item_whatever_its_name(columns: dict[str, int]) -> None:
    """`a b`, `group`, `50%`: names that are no names in Python."""
    row = Row(**columns)

    assert {name: row[name] for name in columns} == columns
    assert columns_of(row) == columns


@given(NAMES)
def test_no_method_hides_a_column(columns: dict[str, int]) -> None:
    """A column `count` or `index` is that column, although a row is a tuple."""
    row = Row(**columns)

    for name, value in columns.items():
        if name != "_columns" and not (name.startswith("__") and name.endswith("__")):
            assert getattr(row, name) == value


def test_a_column_that_was_not_read_is_named_with_those_that_were() -> None:
    row = Row(id=1, email="x")

    with pytest.raises(AttributeError, match=r"no column 'name' was read; there are id, email"):
        _ = row.name
    with pytest.raises(KeyError, match="no column 'name' was read"):
        _ = row["name"]
    assert not hasattr(row, "name")
    assert getattr(row, "name", "default") == "default"


def test_rows_are_read_only() -> None:
    """A change that is not returned would be lost without a word."""
    row: Any = Row(id=1, email="x")

    with pytest.raises(AttributeError):
        row.email = "y"
    with pytest.raises(AttributeError):
        row.new = "y"
    with pytest.raises(TypeError):
        row["email"] = "y"
    with pytest.raises(AttributeError):
        del row.email
    assert row.email == "x"


@given(NAMES)
def test_rows_come_back_the_same_from_a_pickle_and_a_copy(columns: dict[str, int]) -> None:
    """Handlers give rows to pools of processes."""
    row = Row(**columns)

    for again in (pickle.loads(pickle.dumps(row)), copy.copy(row), copy.deepcopy(row)):
        assert again == row
        assert type(again) is type(row)


def test_rows_are_equal_if_columns_and_values_are() -> None:
    assert Row(id=1, a=2) == Row(id=1, a=2)
    assert hash(Row(id=1, a=2)) == hash(Row(id=1, a=2))
    assert Row(id=1, a=2) != Row(id=1, a=3)
    assert Row(id=1, a=2) != Row(id=1, b=2)
    assert (Row(id=1) == Row(key=1)) is False
    assert Row(id=1) != (1,)
    assert (Row(id=1) == (1,)) is False


def test_a_row_shows_its_columns() -> None:
    assert repr(Row(id=1, email="x")) == "Row(id=1, email='x')"


def test_a_row_of_a_query_equals_the_one_that_a_unit_test_builds() -> None:
    shape = shape_of_names(["email"], "id", [])

    (row,) = shape.build([(1, "x")])

    assert row == Row(id=1, email="x")
    assert isinstance(row, Row)


def test_more_queries_than_are_remembered_do_no_harm() -> None:
    """Classes of rows are kept for the last few hundred queries only."""
    first = Row(id=1, n=0)
    for n in range(600):
        row_class(("id", f"n{n}"))

    assert Row(id=1, n=0) == first


# Which columns are read -----------------------------------------------------------------------------------------------
class Named(NamedTuple):
    id: int
    email: str


class WithoutKey(NamedTuple):
    email: str
    name: str


@dataclass(frozen=True)
class Frozen:
    email: str
    id: int
    note: str = field(init=False, default="own")


@dataclass(kw_only=True)
class KeywordOnly:
    id: int
    email: str


def built(shape: RowShape, *rows: tuple[Any, ...]) -> list[Any]:
    return shape.build(rows)


def test_the_key_is_read_first_and_each_column_once() -> None:
    shape = shape_of_names(["email", "id", "email"], "id", ["updated_at", "email"])

    assert shape.names == ("id", "email", "updated_at")
    assert shape.key_at == 0
    (row,) = built(shape, (1, "x", "today"))
    assert shape.guard_of(row) == ("today", "x")


def test_rows_arrive_as_the_class_whose_fields_the_columns_are() -> None:
    shape = shape_of_class(Named, "id", ["email"])

    assert shape.names == ("id", "email")
    assert built(shape, (1, "x"), (2, "y")) == [Named(1, "x"), Named(2, "y")]
    assert type(built(shape, (1, "x"))[0]) is Named
    assert shape.guard_of(Named(1, "x")) == ("x",)


def test_the_key_is_read_also_where_it_is_no_field() -> None:
    shape = shape_of_class(WithoutKey, "id", [])

    assert (shape.names, shape.key_at) == (("id", "email", "name"), 0)
    assert built(shape, (1, "x", "n")) == [WithoutKey("x", "n")]


def test_dataclasses_are_built_by_their_init() -> None:
    shape = shape_of_class(Frozen, "id", [])

    assert (shape.names, shape.key_at) == (("email", "id"), 1)
    assert built(shape, ("x", 1)) == [Frozen("x", 1)]
    assert built(shape_of_class(KeywordOnly, "id", []), (1, "x")) == [KeywordOnly(id=1, email="x")]


def test_a_class_that_is_neither_has_no_fields() -> None:
    class Plain:
        email: str

    assert fields_of(Plain) is None
    assert fields_of(Named) == ("id", "email")
