"""Cases 22, 26, 27 and 29: outages of Redis, passwords, and connections that the database closes."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy

from tests import services
from tests.harness import Pod, World, pause, wait_until, watched
from tests.proxy import Proxy

PASSWORD = "p@ss/w#rd%41:+"
ENCODED = "p%40ss%2Fw%23rd%2541%3A%2B"


def log_lines(pod: Pod, message: str, **fields: Any) -> list[dict[str, Any]]:
    return [line for line in pod.lines() if line["message"] == message and fields.items() <= line.items()]


# 22, 26: outages ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cut", ["black_hole", "reset"])
def test_case_22_renewals_go_on_after_a_short_outage_of_redis(world: World, cut: str) -> None:
    """One failed renewal is no reason to end the renewing: the lease would run out later, with everything healthy."""
    world.create_items(range(1, 501))
    key, lease_s = world.key("lease:0"), 6.0
    with Proxy(world.redis_url) as proxy:
        settings: dict[str, Any] = {
            "redis_url": proxy.url,
            "lease": f"{lease_s:g}s",
            "batch_size": 50,
            "HANDLER_ROW_S": 0.08,  # 1 s a batch
        }
        first = world.start(**settings)
        wait_until(world.lease, "the first worker has the slot")
        second = world.start(**settings)
        wait_until(lambda: log_lines(second, "waiting; other workers hold what is left"), "the second one waits")
        wait_until(lambda: world.checkpoint() >= 100, "two batches are saved")
        renewals = world.script("renew")
        with watched(lambda: int(world.redis.pttl(key))) as times:
            lost = proxy.hold(renewals)
            wait_until(lambda: lost.is_caught, "a renewal is under way", every=0.005)
            getattr(proxy, cut)()
            pause(2.0)
            proxy.restore()
            back_at, passed = time.monotonic(), len(proxy.passed)
            wait_until(lambda: any(renewals in request for request in proxy.passed[passed:]), "a renewal gets through")
            renewed_s = time.monotonic() - back_at
            wait_until(lambda: world.checkpoint() >= 400, "it works on")
        codes = [first.wait(), second.wait()]

    interval_s = lease_s / 3
    rises = [at for (_, before), (at, now) in pairwise(times) if now > before and at > back_at]
    assert codes == [0, 0]
    assert min(ms for _, ms in times) > 0
    assert rises[0] - back_at <= interval_s + 1.0  # a reply may take a sixth of the lease
    assert renewed_s <= interval_s + 1.0
    assert sorted(world.seen()) == list(range(1, 501))
    assert world.seen_by(second) == []
    assert log_lines(first, "failed; will be tried again", target="redis")


def test_case_26_workers_live_through_two_restarts_of_redis(world: World) -> None:
    """A restart that keeps the data is no reason to end: they wait, reconnect, and go on under the same leases."""
    world.create_items(range(1, 2001))
    settings: dict[str, Any] = {"slot_size": 500, "batch_size": 50, "lease": "8s", "HANDLER_ROW_S": 0.016}
    with services.private("redis") as server:
        pods = [world.start(redis_url=server.url, **settings) for _ in range(2)]  # 0.2 s a batch
        for outages in (1, 2):
            wait_until(lambda: len(world.seen()) >= 700 * outages - 500, "they work")  # noqa: B023
            assert all(pod.is_running for pod in pods)
            server.stop()
            pause(2.5)
            server.start()
            for pod in pods:
                wait_until(
                    lambda: len(log_lines(pod, "works again", target="redis")) >= outages,  # noqa: B023
                    f"{pod.name} logs that it has reconnected",
                )
                assert log_lines(pod, "failed; will be tried again", target="redis")
        codes = [pod.wait() for pod in pods]

    assert codes == [0, 0]
    assert set(world.seen()) == set(range(1, 2001))


def test_case_26_the_interval_of_renewals_cannot_be_set_so_it_is_always_safe(world: World) -> None:
    """It is a third of the lease; a setting for it would be one that can be set to the lease itself."""
    world.create_items(range(1, 11))

    code, said = world.ask("run", "tests.handlers:record", "--renewal-interval", "6s")

    assert code == 78
    assert "--renewal-interval is no setting" in said
    assert world.keys() == set()


# 27: passwords ------------------------------------------------------------------------------------------------------
@pytest.fixture
def guarded_world(make_world: Callable[..., World]) -> Iterator[tuple[World, str]]:
    """A world in which the user of that name has PASSWORD on both servers."""
    world = make_world()
    name = f"user_{secrets.token_hex(4)}"
    with world.engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE USER {name} IDENTIFIED BY '{PASSWORD.replace('%', '%%')}'", ())
        connection.exec_driver_sql(f"GRANT ALL PRIVILEGES ON `{world.engine.url.database}`.* TO {name}")
    world.redis.acl_setuser(
        name, enabled=True, passwords=f"+{PASSWORD}", keys=["*"], channels=["*"], categories=["+@all"]
    )
    yield world, name
    world.redis.acl_deluser(name)
    world.sql(f"DROP USER IF EXISTS {name}")


def servers(world: World, user: str, form: str, *, unreachable: str = "") -> dict[str, str]:
    """The settings for both servers: the password encoded in the URL, or as it is in a setting of its own."""
    database, store = sqlalchemy.make_url(world.database_url), sqlalchemy.make_url(world.redis_url)
    nowhere = "127.0.0.1:9"  # nothing listens there
    database_at = nowhere if unreachable == "database" else f"{database.host}:{database.port}"
    redis_at = nowhere if unreachable == "redis" else f"{store.host}:{store.port}"
    who = f"{user}:{ENCODED}" if form == "in the URL" else user
    urls = {
        "database_url": f"mysql://{who}@{database_at}/{database.database}",
        "redis_url": f"redis://{who}@{redis_at}/{store.database}",
    }
    return urls if form == "in the URL" else urls | {"database_password": PASSWORD, "redis_password": PASSWORD}


def assert_no_password(*pods: Pod) -> None:
    for pod in pods:
        said = pod.text()
        assert said
        # As it is, and as encoders write it; and what is left of it where a URL was cut, or decoded once too often.
        whole = (PASSWORD, ENCODED, ENCODED.lower(), quote(PASSWORD))
        for secret in (*whole, "p@ss", "p%40ss", "w#rd", "w%23rd", "rdA"):
            assert secret not in said, f"{secret} stands in the log of {pod.name}"


FORMS = pytest.mark.parametrize("form", ["in the URL", "in settings of their own"])


@FORMS
@pytest.mark.parametrize("log_format", ["json", "text"])
def test_case_27_a_password_with_special_characters_connects_and_is_never_logged(
    guarded_world: tuple[World, str], form: str, log_format: str
) -> None:
    """Encoded once in a URL, as it is elsewhere: `%41` stays text and `+` a plus."""
    world, user = guarded_world
    assert quote(PASSWORD, safe="") == ENCODED
    world.create_items(range(1, 101))
    settings: dict[str, Any] = {
        "batch_size": 10,
        "log_level": "TRACE",
        "log_format": log_format,
        **servers(world, user, form),
    }

    pod = world.start(HANDLER_ROW_S=0.04, **settings)
    wait_until(lambda: len(world.seen()) > 20, "it works")
    cut_connections(world, user)

    assert pod.wait() == 0
    assert set(world.seen()) == set(range(1, 101))
    assert "will be tried again" in pod.text(), "the cut was meant to be noticed"
    assert_no_password(pod)


def cut_connections(world: World, user: str) -> None:
    """Ends all connections of that user, on both servers."""
    for row in world.sql("SELECT id FROM information_schema.processlist WHERE user = :user", user=user):
        world.sql(f"KILL {row[0]}")
    for client in world.redis.client_list():
        if client["user"] == user:
            world.redis.client_kill_filter(_id=client["id"])


@FORMS
@pytest.mark.parametrize("server", ["database", "redis"])
@pytest.mark.parametrize("fault", ["unreachable", "refused"])
def test_case_27_no_password_stands_in_the_message_of_a_connection_error(
    guarded_world: tuple[World, str], form: str, server: str, fault: str
) -> None:
    """The drivers' own messages and tracebacks go through the log too."""
    world, user = guarded_world
    world.create_items(range(1, 11))
    unreachable = server if fault == "unreachable" else ""
    if fault == "refused" and server == "database":
        world.sql(f"DROP USER {user}")
    elif fault == "refused":
        world.redis.acl_setuser(user, enabled=True, reset_passwords=True, passwords="+another")

    pod = world.start(log_level="TRACE", retry_for="1s", **servers(world, user, form, unreachable=unreachable))

    assert pod.wait() == (69 if fault == "unreachable" else 78)
    assert_no_password(pod)
    assert world.seen() == []


