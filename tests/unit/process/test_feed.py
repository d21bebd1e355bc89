"""The feed: parts in order, at most two batches in work, and a watermark that never passes an unfinished part."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardworker.errors import HandlerError
from shardworker.process.feed import MOST_BATCHES_IN_WORK, MOST_BATCHES_READ_AHEAD, Feed
from shardworker.process.part_size import PartSize
from shardworker.process.parts import Done, Handled, Part
from tests.fakes import FakeClock


def make_feed(part_size: int | Callable[[int, int], int] = 4) -> Feed:
    return Feed(FakeClock(), part_size if callable(part_size) else lambda _rows, _left: part_size)


def put(feed: Feed, first: int, rows: int = 10) -> None:
    ids = range(first, first + rows)
    feed.put(ids, [f"row {row_id}" for row_id in ids])


def take_all(feed: Feed) -> list[Part]:
    return list(iter(feed.try_take, None))


def finish(feed: Feed, *parts: Part) -> None:
    for part in parts:
        feed.done(part, Handled())


def ids_of(done: Done) -> list[int]:
    return [row_id for part in done.parts for row_id in part.ids]


# Order ----------------------------------------------------------------------------------------------------------------
def test_parts_are_taken_in_the_order_of_ids() -> None:
    feed = make_feed(4)
    put(feed, 1)
    put(feed, 11)

    parts = take_all(feed)

    assert [list(part.ids) for part in parts] == [
        [1, 2, 3, 4],
        [5, 6, 7, 8],
        [9, 10],
        [11, 12, 13, 14],
        [15, 16, 17, 18],
        [19, 20],
    ]
    assert [part.ends_batch for part in parts] == [False, False, True] * 2
    assert [part.batch for part in parts] == [1, 1, 1, 2, 2, 2]
    assert parts[2].rows == ["row 9", "row 10"]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=3), st.lists(st.integers(1, 50), min_size=1))
def test_parts_tile_their_batches(batches: list[int], sizes: list[int]) -> None:
    """Each row is in one part; no part reaches over the end of its batch."""
    size = itertools.cycle(sizes)
    feed = make_feed(lambda _rows, _left: next(size))
    first = 1
    taken: list[Part] = []
    for rows in batches:
        put(feed, first, rows)
        first += rows
        parts = take_all(feed)
        assert [row_id for part in parts for row_id in part.ids] == list(range(first - rows, first))
        assert [part.ends_batch for part in parts] == [False] * (len(parts) - 1) + [True]
        finish(feed, *parts)
        feed.saved(feed.collect())
        taken += parts

    assert [part.batch for part in taken if part.ends_batch] == list(range(1, len(batches) + 1))


@given(
    st.sampled_from(["row", "part", "batch"]),
    st.none() | st.integers(1, 100),
    st.integers(1, 64),
    st.integers(1, 300),
    st.lists(st.floats(0, 10), min_size=1, max_size=30),
)
def test_parts_of_every_size_that_the_package_chooses_tile_a_batch(
    each: str, fixed: int | None, parallelism: int, rows: int, seconds: list[float]
) -> None:
    size = PartSize(each, fixed, parallelism)  # type: ignore[arg-type]
    feed = make_feed(size)
    put(feed, 1, rows)
    took = itertools.cycle(seconds)
    parts = []
    while part := feed.try_take():
        parts.append(part)
        size.observe(len(part.ids), next(took))

    assert [row_id for part in parts for row_id in part.ids] == list(range(1, rows + 1))
    assert each != "batch" or len(parts) == 1


# How far each may run ahead -------------------------------------------------------------------------------------------
def test_two_batches_are_in_work_and_one_more_is_read() -> None:
    """What a crash repeats, and what memory holds, is bounded by that."""
    feed = make_feed(10)
    for n in range(MOST_BATCHES_IN_WORK + MOST_BATCHES_READ_AHEAD):
        assert feed.wait_for_room()
        put(feed, 10 * n + 1)

    parts = take_all(feed)

    assert [part.batch for part in parts] == [1, 2]
    with ThreadPoolExecutor(1) as reader:
        waiting = reader.submit(feed.wait_for_room)
        finish(feed, *parts)
        assert feed.try_take() is None  # finished is not saved
        assert not waiting.done()
        done = feed.collect()
        assert not waiting.done()

        feed.saved(done)

        assert waiting.result(timeout=30) is True
    assert [part.batch for part in take_all(feed)] == [3]


def test_a_save_inside_a_batch_brings_no_further_batch_into_work() -> None:
    """Long batches are saved in between; the batch is in work until its end is saved."""
    feed = make_feed(5)
    for n in range(3):
        put(feed, 10 * n + 1)
    parts = take_all(feed)
    finish(feed, parts[0])

    feed.saved(feed.collect())

    assert feed.try_take() is None


def test_parts_of_the_next_batch_are_taken_while_the_last_ones_of_this_still_run() -> None:
    """No barrier: one slow row would keep all threads waiting."""
    feed = make_feed(5)
    put(feed, 1)
    put(feed, 11)
    first, slow, third, fourth = take_all(feed)

    finish(feed, first, third, fourth)

    assert not feed.has_batch_end
    assert ids_of(feed.collect()) == [1, 2, 3, 4, 5]
    finish(feed, slow)
    assert feed.has_batch_end
    assert ids_of(feed.collect()) == list(range(6, 21))


# The watermark --------------------------------------------------------------------------------------------------------
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=6),
    st.lists(st.integers(1, 5), min_size=1, max_size=10),
    st.integers(0, 2**32),
)
def test_the_watermark_never_passes_an_unfinished_part_whatever_the_order(
    batches: list[int], sizes: list[int], seed: int
) -> None:
    """A checkpoint beyond a row that is not done would lose that row."""
    size, chance = itertools.cycle(sizes), random.Random(seed)
    feed = make_feed(lambda _rows, _left: next(size))
    running: list[Part] = []
    taken: list[int] = []
    finished: set[int] = set()
    saved: list[int] = []
    total, to_put, put_rows, unsaved_batches = sum(batches), list(batches), 0, 0

    def read_one() -> None:
        nonlocal put_rows, unsaved_batches
        rows = to_put.pop(0)
        put(feed, put_rows + 1, rows)
        put_rows, unsaved_batches = put_rows + rows, unsaved_batches + 1
        if not to_put:
            feed.close()

    def take_one() -> None:
        if part := feed.try_take():
            running.append(part)
            taken.extend(part.ids)
            assert taken == list(range(1, len(taken) + 1))

    def finish_one() -> None:
        part = running.pop(chance.randrange(len(running)))
        finished.update(part.ids)
        finish(feed, part)

    def save() -> None:
        nonlocal unsaved_batches
        done = feed.collect()
        assert set(ids_of(done)) <= finished
        saved.extend(ids_of(done))
        assert saved == list(range(1, len(saved) + 1))
        unsaved_batches -= done.batch_ends
        feed.saved(done)

    while len(saved) < total:
        possible = [save, take_one]
        if to_put and unsaved_batches < MOST_BATCHES_IN_WORK + MOST_BATCHES_READ_AHEAD:
            possible.append(read_one)
        if running:
            possible.append(finish_one)
        chance.choice(possible)()
        in_work = {part.batch for part in running}
        assert not in_work or max(in_work) - min(in_work) < MOST_BATCHES_IN_WORK

    assert feed.is_complete
    assert not feed.has_batch_end


@given(st.integers(1, 20), st.integers(1, 4), st.data())
def test_what_a_drain_leaves_is_a_contiguous_prefix(rows: int, size: int, data: st.DataObject) -> None:
    """Then nothing is repeated after SIGTERM."""
    feed = make_feed(size)
    put(feed, 1, rows)
    put(feed, rows + 1, rows)
    running = [part for _ in range(data.draw(st.integers(0, 40))) if (part := feed.try_take())]

    feed.stop()

    assert feed.try_take() is None
    assert feed.take() is None
    for part in data.draw(st.permutations(running)):
        finish(feed, part)
    assert feed.wait_until_idle(30)
    taken = ids_of(feed.collect())
    assert taken == list(range(1, len(taken) + 1))
    assert len(taken) == sum(len(part.ids) for part in running)


# Endings --------------------------------------------------------------------------------------------------------------
def test_a_slot_is_complete_when_its_end_was_read_and_all_is_done() -> None:
    feed = make_feed(10)
    put(feed, 1)
    (part,) = take_all(feed)
    finish(feed, part)
    assert not feed.is_complete

    feed.close()

    assert feed.is_complete
    assert ids_of(feed.collect()) == list(range(1, 11))
    assert feed.is_complete


def test_an_empty_slot_is_complete_at_once() -> None:
    feed = make_feed()
    feed.close()

    assert feed.is_complete
    assert not feed.collect()
    assert feed.batches_read == 0


def test_a_part_that_failed_as_a_whole_stops_the_feed_and_stays_before_the_watermark() -> None:
    feed = make_feed(4)
    put(feed, 1, 12)
    first, second, third = take_all(feed)
    feed.done(third, HandlerError("third"))
    feed.done(second, HandlerError("second"))
    finish(feed, first)
    put(feed, 13)

    assert feed.try_take() is None
    assert feed.has_failed_part
    assert str(feed.first_error) == "second"
    assert not feed.wait_for_room()
    assert ids_of(feed.collect()) == [1, 2, 3, 4]
    assert ids_of(feed.collect()) == []


def test_the_first_failure_is_raised_and_everybody_stops() -> None:
    feed = make_feed()
    put(feed, 1)

    feed.fail(ZeroDivisionError("first"))
    feed.fail(ValueError("second"))

    assert feed.take() is None
    assert not feed.wait_for_room()
    with pytest.raises(ZeroDivisionError, match="first"):
        feed.raise_failure()


@pytest.mark.parametrize("end", ["stop", "fail"])
def test_nobody_waits_for_ever_when_a_feed_ends(end: str) -> None:
    feed = make_feed()
    for n in range(MOST_BATCHES_IN_WORK + MOST_BATCHES_READ_AHEAD):
        put(feed, 10 * n + 1)
    take_all(feed)
    with ThreadPoolExecutor(2) as threads:
        reader, handler = threads.submit(feed.wait_for_room), threads.submit(feed.take)

        feed.stop() if end == "stop" else feed.fail(ValueError())

        assert reader.result(timeout=30) is False
        assert handler.result(timeout=30) is None


def test_a_handler_that_waits_gets_what_is_read_next() -> None:
    feed = make_feed(10)
    with ThreadPoolExecutor(1) as threads:
        handler = threads.submit(feed.take)

        put(feed, 1)

        part = handler.result(timeout=30)
        assert part is not None
        assert list(part.ids) == list(range(1, 11))


def test_the_pipeline_is_woken_when_a_batch_is_done() -> None:
    feed = make_feed(5)
    put(feed, 1)
    first, second = take_all(feed)
    woken = threading.Event()

    def wait() -> None:
        feed.wait(60)
        woken.set()

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wait)
        finish(feed, second)
        finish(feed, first)

        waiting.result(timeout=30)
    assert woken.is_set()


def test_those_who_have_no_thread_of_their_own_are_told_that_there_is_more() -> None:
    """Async handlers: the loop takes parts when it is told so."""
    feed = make_feed(10)
    told: list[None] = []
    feed.on_more = lambda: told.append(None)

    put(feed, 1)
    (part,) = take_all(feed)
    finish(feed, part)
    feed.saved(feed.collect())

    assert len(told) == 2
