"""The handler threads (or, for async handlers, the event loop) of one process.

They live as long as the worker: users keep clients in thread-locals or bound to a loop. A pipeline lends them its feed
for the time of one slot. They are daemons, because a thread in a handler that hangs can neither be stopped nor joined.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Protocol, TypeVar

from shardworker.clock import SystemClock
from shardworker.process.calls import run_to_end
from shardworker.process.feed import Feed
from shardworker.process.parts import Part

LOOK_S = 0.5  # how often the loop looks whether its feed has ended; parts themselves wake it
JOIN_S = 2.0  # for all threads together; one that hangs in a handler is left behind


T = TypeVar("T")


class Work(Protocol):
    """What is done with a part; it reports to the feed itself and raises nothing."""

    def __call__(self, part: Part) -> Coroutine[Any, Any, None]: ...


class Pool:
    """Runs the parts of whatever feed it is lent, `parallelism` at a time."""

    def __init__(self, parallelism: int, *, is_async: bool) -> None:
        self.parallelism = parallelism
        self.is_async = is_async
        self._lent: tuple[Feed, Work] | None = None
        self._changed = threading.Condition()
        self._is_ended = False
        self._threads: list[threading.Thread] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self.blocking: ThreadPoolExecutor | None = None  # async: where statements run

    def __enter__(self) -> Pool:
        if self.is_async:
            self.blocking = ThreadPoolExecutor(max_workers=8, thread_name_prefix="shardworker-write")
            self._threads = [threading.Thread(target=self._run_loop, name="shardworker-loop", daemon=True)]
        else:
            self._threads = [
                threading.Thread(target=self._run_thread, name=f"shardworker-handler-{n}", daemon=True)
                for n in range(self.parallelism)
            ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
        deadline = SystemClock().now() + JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - SystemClock().now()))
        if self.blocking is not None:
            self.blocking.shutdown(wait=False, cancel_futures=True)

    def lend(self, feed: Feed, work: Work) -> None:
        with self._changed:
            self._lent = (feed, work)
            self._changed.notify_all()

    def take_back(self) -> None:
        with self._changed:
            self._lent = None
            self._changed.notify_all()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine of the handler's from another thread than the pool's, on the loop if there is one."""
        if self._loop is None:
            return run_to_end(work)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _wait_for_feed(self, last: tuple[Feed, Work] | None = None) -> tuple[Feed, Work] | None:
        """The feed that is lent, and another one than `last`, which has ended; None: the pool ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_ended or (self._lent is not None and self._lent is not last))
            return None if self._is_ended else self._lent

    # Threads -----------------------------------------------------------------------------------------------------
    def _run_thread(self) -> None:
        lent: tuple[Feed, Work] | None = None
        while (lent := self._wait_for_feed(lent)) is not None:
            feed, work = lent
            while (part := feed.take()) is not None:
                # A context of its own for each part: log fields do not leak from one to the next.
                contextvars.copy_context().run(run_to_end, work(part))

    # The event loop ----------------------------------------------------------------------------------------------
    def _run_loop(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        lent: tuple[Feed, Work] | None = None
        while True:
            lent = await loop.run_in_executor(None, self._wait_for_feed, lent)
            if lent is None:
                return
            await self._serve_feed(*lent)

    async def _serve_feed(self, feed: Feed, work: Work) -> None:
        loop = asyncio.get_running_loop()
        more = asyncio.Event()
        feed.on_more = lambda: _wake(loop, more)
        running: set[asyncio.Task[None]] = set()
        while self._lent is not None and self._lent[0] is feed and not self._is_ended:
            more.clear()
            while len(running) < self.parallelism and (part := feed.try_take()) is not None:
                running.add(asyncio.create_task(work(part)))
            waiting = asyncio.create_task(more.wait())
            finished, _ = await asyncio.wait({*running, waiting}, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            running -= finished
            waiting.cancel()
        feed.on_more = lambda: None


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    loop.call_soon_threadsafe(event.set)
