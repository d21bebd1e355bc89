"""What became of parts: counted, and cut before a failed row that is one too many."""

from __future__ import annotations

from functools import reduce
from operator import xor

from hypothesis import given
from hypothesis import strategies as st

from shardworker import DELETE
from shardworker.outcomes import FailedRow, Tally
from shardworker.process.parts import Done, Handled, Part, count


def failed_row(row_id: int) -> FailedRow:
    return FailedRow(row_id=row_id, error="ValueError: bad row", attempts=3, at="2026-01-01T00:00:00+00:00")


def handled(outcomes: dict[int, str]) -> Handled:
    """By outcome: changed, deleted, skipped, failed; all others are unchanged."""
    found = Handled()
    for row_id, outcome in outcomes.items():
        if outcome == "changed":
            found.changes[row_id] = {"status": row_id}
        elif outcome == "deleted":
            found.changes[row_id] = DELETE
        elif outcome == "skipped":
            found.skipped[row_id] = "blank"
        elif outcome == "failed":
            found.failed[row_id] = failed_row(row_id)
    return found


OUTCOMES = st.sampled_from(["changed", "unchanged", "deleted", "skipped", "failed"])


@st.composite
def runs_of_parts(draw: st.DrawFn, outcomes: st.SearchStrategy[str] = OUTCOMES) -> tuple[dict[int, str], Done]:
    """Rows with their outcomes, and the same in parts; ids have gaps."""
    ids = sorted(draw(st.sets(st.integers(-(2**63), 2**64 - 1), min_size=1, max_size=25)))
    rows = {row_id: draw(outcomes) for row_id in ids}
    parts: list[Part] = []
    at = 0
    while at < len(ids):
        size = draw(st.integers(1, 7))
        mine = ids[at : at + size]
        ends_batch = at + size >= len(ids) or draw(st.booleans())
        parts.append(Part(1, mine, [str(i) for i in mine], ends_batch, 0.0, handled({i: rows[i] for i in mine})))
        at += size
    return rows, Done(parts)


@given(runs_of_parts())
def test_each_row_is_counted_once_by_its_outcome(run: tuple[dict[int, str], Done]) -> None:
    rows, done = run
    tally = done.tally()

    assert tally.counts() == {name: list(rows.values()).count(name) for name in tally.counts()}
    assert tally.rows == done.rows == len(rows)
    assert tally.reasons == ({"blank": tally.skipped} if tally.skipped else {})
    assert tally.id_sum == sum(rows)
    assert tally.id_xor == reduce(xor, (row_id % 2**64 for row_id in rows), 0)


@given(runs_of_parts())
def test_the_tally_of_the_whole_is_the_sum_of_its_parts(run: tuple[dict[int, str], Done]) -> None:
    _, done = run

    assert done.tally() == Tally.total(count(part.ids, part.handled or Handled()) for part in done.parts)


@given(runs_of_parts())
def test_failed_rows_come_in_the_order_of_ids(run: tuple[dict[int, str], Done]) -> None:
    rows, done = run

    assert [row.row_id for row in done.failed()] == [row_id for row_id in rows if rows[row_id] == "failed"]


@given(runs_of_parts(st.sampled_from(["failed", "failed", "changed", "skipped"])), st.data())
def test_a_cut_ends_just_before_the_first_failed_row_that_is_one_too_many(
    run: tuple[dict[int, str], Done], data: st.DataObject
) -> None:
    """All rows before it are saved, with their outcomes; nothing of it and beyond is written."""
    rows, done = run
    failed = done.failed()
    if not failed:
        return
    room = data.draw(st.integers(0, len(failed) - 1))
    kept = [row_id for row_id in rows if row_id < failed[room].row_id]

    cut = done.with_room_for(room)

    assert [row_id for part in cut.parts for row_id in part.ids] == kept
    assert [row for part in cut.parts for row in part.rows] == [str(row_id) for row_id in kept]
    assert cut.last_id == (kept[-1] if kept else None)
    assert bool(cut) is bool(kept)
    assert len(cut.failed()) == room
    assert (
        cut.tally().counts()
        == Done([Part(1, kept, [], True, 0.0, handled({i: rows[i] for i in kept}))]).tally().counts()
    )
    written = {row_id for part in cut.parts if part.handled for row_id in part.handled.changes}
    assert written == {row_id for row_id in kept if rows[row_id] == "changed"}
    assert cut.batch_ends == sum(part.ends_batch for part in done.parts if part.ids[-1] < failed[room].row_id)
    assert all(part.handled for part in done.parts)  # what it was cut from is as it was
    assert done.failed() == failed


def test_nothing_done_is_no_checkpoint() -> None:
    done = Done()

    assert not done
    assert (done.last_id, done.rows, done.batch_ends, done.failed()) == (None, 0, 0, [])
    assert done.tally() == Tally()
