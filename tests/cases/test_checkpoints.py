"""Cases 13-19: where work goes on, what is set aside, and whose saved state it is."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests import services
from tests.harness import Pod, World, wait_until

DATABASES = ["mariadb", "mysql", "postgres", "sqlite"]
SUCCESS = "is complete: "  # what a run that has just been done is reported with


def texts(pods: list[Pod]) -> str:
    return "\n".join(pod.text() for pod in pods)


def test_case_13_a_worker_that_is_killed_again_and_again_gets_to_the_end(world: World) -> None:
    """Each life ends in its third batch; the first one must be saved by then, or the run would never move."""
    world.create_items(range(1, 1001))
    handled: list[set[int]] = []  # by each life
    positions: list[int] = []
    code = -9
    while code == -9 and len(handled) < 15:
        at_start, before = world.checkpoint(), len(world.seen())
        pod = world.start("tests.handlers:die_in_third_batch", lease="2s")
        while pod.is_running:
            positions.append(world.checkpoint())
            with contextlib.suppress(subprocess.TimeoutExpired):
                pod.process.wait(0.02)
        code = pod.wait()
        positions.append(world.checkpoint())
        again = set(world.seen()[before:]) & set().union(*handled)
        assert len(again) <= 2 * 100
        assert all(row_id > at_start for row_id in again), "a row up to the saved position was handled again"
        handled.append(set(world.seen()[before:]))

    assert code == 0
    assert len(handled) <= 11
    assert positions == sorted(positions), "the saved position went backwards"
    assert set(world.seen()) == set(range(1, 1001))


@pytest.mark.parametrize(("job", "settings"), [("record", {}), ("record_part", {"part_size": 25})])
def test_case_14_the_checkpoint_stays_before_the_part_that_failed(
    world: World, job: str, settings: dict[str, object]
) -> None:
    """One part of the third batch fails while others, also behind it, succeed: the position must not jump over it."""
    world.create_items(range(1, 401))
    settings = {"slot_size": 400, "batch_size": 100, "parallelism": 4, **settings}

    first = world.start(f"tests.handlers:{job}", HANDLER_FAIL="226-250", **settings)

    assert first.wait() == 65
    errors = [line for line in first.lines() if line["level"] in ("WARNING", "ERROR") and "bad row" in str(line)]
    named = {int(line["row_id"]) for line in errors if "row_id" in line}
    assert 226 in named or "226..250" in str(errors)
    assert named <= set(range(226, 251))
    assert world.checkpoint() == 225
    assert not set(range(226, 251)) & set(world.seen())

    assert world.run(f"tests.handlers:{job}", **settings) == 0
    assert set(world.seen()) == set(range(1, 401))
    assert all(row_id > 225 for row_id in world.repeated())


def test_case_14_rows_that_are_set_aside_are_all_on_the_list(world: World) -> None:
    world.create_items(range(1, 401))

    assert world.run(slot_size=400, batch_size=100, max_failed_rows=25, HANDLER_FAIL="226-250") == 0

    failed = world.failed()
    assert set(failed) == set(range(226, 251))
    assert all(record["error"] == "ValueError: bad row" for record in failed.values())
    assert Counter(world.seen()) == Counter([*range(1, 226), *range(251, 401)])


def test_case_15_a_row_that_always_fails_is_set_aside_and_run_again_later(world: World) -> None:
    """299 healthy rows must neither wait for it nor count as failed with it."""
    world.create_items(range(1, 301))
    tried = world.folder / "tried"
    settings: dict[str, Any] = {"slot_size": 100, "batch_size": 50, "parallelism": 4, "max_failed_rows": 10}

    pods = [world.start(**settings, HANDLER_FAIL=57, HANDLER_TRIED_FILE=tried) for _ in range(2)]

    assert [pod.wait() for pod in pods] == [0, 0], "documented: failed rows within MAX_FAILED_ROWS are a success"
    assert Counter(world.seen()) == Counter([*range(1, 57), *range(58, 301)])
    failed = world.failed()
    assert set(failed) == {57}
    assert failed[57]["error"] == "ValueError: bad row"
    assert failed[57]["attempts"] == 3
    assert tried.read_text().split() == ["57"] * 3
    assert "299 unchanged, 1 failed" in texts(pods)

    listed = failed_list(world)
    assert [(row["id"], row["error"], row["attempts"]) for row in listed] == [(57, "ValueError: bad row", 3)]
    code, said = world.ask("failed", "retry", "tests.handlers:record", **settings)
    assert code == 0, said
    assert Counter(world.seen()) == Counter(range(1, 301))
    assert failed_list(world) == []


def failed_list(world: World) -> list[dict[str, Any]]:
    """What `failed list` says."""
    code, shown = world.ask("failed", "list", "tests.handlers:record", "--json")
    assert code == 0, shown
    rows: list[dict[str, Any]] = json.loads(shown)["failed"]
    return rows


def test_case_15_without_the_setting_a_failing_row_stops_its_slot(world: World) -> None:
    """The default: nothing is set aside, the exit code says so, and the position stays before the row."""
    world.create_items(range(1, 301))
    tried = world.folder / "tried"

    pods = [world.start(slot_size=100, batch_size=50, HANDLER_FAIL=57, HANDLER_TRIED_FILE=tried) for _ in range(2)]

    assert [pod.wait() for pod in pods] == [65, 65]
    assert world.checkpoint(0) == 56
    assert world.failed() == {}
    assert 57 not in world.seen()
    assert set(range(101, 301)) <= set(world.seen()), "the other slots go on"
    assert len(tried.read_text().split()) <= 3 * len(pods)


SIZES = [
    (1, 100, 4),
    (3, 100, 8),
    (8, 100, 8),
    (9, 100, 8),
    (100, 100, 8),
    (101, 100, 8),
    (103, 10, 4),
    (18000, 10000, 62),
]


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize(("rows", "batch_size", "parallelism"), SIZES)
def test_case_16_no_row_is_dropped_where_sizes_do_not_divide(
    make_world: Callable[..., World], database: str, rows: int, batch_size: int, parallelism: int
) -> None:
    """The rest of a batch, and parts that get no row."""
    world = make_world(database)
    world.create_items(range(1, rows + 1))

    assert world.start(slot_size=rows, batch_size=batch_size, parallelism=parallelism).wait(150) == 0
    assert Counter(world.seen()) == Counter(range(1, rows + 1))


def done_once(world: World) -> None:
    world.create_items(range(1, 501))
    assert world.run("tests.handlers:set_status") == 0
    assert SUCCESS in world.pods[-1].text()
    world.sql("UPDATE items SET status = 0")
    world.sql("DELETE FROM seen")


def test_case_17_a_finished_run_is_not_repeated_in_silence(world: World) -> None:
    """Nor are its old positions a place to go on from: the worker says since when it is complete, and what to do."""
    done_once(world)

    again = world.start("tests.handlers:set_status")

    assert again.wait() == 0
    assert world.seen() == []
    assert SUCCESS not in again.text()
    [line] = [line for line in again.lines() if "is complete since" in line["message"]]
    finished_ms = int(world.redis.hget(world.key("meta"), "finished_at") or 0)
    assert datetime.fromtimestamp(finished_ms // 1000, UTC).isoformat(sep=" ") in line["message"]
    assert "SHARDWORKER_RUN" in line["message"]
    assert "shardworker reset" in line["message"]


def test_case_17_a_new_name_begins_a_new_run(world: World) -> None:
    done_once(world)

    assert world.run("tests.handlers:set_status", run="second") == 0
    assert Counter(world.seen()) == Counter(range(1, 501))
    assert world.sql("SELECT COUNT(*) FROM items WHERE status = 1")[0][0] == 500


def test_case_17_a_reset_lets_the_run_begin_again(world: World) -> None:
    done_once(world)

    code, shown = world.ask("reset", "tests.handlers:set_status", "--yes")
    assert code == 0, shown
    assert world.keys() == set()
    assert world.run("tests.handlers:set_status") == 0
    assert Counter(world.seen()) == Counter(range(1, 501))
    assert SUCCESS in world.pods[-1].text()


def test_case_18_another_slot_size_is_refused_while_the_run_is_unfinished(world: World) -> None:
    """Saved positions belong to slots of the old size: read as those of the new one they would skip rows."""
    world.create_items(range(1, 10001))
    first = world.start(slot_size=2000, lease="4s", HANDLER_ROW_S=0.002)
    wait_until(lambda: world.checkpoint(1) >= 3000, "slot 0 is done and slot 1 half done", every=0.005)
    first.kill()
    position, seen = world.checkpoint(1), world.seen()
    assert position < 4000, "it was killed too late to show anything"
    assert world.checkpoint(0) == 2000

    second = world.start(slot_size=1000, lease="4s")

    assert second.wait() == 78
    for fact in ("'2000'", "'1000'", "Put the old value back", "begin a new run", "SHARDWORKER_RUN"):
        assert fact in second.text()
    assert world.seen() == seen
    assert (world.checkpoint(0), world.checkpoint(1)) == (2000, position)

    assert world.run(slot_size=2000, lease="4s", batch_size=77, parallelism=2) == 0, "these two may change"
    assert set(world.seen()) == set(range(1, 10001))
    assert world.repeated() <= set(range(position + 1, position + 2 * 100 + 1))


@pytest.fixture
def lone_world(tmp_path: Path) -> Iterator[World]:
    """A world whose Redis is empty but for its own keys, so that the names of the case can be used as they are."""
    with services.private("redis") as server:
        world = World(services.fresh_database(services.get("mariadb")), server.url, tmp_path)
        yield world
        world.close()
        services.drop_database(world.database_url)


@pytest.mark.parametrize(
    ("a", "b"),
    [(("a", "record"), ("ab", "record")), (("t", "a"), ("t", "ab"))],
    ids=["other REDIS_PREFIX", "other job"],
)
def test_case_19_two_jobs_share_one_redis(lone_world: World, a: tuple[str, str], b: tuple[str, str]) -> None:
    """The name of one is the beginning of the other's. From id 501 on handlers wait for a file: A for the refused
    reset, B for the one that is done, so that both happen in the middle of the work."""
    world = lone_world
    world.create_seen()
    for table in ("items_a", "items_b"):
        world.sql(f"CREATE TABLE {table} (id BIGINT NOT NULL PRIMARY KEY)")
        world.sql(f"INSERT INTO {table} VALUES " + ",".join(f"({n})" for n in range(1, 1001)))
    foreign = {"pod_1", "lock", "a"}
    for key in foreign:
        world.redis.set(key, "not ours")
    bases = {name: f"{prefix}:{{{job}/main}}:" for name, (prefix, job) in (("a", a), ("b", b))}
    gates = {name: world.folder / f"gate-{name}" for name in "ab"}

    def start(name: str, prefix: str, job: str) -> Pod:
        return world.start(
            "tests.handlers:record_elsewhere",
            redis_prefix=prefix,
            slot_size=100,
            HANDLER_TABLE=f"items_{name}",
            HANDLER_JOB=job,
            HANDLER_GATE=gates[name],
            HANDLER_GATE_ID=501,
        )

    def keys(base: str) -> set[str]:
        return {key for key in map(str, world.redis.scan_iter()) if key.startswith(base)}

    def seen(pods: list[Pod]) -> Counter[int]:
        names = {pod.name for pod in pods}
        return Counter(int(row[0]) for row in world.sql("SELECT row_id, pod FROM seen") if row[1] in names)

    pods = {"a": [start("a", *a) for _ in range(3)], "b": [start("b", *b) for _ in range(3)]}
    wait_until(lambda: all(len(seen(pods[name])) >= 500 for name in "ab"), "both are half done")

    code, said = world.ask("reset", a[1], "--yes", redis_prefix=a[0])
    assert code == 78, said
    assert "meta" in {key.removeprefix(bases["a"]) for key in keys(bases["a"])}
    assert set(map(str, world.redis.scan_iter())) == foreign | keys(bases["a"]) | keys(bases["b"])

    gates["a"].touch()
    assert [pod.wait() for pod in pods["a"]] == [0, 0, 0]
    before = keys(bases["b"])
    code, said = world.ask("reset", a[1], "--yes", redis_prefix=a[0])
    assert code == 0, said
    assert all(pod.is_running for pod in pods["b"])
    assert keys(bases["a"]) == set()
    assert keys(bases["b"]) == before
    assert [world.redis.get(key) for key in foreign] == ["not ours"] * 3

    gates["b"].touch()
    assert [pod.wait() for pod in pods["b"]] == [0, 0, 0]
    assert seen(pods["a"]) == Counter(range(1, 1001))
    assert seen(pods["b"]) == Counter(range(1, 1001))
