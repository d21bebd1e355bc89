from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from shardworker.events import (
    BatchDone,
    Draining,
    Event,
    HoleJumped,
    Recovered,
    Retrying,
    RowFailed,
    SlotClaimed,
    SlotFinished,
    SlotLost,
    SlotParked,
    SlotReleased,
    Waiting,
)
from shardworker.observe import logs
from shardworker.observe.narrate import narrator

BRACES = '{"user": {id}} 50% {0} {'
PASSWORD = "p@ss/w#rd%41:+"
ENCODED = "p%40ss%2Fw%23rd%2541%3A%2B"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Loguru and logging have one state for the whole process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()  # else basicConfig(force=True) would close those of pytest
    yield
    logger.remove()
    logger.configure(extra={})
    logger.disable("shardworker")
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


# ----------------------------------------------------------------------------------------------------- Form of lines


def test_importing_adds_no_sink_and_says_nothing() -> None:
    """A library does not write into its user's log unasked."""
    script = (
        "from loguru import logger; before = str(logger); import shardworker.observe.narrate as n\n"
        "from shardworker.events import Draining\n"
        "assert str(logger) == before, logger\n"
        "n.narrator('j', 'r')(Draining(signal='SIGTERM'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert done.stdout + done.stderr == ""


def test_a_json_line_is_one_flat_object_with_the_bound_fields(out: io.StringIO) -> None:
    logs.configure("INFO", "json", out, fields={"job": "clean", "run": "main"})
    logger.bind(slot="17", batch=3, first=-(2**63)).info("claimed")
    logger.debug("below the level")
    (line,) = lines(out)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "INFO",
        "message": "claimed",
        "logger": __name__,
        "job": "clean",
        "run": "main",
        "slot": "17",
        "batch": 3,
        "first": -(2**63),
    }


def test_auto_means_text_on_a_terminal_and_json_elsewhere(out: io.StringIO) -> None:
    terminal = Terminal()
    logs.configure("INFO", "auto", terminal)
    logger.bind(slot="17").warning("parked")
    logs.configure("INFO", "auto", out)
    logger.warning("parked")
    assert "parked" in terminal.getvalue()
    assert "slot=17" in terminal.getvalue()
    assert "\x1b[33mWARNING" in terminal.getvalue()
    assert lines(out)[0]["message"] == "parked"
    assert len(terminal.getvalue().splitlines()) == 1


def test_text_into_a_file_has_no_colours(out: io.StringIO) -> None:
    logs.configure("INFO", "text", out, fields={"job": "clean"})
    logger.bind(slot="17").info("claimed")
    assert out.getvalue().rstrip().endswith("INFO     claimed  job=clean  slot=17")
    assert "\x1b" not in out.getvalue()


def test_without_a_stream_lines_go_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("INFO", "json")
    logger.info("here")
    captured = capsys.readouterr()
    assert json.loads(captured.out)["message"] == "here"
    assert captured.err == ""


def test_control_characters_of_a_message_do_not_reach_the_terminal() -> None:
    terminal = Terminal()
    logs.configure("INFO", "text", terminal)
    logger.bind(error="\x1b[2J").info("\x1b]0;title\x07 two\nlines")
    assert "\\x1b]0;title\\x07 two\nlines" in terminal.getvalue()
    assert "\x1b[2J" not in terminal.getvalue()


def test_a_field_never_replaces_a_part_of_the_line(out: io.StringIO) -> None:
    logs.configure("INFO", "json", out)
    logger.bind(time="noon", level=5, message="other").info("mine")
    (line,) = lines(out)
    assert (line["message"], line["level"]) == ("mine", "INFO")
    assert (line["field_time"], line["field_level"], line["field_message"]) == ("noon", 5, "other")


def test_fields_that_json_does_not_know_become_text(out: io.StringIO) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    loop: list[Any] = []
    loop.append(loop)
    logs.configure("INFO", "json", out)
    logger.bind(a=float("nan"), b={1: {2}, (3,): Path("x")}, c=Broken(), d=loop, e=ValueError("bad {x}")).info("odd")
    (line,) = lines(out)
    assert line["a"] == "nan"
    assert line["b"] == {"1": [2], "(3,)": "x"}
    assert "Broken" in line["c"]
    assert line["e"] == "bad {x}"


def test_a_stream_that_cannot_write_a_character_or_anything_does_not_stop_the_work() -> None:
    raw = io.BytesIO()
    ascii_only = io.TextIOWrapper(raw, encoding="ascii")
    logs.configure("INFO", "text", ascii_only)
    logger.info("schöne Grüße \udc80")
    assert b"sch\\xf6ne Gr\\xfc\\xdfe \\udc80" in raw.getvalue()

    ascii_only.close()
    logger.info("into a closed stream")


