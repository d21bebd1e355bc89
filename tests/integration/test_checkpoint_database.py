"""checkpoint="database": the fence, commits in doubt, and whole workers that are killed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from sqlalchemy import Connection, Engine, text

from shardworker.errors import ConfigurationError, DatabaseUnavailable, Exit
from shardworker.ids import IdRange
from shardworker.outcomes import FailedRow
from shardworker.process.database import open_engine, passing_code
from shardworker.process.ledger import Fence, FencedOut, Ledger, ddl
from shardworker.process.parts import Done, Handled, Part
from shardworker.retry import Patience
from tests import services
from tests.commits import CommitProxy, Fate
from tests.harness import World, wait_until

SLOT = IdRange(1, 100)
MakeLedger = Callable[..., Ledger]


@pytest.fixture(params=["mariadb", "mysql", "postgres", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database with the tables of the checkpoint, and `items` with a counter for each id."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/data.db"
    else:
        url = services.fresh_database(services.get(request.param))
    engine = open_engine(url)
    with engine.connect() as connection:
        for statement in ddl(engine):
            connection.exec_driver_sql(statement)
        connection.exec_driver_sql("CREATE TABLE items (id BIGINT NOT NULL PRIMARY KEY, n INT NOT NULL)")
        connection.exec_driver_sql(f"INSERT INTO items VALUES {','.join(f'({n}, 0)' for n in range(1, 101))}")
    engine.dispose()
    yield url
    if request.param != "sqlite":
        services.drop_database(url)


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = open_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def make_ledger(engine: Engine) -> MakeLedger:
    """A worker's ledger; all of one run unless another name is given."""

    def make(engine: Engine = engine, run: str = "t:job/main") -> Ledger:
        patience = Patience(
            target="database",
            setting="SHARDWORKER_DATABASE_URL",
            code_of=passing_code,
            error=DatabaseUnavailable,
            retry_for_s=60,
        )
        return Ledger(engine, run, patience, owner="pod-1/7")

    return make


@pytest.fixture
def ledger(make_ledger: MakeLedger) -> Ledger:
    ledger = make_ledger()
    ledger.remember_run("{}")
    return ledger


def failed_row(row_id: int) -> FailedRow:
    return FailedRow(row_id=row_id, error="ValueError: bad row", attempts=3, at="2026-01-01T00:00:00+00:00")


def done(ids: Sequence[int], failed: Sequence[int] = ()) -> Done:
    handled = Handled(changes={i: {"n": 1} for i in ids if i not in failed}, failed={i: failed_row(i) for i in failed})
    return Done([Part(1, ids, [], True, 0.0, handled)])


def count_up(ids: Sequence[int], failed: Sequence[int] = ()) -> Callable[[Connection], Done]:
    """The work of one batch: adds 1 to the counter of each id."""

    def work(connection: Connection) -> Done:
        connection.execute(text(f"UPDATE items SET n = n + 1 WHERE id BETWEEN {min(ids)} AND {max(ids)}"))
        return done(ids, failed)

    return work


def commit(ledger: Ledger, fence: Fence, ids: Sequence[int], failed: Sequence[int] = (), most_failed: int = 0) -> Fence:
    answer = ledger.commit(fence, count_up(ids, failed), most_failed=most_failed)
    assert not isinstance(answer, int), answer
    return answer[0]


def counters(engine: Engine) -> set[tuple[int, int]]:
    """Each counter that is not 0."""
    with engine.connect() as connection:
        return {(int(i), int(n)) for i, n in connection.execute(text("SELECT id, n FROM items WHERE n <> 0"))}


def stored(ledger: Ledger) -> Fence:
    """The slot as the next holder would find it; that raises its epoch."""
    return ledger.claim("0", SLOT)


# Claiming -------------------------------------------------------------------------------------------------------------
def test_a_first_claim_finds_nothing_done(ledger: Ledger) -> None:
    fence = ledger.claim("0", SLOT)

    assert (fence.epoch, fence.seq, fence.bounds, fence.last_id) == (1, 0, SLOT, None)
    assert not fence.is_done
    assert fence.tally.rows == 0


