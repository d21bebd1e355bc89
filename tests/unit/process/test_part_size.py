"""How many rows a part has: enough to be worth handing out, few enough that threads end together."""

from __future__ import annotations

import pytest

from shardworker.process.part_size import SHORTEST_PART_S, PartSize


def learn(size: PartSize, row_s: float, parts: int = 30) -> None:
    for _ in range(parts):
        rows = size(10_000, 10_000)
        size.observe(rows, rows * row_s)


@pytest.mark.parametrize("row_s", [0.0001, 0.005, 0.030])
def test_parts_of_row_handlers_grow_to_a_time_that_is_worth_handing_them_out(row_s: float) -> None:
    size = PartSize("row", None, 8)

    learn(size, row_s)

    assert size(10_000, 10_000) == pytest.approx(SHORTEST_PART_S / row_s, abs=1)


def test_a_row_longer_than_a_part_is_one_of_its_own() -> None:
    size = PartSize("row", None, 8)
    learn(size, 1.0)
    assert size(10_000, 10_000) == 1


def test_parts_grow_at_most_to_double_at_a_time() -> None:
    """One quick row says little of the next hundred."""
    size = PartSize("row", None, 8)
    seen = []
    for _ in range(4):
        rows = size(10_000, 10_000)
        seen.append(rows)
        size.observe(rows, 1e-6)
    assert seen == [1, 2, 4, 8]


def test_one_slow_row_among_many_does_not_make_the_next_parts_short() -> None:
    size = PartSize("row", None, 64)
    learn(size, 0.005)
    size.observe(8, 7 * 0.005 + 0.100)
    assert size(10_000, 10_000) >= 6


def test_parts_become_shorter_towards_the_end_of_a_batch() -> None:
    """A thread that begins a long part last would let all others wait for it at the end of the slot."""
    size = PartSize("row", None, 64)
    learn(size, 0.005)
    assert size(10_000, 10_000) == 8
    assert size(10_000, 4 * 64) == 4
    assert size(10_000, 10) == 1


def test_parts_stay_worth_writing_at_the_end_of_a_batch() -> None:
    """A statement and its commit take milliseconds, for one row as for a hundred."""
    size = PartSize("row", None, 8)
    size.observe_write(0.010)
    learn(size, 0.0001)
    assert size(10_000, 10) >= 40


def test_part_size_is_taken_as_it_is_given() -> None:
    size = PartSize("part", 50, 8)
    size.observe(50, 10.0)
    assert size(10_000, 20) == 50
