"""Cases 28 and 34: what the environment may hold, and the exit codes that a Job relies on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.harness import World, wait_until

# What Kubernetes puts into every pod of a name space with the services `redis`, `mysql` and `shardworker`.
KUBERNETES = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "KUBERNETES_PORT": "tcp://10.0.0.1:443",
    "REDIS_SERVICE_HOST": "10.0.0.7",
    "REDIS_SERVICE_PORT": "6379",
    "REDIS_PORT": "tcp://10.0.0.7:6379",
    "REDIS_PORT_6379_TCP": "tcp://10.0.0.7:6379",
    "REDIS_PORT_6379_TCP_PROTO": "tcp",
    "REDIS_PORT_6379_TCP_PORT": "6379",
    "REDIS_PORT_6379_TCP_ADDR": "10.0.0.7",
    "MYSQL_SERVICE_HOST": "10.0.0.8",
    "MYSQL_SERVICE_PORT": "3306",
    "MYSQL_PORT": "tcp://10.0.0.8:3306",
    "MYSQL_PORT_3306_TCP": "tcp://10.0.0.8:3306",
    "MYSQL_PORT_3306_TCP_PROTO": "tcp",
    "MYSQL_PORT_3306_TCP_PORT": "3306",
    "MYSQL_PORT_3306_TCP_ADDR": "10.0.0.8",
    "SHARDWORKER_SERVICE_HOST": "10.0.0.9",
    "SHARDWORKER_SERVICE_PORT": "80",
    "SHARDWORKER_SERVICE_PORT_HTTP": "80",
    "SHARDWORKER_PORT": "tcp://10.0.0.9:80",
    "SHARDWORKER_PORT_80_TCP": "tcp://10.0.0.9:80",
    "SHARDWORKER_PORT_80_TCP_PROTO": "tcp",
    "SHARDWORKER_PORT_80_TCP_PORT": "80",
    "SHARDWORKER_PORT_80_TCP_ADDR": "10.0.0.9",
}


def test_case_28_variables_that_kubernetes_injects_have_no_influence(world: World) -> None:
    """A service called `redis`, or like the product itself, must not break every pod of its name space."""
    world.create_items(range(1, 101))

    assert world.run(**KUBERNETES) == 0
    assert sorted(world.seen()) == list(range(1, 101))


@pytest.mark.parametrize("value", ["1e3", "-5", "0", ""])
def test_case_28_a_bad_batch_size_is_refused_at_start(world: World, value: str) -> None:
    """Never taken for 0, for 1 or for the default: the message has the name, the value and what is allowed."""
    world.create_items(range(1, 101))

    code, said = world.ask("run", "tests.handlers:record", batch_size=value, **KUBERNETES)

    assert code == 78
    assert "SHARDWORKER_BATCH_SIZE is " in said
    assert (f"'{value}'" if value else "empty") in said
    assert "a whole number, 1 or more" in said
    assert world.seen() == []
    assert world.keys() == set()


@pytest.mark.parametrize(("value", "rows"), [(" 100 ", [100, 100, 100]), ("1_000", [300])])
def test_case_28_a_whole_number_may_have_spaces_around_it_and_underscores(
    world: World, value: str, rows: list[int]
) -> None:
    """They are the numbers that they look like."""
    world.create_items(range(1, 301))

    assert world.run("tests.handlers:record_batch", batch_size=value, **KUBERNETES) == 0
    assert [count for (count,) in world.sql("SELECT COUNT(*) FROM seen GROUP BY pod ORDER BY pod")] == rows
    assert sorted(world.seen()) == list(range(1, 301))


def test_case_28_a_misspelt_setting_is_refused_with_the_name_that_was_meant(world: World) -> None:
    """Ignored, it would leave the default in force and nobody would know."""
    world.create_items(range(1, 101))

    code, said = world.ask("run", "tests.handlers:record", batch_sise="50", **KUBERNETES)

    assert code == 78
    assert "SHARDWORKER_BATCH_SISE is no setting; SHARDWORKER_BATCH_SIZE was probably meant" in said
    assert world.seen() == []
    assert world.keys() == set()


# 34: exit codes -----------------------------------------------------------------------------------------------------
TRIES = 2  # codes are the same each time


def test_case_34_a_run_that_is_complete_ends_with_0_also_when_started_again(world: World) -> None:
    world.create_items(range(1, 1001))

    codes = [world.run() for _ in range(2 * TRIES)]

    assert codes == [0] * 4
    assert sorted(world.seen()) == list(range(1, 1001))
    assert "nothing to do" not in world.pods[0].text()


def test_case_34_an_unknown_table_ends_with_78(world: World) -> None:
    """A restart would not help: this is the code at which a Job stops."""
    codes = [world.run() for _ in range(TRIES)]

    assert codes == [78] * TRIES
    assert "items" in world.pods[0].text()
    assert world.keys() == set()


def test_case_34_sigterm_in_the_middle_ends_with_143_and_a_later_start_goes_on(world: World) -> None:
    world.create_items(range(1, 1001))
    codes = []
    for _ in range(TRIES):
        pod = world.start(HANDLER_ROW_S=0.02)
        wait_until(lambda: world.seen_by(pod), "it works")  # noqa: B023
        pod.terminate()
        codes.append(pod.wait())

    assert codes == [143] * TRIES
    assert 0 < len(world.seen()) < 1000, "it was meant to be in the middle"
    assert world.run() == 0
    assert sorted(world.seen()) == list(range(1, 1001))


def test_case_34_failed_rows_above_the_limit_end_with_65(world: World) -> None:
    """Each start tries the parked slot once more."""
    world.create_items(range(1, 1001))

    codes = [world.run(HANDLER_FAIL="700", attempts=2) for _ in range(TRIES)]

    assert codes == [65] * TRIES
    assert set(world.seen()) >= set(range(1, 700))
    assert 700 not in world.seen()
    assert world.run() == 0
    assert set(world.seen()) == set(range(1, 1001))


@pytest.mark.parametrize("server", ["redis", "database"])
def test_case_34_a_server_that_cannot_be_reached_at_start_ends_with_69(world: World, server: str) -> None:
    world.create_items(range(1, 1001))
    url = "redis://127.0.0.1:9/0" if server == "redis" else "mysql://root@127.0.0.1:9/x"  # nothing listens there

    codes = [world.run(retry_for="1s", **{f"{server}_url": url}) for _ in range(TRIES)]

    assert codes == [69] * TRIES
    assert f"SHARDWORKER_{server.upper()}_URL" in world.pods[0].text()
    assert world.keys() == set()
    assert world.run() == 0


def test_case_34_an_unexpected_error_inside_the_product_ends_with_1(world: World) -> None:
    """Somebody has written into the run's state; nobody has thought of that, and no row is lost by it."""
    world.create_items(range(1, 1001))
    assert world.run(HANDLER_FAIL="700") == 65
    segments = str(world.redis.hget(world.key("meta"), "segments"))
    world.redis.hset(world.key("meta"), "segments", "{broken")

    codes = [world.run() for _ in range(TRIES)]

    assert codes == [1] * TRIES
    unexpected = [line for line in world.pods[1].lines() if "traceback" in line]
    assert len(unexpected) == 1
    world.redis.hset(world.key("meta"), "segments", segments)
    assert world.run() == 0
    assert set(world.seen()) == set(range(1, 1001))


def test_case_34_the_codes_stand_in_the_documentation_with_a_rule_for_a_job() -> None:
    """What a podFailurePolicy relies on must be written down."""
    docs = Path(__file__).parent.parent.parent / "docs"
    pages = {page.name: page.read_text() for page in docs.glob("*.md")}
    with_rule = [text for text in pages.values() if "podFailurePolicy" in text]

    assert with_rule, "no page of docs/ has an example rule"
    for code in (0, 1, 2, 65, 69, 75, 78, 130, 143):
        assert any(re.search(rf"^\|\s*`?{code}`?\s*\|", text, re.MULTILINE) for text in with_rule), f"{code} is missing"
