"""Calls the user's function over the rows of a part, and makes of what it returns or raises what became of each row.

Only the failing row of a row handler is tried again: a call may cost money. An error of the database that passes
(the handler's own use of `ctx.engine`) is waited out and is no attempt, since it says nothing of the row.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from shardworker.clock import Clock
from shardworker.errors import HandlerError
from shardworker.events import Emit, Retrying, RowFailed
from shardworker.handler import Context, JobSpec, Skip
from shardworker.outcomes import FailedRow
from shardworker.process.parts import Handled
from shardworker.process.table import Table
from shardworker.process.writes import check_change
from shardworker.retry import Patience

FIRST_BACK_OFF_S = 0.1
LONGEST_BACK_OFF_S = 5.0
LONGEST_ERROR_TEXT = 500

T = TypeVar("T")


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends: plain functions pass through the code of async ones."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise RuntimeError("a coroutine of a plain function was suspended")


class Calls:
    """The user's function with its rules. Threads share it."""

    def __init__(
        self,
        spec: JobSpec,
        table: Table,
        *,
        attempts: int,
        patience: Patience,
        clock: Clock,
        emit: Emit,
        abandoned: threading.Event,
        observe: Callable[[int, float], None] = lambda _rows, _seconds: None,
    ) -> None:
        self._spec = spec
        self._table = table
        self._attempts = attempts
        self._patience = patience
        self._clock = clock
        self._emit = emit
        self._abandoned = abandoned  # set: results will not be taken any more
        self._observe = observe  # is told how many rows took the function how long

    async def handle(self, ids: Sequence[int], rows: Sequence[Any], context: Context) -> Handled:
        """What became of the rows.

        Raises:
            HandlerError: the part as a whole failed (part and batch handlers).
            Unavailable: the database was away for longer than RETRY_FOR.
        """
        began = self._clock.now()
        handle = self._handle_rows if self._spec.each == "row" else self._handle_part
        handled = await handle(ids, rows, context)
        self._observe(len(ids), self._clock.now() - began)
        return handled

    # Row handlers ------------------------------------------------------------------------------------------------
    async def _handle_rows(self, ids: Sequence[int], rows: Sequence[Any], context: Context) -> Handled:
        handled = Handled()
        troubled: list[tuple[int, Any, Exception]] = []
        function: Callable[..., Any] = self._spec.function
        is_async, check = self._spec.is_async, self._check
        extra = (context,) if self._spec.wants_context else ()
        changes, skipped = handled.changes, handled.skipped
        for row_id, row in zip(ids, rows, strict=True):
            try:
                outcome = function(row, *extra)
                if is_async:
                    outcome = await outcome
                if outcome is not None:
                    check(row_id, outcome)
                    changes[row_id] = outcome
            except Skip as skip:
                skipped[row_id] = skip.reason
            except Exception as error:  # noqa: BLE001 - the edge of the user's function
                troubled.append((row_id, row, error))
        for row_id, row, first in troubled:
            await self._try_again(row_id, row, first, context, handled)
        return handled

    async def _try_again(self, row_id: int, row: Any, first: Exception, context: Context, handled: Handled) -> None:
        error, attempt = first, 1
        while True:
            if self._patience.code_of(error) is None:
                if attempt >= self._attempts or self._abandoned.is_set():
                    handled.failed[row_id] = self._failed(row_id, error, attempt)
                    return
                await self.back_off(row_id, attempt, error)
                attempt += 1
            else:
                await self._wait_out(error)
            context.attempt = attempt
            try:
                outcome = self._call(row, context)
                if self._spec.is_async:
                    outcome = await outcome
                if outcome is not None:
                    self._check(row_id, outcome)
                    handled.changes[row_id] = outcome
                return
            except Skip as skip:
                handled.skipped[row_id] = skip.reason
                return
            except Exception as again:  # noqa: BLE001 - the edge of the user's function
                error = again
            finally:
                context.attempt = 1

    def _check(self, row_id: int, change: object) -> None:
        check_change(self._table, row_id, change)

    def _call(self, rows: Any, context: Context) -> Any:
        function: Callable[..., Any] = self._spec.function
        return function(rows, context) if self._spec.wants_context else function(rows)

    def _failed(self, row_id: int, error: Exception, attempts: int) -> FailedRow:
        text = describe(error)
        self._emit(RowFailed(row_id=row_id, error=text, attempts=attempts))
        return FailedRow(
            row_id=row_id,
            error=text,
            attempts=attempts,
            at=datetime.fromtimestamp(self._clock.wall(), UTC).isoformat(timespec="seconds"),
            code_version=self._spec.code_version,
        )

    # Part and batch handlers -------------------------------------------------------------------------------------
    async def _handle_part(self, ids: Sequence[int], rows: Sequence[Any], context: Context) -> Handled:
        # Inside a transaction each attempt is a call of its own, which is told its number.
        attempt = 1 if context.connection is None else context.attempt
        while True:
            context.attempt = attempt
            try:
                outcomes = self._call(list(rows), context)
                if self._spec.is_async:
                    outcomes = await outcomes
                return self._sorted_out(ids, outcomes)
            except Exception as error:
                if self._patience.code_of(error) is not None:
                    if context.connection is not None:
                        raise  # the whole transaction is run again
                    await self._wait_out(error)
                    continue
                if attempt >= self._attempts or self._abandoned.is_set() or context.connection is not None:
                    raise HandlerError(
                        f"the handler failed for the ids {ids[0]}..{ids[-1]} ({len(ids)} rows): {describe(error)}",
                        ids=ids,
                        attempts=attempt,
                    ) from error
                await self.back_off(ids[0], attempt, error)
                attempt += 1

    def _sorted_out(self, ids: Sequence[int], outcomes: object) -> Handled:
        handled = Handled()
        if outcomes is None:
            return handled
        if not isinstance(outcomes, Mapping):
            raise HandlerError(f"a {self._spec.each} handler returns a mapping of id to change, not {outcomes!r:.80}")
        strangers = outcomes.keys() - set(ids)
        if strangers:
            raise HandlerError(f"the handler returned ids that it was not given: {sorted(strangers)[:5]}")
        for row_id, outcome in outcomes.items():
            if isinstance(outcome, Skip):
                handled.skipped[row_id] = outcome.reason
            elif isinstance(outcome, Exception):
                handled.failed[row_id] = self._failed(row_id, outcome, 1)
            elif outcome is not None:
                self._check(row_id, outcome)
                handled.changes[row_id] = outcome
        return handled

    # Waiting -----------------------------------------------------------------------------------------------------
    async def back_off(self, row_id: int, attempt: int, error: Exception) -> None:
        wait_s = min(FIRST_BACK_OFF_S * 2 ** (attempt - 1), LONGEST_BACK_OFF_S) * random.uniform(0.5, 1.0)
        self._emit(Retrying(target=f"row {row_id}", code="", error=describe(error), attempt=attempt, wait_s=wait_s))
        await self.off_the_loop(lambda: self._clock.wait(self._abandoned, wait_s))

    async def _wait_out(self, error: Exception) -> None:
        """Waits until the database answers again."""
        await self.off_the_loop(lambda: self._patience.call(self._table.bounds, after=error))

    async def off_the_loop(self, blocking: Callable[[], T]) -> T:
        """What blocks, in another thread where an event loop would stand still."""
        return await asyncio.to_thread(blocking) if self._spec.is_async else blocking()


def describe(error: BaseException) -> str:
    """Type and message of an error, cut to a length that fits the failed list."""
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= LONGEST_ERROR_TEXT else text[: LONGEST_ERROR_TEXT - 3] + "..."


def wants_context(function: Callable[..., Any]) -> bool:
    """Whether a handler takes the Context as its second argument.

    Raises:
        TypeError: it takes neither one argument nor two.
    """
    parameters = inspect.signature(function).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    if (
        not positional
        or len(required) > 2
        or any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters)
    ):
        raise TypeError("a handler takes one argument (the row, or the list of rows), or two (and the Context)")
    return len(required) == 2 or (len(positional) == 2 and positional[1].name in ("ctx", "context"))