def test_lines_of_many_threads_do_not_mix(out: io.StringIO) -> None:
    logs.configure("INFO", "json", out)

    def write(name: str) -> None:
        with logger.contextualize(slot=name):
            for _ in range(50):
                logging.getLogger("lib").warning("from %s", name)

    threads = [threading.Thread(target=write, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines(out)) == 400
    assert all(line["message"] == f"from {line['slot']}" for line in lines(out))


# --------------------------------------------------------------------------------------------------------- Braces


def _by_loguru(text: str) -> None:
    logger.error(text)


def _by_logging(text: str) -> None:
    logging.getLogger("user").error(text)


def _as_argument_of_logging(text: str) -> None:
    logging.getLogger("user").error("%s", text)


def _as_exception_of_loguru(text: str) -> None:
    try:
        raise RuntimeError(text)
    except RuntimeError as error:
        logger.bind(error=str(error), slot=text).exception("failed")


def _as_exception_of_logging(text: str) -> None:
    try:
        raise RuntimeError(text)
    except RuntimeError:
        logging.getLogger("user").exception(text)


WAYS = [_by_loguru, _by_logging, _as_argument_of_logging, _as_exception_of_loguru, _as_exception_of_logging]


@pytest.mark.parametrize("log_format", ["json", "text"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("text", [BRACES, "{boom}", "<red>{0}</red> %s %(x)d", "{extra[x]}", "\\N{x}"])
def test_case_48_braces_are_logged_unchanged_by_every_way(
    out: io.StringIO,
    capsys: pytest.CaptureFixture[str],
    way: Callable[[str], None],
    log_format: str,
    text: str,
) -> None:
    """A message that contains JSON was formatted a second time elsewhere, and raised KeyError."""
    logs.configure("TRACE", log_format, out)
    way(text)
    if log_format == "json":
        (line,) = lines(out)
        assert text in line.get("traceback", line["message"])
    else:
        assert text in out.getvalue()
    assert capsys.readouterr().err == ""  # where loguru and logging report their own failures


def test_case_48_the_narrator_logs_error_texts_with_braces_unchanged(out: io.StringIO) -> None:
    logs.configure("TRACE", "json", out)
    narrate = narrator("clean", "main")
    narrate(Retrying(target="row", code="RuntimeError", error=BRACES, attempt=1, wait_s=0.1))
    narrate(RowFailed(row_id=3, error=BRACES, attempts=3))
    assert [line["error"] for line in lines(out)] == [BRACES, BRACES]


# -------------------------------------------------------------------------------------- Tracebacks, standard library


def test_a_traceback_is_text_in_the_line_and_shows_no_values(out: io.StringIO) -> None:
    """`diagnose` would print the value of each variable: rows, and passwords."""
    logs.configure("INFO", "json", out)

    def handler(row: dict[str, str]) -> None:
        raise ValueError(f"row {len(row)} is bad")

    try:
        handler({"email": "ann@example.org"})
    except ValueError:
        logger.exception("handler failed")
    (line,) = lines(out)
    assert line["message"] == "handler failed"
    assert line["error"] == "ValueError: row 1 is bad"
    assert line["traceback"].startswith("Traceback (most recent call last):\n")
    assert line["traceback"].count("\n  File ") == 1 + line["traceback"].count("in handler")
    assert "'email'" not in line["traceback"].replace('handler({"email": "ann@example.org"})', "")


def test_the_standard_library_carries_the_same_fields(out: io.StringIO) -> None:
    logs.configure("INFO", "json", out, fields={"job": "clean", "run": "main"})
    with logger.contextualize(slot="17", batch=3):
        logging.getLogger("httpx").warning("status %d", 503)
    logging.getLogger("httpx").debug("below the level")
    (line,) = lines(out)
    assert (line["logger"], line["level"], line["message"]) == ("httpx", "WARNING", "status 503")
    assert (line["job"], line["run"], line["slot"], line["batch"]) == ("clean", "main", "17", 3)


def test_arguments_that_do_not_fit_cost_no_line(out: io.StringIO) -> None:
    logs.configure("INFO", "json", out)
    logging.getLogger("user").warning("only %d", "text")
    logging.getLogger("user").log(35, "own level")
    bad, own = lines(out)
    assert bad["message"] == "only %d ('text',)"
    assert own["level"] == "Level 35"


def test_a_second_configuration_replaces_the_first(out: io.StringIO) -> None:
    first = io.StringIO()
    logs.configure("INFO", "json", first, fields={"job": "old"})
    logs.configure("DEBUG", "json", out)
    logger.debug("one")
    logging.getLogger("user").debug("two")
    assert first.getvalue() == ""
    assert [line["message"] for line in lines(out)] == ["one", "two"]
    assert "job" not in lines(out)[0]


# --------------------------------------------------------------------------------------------------------- Secrets


@pytest.mark.parametrize("log_format", ["json", "text"])
@pytest.mark.parametrize("secret", [PASSWORD, "quo\"te\\d's", "with space + ü", "x" * 4])
def test_case_27_no_spelling_of_a_password_reaches_a_line(out: io.StringIO, secret: str, log_format: str) -> None:
    from urllib.parse import quote, quote_plus

    logs.configure("TRACE", log_format, out, secrets=[secret, "word"])
    forms = [secret, quote(secret, safe=""), quote(secret), quote_plus(secret), quote(secret, safe=" +")]
    forms += [form.lower() for form in forms if form.lower() != secret.lower()]
    forms += [repr(secret), json.dumps(secret)]
    for form in forms:
        logger.bind(url=f"mysql://app:{form}@db", nested={"urls": [form]}).info("to " + form)
        logging.getLogger("lib").error("%s", f"<{form}>")
        try:
            raise ConnectionError(f"cannot connect to {form}")
        except ConnectionError:
            logger.exception("connection failed")
    text = out.getvalue()
    assert text.count("***") >= 4 * len(forms)
    for form in forms:
        assert form not in text
        assert json.dumps(form)[1:-1] not in text


def test_case_27_the_documented_password_and_its_encoded_form_are_replaced_whole(out: io.StringIO) -> None:
    logs.configure("INFO", "json", out, secrets=[PASSWORD[:4], PASSWORD])
    logger.info(f"a {PASSWORD} b {ENCODED} c {ENCODED.lower()} d")
    assert lines(out)[0]["message"] == "a *** b *** c *** d"


def test_what_is_too_short_to_be_a_secret_does_not_shred_the_lines(out: io.StringIO) -> None:
    logs.configure("INFO", "json", out, secrets=["", "a", "abc"])
    logger.info("a abc")
    assert lines(out)[0]["message"] == "a abc"


# --------------------------------------------------------------------------------------------------------- Narrator


class HandClock:
    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        self.at += seconds
        return stop.is_set()


EVENTS: list[tuple[Event, str, str]] = [
    (SlotClaimed(slot="1", first=1, last=9, last_id=None, attempt=1), "INFO", "claimed"),
    (SlotClaimed(slot="1", first=1, last=9, last_id=4, attempt=2), "INFO", "claimed; resumed after last_id"),
    (BatchDone(slot="1", last_id=4, rows=4, seconds=0.5), "DEBUG", "batch done"),
    (SlotFinished(slot="1", rows=9, seconds=1.5), "INFO", "finished"),
    (SlotReleased(slot="1", last_id=4), "INFO", "released, to be resumed"),
    (SlotParked(slot="1", last_id=4, reason="row 5 failed"), "WARNING", "parked"),
    (SlotLost(slot="1", reason="another holder"), "WARNING", "lost"),
    (HoleJumped(slots=5, next_slot=7), "DEBUG", "jumped over empty slots"),
    (RowFailed(row_id=5, error="bad", attempts=3), "ERROR", "row failed"),
    (
        Retrying(target="redis", code="CONN", error="gone", attempt=1, wait_s=0.05),
        "WARNING",
        "failed; will be tried again",
    ),
    (Recovered(target="redis", after_s=2.0), "INFO", "works again"),
    (Waiting(open_slots=2, wait_s=1.0), "INFO", "waiting; other workers hold what is left"),
    (Draining(signal="SIGTERM"), "INFO", "draining"),
]


@pytest.mark.parametrize(("event", "level", "message"), EVENTS)
def test_each_event_is_one_line_with_its_facts_as_fields(
    out: io.StringIO, event: Event, level: str, message: str
) -> None:
    logs.configure("DEBUG", "json", out)
    narrator("clean", "main")(event)
    (line,) = lines(out)
    assert (line["level"], line["message"], line["job"], line["run"]) == (level, message, "clean", "main")
    for name in type(event).__slots__:
        if getattr(event, name) is not None:
            assert line[name] == getattr(event, name)


def test_every_event_has_a_line() -> None:
    assert {type(event) for event, _, _ in EVENTS} == set(Event.__args__)


def test_waiting_is_told_at_most_once_in_ten_seconds(out: io.StringIO) -> None:
    logs.configure("INFO", "json", out)
    clock = HandClock()
    narrate = narrator("clean", "main", clock=clock)
    for second in range(25):
        clock.at = 1000.0 + second
        narrate(Waiting(open_slots=2, wait_s=1.0))
    assert len(lines(out)) == 3


def test_the_story_of_a_slot_is_a_handful_of_lines_at_info(out: io.StringIO) -> None:
    logs.configure("INFO", "json", out)
    narrate = narrator("clean", "main")
    narrate(SlotClaimed(slot="1", first=1, last=10_000, last_id=None, attempt=1))
    for batch in range(1, 101):
        narrate(BatchDone(slot="1", last_id=batch * 100, rows=100, seconds=0.1))
    narrate(SlotFinished(slot="1", rows=10_000, seconds=10.0))
    assert [line["message"] for line in lines(out)] == ["claimed", "finished"]