def test_each_claim_raises_the_epoch_and_finds_what_was_committed(ledger: Ledger) -> None:
    first = commit(ledger, ledger.claim("0", SLOT), range(1, 11))

    second = ledger.claim("0", IdRange(1, 999))

    assert second.epoch == first.epoch + 1
    assert (second.last_id, second.seq, second.tally.changed) == (10, 1, 10)
    assert second.bounds == SLOT  # as it was claimed first: the database is right


def test_a_claim_waits_for_the_commit_in_flight_and_finds_what_it_left(
    ledger: Ledger, make_ledger: MakeLedger, url: str
) -> None:
    """The old holder is slow, not dead: its successor must not begin at an older mark than it leaves."""
    fence = ledger.claim("0", SLOT)
    begun, go_on = threading.Event(), threading.Event()

    def slow(connection: Connection) -> Done:
        result = count_up(range(1, 11))(connection)
        begun.set()
        assert go_on.wait(30)
        return result

    other_engine = open_engine(url)
    with ThreadPoolExecutor(2) as threads:
        old = threads.submit(ledger.commit, fence, slow, most_failed=0)
        assert begun.wait(30)
        new = threads.submit(make_ledger(other_engine).claim, "0", SLOT)
        assert not old.done()
        go_on.set()

        assert not isinstance(old.result(), int)
        assert new.result().last_id == 10
    other_engine.dispose()


def test_slots_are_claimed_side_by_side_without_an_error(ledger: Ledger) -> None:
    """First claims insert neighbouring rows: locks on the gaps between them would meet."""
    with ThreadPoolExecutor(4) as threads:
        fences = list(threads.map(lambda n: ledger.claim(str(n), IdRange(n, n)), range(60)))

    assert {fence.slot for fence in fences} == {str(n) for n in range(60)}
    assert all(fence.epoch == 1 for fence in fences)


# Committing -----------------------------------------------------------------------------------------------------------
def test_changes_and_checkpoint_are_committed_together(ledger: Ledger, engine: Engine) -> None:
    fence = commit(ledger, ledger.claim("0", SLOT), range(1, 11))
    fence = commit(ledger, fence, range(11, 21))

    assert counters(engine) == {(n, 1) for n in range(1, 21)}
    assert (fence.last_id, fence.seq, fence.tally.changed) == (20, 2, 20)
    found = stored(ledger)
    assert (found.last_id, found.seq, found.tally) == (20, 2, fence.tally)


def test_a_stale_holder_changes_nothing(ledger: Ledger, engine: Engine) -> None:
    """It was frozen beyond its lease, somebody else has the slot, and it wakes up with a batch in hand."""
    stale = commit(ledger, ledger.claim("0", SLOT), range(1, 11))
    ledger.claim("0", SLOT)

    with pytest.raises(FencedOut):
        commit(ledger, stale, range(11, 21))
    with pytest.raises(FencedOut):
        ledger.finish(stale)

    assert counters(engine) == {(n, 1) for n in range(1, 11)}
    assert stored(ledger).last_id == 10
    assert not stored(ledger).is_done


def test_the_same_batch_is_not_committed_twice(ledger: Ledger, engine: Engine) -> None:
    fence = ledger.claim("0", SLOT)
    commit(ledger, fence, range(1, 11))

    with pytest.raises(FencedOut):
        commit(ledger, fence, range(1, 11))

    assert counters(engine) == {(n, 1) for n in range(1, 11)}


def test_work_that_fails_leaves_nothing_and_may_be_done_again(ledger: Ledger, engine: Engine) -> None:
    fence = ledger.claim("0", SLOT)

    def fail(connection: Connection) -> Done:
        count_up(range(1, 11))(connection)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ledger.commit(fence, fail, most_failed=0)

    assert counters(engine) == set()
    assert commit(ledger, fence, range(1, 11)).last_id == 10


