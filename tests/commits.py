"""Commits in doubt, for real: a TCP proxy before a database server that meddles with the COMMIT of one transaction."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Literal

import sqlalchemy

Fate = Literal["done, reply lost", "never arrived", "arrives late"]
REPLY_S = 20.0


class CommitProxy:
    """Stands before the server of `server_url` while its `with` lasts; clients use `url`."""

    def __init__(self, server_url: str) -> None:
        parsed = sqlalchemy.make_url(server_url)
        self._target = (parsed.host or "127.0.0.1", parsed.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ended = threading.Event()
        self._asked = threading.Event()  # somebody sent a locking read since the COMMIT was caught
        self._next: Fate | None = None
        self._meanwhile: Callable[[], object] = lambda: None
        self.caught = 0
        self._threads = [threading.Thread(target=self._accept, name="commit-proxy", daemon=True)]
        port = self._listener.getsockname()[1]
        if parsed.get_backend_name() == "mysql":
            parsed = parsed.update_query_dict({"ssl_disabled": "true"})  # what it is to find must not be encrypted
        self.url = parsed.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)

    def __enter__(self) -> CommitProxy:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def meddle(self, fate: Fate, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Decides the fate of the next COMMIT. In all three its sender loses the connection; `meanwhile` happens before
        it sees that."""
        self._next, self._meanwhile = fate, meanwhile

    def _accept(self) -> None:
        self._listener.settimeout(0.05)
        while not self._ended.is_set():
            with contextlib.suppress(TimeoutError):
                client = self._listener.accept()[0]
                thread = threading.Thread(target=self._serve, args=(client,), name="commit-proxy", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(self._target, REPLY_S) as server:
            while not self._ended.is_set():
                for source in select.select([client, server], [], [], 0.05)[0]:
                    data = source.recv(65_536)
                    if not data:
                        return
                    if source is client and b"COMMIT" in data and self._next is not None:
                        fate, self._next = self._next, None
                        self.caught += 1
                        self._meddle(fate, data, client, server)
                        return
                    if source is client and b"FOR UPDATE" in data:
                        self._asked.set()
                    (server if source is client else client).sendall(data)

    def _meddle(self, fate: Fate, commit: bytes, client: socket.socket, server: socket.socket) -> None:
        self._asked.clear()
        if fate == "done, reply lost":
            server.sendall(commit)
            server.recv(65_536)
        self._meanwhile()
        client.close()
        if fate == "arrives late":
            # The row is locked until then: the locking read waits for the answer, where a plain one would say no.
            self._asked.wait(REPLY_S)
            server.sendall(commit)
            server.recv(65_536)
