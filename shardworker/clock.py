"""The two clocks, and a wait that can be interrupted.

Durations and leases are counted on the boot-time clock: it never goes back and, unlike the monotonic clock, it goes on
while a machine is suspended, as the time to live of a key in Redis does. Wall time is only for stored time stamps.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # elsewhere than on Linux: the monotonic clock


class Clock(Protocol):
    """What the core asks of time; tests move one by hand."""

    def now(self) -> float:
        """Seconds on the boot-time clock."""

    def wall(self) -> float:
        """Seconds since 1970, UTC."""

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        """Wait until `stop` is set or the time is over; says whether it is set."""


class SystemClock:
    """The clocks of this machine."""

    def now(self) -> float:
        return time.clock_gettime(_BOOT)

    def wall(self) -> float:
        return time.time()

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        return stop.wait(max(0.0, seconds))
