"""Progress of a worker's whole run: a bar on a terminal, elsewhere a log line every 10 s.

The run's numbers are asked of Redis once in 10 s, by one command; between two looks the rows that this process did
itself are added. The worker is never kept waiting: all this happens in a thread of its own, and what fails there costs
a line and nothing else.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TextIO, cast

from shardworker.claim.look import Progress as Look
from shardworker.clock import Clock
from shardworker.events import BatchDone, Emit, Event
from shardworker.observe.logs import logger

LOOK_EVERY_S = 10.0
DRAW_EVERY_S = 0.5
JOIN_S = 1.0  # a question to a server that hangs must not keep a worker that has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Of the whole run, as far as this process knows."""

    rows: int
    expected_rows: int | None  # None: no idea yet
    rows_per_s: float
    slots: int
    slots_done: int
    failed: int

    @property
    def left_s(self) -> float | None:
        if self.expected_rows is None or self.rows_per_s <= 0:
            return None
        return max(0, self.expected_rows - self.rows) / self.rows_per_s

    @property
    def share(self) -> float:
        """How much of the run is done, from 0 to 1."""
        if self.expected_rows:
            return min(1.0, self.rows / self.expected_rows)
        return self.slots_done / self.slots if self.slots else 0.0

    def text(self) -> str:
        of = f" of {self.expected_rows:,}" if self.expected_rows else ""
        left = f", {_readable(self.left_s)} left" if self.left_s is not None else ""
        failed = f", {self.failed:,} failed" if self.failed else ""
        return (
            f"{self.rows:,}{of} rows, {self.rows_per_s:,.0f} rows/s, slots {self.slots_done:,}/{self.slots:,}"
            f"{failed}{left}"
        )


class Pace:
    """Makes the numbers out of looks that are far apart and the rows of this process in between."""

    def __init__(self, *, began: float) -> None:
        self._began = began
        self._own = 0  # rows of this process since it began
        self._own_at_look = 0
        self._look: Look | None = None
        self._looked_at = began
        self._rows_per_s: float | None = None  # of the whole run, between the last two looks
        self.estimate: int | None = None  # rows of the run; None: there is a filter, and nobody knows

    def did(self, rows: int) -> None:
        self._own += rows

    def looked(self, look: Look, at: float) -> None:
        if self._look is not None and at > self._looked_at:
            self._rows_per_s = max(0, look.rows - self._look.rows) / (at - self._looked_at)
        self._look, self._looked_at, self._own_at_look = look, at, self._own

    def numbers(self, at: float) -> Numbers | None:
        """None before the first look."""
        look = self._look
        if look is None:
            return None
        rows = look.rows + self._own - self._own_at_look
        rate = self._rows_per_s
        return Numbers(
            rows=rows,
            expected_rows=self._expected(rows, look),
            rows_per_s=rate if rate is not None else self._own / max(at - self._began, 0.001),
            slots=look.slots,
            slots_done=look.slots_done,
            failed=look.failed,
        )

    def _expected(self, rows: int, look: Look) -> int | None:
        if self.estimate is not None:
            return max(self.estimate, rows)
        return max(rows, look.rows * look.slots // look.slots_done) if look.slots_done else None


class Progress:
    """Listens to the events of a worker, hands them on, and shows how far the run is while `shown` is open."""

    def __init__(self, tell: Emit, clock: Clock) -> None:
        self._tell = tell
        self._clock = clock
        self._pace = Pace(began=clock.now())

    def emit(self, event: Event) -> None:
        if isinstance(event, BatchDone):
            self._pace.did(event.rows)
        self._tell(event)

    @contextmanager
    def shown(
        self, look: Callable[[], Look | None], estimate: Callable[[], int | None], *, title: str
    ) -> Iterator[None]:
        """Shows progress until the end of the `with`. `look` and `estimate` are called in its thread."""
        ended = threading.Event()
        display = _display(title)
        thread = threading.Thread(
            target=self._show, args=(display, look, estimate, ended), name="shardworker-progress", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(JOIN_S)
            display.close()

    def _show(
        self,
        display: _Display,
        look: Callable[[], Look | None],
        estimate: Callable[[], int | None],
        ended: threading.Event,
    ) -> None:
        self._look(look)
        self._try("estimate", lambda: setattr(self._pace, "estimate", estimate()))
        looked_at = shown_at = self._clock.now()
        while not self._clock.wait(ended, min(display.every_s, LOOK_EVERY_S)):
            now = self._clock.now()
            if now - looked_at >= LOOK_EVERY_S:
                self._look(look)
                looked_at = now
            numbers = self._pace.numbers(now)
            if numbers is not None and now - shown_at >= display.every_s:
                self._try("display", lambda: display.show(numbers))  # noqa: B023
                shown_at = now

    def _look(self, look: Callable[[], Look | None]) -> None:
        def take() -> None:
            found = look()
            if found is not None:
                self._pace.looked(found, self._clock.now())

        self._try("look", take)

    def _try(self, what: str, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the edge of the thread; progress is not worth a worker
            logger.bind(what=what, error=str(error)).debug("progress is not known")


class _Display(Protocol):
    every_s: float

    def show(self, numbers: Numbers) -> None: ...

    def close(self) -> None: ...


class _Lines:
    every_s = LOOK_EVERY_S

    def show(self, numbers: Numbers) -> None:
        logger.bind(
            rows=numbers.rows,
            rows_per_s=round(numbers.rows_per_s, 1),
            slots_done=numbers.slots_done,
            slots=numbers.slots,
            failed=numbers.failed,
            left_s=None if numbers.left_s is None else round(numbers.left_s),
        ).info("progress")

    def close(self) -> None:
        pass


class _Bar:
    every_s = DRAW_EVERY_S

    def __init__(self, console: Any, title: str) -> None:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TextColumn("{task.percentage:>3.0f}% {task.fields[numbers]}", markup=False),
            console=console,
            auto_refresh=False,  # by our thread, which is joined
            transient=True,
        )
        self._task = self._bar.add_task(title, total=1.0, numbers="")
        self._bar.start()
        console.show_cursor(True)  # a killed process could not bring it back

    def show(self, numbers: Numbers) -> None:
        self._bar.update(self._task, completed=numbers.share, numbers=numbers.text())
        self._bar.refresh()

    def close(self) -> None:
        self._bar.stop()


def _display(title: str) -> _Display:
    if not sys.stdout.isatty():
        return _Lines()
    from rich.console import Console

    console = Console()
    return _Lines() if console.is_dumb_terminal else _Bar(console, title)


class _CurrentOutput:
    """Whatever standard output is at the moment: while a bar is shown, lines go above it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)


def current_output() -> TextIO:
    """The stream for log lines of a process that may show a bar."""
    return cast("TextIO", _CurrentOutput())


def _readable(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
