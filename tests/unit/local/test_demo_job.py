"""The demo's addresses, and whether its proof would notice if a row had been lost."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shardworker.local.demo import Outcome
from shardworker.local.demo_job import Proof, count, handled_so_far, make_table, messy_address, tidy

ROWS = 100


def test_no_address_is_clean_before_and_every_one_is_afterwards() -> None:
    """Else a row that nobody wrote would look like one that was cleaned."""
    addresses = [messy_address(row_id) for row_id in range(1, 2_001)]

    cleaned = [tidy(address) for address in addresses]

    assert all(address != clean for address, clean in zip(addresses, cleaned, strict=True))
    assert [tidy(address) for address in cleaned] == cleaned


@pytest.mark.parametrize(
    ("typed", "clean"),
    [
        ("12  main ST.,springfield ,ab1 2cd", "12 Main Street, Springfield, AB1 2CD"),
        ("7 PARK sq,,  OAKHAM, cp3 4xy.", "7 Park Square, Oakham, CP3 4XY"),
        (" . , ", ""),
    ],
)
def test_tidy_mends_spaces_commas_case_and_short_forms(typed: str, clean: str) -> None:
    assert tidy(typed) == clean


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """A table in which every row was handled once, and cleaned."""
    file = tmp_path / "data.db"
    make_table(file, ROWS)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.create_function("tidy", 1, tidy)
        connection.execute("INSERT INTO handled SELECT id, 1 FROM orders")
        connection.execute("UPDATE orders SET address = tidy(address)")
    return file


def test_proof_counts_every_row_once_where_all_went_well(done: Path) -> None:
    assert count(done) == Proof(rows=ROWS, handled=ROWS, repeated=0, missing=0)
    assert handled_so_far(done) == ROWS


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        ("DELETE FROM handled WHERE row_id = 7", Proof(rows=ROWS, handled=ROWS - 1, repeated=0, missing=1)),
        ("UPDATE orders SET address = 'x st' WHERE id = 7", Proof(rows=ROWS, handled=ROWS, repeated=0, missing=1)),
        ("INSERT INTO handled VALUES (7, 2), (7, 3)", Proof(rows=ROWS, handled=ROWS, repeated=2, missing=0)),
    ],
    ids=["nobody was given the row", "its change was not written", "it was handled three times"],
)
def test_proof_notices_a_row_that(done: Path, damage: str, found: Proof) -> None:
    with closing(sqlite3.connect(done)) as connection, connection:
        connection.execute(damage)

    assert count(done) == found


@pytest.mark.parametrize(
    ("change", "is_proven"),
    [
        ({}, True),
        ({"repeated": 10}, True),
        ({"repeated": 11}, False),
        ({"missing": 1}, False),
        ({"handled": ROWS - 1}, False),
        ({"was_killed": False}, False),
        ({"exit_codes": (0, 75)}, False),
    ],
    ids=str,
)
def test_outcome_is_a_proof_only_if_all_of_it_is_as_promised(change: dict[str, Any], is_proven: bool) -> None:
    assert _outcome(**change).is_proven is is_proven


def _outcome(
    *,
    handled: int = ROWS,
    repeated: int = 0,
    missing: int = 0,
    was_killed: bool = True,
    exit_codes: tuple[int, ...] = (0, 0),
) -> Outcome:
    proof = Proof(rows=ROWS, handled=handled, repeated=repeated, missing=missing)
    return Outcome(proof=proof, most_repeated=10, was_killed=was_killed, exit_codes=exit_codes)
