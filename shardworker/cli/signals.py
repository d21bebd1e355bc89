"""What a process makes of SIGTERM and Ctrl-C, and how it ends itself when it must."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from shardworker.claim.lease import Lease
from shardworker.cli.ending import leave_termination_message
from shardworker.errors import Exit
from shardworker.observe.logs import logger


class Signals:
    """SIGTERM and Ctrl-C begin a drain; a second Ctrl-C ends at once."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self.received: signal.Signals | None = None

    @property
    def name(self) -> str:
        return self.received.name if self.received else "a request"

    @property
    def exit_code(self) -> Exit:
        return Exit.INTERRUPTED if self.received is signal.SIGINT else Exit.TERMINATED

    def handle(self, number: int, _frame: FrameType | None) -> None:
        # Only flags: a log line could meet the lock of one that was interrupted.
        if self.received is signal.SIGINT and number == signal.SIGINT:
            os._exit(Exit.INTERRUPTED)
        self.received = self.received or signal.Signals(number)
        self._stop.set()


@contextlib.contextmanager
def draining(stop: threading.Event) -> Iterator[Signals]:
    """Inside, a signal sets `stop`."""
    signals = Signals(stop)
    before = {number: signal.signal(number, signals.handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def die(lease: Lease) -> None:
    """Called by the sentinel: another worker may hold the slot from now on, and this one could not be stopped."""
    logger.bind(slot=lease.slot).error("the lease is over and its work goes on: this process ends itself")
    leave_termination_message(f"the lease of slot {lease.slot} was lost and its work could not be stopped")
    os._exit(Exit.TRY_AGAIN)
