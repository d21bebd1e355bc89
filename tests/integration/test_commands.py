"""The commands besides `run`, each as a process on real servers, as a person calls it."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from shardworker import config
from shardworker.claim.board import Board
from shardworker.claim.keys import Keys
from shardworker.run.findings import of_redis
from tests import services
from tests.harness import World, wait_until

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
RECORD = "tests.handlers:record"
GATED = "tests.handlers:record_elsewhere"  # the same job; waits at rows from HANDLER_GATE_ID on
COUNT = "tests.integration.database_jobs:count_"
LARGE = (
    "CREATE TABLE items (id BIGINT NOT NULL PRIMARY KEY, status INT NOT NULL DEFAULT 0, note LONGTEXT, KEY (status))"
)
NOBODY = "redis://127.0.0.1:1/0"  # nothing listens there
SECRET = "s3cret!word"


def asked(world: World, *arguments: str, **variables: object) -> Any:
    """What a command that succeeds prints as JSON."""
    code, text = world.ask(*arguments, "--json", **variables)
    assert code == 0, text
    return json.loads(text)


def fields(text: str) -> dict[str, str]:
    """The first lines of `status` or `plan`: name and value."""
    return dict(
        re.split(r"\s{2,}", line, maxsplit=1) for line in text.splitlines() if re.search(r"^\w[\w ]*\s{2,}", line)
    )


def findings(world: World, *arguments: str, **variables: object) -> tuple[int, list[str]]:
    """Exit code and findings, without their numbers; the numbers are 1, 2, 3, ..."""
    code, text = world.ask("check", *arguments, **variables)
    found = re.findall(r"^(\d+)\. (.*)$", text, re.MULTILINE)
    assert [int(number) for number, _ in found] == list(range(1, len(found) + 1)), text
    return code, [finding for _, finding in found]


def board_of(world: World, job: str = "record") -> Board:
    board = Board(world.redis, Keys(world.prefix, job, "main"))
    board.uid = board.meta().get("uid", "")
    return board


# The command line ------------------------------------------------------------------------------------------------


def test_help_starts_quickly_and_names_every_command(world: World) -> None:
    """It imports nothing heavy before a command is chosen."""
    seconds = []
    for _ in range(5):
        began = time.monotonic()
        code, text = world.ask("--help")
        seconds.append(time.monotonic() - began)

    assert code == 0
    assert all(
        f"\n    {name} " in text for name in ("run", "plan", "check", "status", "failed", "reset", "ddl", "config")
    )
    assert min(seconds) < 0.5


@pytest.mark.parametrize(
    "arguments",
    [
        ("--redis-prefix", "{prefix}", "status", "record"),
        ("status", "--run"),
        ("status", "record", "more"),
        ("status", "--json=yes", "record"),
        ("failed",),
        ("nothing",),
    ],
)
def test_wrong_usage_is_exit_code_2(world: World, arguments: tuple[str, ...]) -> None:
    code, text = world.ask(*arguments)

    assert code == 2
    assert "usage: shardworker" in text


def test_settings_may_stand_before_and_after_the_arguments_of_a_command(world: World) -> None:
    """The value of an option must not be taken for the job."""
    world.create_items(range(1, 11))

    assert world.command("run", "--run", "night", RECORD, "--batch-size=5").wait() == 0
    status = asked(world, "status", "--run", "night", "record")

    assert (status["run"], status["rows"]["all"]) == ("night", 10)


def test_every_command_works_on_a_redis_cluster(make_world: Callable[..., World]) -> None:
    """Requests without a key (INFO, CONFIG, SCAN) go to no particular node there."""
    world = make_world(redis="cluster")
    world.create_items(range(1, 11))
    cluster: dict[str, Any] = {"redis_url": world.redis_url.replace("redis://", "redis+cluster://")}
    assert world.run(**cluster, max_failed_rows=3, attempts=1, HANDLER_FAIL=7) == 0

    status = asked(world, "status", "record", **cluster)
    runs = asked(world, "status", **cluster)["runs"]
    checked = world.ask("check", RECORD, **cluster)
    listed = asked(world, "failed", "list", "record", **cluster)
    retried = world.ask("failed", "retry", RECORD, **cluster)
    reset = world.ask("reset", "record", "--yes", **cluster)

    assert (status["state"], status["rows"]["all"]) == ("complete", 10)
    assert runs == [status]
    assert checked[0] == 0, checked[1]
    assert [row["id"] for row in listed["failed"]] == [7]
    assert retried == (0, "1 handled, 0 failed again, 0 left on the list\n")
    assert reset[0] == 0, reset[1]
    assert world.keys() == set()


def test_a_user_of_redis_needs_no_other_rights_than_the_documentation_says(make_world: Callable[..., World]) -> None:
    """A list of rights that is not tried is wrong after the next change of a script."""
    documented = re.search(r"^ACL (SETUSER worker .*?)```", OPERATIONS.read_text(), re.MULTILINE | re.DOTALL)
    assert documented is not None
    with services.private("redis", "--appendonly", "yes") as server:
        world = make_world()
        world.create_items(range(1, 31))
        rule = documented[1].replace(">PASSWORD", f">{SECRET}").replace("~shardworker:*", f"~{world.prefix}:*")
        admin: Any = redis.Redis.from_url(server.url, decode_responses=True)
        admin.execute_command("ACL", *rule.split())
        port = admin.connection_pool.connection_kwargs["port"]
        limited: dict[str, Any] = {"redis_url": f"redis://worker@127.0.0.1:{port}/0", "redis_password": SECRET}

        pods = [world.start(**limited, slot_size=10, max_failed_rows=3, attempts=1, HANDLER_FAIL=7) for _ in range(2)]
        assert [pod.wait() for pod in pods] == [0, 0], pods[0].text()
        assert world.ask("check", RECORD, **limited, slot_size=10) == (0, "nothing found: `run` can start\n")
        assert [run["rows"]["all"] for run in asked(world, "status", **limited)["runs"]] == [30]
        assert len(asked(world, "failed", "list", "record", **limited)["failed"]) == 1
        assert world.ask("failed", "retry", RECORD, **limited)[0] == 0
        assert world.ask("reset", "record", "--yes", **limited)[0] == 0
        denied = admin.acl_log()
        assert {entry["object"] for entry in denied} <= {"client", "client|setinfo"}
        admin.close()


def test_unknown_settings_are_refused_by_every_command(world: World) -> None:
    for command in (["status"], ["failed", "list", "record"], ["reset", "record", "--yes"], ["config"], ["ddl"]):
        code, text = world.ask(*command, bach_size=10)
        assert code == 78, command
        assert "SHARDWORKER_BACH_SIZE is no setting; SHARDWORKER_BATCH_SIZE was probably meant" in text
        assert "Traceback" not in text


def test_an_unreachable_redis_is_69_and_says_which_setting_to_look_at(world: World) -> None:
    for command in (["status"], ["status", "record"], ["failed", "list", "record"], ["reset", "record", "--yes"]):
        code, text = world.ask(*command, redis_url=NOBODY, retry_for="200ms")
        assert code == 69, command
        assert "see SHARDWORKER_REDIS_URL" in text
        assert "Traceback" not in text


# config ----------------------------------------------------------------------------------------------------------


def test_config_shows_each_value_and_its_source_but_no_password(world: World) -> None:
    url = f"mysql://someone:{SECRET}@db.example/shop"
    (world.folder / "shardworker.toml").write_text('lease = "20s"\n')

    code, text = world.ask(
        "config", "--parallelism", "3", database_url=url, redis_password=SECRET, lease=None, job="nowhere.at_all:x"
    )

    lines = {line.split()[0]: re.split(r"\s{2,}", line)[1:] for line in text.splitlines() if line[:1].isupper()}
    assert code == 0
    assert lines["DATABASE_URL"] == ["mysql://someone:***@db.example/shop", "environment"]
    assert lines["REDIS_PASSWORD"] == ["***", "environment"]
    assert lines["PARALLELISM"] == ["3", "option --parallelism"]
    assert lines["LEASE"] == ["20s", "shardworker.toml"]
    assert lines["GRACE"] == ["25s", "default"]
    assert SECRET not in text
    assert "'nowhere'" in text, "a job whose code is elsewhere is no reason to show nothing"


def test_config_shows_what_stands_in_the_decorator(world: World) -> None:
    code, text = world.ask("config", "--job", "tests.integration.database_jobs:part_handler")

    assert code == 0
    assert re.search(r"^PART_SIZE\s+4\s+job$", text, re.MULTILINE)


def test_config_prints_the_table_of_the_documentation(world: World) -> None:
    assert world.ask("config", "--markdown") == (0, config.markdown())


def test_config_refuses_settings_that_contradict_each_other(world: World) -> None:
    code, text = world.ask("config", first_id=9, last_id=3)

    assert code == 78
    assert "SHARDWORKER_FIRST_ID is 9, above SHARDWORKER_LAST_ID" in text


# ddl -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("database", ["mariadb", "postgres", "sqlite"])
def test_ddl_prints_the_tables_and_creates_them_when_told_to(make_world: Callable[..., World], database: str) -> None:
    """Printing changes nothing; creating twice is as good as once; what was printed is what is created."""
    world = make_world(database)
    world.create_items(range(1, 4))

    code, printed = world.ask("ddl")
    refused = world.run(f"{COUNT}row", checkpoint="database")
    first = world.ask("ddl", "--apply")
    second = world.ask("ddl", "--apply")

    assert code == 0
    assert refused == 78
    assert first == (0, "shardworker_failed: created\nshardworker_slot: created\n")
    assert second == (0, "shardworker_failed: is there\nshardworker_slot: is there\n")
    assert world.run(f"{COUNT}row", checkpoint="database") == 0
    for table in ("shardworker_slot", "shardworker_failed"):
        world.sql(f"DROP TABLE {table}")
    for statement in printed.split(";\n"):
        if statement.strip():
            world.sql(statement)
    assert world.ask("ddl", "--apply") == second


# plan ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("database", ["mariadb", "postgres", "sqlite"])
def test_plan_says_what_a_run_would_do_without_a_redis_and_changes_nothing(
    make_world: Callable[..., World], database: str
) -> None:
    world = make_world(database)
    world.create_items(range(1, 1001))
    if database != "sqlite":
        world.sql("ANALYZE TABLE items" if database == "mariadb" else "ANALYZE items")

    code, text = world.ask("plan", RECORD, redis_url=NOBODY, slot_size=300, batch_size=100)

    assert code == 0, text
    plan = fields(text)
    assert plan["ids"] == "1..1000"
    assert plan["rows"] == "about 1,000"
    assert plan["slots"] == "4 of 300 ids each (SLOT_SIZE=300)"
    assert plan["batches"] == "about 10 of at most 100 rows (BATCH_SIZE)"
    assert plan["query"].startswith("SELECT")
    assert plan["plan"]
    assert ("the server allows" in plan["connections"]) == (database != "sqlite")
    assert world.keys() == set()
    assert world.seen() == []


def test_plan_of_bounds_and_of_an_empty_table(world: World) -> None:
    world.create_items()
    _, empty = world.ask("plan", RECORD)
    world.add_items(range(1, 1001))
    world.sql("ANALYZE TABLE items")
    _, half = world.ask("plan", "tests.handlers:set_status_of_new", first_id=501, slot_size="auto")

    assert fields(empty)["ids"] == "none: there is no row in the run's bounds"
    assert fields(half)["ids"] == "501..1000"
    assert fields(half)["rows"] == "about 500; only those with status = 0"


def test_plan_refuses_what_run_refuses(world: World) -> None:
    code, text = world.ask("plan", RECORD)

    assert code == 78
    assert "there is no table 'items'" in text


# check -----------------------------------------------------------------------------------------------------------


def test_check_finds_nothing_where_nothing_is_wrong(make_world: Callable[..., World]) -> None:
    """On a Redis that keeps what it is told, and with a table whose columns are small."""
    with services.private("redis", "--appendonly", "yes") as server:
        world = make_world()
        world.create_items(range(1, 11))
        world.redis.close()
        code, text = world.ask("check", RECORD, redis_url=server.url)

        left = redis.Redis.from_url(server.url).dbsize()

    assert (code, text) == (0, "nothing found: `run` can start\n")
    assert left == 0


def test_check_names_all_that_is_refused_at_once(world: World) -> None:
    world.sql("CREATE TABLE items (id VARCHAR(20) NOT NULL PRIMARY KEY)")

    code, found = findings(world, RECORD, checkpoint="database")

    fatal = [finding for finding in found if finding.startswith("fatal: ")]
    assert code == 78
    assert found[: len(fatal)] == fatal, "the fatal ones first"
    assert any("VARCHAR" in finding for finding in fatal)
    assert any("shardworker_slot" in finding and "ddl --apply" in finding for finding in fatal)


def test_check_names_bad_settings_and_an_unknown_job(world: World) -> None:
    code, found = findings(world, "tests.handlers:rekord", batch_size=0)

    assert code == 78
    assert len(found) == 2
    assert any("SHARDWORKER_BATCH_SIZE is '0'" in finding for finding in found)
    assert any("no 'rekord'" in finding for finding in found)


def test_check_refuses_the_saved_state_of_another_configuration(world: World) -> None:
    world.create_items(range(1, 11))
    assert world.run(slot_size=10) == 0
    before = world.keys()

    code, found = findings(world, RECORD, slot_size=20)

    assert code == 78
    assert "SLOT_SIZE: saved '10', now '20'" in found[0]
    assert world.keys() == before


def test_check_of_unreachable_servers_is_69_and_still_looks_at_the_other_one(world: World) -> None:
    world.create_items(range(1, 11))
    nobody = "mysql://root@127.0.0.1:1/x"

    code, found = findings(world, RECORD, redis_url=NOBODY, retry_for="200ms")
    both_code, both = findings(world, RECORD, redis_url=NOBODY, database_url=nobody, retry_for="200ms")

    assert (code, both_code) == (69, 69)
    assert [finding for finding in found if finding.startswith("unreachable: the redis")]
    assert [finding.split()[2] for finding in both if finding.startswith("unreachable: ")] == ["database", "redis"]


def test_check_warns_of_large_columns_connections_and_context(world: World) -> None:
    world.sql(LARGE)
    world.create_seen()
    world.add_items(range(1, 11))

    code, found = findings(world, "tests.handlers:record_pool", "--workers", "1000", parallelism=20)

    text = "\n".join(found)
    assert code == 0
    assert "note may be large" in text
    assert "1000 workers with SHARDWORKER_DB_CONNECTIONS=4 need 4000 connections" in text
    assert "20 threads (SHARDWORKER_PARALLELISM) share 4 connections" in text


def test_check_warns_of_a_filter_that_leads_away_from_the_index_of_the_key(make_world: Callable[..., World]) -> None:
    """Each batch would read and sort all rows that match. (MySQL is told which index to take, and SQLite's indexes hold
    the key in order.)"""
    world = make_world("postgres")
    world.create_items(range(1, 20_001))
    world.sql("CREATE INDEX by_status ON items (status)")
    world.sql("UPDATE items SET status = 1 WHERE id > 10")
    world.sql("ANALYZE items")

    code, found = findings(world, "tests.handlers:set_status_of_new")

    assert code == 0
    assert [finding for finding in found if "does not walk the index of key 'id' for where='status = 0'" in finding]


def test_check_warns_of_a_redis_that_forgets(make_world: Callable[..., World]) -> None:
    with services.private("redis", "--maxmemory-policy", "allkeys-lru", "--save", "", "--appendonly", "no") as server:
        world = make_world()
        world.create_items(range(1, 11))
        code, found = findings(world, RECORD, redis_url=server.url)

    assert code == 0
    assert len(found) == 2
    assert "maxmemory-policy allkeys-lru" in found[0]
    assert "keeps nothing on disk" in found[1]


def test_check_warns_of_a_replica_and_of_a_clock_that_is_off(world: World) -> None:
    with services.private("redis", "--appendonly", "yes") as server:
        client = redis.Redis.from_url(server.url, decode_responses=True)
        assert list(of_redis(client)) == []
        client.replicaof("127.0.0.1", 1)
        ahead = list(of_redis(client, wall=lambda: time.time() + 5))
        client.close()

    assert [re.search(r"is a slave|differ by 5\.0 s", finding.text) is not None for finding in ahead] == [True, True]


def test_check_warns_of_a_read_only_database(make_world: Callable[..., World]) -> None:
    world = make_world("mariadb")
    world.create_items(range(1, 11))
    with services.private("mariadb", "--read-only=1") as server:
        url = services.fresh_database(server)
        replica = World(url, world.redis_url, world.folder, prefix=world.prefix)
        replica.create_items(range(1, 11))
        code, found = findings(replica, RECORD)
        replica.close()

    assert code == 0
    assert [finding for finding in found if "the database is read-only" in finding]


# status ----------------------------------------------------------------------------------------------------------


def test_status_shows_slots_rows_and_workers_while_a_run_is_under_way(world: World) -> None:
    """By name, without the code of the job and without its database."""
    world.create_items(range(1, 31))
    elsewhere: dict[str, Any] = {"database_url": None, "PYTHONPATH": str(world.folder)}
    gate = world.folder / "gate"
    pod = world.start(GATED, slot_size=10, batch_size=2, HANDLER_GATE=gate, HANDLER_GATE_ID=5)
    wait_until(lambda: world.checkpoint() == 4, "a checkpoint")

    status = asked(world, "status", "record", **elsewhere)
    code, text = world.ask("status", "record", **elsewhere)
    pod.terminate()
    gate.touch()
    assert pod.wait() == 143
    afterwards = asked(world, "status", "record", **elsewhere)

    assert (status["job"], status["run"], status["state"]) == ("record", "main", "running")
    assert (status["first_id"], status["last_id"], status["frontier"]) == (1, 30, 1)
    assert status["slots"] == {"all": 3, "done": 0, "open": 1, "ready": 0, "parked": 0, "empty": 0, "left": 2}
    assert status["rows"]["all"] == status["rows"]["unchanged"] == 4
    assert status["rows_per_s"] > 0
    [worker] = status["workers"]
    assert worker["owner"].endswith(f"/{pod.process.pid}")
    assert (worker["slot"], worker["first"], worker["last"], worker["last_id"]) == ("0", 1, 10, 4)
    assert 0 < worker["lease_ms"] <= 6000
    assert code == 0
    assert fields(text)["state"] == "1 worker"
    assert worker["owner"] in text
    assert (afterwards["state"], afterwards["slots"]["ready"], afterwards["workers"]) == ("idle", 1, [])


def test_status_of_a_complete_run_counts_outcomes_and_reasons_of_skips(world: World) -> None:
    world.create_items(range(1, 26))
    world.add_items([100_000])
    job = "tests.integration.database_jobs:row_handler"
    assert world.run(job, slot_size=10, batch_size=5) == 0

    status = asked(world, "status", job)
    _, text = world.ask("status", job)

    assert status["state"] == "complete"
    assert status["finished_at"] > status["created_at"]
    assert status["rows"] == {"all": 26, "changed": 11, "unchanged": 5, "deleted": 5, "skipped": 5, "failed": 0}
    assert status["skip_reasons"] == {"a two": 5}
    slots = status["slots"]
    assert slots["done"] + slots["empty"] == slots["all"] == 10_000
    assert slots["empty"] > 9_000
    assert fields(text)["state"].startswith("complete since 20")
    assert fields(text)["skipped"] == "5 a two"


def test_status_says_which_slots_are_parked_and_why(world: World) -> None:
    world.create_items(range(1, 31))
    assert world.run(slot_size=10, batch_size=5, HANDLER_FAIL=17) == 65

    status = asked(world, "status", "record")
    code, text = world.ask("status", "record")

    [parked] = status["parked_slots"]
    assert (status["state"], status["slots"]["parked"]) == ("idle", 1)
    assert (parked["slot"], parked["first"], parked["last"], parked["last_id"]) == ("1", 11, 20, 16)
    assert "row 17 failed and MAX_FAILED_ROWS allows no more" in parked["why"]
    assert code == 0
    assert "only parked slots are left" in fields(text)["state"]


def test_status_without_a_job_has_a_line_for_each_run_under_the_prefix(world: World) -> None:
    """Runs of other prefixes and other keys are none of its business."""
    world.create_items(range(1, 11))
    assert world.ask("status") == (0, f"no runs under the prefix '{world.prefix}'\n")
    assert world.run() == 0
    assert world.run(run="second") == 0
    assert world.run(redis_prefix=f"{world.prefix}x") == 0
    world.redis.set(f"{world.prefix}:{{record/main}}x:meta", "no run")

    runs = asked(world, "status")["runs"]
    code, text = world.ask("status")

    assert [(run["job"], run["run"], run["rows"]["all"]) for run in runs] == [
        ("record", "main", 10),
        ("record", "second", 10),
    ]
    assert code == 0
    assert len(text.splitlines()) == 3


def test_status_of_a_run_that_is_not_there_is_refused(world: World) -> None:
    code, text = world.ask("status", "record", run="other")

    assert code == 78
    assert "there is no run 'other' of job 'record'" in text
    assert "`shardworker status` without a job lists all runs" in text


def test_status_starts_no_local_server_where_none_has_been(world: World, tmp_path: Path) -> None:
    code, text = world.ask("status", redis_url=None, database_url=None)

    assert code == 78
    assert "SHARDWORKER_REDIS_URL is not given" in text
    assert not (world.folder / ".shardworker").exists()


# failed ----------------------------------------------------------------------------------------------------------


def test_failed_list_is_sorted_and_keeps_every_error_on_one_line(world: World) -> None:
    world.create_items(range(1, 31))
    settings: dict[str, Any] = {"max_failed_rows": 10, "attempts": 1, "HANDLER_FAIL": "8-12"}
    assert world.run(**settings, HANDLER_FAIL_TEXT="two\nlines [red] \x1b[31m") == 0

    listed = asked(world, "failed", "list", "record")
    code, text = world.ask("failed", "list", "record")

    assert [row["id"] for row in listed["failed"]] == [8, 9, 10, 11, 12]
    assert listed["failed"][0].keys() == {"id", "error", "attempts", "at", "code_version"}
    assert listed["failed"][0]["error"] == "ValueError: two\nlines [red] \x1b[31m"
    assert code == 0
    assert len(text.splitlines()) == 6
    assert "ValueError: two lines [red]" in text
    assert "\x1b" not in text


def test_failed_list_of_a_run_without_failures(world: World) -> None:
    world.create_items(range(1, 11))
    assert world.run() == 0

    assert world.ask("failed", "list", "record") == (0, "no failed rows in run main of record\n")
    assert asked(world, "failed", "list", "record") == {"job": "record", "run": "main", "failed": []}
    code, text = world.ask("failed", "retry", RECORD)
    assert (code, text) == (0, "0 handled, 0 failed again, 0 left on the list\n")


@pytest.mark.parametrize("checkpoint", ["redis", "database"])
@pytest.mark.parametrize(
    ("database", "kind"),
    [("mariadb", "row"), ("mariadb", "row_async"), ("mariadb", "part_by_row"), ("postgres", "row"), ("sqlite", "row")],
)
def test_retried_rows_leave_the_list_changed_once_and_others_are_not_touched(
    make_world: Callable[..., World], database: str, checkpoint: str, kind: str
) -> None:
    """status counts how often a row was changed."""
    world = make_world(database)
    world.create_items(range(1, 31))
    settings: dict[str, Any] = {"max_failed_rows": 10, "batch_size": 10, "attempts": 1, "checkpoint": checkpoint}
    if checkpoint == "database":
        assert world.ask("ddl", "--apply")[0] == 0
    assert world.run(COUNT + kind, **settings, HANDLER_FAIL="7-9") == 0
    assert set(world.failed("count")) == {7, 8, 9}

    code, text = world.ask("failed", "retry", COUNT + kind, **settings)

    assert code == 0, text
    assert text == "3 handled, 0 failed again, 0 left on the list\n"
    assert world.sql("SELECT id, status FROM items WHERE status <> 1") == []
    assert world.failed("count") == {}
    totals = world.redis.hgetall(world.key("totals", "count"))
    assert {name: n for name, n in totals.items() if n != "0"} == {"changed": "30"}
    assert world.lease("failed", "count") is None
    if checkpoint == "database":
        assert world.sql("SELECT id FROM shardworker_failed") == []


@pytest.mark.parametrize("kind", ["count_batch", "count_batch_by_row", "count_batch_async"])
@pytest.mark.parametrize("checkpoint", ["redis", "database"])
def test_rows_of_batch_handlers_are_retried_as_one_list(world: World, checkpoint: str, kind: str) -> None:
    job = f"tests.integration.command_jobs:{kind}"
    world.create_items(range(1, 31))
    settings: dict[str, Any] = {"max_failed_rows": 10, "batch_size": 10, "attempts": 1, "checkpoint": checkpoint}
    if checkpoint == "database":
        assert world.ask("ddl", "--apply")[0] == 0
    by_row = "tests.integration.command_jobs:count_batch_by_row"
    assert world.run(by_row, **settings, HANDLER_FAIL="7-9") == 0

    code, text = world.ask("failed", "retry", job, **settings)

    assert (code, text) == (0, "3 handled, 0 failed again, 0 left on the list\n")
    assert world.sql("SELECT id, status FROM items WHERE status <> 1") == []
    assert world.seen()[-3:] == [7, 8, 9]
    in_transaction = {row[0] for row in world.sql("SELECT payload FROM items WHERE id BETWEEN 7 AND 9")}
    assert in_transaction == {str(checkpoint == "database")}


@pytest.mark.parametrize("checkpoint", ["redis", "database"])
def test_rows_that_fail_again_stay_with_their_new_error(world: World, checkpoint: str) -> None:
    """The healthy ones leave the list all the same; exit code 65 says that it is not empty."""
    world.create_items(range(1, 31))
    settings: dict[str, Any] = {"max_failed_rows": 10, "checkpoint": checkpoint}
    if checkpoint == "database":
        assert world.ask("ddl", "--apply")[0] == 0
    job = "tests.handlers:count_up"
    assert world.run(job, **settings, attempts=1, HANDLER_FAIL="7-9", HANDLER_FAIL_TEXT="old") == 0
    before = asked(world, "failed", "list", "record")["failed"]

    code, text = world.ask(
        "failed", "retry", job, **settings, attempts=2, HANDLER_FAIL="8", HANDLER_FAIL_TEXT="new {x}"
    )

    assert code == 65, text
    assert "2 handled, 1 failed again, 1 left on the list" in text
    assert "row 8 failed again after 2 attempts: ValueError: new {x}" in text
    [left] = asked(world, "failed", "list", "record")["failed"]
    assert (left["id"], left["error"], left["attempts"]) == (8, "ValueError: new {x}", 2)
    assert left["at"] >= before[1]["at"]
    if checkpoint == "database":
        assert world.sql("SELECT id, error, attempts FROM shardworker_failed") == [(8, "ValueError: new {x}", 2)]
    assert {int(row[0]) for row in world.sql("SELECT id FROM items WHERE status <> 1")} == {8}


@pytest.mark.parametrize("checkpoint", ["redis", "database"])
def test_a_part_that_fails_as_a_whole_stays_on_the_list(world: World, checkpoint: str) -> None:
    world.create_items(range(1, 31))
    settings: dict[str, Any] = {"max_failed_rows": 10, "attempts": 1, "checkpoint": checkpoint}
    if checkpoint == "database":
        assert world.ask("ddl", "--apply")[0] == 0
    assert world.run(f"{COUNT}part_by_row", **settings, HANDLER_FAIL="7-9") == 0

    code, text = world.ask("failed", "retry", f"{COUNT}part", **settings, HANDLER_FAIL="9")

    assert code == 65, text
    assert "0 handled, 3 failed again, 3 left on the list" in text
    errors = [row["error"] for row in asked(world, "failed", "list", "count")["failed"]]
    assert len(errors) == 3
    assert all("ValueError: bad row" in error for error in errors)


@pytest.mark.parametrize("checkpoint", ["redis", "database"])
def test_rows_that_are_gone_are_taken_off_and_named(world: World, checkpoint: str) -> None:
    world.create_items(range(1, 31))
    settings: dict[str, Any] = {"max_failed_rows": 10, "attempts": 1, "checkpoint": checkpoint}
    if checkpoint == "database":
        assert world.ask("ddl", "--apply")[0] == 0
    assert world.run("tests.handlers:count_up", **settings, HANDLER_FAIL="7-9") == 0
    world.sql("DELETE FROM items WHERE id IN (7, 9)")

    code, text = world.ask("failed", "retry", "tests.handlers:count_up", **settings)

    assert code == 0
    assert "1 handled, 0 failed again, 0 left on the list" in text
    assert "no longer in the table, taken off the list: 7, 9" in text


def test_only_the_rows_that_are_named_are_run(world: World) -> None:
    world.create_items(range(-5, 31))
    settings: dict[str, Any] = {"max_failed_rows": 20, "attempts": 1}
    assert world.run(**settings, HANDLER_FAIL="7-9") == 0
    board_of(world).client.hset(world.key("failed"), "-3", json.dumps({"error": "x", "attempts": 1, "at": "2020"}))

    code, text = world.ask("failed", "retry", RECORD, "8", "-3", "99", **settings)
    named_by_setting, rest = world.ask("failed", "retry", "7", **settings, job=RECORD)

    assert code == 65
    assert "2 handled, 0 failed again, 2 left on the list" in text
    assert "not on the list: 99" in text
    assert named_by_setting == 65
    assert "1 handled, 0 failed again, 1 left on the list" in rest
    assert world.seen()[-3:] == [-3, 8, 7]
    assert set(world.failed()) == {9}


def test_a_second_retry_at_the_same_time_is_refused(world: World) -> None:
    """Two would call the function twice for the same row. The first keeps its lease for longer than one TTL."""
    world.create_items(range(1, 31))
    settings: dict[str, Any] = {"max_failed_rows": 20, "attempts": 1, "lease": "1s"}
    assert world.run(**settings, HANDLER_FAIL="1-5") == 0
    gate = world.folder / "gate"
    first = world.command("failed", "retry", GATED, **settings, HANDLER_GATE=gate, HANDLER_GATE_ID=2)
    wait_until(lambda: 1 not in world.failed(), "one row off the list")

    code, text = world.ask("failed", "retry", RECORD, **settings)

    assert code == 75
    assert "another `failed retry` of run main of record is at work" in text
    gate.touch()
    assert first.wait() == 0
    assert Counter(world.seen()) == Counter(range(1, 31))


def test_a_retry_that_is_stopped_keeps_what_it_has_done(world: World) -> None:
    world.create_items(range(1, 31))
    settings: dict[str, Any] = {"max_failed_rows": 20, "attempts": 1}
    assert world.run(**settings, HANDLER_FAIL="1-9") == 0
    gate = world.folder / "gate"
    pod = world.command("failed", "retry", GATED, **settings, HANDLER_GATE=gate, HANDLER_GATE_ID=4)
    wait_until(lambda: len(world.failed()) == 6, "three rows off the list")

    pod.terminate()
    gate.touch()

    assert pod.wait() == 143
    assert "stopped by SIGTERM; what was handled is off the list" in pod.text()
    left = set(world.failed())
    assert left in ({4, 5, 6, 7, 8, 9}, {5, 6, 7, 8, 9}), "row 4 was waiting at the gate"
    assert Counter(world.seen()) == Counter([row_id for row_id in range(1, 31) if row_id not in left])
    assert world.ask("failed", "retry", RECORD, **settings)[0] == 0
    assert Counter(world.seen()) == Counter(range(1, 31))


def test_a_retry_that_was_killed_after_its_commit_repeats_no_change(world: World) -> None:
    """checkpoint=database: the list in the database is the true one, Redis' copy may be behind."""
    world.create_items(range(1, 31))
    settings: dict[str, Any] = {"max_failed_rows": 10, "attempts": 1, "checkpoint": "database"}
    assert world.ask("ddl", "--apply")[0] == 0
    job = "tests.handlers:count_up"
    assert world.run(job, **settings, HANDLER_FAIL="7-9") == 0
    world.sql("UPDATE items SET status = 1 WHERE id = 8")
    world.sql("DELETE FROM shardworker_failed WHERE id = 8")

    code, text = world.ask("failed", "retry", job, **settings)

    assert (code, text) == (0, "2 handled, 0 failed again, 0 left on the list\n")
    assert world.sql("SELECT id FROM items WHERE status <> 1") == []
    assert world.failed() == {}


