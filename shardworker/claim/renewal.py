"""Two threads that keep leases: one renews them, the other watches that they can still be trusted.

The sentinel does no I/O, so nothing that hangs can keep it from its duty: at `stop_at` it marks a lease as lost, and at
`valid_until` it ends the process if the work has not been given up by then. A successor may begin at that moment, and
a handler thread cannot be stopped in any other way.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from types import TracebackType

from shardworker.claim.board import Board
from shardworker.claim.connect import passing_code
from shardworker.claim.lease import Lease
from shardworker.clock import Clock
from shardworker.errors import RunStateLost
from shardworker.events import Emit, Recovered, Retrying, SlotLost

RENEWALS_IN_A_LEASE = 3


class Renewal:
    """Renews the leases that it is given, from `with` to its end.

    `board` must have a client of its own, whose time-outs fit the lease. `die` is called, in the sentinel's thread,
    with a lease whose work goes on after `valid_until`; it must end the process.
    """

    def __init__(self, board: Board, *, ttl_s: float, clock: Clock, emit: Emit, die: Callable[[Lease], None]) -> None:
        self._board = board
        self._ttl_s = ttl_s
        self._clock = clock
        self._emit = emit
        self._die = die
        self._leases: dict[str, Lease] = {}
        self._lock = threading.Lock()
        self._changed = threading.Event()  # wakes the renewal thread
        self._watched = threading.Event()  # wakes the sentinel
        self._ended = threading.Event()
        self.failure: BaseException | None = None  # of the renewal thread; the owner raises it
        self._threads = [
            threading.Thread(target=self._renew_guarded, name="shardworker-renewal", daemon=True),
            threading.Thread(target=self._watch, name="shardworker-sentinel", daemon=True),
        ]

    def __enter__(self) -> Renewal:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._changed.set()
        self._watched.set()
        for thread in self._threads:
            thread.join()

    def add(self, lease: Lease) -> None:
        with self._lock:
            self._leases[lease.slot] = lease
        self._changed.set()
        self._watched.set()

    def remove(self, lease: Lease) -> None:
        """The work under this lease has ended: it is neither renewed nor watched any more."""
        with self._lock:
            self._leases.pop(lease.slot, None)

    def _held(self) -> list[Lease]:
        with self._lock:
            return list(self._leases.values())

    # The renewal thread ------------------------------------------------------------------------------------------
    def _renew_guarded(self) -> None:
        try:
            self._renew_for_ever()
        except BaseException as error:  # noqa: BLE001 - the owner is told; a renewal that dies in silence is worse than none
            self.failure = error
            for lease in self._held():
                lease.lose(f"the renewal thread failed: {error}")

    def _renew_for_ever(self) -> None:
        wait_s = self._ttl_s
        trouble_since: float | None = None
        failures = 0
        while not self._ended.is_set():
            if self._clock.wait(self._changed, wait_s):
                self._changed.clear()
                if self._ended.is_set():
                    return
                # A new lease: first renewed at 0.2 to 0.4 of its time, so that pods that began together drift apart.
                self._clock.wait(self._ended, self._ttl_s * random.uniform(0.2, 0.4))
            wait_s = self._ttl_s / RENEWALS_IN_A_LEASE
            held = [lease for lease in self._held() if not lease.lost.is_set()]
            if not held:
                continue
            began = self._clock.now()
            try:
                self._renew(held)
            except RunStateLost as error:
                for lease in held:
                    self._lose(lease, str(error))
            except Exception as error:
                code = passing_code(error)
                if code is None:
                    raise
                failures += 1
                trouble_since = trouble_since if trouble_since is not None else began
                wait_s = min(0.05 * 2**failures, self._ttl_s / 12) * random.uniform(0.7, 1.0)
                self._emit(Retrying(target="redis", code=code, error=str(error), attempt=failures, wait_s=wait_s))
            else:
                if trouble_since is not None:
                    self._emit(Recovered(target="redis", after_s=self._clock.now() - trouble_since))
                trouble_since, failures = None, 0

    def _renew(self, held: list[Lease]) -> None:
        sent_at = self._clock.now()
        answer = self._board.renew({lease.slot: lease.token for lease in held}, ttl_ms=round(self._ttl_s * 1000))
        for lease in held:
            if answer[lease.slot]:
                lease.extend(sent_at)
            elif not lease.is_closing:
                self._lose(lease, "Redis has another token, or none, under its key")

    def _lose(self, lease: Lease, reason: str) -> None:
        if lease.lose(reason):
            self._report(lease)

    def _report(self, lease: Lease) -> None:
        if lease.try_report():
            self._emit(SlotLost(slot=lease.slot, reason=lease.reason))

    # The sentinel ------------------------------------------------------------------------------------------------
    def _watch(self) -> None:
        while not self._ended.is_set():
            now = self._clock.now()
            next_look = now + 3600.0
            for lease in self._held():
                if now >= lease.valid_until:
                    self._lose(lease, "it was not renewed in time")
                    self._report(lease)  # whoever found out has not come to say so
                    self._die(lease)
                elif now >= lease.stop_at:
                    self._lose(lease, "it was not renewed in time")
                next_look = min(next_look, lease.valid_until if lease.lost.is_set() else lease.stop_at)
            if self._clock.wait(self._watched, max(0.0, next_look - self._clock.now()) + 0.001):
                self._watched.clear()