def test_a_finished_slot_is_found_done(ledger: Ledger) -> None:
    fence = commit(ledger, ledger.claim("0", SLOT), range(1, 101))

    assert ledger.finish(fence).is_done
    assert stored(ledger).is_done


def test_ids_are_exact_up_to_the_largest(ledger: Ledger, engine: Engine) -> None:
    largest = 2**64 - 1 if engine.dialect.name == "mysql" else 2**63 - 1  # of the types that a key may have
    for slot, bounds in {"0": IdRange(largest - 9, largest), "1": IdRange(-(2**63), -(2**63) + 9)}.items():
        fence = ledger.claim(slot, bounds)
        batch = done([bounds.last - 1, bounds.last], failed=[bounds.last])
        assert ledger.commit(fence, lambda _: batch, most_failed=2) != 0  # noqa: B023

        found = ledger.claim(slot, bounds)

        assert (found.bounds, found.last_id) == (bounds, bounds.last)
        assert [row.row_id for row in ledger.failed(bounds)] == [bounds.last]


# Failed rows ----------------------------------------------------------------------------------------------------------
def test_failed_rows_are_listed_with_the_checkpoint_that_moves_over_them(ledger: Ledger) -> None:
    fence = commit(ledger, ledger.claim("0", SLOT), range(1, 11), failed=[4, 7], most_failed=2)

    assert ledger.failed() == [failed_row(4), failed_row(7)]
    assert (fence.tally.changed, fence.tally.failed) == (8, 2)
    assert ledger.failed(IdRange(5, 10)) == [failed_row(7)]


def test_too_many_failed_rows_and_nothing_is_written(ledger: Ledger, engine: Engine) -> None:
    fence = commit(ledger, ledger.claim("0", SLOT), range(1, 11), failed=[4, 7], most_failed=3)

    room = ledger.commit(fence, count_up(range(11, 21), [15, 16]), most_failed=3)

    assert room == 1
    assert counters(engine) == {(n, 1) for n in range(1, 11)}
    assert len(ledger.failed()) == 2
    assert commit(ledger, fence, range(11, 16), [15], most_failed=3).last_id == 15


def test_a_row_that_is_listed_already_takes_no_more_room(ledger: Ledger) -> None:
    commit(ledger, ledger.claim("0", SLOT), range(1, 11), failed=[4], most_failed=1)

    fence = commit(ledger, ledger.claim("1", SLOT), range(1, 11), failed=[4], most_failed=1)

    assert fence.tally.failed == 1
    assert ledger.failed() == [failed_row(4)]


def test_of_two_workers_one_gets_the_last_place_for_a_failed_row(ledger: Ledger) -> None:
    """MAX_FAILED_ROWS is the run's, not a worker's."""
    fences = [ledger.claim(str(n), IdRange(10 * n + 1, 10 * n + 10)) for n in range(3)]
    together = threading.Barrier(3)

    def compete(n: int) -> int | tuple[Fence, Done]:
        together.wait(30)
        ids = range(10 * n + 1, 10 * n + 11)
        return ledger.commit(fences[n], count_up(ids, [ids[0]]), most_failed=1)

    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(compete, range(3)))

    assert sorted(isinstance(answer, int) for answer in answers) == [False, True, True]
    assert [answer for answer in answers if isinstance(answer, int)] == [0, 0]
    assert len(ledger.failed()) == 1


def test_settled_rows_leave_the_list_with_the_changes_that_were_made(ledger: Ledger, engine: Engine) -> None:
    commit(ledger, ledger.claim("0", SLOT), range(1, 11), failed=[4, 7, 9], most_failed=3)

    again = replace(failed_row(9), error="KeyError: 'email'")

    def handle_again(connection: Connection) -> list[FailedRow]:
        count_up([4])(connection)
        return [again]

    assert ledger.settle([4, 9], handle_again) == {4, 9}

    assert ledger.failed() == [failed_row(7), again]
    assert (4, 2) in counters(engine)