def test_retry_refuses_a_run_that_is_not_there_or_is_another_one(world: World) -> None:
    world.create_items(range(1, 11))

    missing = world.ask("failed", "retry", RECORD)
    assert world.run(slot_size=10) == 0
    other = world.ask("failed", "retry", GATED, HANDLER_TABLE="seen")
    no_id = world.ask("failed", "retry", RECORD, "seven")

    assert (missing[0], other[0], no_id[0]) == (78, 78, 78)
    assert "there is no run 'main' of job 'record'" in missing[1]
    assert "table: saved 'items', now 'seen'" in other[1]
    assert "'seven' is no id" in no_id[1]
    assert all("Traceback" not in text for _, text in (missing, other, no_id))


# reset -----------------------------------------------------------------------------------------------------------


def test_reset_forgets_a_run_and_nothing_else(world: World) -> None:
    world.create_items(range(1, 11))
    assert world.run() == 0
    assert world.run(run="second") == 0
    world.redis.set(f"{world.prefix}:{{record/main}}x:meta", "not ours")
    others = {key for key in sorted(world.keys()) if not key.startswith(world.key(""))}
    mine = len(world.keys()) - len(others)

    first = world.ask("reset", "record", "--yes", database_url=None)
    second = world.ask("reset", "record", "--yes", database_url=None)

    assert first == (0, f"run main of record is forgotten: {mine} keys deleted\n")
    assert second == (0, "there was nothing of run main of record\n")
    assert world.keys() == others
    assert world.run() == 0
    assert Counter(world.seen()) == dict.fromkeys(range(1, 11), 3)


