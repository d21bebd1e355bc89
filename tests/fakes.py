"""Stand-ins for what a test must steer: time, and a server whose answers get lost."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import redis

from shardworker.claim.board import Board

ANSWER_LOST = redis.TimeoutError("Timeout reading from socket")
POLL_S = 0.002  # real seconds between two looks of a thread that waits in fake time


class FakeClock:
    """A clock that stands still until a test moves it. Threads may wait on it."""

    def __init__(self, now: float = 1000.0) -> None:
        self._now = now
        self._lock = threading.Condition()
        self._waiting: deque[tuple[threading.Event, float]] = deque()

    def now(self) -> float:
        with self._lock:
            return self._now

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now()

    def move(self, seconds: float) -> None:
        with self._lock:
            self._now += seconds
            self._lock.notify_all()

    @property
    def sleepers(self) -> int:
        """How many threads wait and have no reason to wake up."""
        with self._lock:
            return sum(not stop.is_set() and self._now < until for stop, until in self._waiting)

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        with self._lock:
            until = self._now + seconds
            self._waiting.append((stop, until))
            try:
                while not stop.is_set() and self._now < until:
                    self._lock.wait(POLL_S)
            finally:
                self._waiting.remove((stop, until))
            return stop.is_set()


class FakeBoard(Board):
    """Answers renewals as it is told: `answer` is called with slot → token, and may raise."""

    def __init__(self, answer: Callable[[Mapping[str, str]], dict[str, bool]]) -> None:
        self.answer = answer
        self.renewals = 0

    def renew(self, held: Mapping[str, str], *, ttl_ms: int) -> dict[str, bool]:
        self.renewals += 1
        return self.answer(held)


class LossyClient:
    """A client of Redis that can lose requests, and answers to requests that were done."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.requests_to_lose = 0
        self.answers_to_lose = 0
        self.on_loss: Callable[[], object] = lambda: None  # what happens before the sender gives up
        self.sent = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def evalsha(self, *arguments: Any) -> Any:
        return self._send(self._client.evalsha, arguments)

    def eval(self, *arguments: Any) -> Any:
        return self._send(self._client.eval, arguments)

    def _send(self, method: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        self.sent += 1
        if self.requests_to_lose:
            self.requests_to_lose -= 1
            self.on_loss()
            raise ANSWER_LOST
        try:
            answer = method(*arguments)
        except redis.exceptions.NoScriptError:
            self.sent -= 1  # it is sent once more, with its text
            raise
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            self.on_loss()
            raise ANSWER_LOST
        return answer
