from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shardworker.claim.look import Progress as Look
from shardworker.clock import SystemClock
from shardworker.events import BatchDone, Event, SlotFinished
from shardworker.observe import progress
from shardworker.observe.logs import logger
from shardworker.observe.progress import Numbers, Pace, Progress


def look(rows: int, *, slots_done: int = 0, slots: int = 10, failed: int = 0) -> Look:
    return Look(rows=rows, failed=failed, slots=slots, slots_done=slots_done)


def numbers(**changes: Any) -> Numbers:
    known: dict[str, Any] = {
        "rows": 250,
        "expected_rows": 1000,
        "rows_per_s": 50.0,
        "slots": 10,
        "slots_done": 2,
        "failed": 0,
    }
    return Numbers(**(known | changes))


def batch(rows: int) -> BatchDone:
    return BatchDone(slot="0", last_id=rows, rows=rows, seconds=0.1)


# The numbers -------------------------------------------------------------------------------------------------------


def test_nothing_is_said_before_the_first_look() -> None:
    """A resumed run has rows that this process knows nothing of."""
    pace = Pace(began=0.0)
    pace.did(10)

    assert pace.numbers(1.0) is None


def test_own_rows_are_added_between_two_looks() -> None:
    pace = Pace(began=0.0)
    pace.did(10)  # seen by the look
    pace.looked(look(1000), at=1.0)
    pace.did(5)

    shown = pace.numbers(2.0)

    assert shown is not None
    assert shown.rows == 1005


def test_speed_is_that_of_the_whole_run_once_there_are_two_looks() -> None:
    """Other workers' rows count, and those of a life before this one do not."""
    pace = Pace(began=0.0)
    pace.looked(look(50_000), at=0.0)
    pace.did(100)

    alone = pace.numbers(10.0)
    pace.looked(look(58_000), at=10.0)
    together = pace.numbers(12.0)

    assert alone is not None
    assert together is not None
    assert alone.rows_per_s == 10.0
    assert together.rows_per_s == 800.0


def test_an_estimate_that_was_too_low_gives_way() -> None:
    pace = Pace(began=0.0)
    pace.estimate = 100
    pace.looked(look(150), at=1.0)

    shown = pace.numbers(1.0)

    assert shown is not None
    assert (shown.expected_rows, shown.share, shown.left_s) == (150, 1.0, None)


def test_with_a_filter_the_slots_that_are_done_say_how_many_rows_there_will_be() -> None:
    """The server's estimate counts rows that the filter leaves out."""
    pace = Pace(began=0.0)
    pace.looked(look(300, slots_done=0), at=0.0)
    unknown = pace.numbers(0.0)
    pace.looked(look(600, slots_done=2, slots=8), at=10.0)
    known = pace.numbers(10.0)

    assert unknown is not None
    assert known is not None
    assert unknown.expected_rows is None
    assert known.expected_rows == 2400
    assert known.left_s == (2400 - 600) / 30


def test_a_reset_under_way_shows_no_negative_speed() -> None:
    pace = Pace(began=0.0)
    pace.looked(look(1000), at=0.0)
    pace.looked(look(0), at=10.0)

    shown = pace.numbers(10.0)

    assert shown is not None
    assert shown.rows_per_s == 0
    assert shown.left_s is None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "250 of 1,000 rows, 50 rows/s, slots 2/10, 0:15 left"),
        ({"failed": 3}, "250 of 1,000 rows, 50 rows/s, slots 2/10, 3 failed, 0:15 left"),
        ({"expected_rows": None}, "250 rows, 50 rows/s, slots 2/10"),
        (
            {"expected_rows": 1_000_250, "rows_per_s": 100.0},
            "250 of 1,000,250 rows, 100 rows/s, slots 2/10, 2:46:40 left",
        ),
    ],
)
def test_numbers_in_words(changes: dict[str, Any], text: str) -> None:
    assert numbers(**changes).text() == text


def test_share_is_that_of_the_slots_where_no_one_knows_the_rows() -> None:
    assert numbers(expected_rows=None).share == 0.2
    assert numbers(expected_rows=None, slots=0, slots_done=0).share == 0.0


