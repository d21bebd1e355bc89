"""Tallies and failed rows come back from text as they were."""

from __future__ import annotations

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from shardworker.outcomes import OUTCOMES, FailedRow, Tally

COUNTS = st.integers(0, 2**70)
TALLIES = st.builds(
    Tally,
    changed=COUNTS,
    unchanged=COUNTS,
    deleted=COUNTS,
    skipped=COUNTS,
    failed=COUNTS,
    id_sum=st.integers(-(2**100), 2**100),
    id_xor=st.integers(0, 2**64 - 1),
)
IDS = st.integers(-(2**63), 2**64 - 1)
LONGEST_IN_THE_DATABASE = 255  # shardworker_slot.tally


@given(TALLIES)
def test_a_tally_comes_back_from_its_text(tally: Tally) -> None:
    assert Tally.decode(tally.encode()) == tally


def test_no_text_is_an_empty_tally() -> None:
    """A slot that nobody has worked on."""
    assert Tally.decode("") == Tally()


def test_the_text_of_a_tally_has_no_space_and_fits_its_column() -> None:
    """The ledger parts its entries at spaces."""
    most = Tally(10**18, 10**18, 10**18, 10**18, 10**18, id_sum=-(2**64) * 10**12, id_xor=2**64 - 1)

    assert " " not in most.encode()
    assert len(most.encode()) <= LONGEST_IN_THE_DATABASE


@given(TALLIES, TALLIES, TALLIES)
def test_tallies_add_up_in_any_order(a: Tally, b: Tally, c: Tally) -> None:
    """Parts end in any order."""
    totals = {Tally.total(order).encode() for order in itertools.permutations((a, b, c))}

    assert len(totals) == 1
    assert Tally.total((a, b, c)).rows == a.rows + b.rows + c.rows


def test_reasons_of_skips_add_up() -> None:
    one, two = Tally(skipped=3), Tally(skipped=2)
    one.reasons.update(blank=2, old=1)
    two.reasons.update(blank=2)

    assert Tally.total((one, two)).reasons == {"blank": 4, "old": 1}


def test_a_total_leaves_its_parts_alone() -> None:
    one = Tally(changed=1)

    Tally.total((one, one))

    assert one == Tally(changed=1)


@given(st.lists(IDS, max_size=30), st.integers(0, 30))
def test_ids_count_the_same_in_one_go_and_in_parts(ids: list[int], cut: int) -> None:
    whole, first, second = Tally(), Tally(), Tally()
    whole.count_ids(ids)
    first.count_ids(ids[:cut])
    second.count_ids(ids[cut:])

    assert Tally.total((first, second)) == whole
    assert 0 <= whole.id_xor < 2**64


def test_every_outcome_is_counted() -> None:
    tally = Tally(changed=1, unchanged=2, deleted=3, skipped=4, failed=5)

    assert tally.counts() == dict(zip(OUTCOMES, (1, 2, 3, 4, 5), strict=True))
    assert tally.rows == 15


@given(IDS, st.text(), st.integers(1, 100), st.text(max_size=12))
def test_a_failed_row_comes_back_from_its_text(row_id: int, error: str, attempts: int, code: str) -> None:
    row = FailedRow(row_id=row_id, error=error, attempts=attempts, at="2026-01-01T00:00:00+00:00", code_version=code)

    assert FailedRow.decode(row_id, row.encode()) == row


def test_a_failed_row_without_a_code_version_can_be_read() -> None:
    text = json.dumps({"error": "ValueError: bad", "attempts": 1, "at": "2026-01-01T00:00:00+00:00"})

    assert FailedRow.decode(7, text).code_version == ""