def test_rows_that_were_settled_already_are_not_handled_again(ledger: Ledger, engine: Engine) -> None:
    """The reply to the COMMIT was lost: the call that is repeated finds them off the list."""
    commit(ledger, ledger.claim("0", SLOT), range(1, 11), failed=[4, 7], most_failed=3)
    ledger.settle([4], lambda connection: count_up([4])(connection).failed())

    assert ledger.settle([4], lambda connection: count_up([4])(connection).failed()) == set()
    assert (4, 2) in counters(engine)


# Commits in doubt -----------------------------------------------------------------------------------------------------
on_servers = pytest.mark.parametrize("url", ["mariadb", "mysql", "postgres"], indirect=True)  # SQLite has no reply


@pytest.fixture
def proxy(url: str) -> Iterator[CommitProxy]:
    with CommitProxy(url) as proxy:
        yield proxy


@pytest.fixture
def shaky(proxy: CommitProxy, make_ledger: MakeLedger) -> Iterator[Ledger]:
    """A ledger behind the proxy."""
    engine = open_engine(proxy.url)
    yield make_ledger(engine)
    engine.dispose()


@on_servers
@pytest.mark.parametrize("fate", get_args(Fate))
def test_a_commit_in_doubt_happens_once(
    ledger: Ledger, shaky: Ledger, proxy: CommitProxy, engine: Engine, fate: Fate
) -> None:
    """The connection is gone and nobody said whether it happened: it is neither lost nor done twice."""
    fence = shaky.claim("0", SLOT)
    proxy.meddle(fate)

    fence = commit(shaky, fence, range(1, 11))

    assert proxy.caught == 1
    assert counters(engine) == {(n, 1) for n in range(1, 11)}
    assert (fence.last_id, fence.seq) == (10, 1)
    fence = commit(shaky, fence, range(11, 21))
    assert counters(engine) == {(n, 1) for n in range(1, 21)}
    assert stored(ledger).last_id == 20


@on_servers
@pytest.mark.parametrize("fate", get_args(Fate))
def test_a_finish_in_doubt_happens_once(ledger: Ledger, shaky: Ledger, proxy: CommitProxy, fate: Fate) -> None:
    fence = commit(shaky, shaky.claim("0", SLOT), range(1, 11))
    proxy.meddle(fate)

    finished = shaky.finish(fence)

    assert proxy.caught == 1
    assert finished.is_done
    assert (stored(ledger).is_done, stored(ledger).seq) == (True, finished.seq)


@on_servers
def test_a_commit_in_doubt_is_given_up_when_another_has_claimed_the_slot(
    ledger: Ledger, shaky: Ledger, proxy: CommitProxy, engine: Engine
) -> None:
    """Whoever comes after knows how far the slot is; the old holder must not do anything about it."""
    fence = shaky.claim("0", SLOT)
    with ThreadPoolExecutor(1) as threads:
        proxy.meddle("done, reply lost", meanwhile=lambda: threads.submit(ledger.claim, "0", SLOT).result())

        with pytest.raises(FencedOut):
            commit(shaky, fence, range(1, 11))

    assert counters(engine) == {(n, 1) for n in range(1, 11)}
    assert stored(ledger).last_id == 10


# The run --------------------------------------------------------------------------------------------------------------
def test_the_first_copy_of_the_runs_meta_is_kept(ledger: Ledger, make_ledger: MakeLedger) -> None:
    """Whoever creates the run again after a loss of Redis gets the bounds of the first."""
    other = make_ledger(run="t:job/other")

    assert other.remember_run("first") == "first"
    assert other.remember_run("second") == "first"


def test_runs_are_told_apart_by_bytes(ledger: Ledger, make_ledger: MakeLedger) -> None:
    """In the usual collations of MySQL, Main and main are one name."""
    upper = make_ledger(run="t:job/MAIN")
    commit(ledger, ledger.claim("0", SLOT), range(1, 11))

    assert upper.claim("0", SLOT).last_id is None
    assert upper.remember_run("upper") == "upper"


