"""Whole workers over every database: what a job does must not depend on where its table is."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.pool import NullPool

from shardworker import Job, Row, job
from shardworker.errors import ConfigurationError, HandlerError
from shardworker.outcomes import Tally
from shardworker.process import ledger
from shardworker.run.here import Summary
from tests import handlers
from tests.harness import Pod, World, wait_until
from tests.integration import database_jobs
from tests.integration.database_jobs import CHANGED, GONE, words_of

JOBS = "tests.integration.database_jobs:"
CHECKPOINTS = ["redis", "database"]
KINDS = [f"{each}_handler{suffix}" for each in ("row", "part", "batch") for suffix in ("", "_async")]


@pytest.fixture(params=["mariadb", "mysql", "postgres", "sqlite"])
def world(request: pytest.FixtureRequest, make_world: Callable[..., World]) -> World:
    made = make_world(database=request.param)
    ledger.metadata.create_all(made.engine)
    return made


@pytest.fixture(params=CHECKPOINTS)
def checkpoint(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(world: World) -> Iterator[sqlalchemy.Engine]:
    """As a user makes one."""
    engine = sqlalchemy.create_engine(world.database_url, poolclass=NullPool)
    yield engine
    engine.dispose()


def start(world: World, job: str, **variables: object) -> Pod:
    """A worker with small batches: three slots in sixty rows."""
    settings: dict[str, object] = {"batch_size": 10, "slot_size": 25, "retry_for": "20s"}
    return world.start(JOBS + job, **settings | variables)


def run(world: World, job: str, **variables: object) -> int:
    return start(world, job, **variables).wait()


def statuses(world: World) -> dict[int, int]:
    return {int(row[0]): row[1] for row in world.sql("SELECT id, status FROM items")}


def payloads(world: World) -> dict[int, str]:
    return {int(row[0]): row[1] for row in world.sql("SELECT id, payload FROM items")}


def each_once(world: World) -> bool:
    """Whether every row was counted exactly once."""
    return set(statuses(world).values()) == {1}


def totals(world: World, job: str) -> dict[str, int]:
    """Rows by outcome, those that there are, as `status` shows them."""
    found: dict[str, str] = world.redis.hgetall(world.key("totals", job))  # type: ignore[assignment]
    return {name: int(n) for name, n in found.items() if int(n)}


def failed(world: World, job: str) -> dict[int, dict[str, Any]]:
    found: dict[str, str] = world.redis.hgetall(world.key("failed", job))  # type: ignore[assignment]
    return {int(row_id): json.loads(record) for row_id, record in found.items()}


def tally_in_database(world: World) -> Tally:
    return Tally.total(Tally.decode(row[0]) for row in world.sql("SELECT tally FROM shardworker_slot WHERE slot <> ''"))


def expected(ids: range) -> dict[int, tuple[int, str]]:
    """What `outcome` makes of rows with status 0 and no payload."""
    kept = [row_id for row_id in ids if row_id % 5 != 3]
    return {row_id: (int(row_id % 5 in (0, 1)), words_of(row_id) if row_id % 5 == 1 else "") for row_id in kept}


def stored(world: World) -> dict[int, tuple[int, str]]:
    return {int(row[0]): (row[1], row[2]) for row in world.sql("SELECT id, status, payload FROM items")}


# Handlers and what they return -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_handler_has_every_outcome(world: World, checkpoint: str, kind: str) -> None:
    """A user changes `each`, `async` or the checkpoint, and nothing else changes."""
    ids = range(1, 61)
    world.create_items(ids)

    assert run(world, kind, checkpoint=checkpoint) == 0

    assert stored(world) == expected(ids)
    assert totals(world, kind) == {"changed": 24, "unchanged": 12, "deleted": 12, "skipped": 12, "skip:a two": 12}
    if checkpoint == "database":
        assert tally_in_database(world).counts() == {
            "changed": 24,
            "unchanged": 12,
            "deleted": 12,
            "skipped": 12,
            "failed": 0,
        }


@pytest.mark.parametrize("kind", KINDS)
def test_job_run_has_every_outcome_without_redis(world: World, engine: sqlalchemy.Engine, kind: str) -> None:
    """A user's tests run the same job in their own process."""
    ids = range(1, 61)
    world.create_items(ids)
    handler: Job[..., Any] = getattr(database_jobs, kind)

    assert handler.run(engine) == Summary(
        rows=60,
        changed=24,
        unchanged=12,
        deleted=12,
        skipped=12,
        failed=0,
        failed_rows=(),
        skip_reasons={"a two": 12},
    )

    assert stored(world) == expected(ids)
    assert not world.keys()