# 29: idle connections -----------------------------------------------------------------------------------------------
def test_case_29_a_run_goes_on_when_the_database_closes_its_idle_connections(tmp_path: Path) -> None:
    """A batch takes longer than the server keeps an idle connection, so all of them are closed in each pause."""
    prefix, redis_url = f"t{secrets.token_hex(6)}", services.get("redis").url
    with (
        services.private("mariadb") as server,
        closing(World(services.fresh_database(server), redis_url, tmp_path, prefix=prefix)) as world,
    ):
        world.create_items(range(1, 301))
        world.sql("CREATE USER worker IDENTIFIED BY 'worker'")
        world.sql("GRANT ALL PRIVILEGES ON *.* TO worker")
        world.sql("SET GLOBAL wait_timeout = 1")
        url = sqlalchemy.make_url(world.database_url).set(username="worker", password="worker")

        def connections() -> int:
            found = world.sql("SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'worker'")
            return int(found[0][0])

        with watched(connections, every=0.05) as samples:
            pod = world.start(
                "tests.handlers:record_pool",
                database_url=url.render_as_string(hide_password=False),
                HANDLER_ROW_S=0.14,  # 3.5 s a batch
            )
            for batch in range(3):
                wait_until(lambda: len(world.seen()) > batch * 100 + 20, "a batch is in work")  # noqa: B023
                wait_until(lambda: connections() == 0, "the server has closed all connections in the pause")
                assert len(world.seen()) <= batch * 100 + 105, "it was meant to be within this batch"
            code = pod.wait()
        in_use = world.sql("SELECT row_id, pod FROM seen WHERE MOD(row_id - 1, 100) BETWEEN 40 AND 90")
        seen = world.seen()

    assert code == 0
    assert sorted(seen) == list(range(1, 301))
    assert {pod for _, pod in in_use} == {"0"}
    assert 0 < max(count for _, count in samples) <= 4  # DB_CONNECTIONS' default
    for line in pod.lines():
        if line["level"] in ("ERROR", "CRITICAL"):
            assert not re.search(r"\b(2006|2013)\b", line["message"] + line.get("error", "")), line
    assert "Traceback" not in pod.text()