# The thread --------------------------------------------------------------------------------------------------------


@contextmanager
def log_lines() -> Iterator[list[dict[str, Any]]]:
    lines: list[dict[str, Any]] = []
    sink = logger.add(lambda message: lines.append(dict(message.record)), level="INFO")
    logger.enable("shardworker")
    try:
        yield lines
    finally:
        logger.remove(sink)
        logger.disable("shardworker")


class QuickClock(SystemClock):
    """Each wait takes its time on this clock and none on the others; it stands still once `waits` are over."""

    def __init__(self, waits: int) -> None:
        self._now = 0.0
        self._waits = waits
        self.is_over = threading.Event()

    def now(self) -> float:
        return self._now

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        if self._waits == 0:
            self.is_over.set()
            return stop.wait()
        self._waits -= 1
        self._now += seconds
        return stop.is_set()


def test_elsewhere_than_on_a_terminal_there_is_one_line_and_one_look_every_ten_seconds() -> None:
    clock, looks = QuickClock(waits=3), 0

    def take() -> Look:
        nonlocal looks
        looks += 1
        return look(rows=looks * 1000, slots_done=looks, failed=2)

    with log_lines() as lines, Progress(lambda _event: None, clock).shown(take, lambda: 10_000, title="x"):
        assert clock.is_over.wait(10)

    assert clock.now() == 30.0
    assert looks == 4  # the first one at the beginning
    assert [(line["message"], line["level"].name) for line in lines] == [("progress", "INFO")] * 3
    assert lines[-1]["extra"] == {
        "rows": 4000,
        "rows_per_s": 100.0,
        "slots_done": 4,
        "slots": 10,
        "failed": 2,
        "left_s": 60,
    }


def test_looks_that_fail_leave_the_last_numbers_and_harm_nobody() -> None:
    """Redis may be away; a worker waits that out, and progress has nothing to add."""
    clock, answers = QuickClock(waits=2), iter([look(500)])

    def take() -> Look:
        return next(answers)  # then StopIteration

    heard: list[Event] = []
    shown = Progress(heard.append, clock)
    with log_lines() as lines, shown.shown(take, lambda: 1 // 0, title="x"):
        assert clock.is_over.wait(10)

    assert [line["extra"]["rows"] for line in lines] == [500, 500]


def test_events_go_on_to_the_narrator() -> None:
    heard: list[Event] = []
    shown = Progress(heard.append, SystemClock())
    events: list[Event] = [batch(10), SlotFinished(slot="0", rows=10, seconds=1.0)]

    for event in events:
        shown.emit(event)

    assert heard == events


def test_the_thread_has_a_name_and_is_joined() -> None:
    clock, name = SystemClock(), ""

    def take() -> Look:
        nonlocal name
        name = threading.current_thread().name
        return look(1)

    with Progress(lambda _event: None, clock).shown(take, lambda: None, title="x"):
        pass

    assert name == "shardworker-progress"
    assert name not in [thread.name for thread in threading.enumerate()]


def test_a_question_that_hangs_does_not_keep_the_worker() -> None:
    """All connections of the pool may be in use by handlers that hang: the end of a drain must not wait for them."""
    answered = threading.Event()
    try:
        with Progress(lambda _event: None, SystemClock()).shown(
            lambda: look(1), lambda: int(answered.wait(60)), title="x"
        ):
            began = SystemClock().now()
        assert SystemClock().now() - began < 30
    finally:
        answered.set()


def test_a_log_stream_follows_standard_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a bar is drawn rich stands in for standard output, and puts lines above the bar."""
    stream = progress.current_output()
    stream.write("before\n")
    monkeypatch.setattr("sys.stdout", sink := _Sink())
    stream.write("meanwhile\n")
    monkeypatch.undo()
    stream.write("after\n")

    assert capsys.readouterr().out == "before\nafter\n"
    assert sink.written == ["meanwhile\n"]


class _Sink:
    def __init__(self) -> None:
        self.written: list[str] = []

    def write(self, text: str) -> None:
        self.written.append(text)