@pytest.mark.parametrize(("name", "text"), [("of_named_tuples", "Item  {}"), ("of_dataclasses", "Words ")])
def test_rows_arrive_as_the_class_that_the_job_names(world: World, name: str, text: str) -> None:
    """The user's type checker knows these rows; a dataclass without the key is read with it all the same."""
    world.create_items(range(1, 31))

    assert run(world, name) == 0

    assert payloads(world) == {row_id: text.format(row_id) for row_id in range(1, 31)}
    assert each_once(world)


# The context -------------------------------------------------------------------------------------------------------


def test_handlers_have_the_database_redis_and_their_place_in_the_run(world: World, checkpoint: str) -> None:
    """ctx.engine has real transactions, though the worker's own connections commit each statement."""
    world.create_items(range(1, 31))

    assert run(world, "look_around", checkpoint=checkpoint, run="a") == 0
    first = {row_id: text.split() for row_id, text in payloads(world).items()}

    assert Counter(world.seen()) == Counter(range(1, 31))  # what was not rolled back
    assert world.redis.get(f"{world.prefix}:looked") == "30"
    for row_id, (of_job, name, slot, batch, attempt, connection, should_stop, _, _) in first.items():
        assert (of_job, name, connection, should_stop) == ("look_around", "a", "None", "False")
        assert (slot, batch) == (("0", str((row_id - 1) // 10 + 1)) if row_id <= 25 else ("1", "1"))
        assert attempt == ("2" if row_id % 5 == 0 else "1")
    assert len({words[7] for words in first.values()}) == 30
    as_of = {words[8] for words in first.values()}
    assert len(as_of) == 1

    assert run(world, "look_around", checkpoint=checkpoint, run="b") == 0
    second = {row_id: text.split() for row_id, text in payloads(world).items()}

    assert {words[1] for words in second.values()} == {"b"}
    assert {row_id: words[7] for row_id, words in second.items()} == {
        row_id: words[7] for row_id, words in first.items()
    }
    assert {words[8] for words in second.values()} > set() != as_of


@pytest.mark.parametrize("name", ["in_the_transaction", "in_the_transaction_async"])
def test_a_batch_handlers_own_statements_are_in_the_transaction_of_the_checkpoint(world: World, name: str) -> None:
    """What an attempt had written before it failed is rolled back with it."""
    world.create_items(range(1, 61))

    assert run(world, name, checkpoint="database") == 0

    assert Counter(world.seen()) == Counter(range(1, 61))
    assert each_once(world)
    assert set(payloads(world).values()) == {"True"}


def test_a_batch_handler_has_no_connection_beside_a_checkpoint_in_redis(world: World) -> None:
    """It would be in no transaction, and the name would promise one."""
    world.create_items(range(1, 61))

    assert run(world, "in_the_transaction", checkpoint="redis") == 0

    assert each_once(world)
    assert set(payloads(world).values()) == {"False"}


def test_job_run_has_a_connection_for_batch_handlers_and_no_redis(world: World, engine: sqlalchemy.Engine) -> None:
    """A unit test without Redis sees at once what it cannot have."""
    world.create_items(range(1, 31))

    assert database_jobs.count_batch.run(engine).changed == 30
    assert Counter(world.seen()) == Counter(range(1, 31))
    with pytest.raises(HandlerError, match=r"there is no Redis here: Job\.run\(\) works without one"):
        database_jobs.look_around.run(engine, first_id=1, last_id=1)


# Guard -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "checkpoint"),
    [("guarded", "redis"), ("guarded", "database"), ("guarded_async", "redis"), ("guarded_part", "database")],
)
def test_a_row_that_changed_meanwhile_is_read_and_handled_again(world: World, checkpoint: str, name: str) -> None:
    """The other program's change survives, the job's is made from it; a row that is gone is no error."""
    world.create_items(range(1, 21))

    assert run(world, name, checkpoint=checkpoint) == 0

    others = set(range(1, 21)) - {CHANGED, GONE}
    assert statuses(world) == dict.fromkeys(others, 1) | {CHANGED: 1 + len("changed")}
    assert payloads(world)[CHANGED] == "changed"
    assert world.repeated() == {CHANGED}
    assert world.seen().count(CHANGED) == 2
    assert totals(world, "guarded") == {"changed": 19, "unchanged": 1}


def test_a_row_that_changes_at_every_attempt_has_failed(world: World, checkpoint: str) -> None:
    """Two programs that never agree must not keep a worker for ever."""
    world.create_items(range(1, 21))

    assert run(world, "never_the_same", checkpoint=checkpoint, attempts=3, max_failed_rows=1) == 0

    assert statuses(world) == {row_id: int(row_id != CHANGED) for row_id in range(1, 21)}
    assert world.seen().count(CHANGED) == 3
    assert world.repeated() == {CHANGED}
    found = failed(world, "never_the_same")
    assert found.keys() == {CHANGED}
    assert "changed meanwhile" in found[CHANGED]["error"]
    assert found[CHANGED]["attempts"] == 3
    assert totals(world, "never_the_same") == {"changed": 19, "failed": 1}


def test_job_run_compares_the_guard_too(
    world: World, engine: sqlalchemy.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's test of a guard must see what a worker does."""
    world.create_items(range(1, 21))
    monkeypatch.setenv("HANDLER_DATABASE_URL", world.database_url)

    summary = database_jobs.guarded.run(engine)

    handlers.connection().close()
    assert (summary.changed, summary.unchanged) == (19, 1)
    assert statuses(world)[CHANGED] == 1 + len("changed")


def test_a_guard_on_a_batch_handler_is_refused() -> None:
    """It cannot be called again for single rows; changes that are silently left out would be worse."""
    with pytest.raises(ConfigurationError, match="a batch handler is not called again for single rows"):

        @job(table="items", guard=["payload"], each="batch")
        def guarded_batch(rows: list[Row]) -> None: ...


# Rows and parts that fail ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "checkpoint", "attempts"),
    [
        ("count_row", "redis", 2),
        ("count_row", "database", 2),
        ("count_row_async", "redis", 2),
        ("count_part_by_row", "database", 1),
    ],
)
def test_failed_rows_within_the_limit_are_listed_and_passed(
    world: World, checkpoint: str, name: str, attempts: int
) -> None:
    """One bad row in a billion must not stop the run, and must not be forgotten."""
    world.create_items(range(1, 61))

    code = run(world, name, checkpoint=checkpoint, attempts=2, max_failed_rows=2, HANDLER_FAIL="36-37")

    assert code == 0
    assert statuses(world) == {row_id: int(row_id not in (36, 37)) for row_id in range(1, 61)}
    found = failed(world, "count")
    assert found.keys() == {36, 37}
    assert {record["error"] for record in found.values()} == {"ValueError: bad row"}
    assert {record["attempts"] for record in found.values()} == {attempts}
    assert totals(world, "count") == {"changed": 58, "failed": 2}
    if checkpoint == "database":
        assert [int(row[0]) for row in world.sql("SELECT id FROM shardworker_failed ORDER BY id")] == [36, 37]


@pytest.mark.parametrize(
    ("name", "checkpoint"), [("count_row", "redis"), ("count_row", "database"), ("count_part_by_row", "database")]
)
def test_a_failed_row_beyond_the_limit_parks_its_slot_just_before_it(world: World, checkpoint: str, name: str) -> None:
    """The others go on; whoever starts next, goes on at the row. With the database, no change is made twice."""
    world.create_items(range(1, 101))

    pod = start(world, name, checkpoint=checkpoint, attempts=2, max_failed_rows=1, HANDLER_FAIL="36-37")

    assert pod.wait() == 65, pod.text()
    assert "MAX_FAILED_ROWS" in pod.text()
    assert world.checkpoint(1, "count") == 36
    assert failed(world, "count").keys() == {36}
    assert {slot: world.checkpoint(slot, "count") for slot in (0, 2, 3)} == {0: 25, 2: 75, 3: 100}
    assert world.lease(1, "count") is None
    if checkpoint == "database":  # what lies beyond the checkpoint was rolled back
        assert {row_id for row_id, status in statuses(world).items() if not status} == set(range(36, 51))

    assert run(world, name, checkpoint=checkpoint, attempts=2, max_failed_rows=1, HANDLER_FAIL="37") == 65
    assert world.checkpoint(1, "count") == 36

    assert run(world, name, checkpoint=checkpoint, attempts=2, max_failed_rows=1) == 0
    assert failed(world, "count").keys() == {36}
    after = statuses(world)
    assert after.pop(36) == 0
    if checkpoint == "database":
        assert set(after.values()) == {1}
    else:
        assert {row_id for row_id, status in after.items() if status != 1} <= set(range(38, 51))
        assert min(after.values()) == 1
    counted = totals(world, "count")
    assert counted == {"changed": 99, "failed": 1}


@pytest.mark.parametrize("name", ["count_part", "count_batch"])
def test_a_part_that_fails_parks_its_slot_and_the_next_start_goes_on(world: World, checkpoint: str, name: str) -> None:
    """The whole part is left for a person; nothing before it is repeated, nothing beyond it forgotten."""
    world.create_items(range(1, 101))

    pod = start(world, name, checkpoint=checkpoint, attempts=2, HANDLER_FAIL="38")

    assert pod.wait() == 65, pod.text()
    assert world.checkpoint(1, "count") == 35
    assert {slot: world.checkpoint(slot, "count") for slot in (0, 2, 3)} == {0: 25, 2: 75, 3: 100}
    assert not failed(world, "count")
    assert "bad row" in pod.text()

    assert run(world, name, checkpoint=checkpoint, attempts=2) == 0

    after = statuses(world)
    if checkpoint == "database":
        assert set(after.values()) == {1}
    else:
        assert {row_id for row_id, status in after.items() if status != 1} <= set(range(36, 51))
        assert min(after.values()) == 1
    if checkpoint == "redis" and name == "count_part":
        assert set(world.seen()) == set(range(1, 101))
        assert world.repeated() <= set(range(36, 51))
    assert totals(world, "count") == {"changed": 100}


@pytest.mark.parametrize(
    ("name", "checkpoint", "words"),
    [
        ("unknown_column", "redis", "no such column (did you mean 'status'?)"),
        ("the_key", "database", "the handler changes the key 'id'"),
        ("not_a_mapping", "redis", "the handler returned a int"),
        ("strangers", "redis", "ids that it was not given"),
        ("skip_of_a_part", "database", "all of it"),
        ("too_long", "redis", "the database refuses a value"),
        ("too_long", "database", "the database refuses a value"),
    ],
)
def test_what_no_handler_may_return_is_said_and_nothing_is_written(
    world: World, engine: sqlalchemy.Engine, checkpoint: str, name: str, words: str
) -> None:
    """A slip in the function is told in its own terms, by a worker and by Job.run alike."""
    world.create_items(range(1, 21))

    pod = start(world, name, checkpoint=checkpoint, attempts=1)

    assert pod.wait() == 65, pod.text()
    assert [line for line in pod.lines() if words in " ".join(map(str, line.values()))], pod.text()
    assert set(stored(world).values()) == {(0, "")}
    assert len(statuses(world)) == 20
    with pytest.raises(HandlerError) as caught:
        getattr(database_jobs, name).run(engine)
    assert words in str(caught.value)
    assert set(stored(world).values()) == {(0, "")}


# Beginnings and ends -----------------------------------------------------------------------------------------------


def test_a_run_over_an_empty_table_is_complete_and_stays_so(world: World, checkpoint: str) -> None:
    """No row is a finished run, not an error; rows that come later are another run's."""
    world.create_items()

    assert run(world, "count_row", checkpoint=checkpoint) == 0
    world.add_items(range(1, 11))
    pod = start(world, "count_row", checkpoint=checkpoint)

    assert pod.wait() == 0
    assert "nothing to do: run main of count is complete" in pod.text() or "outside the run's bounds" in pod.text()
    assert not world.seen()


def test_a_second_start_of_a_finished_run_does_nothing(world: World, checkpoint: str) -> None:
    """A Job that Kubernetes starts again must not do the table again."""
    world.create_items(range(1, 31))
    assert run(world, "count_row", checkpoint=checkpoint) == 0

    assert run(world, "count_row", checkpoint=checkpoint) == 0

    assert each_once(world)
    assert not world.repeated()


@pytest.mark.parametrize(
    ("name", "checkpoint"), [("count_row", "redis"), ("count_row_async", "database"), ("count_part", "redis")]
)
def test_sigterm_drains_and_nothing_is_repeated(world: World, checkpoint: str, name: str) -> None:
    """A rolling update costs nothing: what was begun is finished and saved, and the successor needs no time-out."""
    _stop_on_the_way(world, signal.SIGTERM, 143, name=name, checkpoint=checkpoint)


def test_ctrl_c_drains_and_nothing_is_repeated(world: World) -> None:
    """A person at a terminal loses nothing either."""
    _stop_on_the_way(world, signal.SIGINT, 130, name="count_row", checkpoint="redis")


def _stop_on_the_way(world: World, number: signal.Signals, code: int, *, name: str, checkpoint: str) -> None:
    world.create_items(range(1, 201))
    settings: dict[str, object] = {"checkpoint": checkpoint, "slot_size": 100, "HANDLER_ROW_S": 0.02}
    pod = start(world, name, **settings)
    wait_until(lambda: len(world.seen()) >= 30, "thirty rows handled")
    pod.send(number)

    assert pod.wait() == code, pod.text()
    handled = world.seen()
    assert len(handled) < 200
    assert len(handled) == sum(statuses(world).values())
    assert world.checkpoint(0, "count") == max(row_id for row_id in handled if row_id <= 100)

    assert world.lease(0, "count") is None, "the slot is given back: nobody waits for the lease to end"

    assert run(world, name, **settings | {"HANDLER_ROW_S": 0}) == 0
    assert Counter(world.seen()) == Counter(range(1, 201))
    assert each_once(world)


def test_rows_that_outlast_grace_are_left_and_the_process_ends(world: World, checkpoint: str) -> None:
    """A handler that hangs must not keep the pod until Kubernetes kills it; the successor does its rows."""
    world.create_items(range(1, 41))
    gate = world.folder / "gate"
    settings = {"checkpoint": checkpoint, "part_size": 1, "HANDLER_GATE": gate, "HANDLER_GATE_FROM": 4}
    pod = start(world, "at_the_gate", grace="300ms", **settings)
    wait_until(lambda: {4, 5, 6, 7} <= set(world.seen()), "all four threads hang")
    pod.terminate()

    assert pod.wait(15) == 143, pod.text()  # not the minute that its rows would take
    assert world.checkpoint(0, "at_the_gate") == 3
    assert world.lease(0, "at_the_gate") is None
    assert sum(statuses(world).values()) == 3

    gate.touch()
    assert run(world, "at_the_gate", **settings) == 0
    assert each_once(world)
    assert world.repeated() == {4, 5, 6, 7}


def test_a_long_handler_is_told_that_its_result_is_not_wanted(world: World, checkpoint: str) -> None:
    """should_stop comes when GRACE is over, and what is returned then is written by nobody."""
    world.create_items(range(1, 3))
    pod = start(world, "until_told", checkpoint=checkpoint, grace="300ms", part_size=1)
    wait_until(lambda: {1, 2} <= set(world.seen()), "both rows are at work")
    pod.terminate()

    assert pod.wait() == 143, pod.text()
    wait_until(lambda: {-1, -2} <= set(world.seen()), "both handlers were told")
    assert world.checkpoint(0, "until_told") == -1
    assert set(statuses(world).values()) == {0}