def test_reset_is_refused_while_a_worker_or_a_retry_is_alive(world: World) -> None:
    world.create_items(range(1, 31))
    gate = world.folder / "gate"
    pod = world.start(GATED, slot_size=10, batch_size=2, HANDLER_GATE=gate, HANDLER_GATE_ID=5)
    wait_until(world.lease, "a claim")

    code, text = world.ask("reset", "record", "--yes")
    pod.terminate()
    gate.touch()

    assert code == 78
    assert f"{world.key('lease:0')} is alive" in text
    assert f"/{pod.process.pid})" in text
    assert pod.wait() == 143, "it was not disturbed"
    board_of(world).try_claim_failed("somebody", ttl_ms=60_000)
    code, text = world.ask("reset", "record", "--yes")
    assert code == 78
    assert f"{world.key('lease:failed')} is alive" in text


def test_reset_needs_yes_where_it_cannot_ask(world: World) -> None:
    world.create_items(range(1, 11))
    assert world.run() == 0
    before = world.keys()

    code, text = world.ask("reset", "record")

    assert code == 2
    assert "--yes" in text
    assert world.keys() == before


@pytest.mark.parametrize(("answer", "code"), [("no", 78), ("yes", 0)])
def test_reset_asks_on_a_terminal(world: World, answer: str, code: int) -> None:
    world.create_items(range(1, 11))
    assert world.run() == 0

    ended, shown = on_a_terminal(world, "reset", "record", answer=answer)

    assert ended == code
    assert "Forget run main of record? 10 rows are recorded as done" in shown
    assert (world.keys() == set()) == (answer == "yes")


