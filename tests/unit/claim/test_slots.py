"""Slots tile the ids: each id is in one slot, and no bound is lost to rounding."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardworker.claim.slots import (
    FEWEST_BATCHES_IN_A_SLOT,
    MOST_ROWS_IN_A_SLOT,
    MOST_SLOTS,
    WANTED_SLOTS,
    Segment,
    SlotMap,
    even_slot_size,
)
from shardworker.errors import ConfigurationError
from shardworker.ids import IdRange

IDS = st.integers(-(2**63), 2**64 - 1)
LARGEST = IdRange(0, 2**64 - 1)


@st.composite
def bounds(draw: st.DrawFn) -> IdRange:
    first, last = sorted((draw(IDS), draw(IDS)))
    return IdRange(first, last)


@st.composite
def small_maps(draw: st.DrawFn) -> SlotMap:
    """A few segments one behind the other, each with its own size of slots."""
    first_slot, first = 0, draw(IDS)
    segments = []
    for _ in range(draw(st.integers(1, 4))):
        last = first + draw(st.integers(0, 300))
        segment = Segment(first_slot=first_slot, first=first, last=last, size=draw(st.integers(1, 400)))
        segments.append(segment)
        first_slot, first = first_slot + segment.slots, last + 1
    return SlotMap(tuple(segments))


@given(small_maps())
def test_slots_tile_the_ids_without_gap_or_overlap(slot_map: SlotMap) -> None:
    ranges = [slot_map.range_of(n) for n in range(slot_map.slots)]

    assert slot_map.bounds == IdRange(ranges[0].first, ranges[-1].last)
    assert all(each.first <= each.last for each in ranges)
    assert all(before.last + 1 == after.first for before, after in pairwise(ranges))


@given(small_maps(), st.data())
def test_slot_of_is_the_inverse_of_range_of(slot_map: SlotMap, data: st.DataObject) -> None:
    slot = data.draw(st.integers(0, slot_map.slots - 1))
    ids = slot_map.range_of(slot)

    assert slot_map.slot_of(ids.first) == slot_map.slot_of(ids.last) == slot
    assert slot_map.slot_of(data.draw(st.integers(ids.first, ids.last))) == slot


@given(bounds(), st.integers(1, 2**64), st.data())
def test_slots_are_exact_at_any_size_of_ids(ids: IdRange, size: int, data: st.DataObject) -> None:
    """In doubles the last slots of BIGINT UNSIGNED would begin and end elsewhere."""
    assume((ids.last - ids.first) // size + 1 < MOST_SLOTS)
    slot_map = SlotMap.even(ids, size)
    row_id = data.draw(st.integers(ids.first, ids.last))

    found = slot_map.range_of(slot_map.slot_of(row_id))

    assert row_id in found
    assert ids.first <= found.first <= found.last <= ids.last
    assert slot_map.range_of(slot_map.slots - 1).last == ids.last


@given(small_maps())
def test_an_id_beyond_the_last_slot_has_the_number_after_it(slot_map: SlotMap) -> None:
    """There a hole ends that reaches to the end of the run."""
    assert slot_map.bounds is not None
    assert slot_map.slot_of(slot_map.bounds.last + 1) == slot_map.slots


@given(small_maps())
def test_a_map_is_the_same_after_a_way_through_redis(slot_map: SlotMap) -> None:
    assert SlotMap.decode(slot_map.encode()) == slot_map


def test_an_empty_table_has_no_slots() -> None:
    empty = SlotMap.even(None, 1)

    assert (empty.slots, empty.bounds) == (0, None)
    assert SlotMap.decode(empty.encode()) == empty


def test_more_slots_than_can_be_numbered_are_refused_with_a_size_that_would_do() -> None:
    with pytest.raises(ConfigurationError, match=r"SHARDWORKER_SLOT_SIZE=1 .* 2049 or more would do"):
        SlotMap.even(LARGEST, 1)

    assert SlotMap.even(LARGEST, 2049).slots < MOST_SLOTS


def test_the_size_that_is_named_is_the_smallest_that_will_do() -> None:
    with pytest.raises(ConfigurationError):
        SlotMap.even(LARGEST, 2048)


@given(bounds(), st.integers(0, 10**11), st.integers(1, 100_000))
def test_automatic_slots_can_always_be_numbered(ids: IdRange, rows: int, batch_size: int) -> None:
    size = even_slot_size(ids, estimated_rows=rows, batch_size=batch_size)

    assert 1 <= size <= ids.last - ids.first + 1
    assert SlotMap.even(ids, size).slots < MOST_SLOTS


@given(st.integers(1_000, 10**10), st.integers(1, 1_000), st.integers(1, 20_000))
def test_automatic_slots_hold_at_least_twenty_batches_and_at_most_a_million_rows(
    rows: int, spread: int, batch_size: int
) -> None:
    """Too small ones cost claims; too large ones cannot be shared. `spread`: so many ids for each row."""
    ids = IdRange(1, rows * spread)

    size = even_slot_size(ids, estimated_rows=rows, batch_size=batch_size)

    rows_in_slot = size / spread
    assert rows_in_slot <= MOST_ROWS_IN_A_SLOT
    assert rows_in_slot > min(rows, FEWEST_BATCHES_IN_A_SLOT * batch_size) - 1


@pytest.mark.parametrize("rows", [10_000_000, 100_000_000])
def test_a_large_table_gets_about_256_automatic_slots(rows: int) -> None:
    ids = IdRange(1, 3 * rows)

    slots = SlotMap.even(ids, even_slot_size(ids, estimated_rows=rows, batch_size=1_000)).slots

    assert WANTED_SLOTS <= slots <= WANTED_SLOTS + 2


def test_where_the_estimate_says_next_to_nothing_the_ids_are_taken_to_be_dense() -> None:
    """A table without statistics must not become one slot for one worker."""
    ids = IdRange(1, 100_000_000)

    slots = SlotMap.even(ids, even_slot_size(ids, estimated_rows=3, batch_size=1_000)).slots

    assert slots >= WANTED_SLOTS
