"""A lease as its holder may trust it.

`valid_until` is counted from before the request that took or extended the lease was sent, so the key in Redis outlives
it whatever the network did. Between `stop_at` and `valid_until` lies the time to stop; past `valid_until` another
worker may hold the slot, and work that still goes on ends its process (see `renewal`).
Source: the reasoning of redlock's drift and of M. Kleppmann, "How to do distributed locking" (2016).
"""

from __future__ import annotations

import os
import threading

from shardworker.clock import Clock
from shardworker.errors import LeaseLost

DRIFT = 0.01  # two machines' clocks may run at speeds that differ by this much, far more than they do
MARGIN = 0.1  # of the time to live: kept for stopping


class Lease:
    """The right to work on a slot until a moment. All methods may be called from any thread."""

    def __init__(self, slot: str, token: str, *, ttl_s: float, sent_at: float, clock: Clock) -> None:
        self.slot = slot
        self.token = token  # random; proves to Redis that this process is the holder
        self.ttl_s = ttl_s
        self.lost = threading.Event()  # set: no new part, no write, no checkpoint
        self.reason = ""
        self.is_closing = False  # finish or release is under way: an absent key is no loss
        self.stop_at = 0.0  # boot-time seconds: here work stops
        self.valid_until = 0.0  # here the process ends itself if work goes on
        self._unreported = threading.Lock()
        self._clock = clock
        self._pid = os.getpid()
        self.extend(sent_at)

    def extend(self, sent_at: float) -> None:
        """Redis has confirmed a request sent at `sent_at`. An answer that came after `stop_at` is no success."""
        if self.stop_at and self._clock.now() >= self.stop_at:
            return
        valid_until = sent_at + self.ttl_s * (1 - DRIFT) - 0.002
        if valid_until > self.valid_until:
            self.valid_until = valid_until
            self.stop_at = valid_until - self.ttl_s * MARGIN

    def lose(self, reason: str) -> bool:
        """Marks the lease as lost; says whether it was not before."""
        if self.lost.is_set():
            return False
        self.reason = reason
        self.lost.set()
        return True

    def try_report(self) -> bool:
        """Whether the loss is still to be reported; true once, whoever of many threads has found out first."""
        return self._unreported.acquire(blocking=False)

    def check(self) -> None:
        """Called before each read, each part and each write.

        Raises:
            LeaseLost: it must not be trusted any more.
        """
        if os.getpid() != self._pid:
            raise LeaseLost(self.slot, "this process is a fork of the holder")
        if self._clock.now() >= self.stop_at:
            self.lose("it was not renewed in time")
        if self.lost.is_set():
            raise LeaseLost(self.slot, self.reason)