def test_a_reset_that_was_broken_off_can_be_finished(world: World) -> None:
    """Between the mark and the end no worker may begin; afterwards the run is new."""
    world.create_items(range(1, 11))
    assert world.run() == 0
    assert board_of(world).try_mark_reset() is None
    world.redis.delete(world.key("done"))

    status = asked(world, "status", "record")
    refused = world.run()
    code, _ = world.ask("reset", "record", "--yes")

    assert status["state"] == "resetting"
    assert refused == 78
    assert code == 0
    assert world.keys() == set()


def test_reset_sweeps_what_is_left_of_a_run_whose_meta_is_gone(world: World) -> None:
    world.create_items(range(1, 11))
    assert world.run() == 0
    world.redis.delete(world.key("meta"))
    left = len(world.keys())

    assert world.ask("reset", "record", "--yes") == (0, f"run main of record is forgotten: {left} keys deleted\n")
    assert world.keys() == set()


def test_reset_forgets_the_rows_in_the_database_too(world: World) -> None:
    """The checkpoint is named in the run itself: the setting need not be given again. Else the run would come back."""
    world.create_items(range(1, 11))
    assert world.ask("ddl", "--apply")[0] == 0
    settings: dict[str, Any] = {"checkpoint": "database", "max_failed_rows": 5, "attempts": 1}
    assert world.run("tests.handlers:count_up", **settings, HANDLER_FAIL=3) == 0
    assert world.run("tests.handlers:count_up", **settings, run="second") == 0

    elsewhere = world.ask("reset", "record", "--yes", database_url=f"sqlite:///{world.folder}/other.db")
    code, text = world.ask("reset", "record", "--yes")

    assert elsewhere[0] == 78
    assert "give the URL of the database that the run was done with" in elsewhere[1]
    assert code == 0
    assert "and its rows in the database" in text
    assert {str(row[0]) for row in world.sql("SELECT run FROM shardworker_slot")} == {f"{world.prefix}:record/second"}
    assert world.sql("SELECT id FROM shardworker_failed") == []
    assert world.run("tests.handlers:count_up", **settings) == 0


