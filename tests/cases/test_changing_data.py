"""Cases 10-12: the table changes while it is worked on."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
from collections import Counter
from collections.abc import Callable

import pytest
import sqlalchemy
from sqlalchemy.pool import NullPool

from shardworker.process import ledger
from tests.harness import World, wait_until


@pytest.mark.parametrize("database", ["mariadb", "mysql", "postgres", "sqlite"])
def test_case_10_a_handler_may_change_the_column_that_the_filter_uses(
    make_world: Callable[..., World], database: str
) -> None:
    """Pages by offset would skip rows as the handled ones leave the filter; pages by key do not, also over a kill."""
    world = make_world(database)
    world.create_items(range(1, 1001))
    settings = {"slot_size": 500, "batch_size": 70, "parallelism": 4, "lease": "4s"}
    pods = [world.start("tests.handlers:set_status_of_new", HANDLER_ROW_S=0.02, **settings)]
    slot = int(wait_until(lambda: world.slot_of(pods[0]), "a claim"))
    pods.append(world.start("tests.handlers:set_status_of_new", HANDLER_ROW_S=0.02, **settings))
    third_batch_ends = slot * 500 + 3 * 70
    wait_until(lambda: world.checkpoint(slot) >= third_batch_ends, "three batches done", every=0.005)
    pods[0].kill()
    position = world.checkpoint(slot)
    again = world.start("tests.handlers:set_status_of_new", **settings)

    assert [again.wait(), pods[1].wait()] == [0, 0]
    assert position < (slot + 1) * 500, "it was killed too late to show anything"
    assert world.sql("SELECT COUNT(*) FROM items WHERE status = 0")[0][0] == 0
    assert set(world.seen()) == set(range(1, 1001))
    assert world.repeated() <= set(range(position + 1, position + 2 * 70 + 1))


@pytest.mark.parametrize("database", ["mariadb", "postgres"])
def test_case_11_rows_may_disappear_while_they_are_processed(make_world: Callable[..., World], database: str) -> None:
    """The row at the saved position is gone: the position is a number to be above, not a row to be found."""
    world = make_world(database)
    world.create_items(range(1, 1001))
    settings = {"slot_size": 250, "batch_size": 50, "lease": "4s"}
    pod = world.start("tests.handlers:delete", HANDLER_ROW_S=0.01, **settings)

    wait_until(lambda: world.checkpoint(1) >= 350, "two batches of the second slot done", every=0.005)
    pod.kill()
    position = world.checkpoint(1)
    assert position < 500, "it was killed too late to show anything"
    assert world.sql("SELECT COUNT(*) FROM items WHERE id = :position", position=position)[0][0] == 0
    left = world.sql("SELECT id FROM items WHERE id > :position ORDER BY id LIMIT 10", position=position)
    by_hand = {int(row[0]) for row in left}
    world.sql(f"DELETE FROM items WHERE id IN ({','.join(map(str, by_hand))})")
    seen_before = set(world.seen())
    again = world.start("tests.handlers:delete", **settings)

    assert again.wait() == 0
    assert world.sql("SELECT COUNT(*) FROM items")[0][0] == 0
    assert set(world.seen()) == set(range(1, 1001)) - (by_hand - seen_before)
    assert world.repeated() <= set(range(position + 1, position + 2 * 50 + 1))
    assert {line["level"] for line in again.lines()} == {"INFO"}


IDLE_IN_TRANSACTION = """SELECT t.trx_mysql_thread_id, t.trx_started FROM information_schema.innodb_trx t
    JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id WHERE p.db = :name AND p.command = 'Sleep'"""


@pytest.mark.parametrize("checkpoint", ["redis", "database"])
@pytest.mark.parametrize("database", ["mariadb", "mysql"])
def test_case_12_no_transaction_stays_open_and_later_rows_are_seen(
    make_world: Callable[..., World], database: str, checkpoint: str
) -> None:
    """A reader inside of one transaction (REPEATABLE READ is the default) would never see rows committed later.

    The handler pauses 0.6 s for each batch. A transaction counts as open if two looks 0.3 s apart find it on a
    connection that does nothing: the server refreshes its list ten times a second, so one look may be outdated.
    """
    world = make_world(database)
    world.create_items(range(1, 601))
    for statement in ledger.ddl(world.engine):
        world.sql(statement)
    name = world.engine.url.database

    def idle_in_transaction() -> set[tuple[object, ...]]:
        return {tuple(row) for row in world.sql(IDLE_IN_TRANSACTION, name=name)}

    pod = world.start(
        "tests.handlers:record_part",
        last_id=800,
        slot_size=800,
        batch_size=100,
        part_size=100,
        checkpoint=checkpoint,
        HANDLER_ROW_S=0.006,
    )
    wait_until(world.seen, "the first batch is in the handler")
    world.add_items(range(601, 801))
    assert world.checkpoint(0) < 300, "the rows came too late to show anything"
    looks: list[set[tuple[object, ...]]] = []
    while pod.is_running:
        looks.append(idle_in_transaction())
        with contextlib.suppress(subprocess.TimeoutExpired):
            pod.process.wait(0.3)

    assert pod.wait() == 0
    assert Counter(world.seen()) == Counter(range(1, 801))
    assert len(looks) >= 6
    assert not [both for both in (a & b for a, b in itertools.pairwise(looks)) if both]

    engine = sqlalchemy.create_engine(world.database_url, poolclass=NullPool)
    with engine.begin() as connection:  # the look itself can see one
        connection.execute(sqlalchemy.text("SELECT * FROM items LIMIT 1")).all()
        wait_until(idle_in_transaction, "a transaction left open on purpose is seen", seconds=5)
