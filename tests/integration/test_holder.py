"""A holder whose answers get lost, on a real Redis: what was done is not done twice, and not forgotten."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from shardworker.claim.board import Board, Claimed, OtherEnd, Picked, TooManyFailed
from shardworker.claim.connect import connect
from shardworker.claim.holder import Holder
from shardworker.claim.keys import Keys
from shardworker.claim.lease import Lease
from shardworker.claim.slots import SlotMap
from shardworker.errors import LeaseLost
from shardworker.events import Event, Retrying
from shardworker.ids import IdRange
from shardworker.outcomes import FailedRow, Tally
from tests import services
from tests.fakes import FakeClock, LossyClient

TTL_S = 30.0
SLOTS = SlotMap.even(IdRange(1, 200), 100)


class QuickClock(FakeClock):
    """Time that passes when somebody waits for it, and only then."""

    def wait(self, stop: Any, seconds: float) -> bool:
        self.move(seconds)
        return bool(stop.is_set())


class Scene:
    """Two slots of a hundred ids; holders send through a client that can lose what they send."""

    def __init__(self, url: str) -> None:
        self.redis: Any = connect(url, timeout_s=10)
        self.client = LossyClient(self.redis)
        self.board = Board(self.client, Keys(f"t{secrets.token_hex(6)}", "job", "main"))  # type: ignore[arg-type]
        self.keys = self.board.keys
        self.clock = QuickClock()
        self.events: list[Event] = []
        self.board.create({"segments": SLOTS.encode(), "slots": str(SLOTS.slots)})

    def holder(self, most_failed: int = 0) -> Holder:
        picked = self.board.pick(provisional_ms=10_000, keep_ms=10_000)
        assert isinstance(picked, Picked)
        claimed = self.board.try_claim(
            picked,
            token=secrets.token_hex(16),
            ttl_ms=round(TTL_S * 1000),
            bounds=SLOTS.range_of(int(picked.slot)),
            owner="pod-1/7",
            attempts=5,
        )
        assert isinstance(claimed, Claimed)
        self.client.sent = 0
        return Holder(
            self.board,
            claimed,
            Lease(claimed.slot, claimed.token, ttl_s=TTL_S, sent_at=self.clock.now(), clock=self.clock),
            most_failed=most_failed,
            clock=self.clock,
            emit=self.events.append,
        )

    def stored(self, field: str, slot: str = "0") -> str | None:
        found: str | None = self.redis.hget(self.keys.slot(slot), field)
        return found


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene(services.get("redis").url)
    yield scene
    for key in scene.redis.scan_iter(f"{scene.keys.prefix}:*", count=1000):
        scene.redis.delete(key)
    scene.redis.close()


def rows(n: int) -> Tally:
    return Tally(changed=n)


def failed_row(row_id: int) -> FailedRow:
    return FailedRow(row_id=row_id, error="ValueError: bad row", attempts=3, at="2026-01-01T00:00:00+00:00")


def lose_answers(scene: Scene, times: int) -> None:
    scene.client.answers_to_lose = times


def lose_requests(scene: Scene, times: int) -> None:
    scene.client.requests_to_lose = times


Lose = Callable[[Scene, int], None]
either_way = pytest.mark.parametrize("lose", [lose_answers, lose_requests])


@either_way
def test_a_save_without_an_answer_is_repeated_and_counted_once(scene: Scene, lose: Lose) -> None:
    holder = scene.holder()
    lose(scene, 3)

    holder.save(40, rows(40), [])

    assert scene.client.sent == 4
    assert (scene.stored("last_id"), scene.stored("seq")) == ("40", "1")
    assert scene.board.totals() == {"changed": 40}
    assert (holder.last_id, holder.tally.changed) == (40, 40)
    assert [event.attempt for event in scene.events if isinstance(event, Retrying)] == [1, 2, 3]


@either_way
def test_the_numbers_go_on_after_a_repeat(scene: Scene, lose: Lose) -> None:
    holder = scene.holder()
    lose(scene, 1)
    holder.save(40, rows(40), [])
    holder.save(60, rows(20), [])
    lose(scene, 1)

    assert holder.finish(100, rows(40), [], jump_to=None) is None

    assert scene.board.totals() == {"changed": 100}
    assert Tally.decode(scene.redis.hget(scene.keys["done"], "0").split()[2]) == rows(100)


@either_way
def test_a_finish_without_an_answer_is_repeated_and_counted_once(scene: Scene, lose: Lose) -> None:
    """The slot and its lease are gone by the time of the repeat: the ledger knows who finished it."""
    holder = scene.holder()
    lose(scene, 2)

    assert holder.finish(100, rows(100), [], jump_to=None) is None

    assert scene.board.totals() == {"changed": 100}
    assert scene.redis.hlen(scene.keys["done"]) == 1


@either_way
@pytest.mark.parametrize("how", ["release", "park"])
def test_a_slot_given_back_without_an_answer_is_given_back_once(scene: Scene, lose: Lose, how: Any) -> None:
    holder = scene.holder()
    lose(scene, 2)

    assert holder.give_back(how, 40, rows(40), [], why="drained") is None

    assert scene.board.totals() == {"changed": 40}
    assert scene.redis.zrange(scene.keys["ready" if how == "release" else "parked"], 0, -1) == ["0"]
    assert scene.redis.llen(scene.keys["wake"]) == 1


def test_a_save_that_was_repeated_is_trusted_from_its_first_request_on(scene: Scene) -> None:
    """The first one extended the key, the repeats did not: trust counted from the last one would outlive the key."""
    holder = scene.holder()
    scene.clock.move(5)
    first_sent_at = scene.clock.now()
    lose_answers(scene, 1)
    scene.client.on_loss = lambda: scene.clock.move(8)

    holder.save(40, rows(40), [])

    assert holder.lease.valid_until < first_sent_at + TTL_S


def test_an_answer_that_comes_after_stop_at_does_not_prolong_the_lease(scene: Scene) -> None:
    holder = scene.holder()
    lose_answers(scene, 1)
    scene.client.on_loss = lambda: scene.clock.move(TTL_S)
    until = holder.lease.valid_until

    with pytest.raises(LeaseLost):
        holder.save(40, rows(40), [])

    assert holder.lease.valid_until == until


@either_way
def test_without_any_answer_a_write_is_tried_until_the_lease_is_over(scene: Scene, lose: Lose) -> None:
    holder = scene.holder()
    began = scene.clock.now()
    lose(scene, 1_000_000)

    with pytest.raises(LeaseLost, match="not renewed in time"):
        holder.save(40, rows(40), [])

    assert scene.client.sent > 10
    assert holder.lease.stop_at <= scene.clock.now() < began + TTL_S
    assert holder.last_id is None
    sent = scene.client.sent
    with pytest.raises(LeaseLost):
        holder.finish(100, rows(100), [], jump_to=None)
    assert scene.client.sent == sent


def test_a_write_is_not_sent_under_a_lease_that_is_lost(scene: Scene) -> None:
    holder = scene.holder()
    holder.lease.lose("the renewal thread says so")

    with pytest.raises(LeaseLost, match="the renewal thread says so"):
        holder.save(40, rows(40), [])

    assert scene.client.sent == 0


def test_the_old_holder_takes_nothing_from_the_new_one(scene: Scene) -> None:
    """Neither its release nor its finish deletes a key that is somebody else's."""
    old = scene.holder()
    scene.redis.delete(scene.keys.lease("0"))
    scene.redis.zadd(scene.keys["open"], {"0": 1})
    new = scene.holder()
    assert new.slot == old.slot

    with pytest.raises(LeaseLost, match="another token"):
        old.give_back("release", 40, rows(40), [], why="drained")

    assert old.lease.lost.is_set()
    assert scene.redis.get(scene.keys.lease("0")) == new.lease.token
    assert scene.board.totals() == {}
    new.save(10, rows(10), [])