# Progress of `run` -----------------------------------------------------------------------------------------------


def on_a_terminal(world: World, *arguments: str, answer: str | None = None, **variables: object) -> tuple[int, str]:
    """Runs a command on a terminal of its own; exit code and all that it wrote there."""
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "shardworker", *arguments],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=world.environment(TERM="xterm", COLUMNS="160", **variables),
        cwd=world.folder,
    )
    os.close(terminal)
    if answer is not None:
        os.write(master, f"{answer}\n".encode())
    shown = b""
    end = time.monotonic() + 60
    try:
        while time.monotonic() < end:
            if select.select([master], [], [], 0.1)[0]:
                try:
                    shown += os.read(master, 65536)
                except OSError:  # the other end is closed
                    break
        return process.wait(10), shown.decode(errors="replace")
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_run_shows_a_bar_on_a_terminal_with_its_log_lines_above(world: World) -> None:
    world.create_items(range(1, 201))
    world.sql("ANALYZE TABLE items")

    code, shown = on_a_terminal(world, "run", RECORD, slot_size=50, batch_size=10, HANDLER_ROW_S=0.05)

    assert code == 0
    assert re.search(r"record/main .*\d+% \d+ of 200 rows, \d+ rows/s, slots \d/4", shown)
    assert "INFO" in shown
    assert "run main of record is complete: 200 rows" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "the cursor must be visible even after a SIGKILL"


def test_run_logs_progress_every_ten_seconds_elsewhere(world: World) -> None:
    """The numbers are of the whole run: also of the rows that another worker has done."""
    world.create_items(range(1, 61))
    settings: dict[str, Any] = {"slot_size": 30, "batch_size": 2, "parallelism": 1, "HANDLER_ROW_S": 0.45}
    pods = [world.start(**settings) for _ in range(2)]

    assert [pod.wait() for pod in pods] == [0, 0]

    for pod in pods:
        lines = [line for line in pod.lines() if line["message"] == "progress"]
        assert len(lines) == 1
        [line] = lines
        assert line["level"] == "INFO"
        assert line["rows"] > len(world.seen_by(pod)) or line["rows"] >= 30
        assert line["rows_per_s"] > 0
        assert (line["slots"], line["failed"]) == (2, 0)
