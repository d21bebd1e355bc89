"""The renewal thread and the sentinel, in a time that the test moves by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping

import pytest
import redis

from shardworker.claim.lease import Lease
from shardworker.claim.renewal import Renewal
from shardworker.errors import LeaseLost, RunStateLost
from shardworker.events import Event, Recovered, Retrying, SlotLost
from tests.fakes import ANSWER_LOST, FakeBoard, FakeClock
from tests.harness import wait_until

TTL_S = 30.0
Answer = Callable[[Mapping[str, str]], dict[str, bool]]


def renewed(held: Mapping[str, str]) -> dict[str, bool]:
    return dict.fromkeys(held, True)


def refused(held: Mapping[str, str]) -> dict[str, bool]:
    return dict.fromkeys(held, False)


def raising(error: BaseException) -> Answer:
    def answer(_held: Mapping[str, str]) -> dict[str, bool]:
        raise error

    return answer


class Scene:
    """A renewal under a clock that stands still; it takes what `board.answer` says for the server's word."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.board = FakeBoard(renewed)
        self.events: list[Event] = []
        self.died: list[Lease] = []
        self.renewal = Renewal(self.board, ttl_s=TTL_S, clock=self.clock, emit=self.events.append, die=self.die)

    def die(self, lease: Lease) -> None:
        """Stands for the end of the process: nothing is watched after it."""
        self.died.append(lease)
        self.renewal.remove(lease)

    def lease(self, slot: str = "7") -> Lease:
        lease = Lease(slot, f"token of {slot}", ttl_s=TTL_S, sent_at=self.clock.now(), clock=self.clock)
        self.renewal.add(lease)
        return lease

    def pass_time(self, seconds: float, steps: int = 30) -> None:
        """Moves the clock in small steps, each time until both threads wait again."""
        for _ in range(steps):
            wait_until(self.both_wait, "both threads wait")
            self.clock.move(seconds / steps)
        wait_until(self.both_wait, "both threads wait")

    def both_wait(self) -> bool:
        return self.clock.sleepers == 2

    def of_kind(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    with scene.renewal:
        yield scene


def test_a_lease_is_first_renewed_early_and_then_every_third_of_its_time(scene: Scene) -> None:
    lease = scene.lease()
    scene.pass_time(0.19 * TTL_S)
    assert scene.board.renewals == 0

    scene.pass_time(0.23 * TTL_S)
    assert scene.board.renewals == 1

    scene.pass_time(2 * TTL_S, steps=120)
    assert scene.board.renewals in (6, 7)
    lease.check()


def test_a_lease_that_is_renewed_lives_for_ever(scene: Scene) -> None:
    lease = scene.lease()

    scene.pass_time(20 * TTL_S, steps=400)

    lease.check()
    assert lease.valid_until > scene.clock.now()
    assert scene.events == []
    assert scene.died == []


def test_another_token_in_redis_means_lost_at_once(scene: Scene) -> None:
    lease = scene.lease()
    scene.board.answer = refused

    scene.pass_time(0.5 * TTL_S)

    assert lease.lost.is_set()
    assert [type(event) for event in scene.events] == [SlotLost]


def test_a_slot_whose_finish_is_under_way_is_not_lost_because_its_key_is_gone(scene: Scene) -> None:
    """The finish deleted the key; the renewal that crossed it on the way must not make an error of that."""
    lease = scene.lease()
    scene.board.answer = refused
    lease.is_closing = True

    scene.pass_time(0.5 * TTL_S)

    assert not lease.lost.is_set()


def test_only_the_lease_that_was_refused_is_lost(scene: Scene) -> None:
    mine, other = scene.lease("1"), scene.lease("2")
    scene.board.answer = lambda held: {slot: slot == "1" for slot in held}

    scene.pass_time(0.5 * TTL_S)

    assert other.lost.is_set()
    mine.check()


@pytest.mark.parametrize(
    "error",
    [
        ANSWER_LOST,
        redis.ConnectionError("Connection refused"),
        redis.BusyLoadingError("LOADING Redis is loading the dataset in memory"),
        redis.ReadOnlyError("READONLY You can't write against a read only replica."),
        redis.ResponseError("MISCONF Redis is configured to save RDB snapshots"),
        redis.exceptions.OutOfMemoryError("OOM command not allowed when used memory > 'maxmemory'."),
        redis.exceptions.ClusterDownError("CLUSTERDOWN The cluster is down"),
        redis.exceptions.TryAgainError("TRYAGAIN Multiple keys request during rehashing of slot"),
        redis.ResponseError("NOREPLICAS Not enough good replicas to write."),
    ],
    ids=lambda error: str(error).split()[0],
)
def test_an_unknown_outcome_is_tried_again_until_it_is_known(scene: Scene, error: Exception) -> None:
    lease = scene.lease()
    scene.board.answer = raising(error)
    scene.pass_time(0.5 * TTL_S)
    assert scene.board.renewals > 1
    lease.check()

    scene.board.answer = renewed
    scene.pass_time(0.3 * TTL_S)

    lease.check()
    assert lease.valid_until > scene.clock.now() + 0.6 * TTL_S
    assert {event.target for event in scene.of_kind(Retrying) if isinstance(event, Retrying)} == {"redis"}
    assert len(scene.of_kind(Recovered)) == 1


def test_without_an_answer_the_lease_is_lost_at_stop_at_and_its_process_ends_at_valid_until(scene: Scene) -> None:
    """Past that moment another worker may hold the slot, and a thread cannot be stopped in any other way."""
    lease = scene.lease()
    scene.board.answer = raising(ANSWER_LOST)
    stop_at, valid_until = lease.stop_at, lease.valid_until

    scene.pass_time(stop_at - scene.clock.now() - 0.01)
    assert not lease.lost.is_set()

    scene.pass_time(0.02, steps=1)
    wait_until(lease.lost.is_set, "the sentinel marks the lease")
    assert scene.of_kind(SlotLost) == [SlotLost(slot="7", reason="it was not renewed in time")]

    scene.pass_time(valid_until - scene.clock.now() - 0.01)
    assert scene.died == []

    scene.pass_time(0.02, steps=1)
    wait_until(lambda: scene.died == [lease], "the sentinel ends the process")


def test_work_that_was_given_up_in_time_does_not_end_its_process(scene: Scene) -> None:
    lease = scene.lease()
    scene.board.answer = raising(ANSWER_LOST)
    scene.pass_time(0.92 * TTL_S)
    assert lease.lost.is_set()

    scene.renewal.remove(lease)
    scene.pass_time(TTL_S)

    assert scene.died == []


def test_a_renewal_that_hangs_cannot_keep_the_sentinel_from_its_duty(scene: Scene) -> None:
    """It does no I/O: an alarm in the thread of the call that it watches would come too late."""
    hanging, go_on = threading.Event(), threading.Event()

    def hang(held: Mapping[str, str]) -> dict[str, bool]:
        hanging.set()
        go_on.wait(60)
        return renewed(held)

    lease = scene.lease()
    scene.board.answer = hang
    scene.pass_time(0.19 * TTL_S)
    scene.clock.move(0.22 * TTL_S)
    assert hanging.wait(60)

    scene.clock.move(lease.stop_at - scene.clock.now() + 0.01)
    wait_until(lease.lost.is_set, "the sentinel marks the lease")
    scene.clock.move(lease.valid_until - scene.clock.now() + 0.01)
    wait_until(lambda: scene.died, "the sentinel ends the process")

    until = lease.valid_until
    go_on.set()
    wait_until(scene.both_wait, "the answer has come")
    assert lease.valid_until == until
    with pytest.raises(LeaseLost):
        lease.check()


def test_a_run_that_is_gone_takes_all_leases_with_it(scene: Scene) -> None:
    leases = [scene.lease("1"), scene.lease("2")]
    scene.board.answer = raising(RunStateLost("Redis was emptied"))

    scene.pass_time(0.5 * TTL_S)

    assert [lease.reason for lease in leases] == ["Redis was emptied"] * 2
    assert scene.renewal.failure is None


@pytest.mark.parametrize(
    "error",
    [redis.AuthenticationError("NOAUTH Authentication required."), ZeroDivisionError("a bug")],
    ids=["a refused password", "a bug"],
)
def test_a_renewal_thread_that_fails_tells_its_owner(scene: Scene, error: Exception) -> None:
    """One that dies in silence is worse than none."""
    lease = scene.lease()
    scene.board.answer = raising(error)

    scene.pass_time(0.19 * TTL_S)
    scene.clock.move(0.22 * TTL_S)

    wait_until(lambda: scene.renewal.failure is error, "the owner is told")
    wait_until(lease.lost.is_set, "the work stops")


def test_no_lease_no_request(scene: Scene) -> None:
    scene.renewal.remove(scene.lease())

    scene.pass_time(5 * TTL_S, steps=100)

    assert scene.board.renewals == 0