def test_too_many_failed_rows_take_no_number_and_leave_the_lease(scene: Scene) -> None:
    """Nothing was written: the slot is parked next, at a row before."""
    holder = scene.holder(most_failed=1)

    answer = holder.finish(100, rows(98), [failed_row(30), failed_row(50)], jump_to=None)

    assert answer == TooManyFailed(1)
    assert not holder.lease.is_closing
    assert (holder.last_id, holder.tally) == (None, Tally())
    assert holder.give_back("park", 49, Tally(changed=48, failed=1), [failed_row(30)], why="row 50 failed") is None
    assert scene.stored("last_id") == "49"
    assert scene.board.totals() == {"changed": 48, "failed": 1}


def test_who_worked_to_another_end_is_told_the_right_one_and_keeps_the_lease(scene: Scene) -> None:
    holder = scene.holder()
    scene.redis.hset(scene.keys.slot("0"), "last", "80")

    assert holder.finish(100, rows(100), [], jump_to=None) == OtherEnd(80)

    assert not holder.lease.is_closing
    assert holder.save(80, rows(80), []) is None


def test_what_waiting_does_not_mend_goes_on_at_once(scene: Scene) -> None:
    holder = scene.holder()

    def refuse() -> None:
        raise redis.ResponseError("NOPERM this user has no permissions to run the 'evalsha' command")

    scene.client.requests_to_lose = 1
    scene.client.on_loss = refuse

    with pytest.raises(redis.ResponseError, match="NOPERM"):
        holder.save(40, rows(40), [])

    assert scene.client.sent == 1
