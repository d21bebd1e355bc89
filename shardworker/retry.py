"""How an outage is waited out: the one retry policy of the package, built on tenacity.

Which errors pass is the caller's to say (`code_of`): SQL and Redis know different ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import tenacity

from shardworker.clock import Clock, SystemClock
from shardworker.errors import Stopped, Unavailable
from shardworker.events import Emit, Recovered, Retrying, ignore

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Repeats a call that fails for a passing reason, with growing, jittered waits, for at most `retry_for_s`.

    Threads may share one. `stop`, once set, ends the waiting: the worker was asked to stop and its GRACE is over.
    """

    target: str  # "database" or "redis": what the messages call it
    setting: str  # the setting that a reader of the final error should look at
    code_of: Callable[[BaseException], str | None]  # a passing error's code; None: the error is not a passing one
    error: type[Unavailable]
    retry_for_s: float
    clock: Clock = SystemClock()
    emit: Emit = ignore
    stop: threading.Event | None = None
    first_wait_s: float = 0.05
    longest_wait_s: float = 10.0

    def call(self, function: Callable[[], T], *, after: BaseException | None = None) -> T:
        """The result of `function`. `after`: an error that was met already; it is waited out first.

        Raises:
            Unavailable: it failed for a passing reason until the time was over; the cause is attached.
            Stopped: `stop` was set meanwhile.
            Anything that `function` raises and `code_of` does not know, at once.
        """
        began = self.clock.now()
        failed = after is not None
        if after is not None:
            self.emit(
                Retrying(
                    target=self.target,
                    code=self.code_of(after) or "",
                    error=str(after),
                    attempt=0,
                    wait_s=self.first_wait_s,
                )
            )
            self._sleep(self.first_wait_s)

        def before_sleep(state: tenacity.RetryCallState) -> None:
            nonlocal failed
            failed = True
            cause = state.outcome.exception() if state.outcome else None
            if cause is not None:
                self.emit(
                    Retrying(
                        target=self.target,
                        code=self.code_of(cause) or "",
                        error=str(cause),
                        attempt=state.attempt_number,
                        wait_s=state.upcoming_sleep,
                    )
                )

        try:
            result = tenacity.Retrying(
                retry=tenacity.retry_if_exception(lambda cause: self.code_of(cause) is not None),
                wait=tenacity.wait_exponential(multiplier=self.first_wait_s, max=self.longest_wait_s)
                + tenacity.wait_random(0, self.first_wait_s),
                stop=lambda _: self.clock.now() - began >= self.retry_for_s,
                sleep=self._sleep,
                before_sleep=before_sleep,
            )(function)
        except tenacity.RetryError as error:
            cause = error.last_attempt.exception()
            raise self.error(
                f"the {self.target} could not be used for {self.retry_for_s:g} s (RETRY_FOR): {cause}; "
                f"see {self.setting}, and start again when it is back"
            ) from cause
        if failed:
            self.emit(Recovered(target=self.target, after_s=self.clock.now() - began))
        return result

    def _sleep(self, seconds: float) -> None:
        if self.stop is None:
            self.clock.wait(threading.Event(), seconds)
        elif self.clock.wait(self.stop, seconds):
            raise Stopped