def test_forgetting_a_run_leaves_the_others(ledger: Ledger, make_ledger: MakeLedger) -> None:
    other = make_ledger(run="t:job/other")
    commit(other, other.claim("0", SLOT), range(1, 11), failed=[3], most_failed=1)
    commit(ledger, ledger.claim("0", SLOT), range(11, 21), failed=[13], most_failed=1)

    ledger.forget_run()

    assert ledger.failed() == []
    assert stored(ledger).last_id is None
    assert other.claim("0", SLOT).last_id == 10
    assert other.failed() == [failed_row(3)]


def test_missing_tables_are_named_with_the_command_that_makes_them(ledger: Ledger, engine: Engine) -> None:
    ledger.check_tables()
    with engine.connect() as connection:
        connection.exec_driver_sql("DROP TABLE shardworker_failed")

    with pytest.raises(ConfigurationError, match=r"shardworker_failed.*shardworker ddl"):
        ledger.check_tables()


# Whole workers --------------------------------------------------------------------------------------------------------
MORE = {"checkpoint": "database", "lease": "3s", "HANDLER_ROW_S": 0.002}


@pytest.fixture(params=["mariadb", "postgres"])
def counting(request: pytest.FixtureRequest, make_world: Callable[..., World]) -> World:
    """2,000 rows whose status counts how often they were changed."""
    world = make_world(database=request.param)
    world.create_items(range(1, 2001))
    for statement in ddl(world.engine):
        world.sql(statement)
    return world


def counted(world: World) -> int:
    return int(world.sql("SELECT SUM(status) FROM items")[0][0])


def test_no_row_is_changed_twice_although_workers_are_killed(counting: World) -> None:
    """SIGKILL at any moment, also between the commit and the save in Redis: each change is made exactly once."""
    for goal in (300, 800, 1300):
        pod = counting.start("tests.handlers:count_up", **MORE)
        wait_until(lambda: counted(counting) >= goal or not pod.is_running, f"{goal} rows are changed")  # noqa: B023
        pod.kill()

    assert counting.run("tests.handlers:count_up", **MORE) == Exit.COMPLETE

    assert counting.sql("SELECT status, COUNT(*) FROM items GROUP BY status") == [(1, 2000)]
    assert counting.redis.hget(counting.key("totals"), "changed") == "2000"


def test_a_run_goes_on_from_the_database_after_redis_lost_everything(counting: World) -> None:
    """A worker that sees it ends with 75: start again. The next one creates the run from the database's row."""
    pod = counting.start("tests.handlers:count_up", **MORE)
    wait_until(lambda: counted(counting) >= 500, "500 rows are changed")
    wiped = sorted(counting.keys())
    segments = counting.redis.hget(counting.key("meta"), "segments")
    counting.redis.delete(*wiped)
    assert pod.wait() == Exit.TRY_AGAIN
    before = counted(counting)
    assert before < 2000
    counting.add_items(range(2001, 2101))  # beyond the bounds of the run

    assert counting.run("tests.handlers:count_up", **MORE) == Exit.COMPLETE

    assert counting.redis.hget(counting.key("meta"), "segments") == segments
    assert counting.sql("SELECT status, COUNT(*) FROM items GROUP BY status ORDER BY status") == [(0, 100), (1, 2000)]
    assert counting.redis.hget(counting.key("totals"), "changed") == "2000"


def test_what_failed_before_redis_was_lost_is_listed_again(counting: World) -> None:
    failing: dict[str, Any] = MORE | {"HANDLER_FAIL": "57", "max_failed_rows": 5, "attempts": 1}
    pod = counting.start("tests.handlers:count_up", **failing)
    wait_until(lambda: counted(counting) >= 300, "the failing row is behind")
    pod.kill()
    counting.redis.delete(*counting.keys())

    assert counting.run("tests.handlers:count_up", **failing) == Exit.COMPLETE

    assert list(counting.failed()) == [57]
    assert counting.redis.hget(counting.key("totals"), "failed") == "1"
    assert counted(counting) == 1999
