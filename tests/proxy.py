"""A network that fails on demand: a TCP proxy on loopback between a worker and its server.

It passes everything through until it is told otherwise: `black_hole` and `reset` cut all connections in the two ways in
which networks do, `restore` ends that, and `hold` keeps one request back, to be delivered when its sender has gone on.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType
from urllib.parse import urlsplit

RESET_AT_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: close() sends RST
REPLY_S = 5.0


class Held:
    """A request that was kept back."""

    def __init__(self, wanted: bytes, skip: int, target: tuple[str, int]) -> None:
        self._wanted = wanted
        self._skip = skip
        self._target = target
        self._request = b""
        self._caught = threading.Event()

    @property
    def is_caught(self) -> bool:
        return self._caught.is_set()

    def deliver(self) -> bytes:
        """Lets it reach the server now, on a connection of its own; the server's reply. May be done again."""
        assert self._caught.is_set(), "no request was kept back yet"
        with socket.create_connection(self._target, REPLY_S) as server:
            server.sendall(self._request)
            return server.recv(65_536)

    def try_catch(self, data: bytes) -> bool:
        if self.is_caught or self._wanted not in data:
            return False
        if self._skip:
            self._skip -= 1
            return False
        self._request = data
        self._caught.set()
        return True


class Proxy:
    """Stands before the server of `server_url` while its `with` lasts; clients use `url`."""

    def __init__(self, server_url: str) -> None:
        parts = urlsplit(server_url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 6379)
        self._listener = socket.create_server(("127.0.0.1", 0))
        credentials, at, _ = parts.netloc.rpartition("@")
        port = self._listener.getsockname()[1]
        self.url = parts._replace(netloc=f"{credentials}{at}127.0.0.1:{port}").geturl()
        self.passed: list[bytes] = []  # the requests that went through, in order
        self._held: list[Held] = []
        self._is_open = threading.Event()  # cleared: a black hole
        self._is_open.set()
        self._is_resetting = False
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, name="proxy-accept", daemon=True)]

    def __enter__(self) -> Proxy:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._threads[0].join()
        self._listener.close()
        self.reset()
        self._is_open.set()
        for thread in self._threads:
            thread.join()

    # What a test tells it ----------------------------------------------------------------------------------------
    def black_hole(self) -> None:
        """From now on nothing arrives and nothing is refused. `restore` delivers what was sent meanwhile, as TCP does,
        even if its sender has given up."""
        self._is_open.clear()

    def reset(self) -> None:
        """Cuts all connections now, and each new one at once."""
        self._is_resetting = True
        with self._lock:
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RD)  # wakes recv(); the thread there closes the connection

    def restore(self) -> None:
        self._is_resetting = False
        self._is_open.set()

    def hold(self, wanted: bytes, *, skip: int = 0) -> Held:
        """Keeps back the next request that has `wanted` in it, after `skip` others. Its sender gets no answer."""
        held = Held(wanted, skip, self._target)
        self._held.append(held)
        return held

    # Threads -----------------------------------------------------------------------------------------------------
    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,), name="proxy-client", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(self._target) as server:
            pair = {client, server}
            with self._lock:
                self._sockets |= pair
            if not self._is_resetting:
                back = threading.Thread(target=self._pump, args=(server, client), name="proxy-server", daemon=True)
                back.start()
                self._pump(client, server, is_request=True)
                back.join()
            with self._lock:
                self._sockets -= pair
            if self._is_resetting:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)

    def _pump(self, source: socket.socket, sink: socket.socket, *, is_request: bool = False) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                self._is_open.wait()
                if is_request:
                    if any(held.try_catch(data) for held in self._held):
                        continue
                    self.passed.append(data)
                sink.sendall(data)
        # Half-closed, so that the other direction ends by itself when the server has read the last request.
        if not self._is_resetting:
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)
