"""How long a lease may be trusted, counted by hand on a clock that stands still."""

from __future__ import annotations

import os

import pytest

from shardworker.claim.lease import Lease
from shardworker.errors import LeaseLost
from tests.fakes import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(now=1000.0)


@pytest.fixture
def lease(clock: FakeClock) -> Lease:
    """Of 30 seconds, sent for at this very moment."""
    return Lease("7", "token", ttl_s=30, sent_at=clock.now(), clock=clock)


def test_trust_is_counted_from_before_the_request_and_ends_before_the_key(lease: Lease) -> None:
    """The other machine's clock may be 1 % faster, and Redis rounds to milliseconds."""
    assert lease.valid_until == pytest.approx(1000 + 30 * 0.99 - 0.002)
    assert lease.stop_at == pytest.approx(lease.valid_until - 3)


def test_a_slow_answer_shortens_the_trust(clock: FakeClock) -> None:
    """The key was set at some moment between request and answer; the first one counts."""
    sent_at = clock.now()
    clock.move(5)

    assert Lease("7", "token", ttl_s=30, sent_at=sent_at, clock=clock).valid_until < 1030


def test_a_lease_whose_answer_took_longer_than_the_lease_is_never_trusted(clock: FakeClock) -> None:
    sent_at = clock.now()
    clock.move(40)

    with pytest.raises(LeaseLost):
        Lease("7", "token", ttl_s=30, sent_at=sent_at, clock=clock).check()


def test_work_goes_on_until_stop_at_and_not_a_moment_longer(lease: Lease, clock: FakeClock) -> None:
    clock.move(lease.stop_at - clock.now() - 0.001)
    lease.check()

    clock.move(0.001)

    with pytest.raises(LeaseLost, match="not renewed in time"):
        lease.check()
    assert lease.lost.is_set()


def test_a_confirmed_renewal_counts_from_when_it_was_sent(lease: Lease, clock: FakeClock) -> None:
    clock.move(10)
    sent_at = clock.now()
    clock.move(2)

    lease.extend(sent_at)

    assert lease.valid_until == pytest.approx(sent_at + 30 * 0.99 - 0.002)


def test_an_answer_that_comes_after_stop_at_is_no_success(lease: Lease, clock: FakeClock) -> None:
    """The work was told to stop meanwhile; it must not come back to life."""
    clock.move(10)
    sent_at = clock.now()
    clock.move(lease.stop_at - clock.now())
    before = (lease.stop_at, lease.valid_until)

    lease.extend(sent_at)

    assert (lease.stop_at, lease.valid_until) == before
    with pytest.raises(LeaseLost):
        lease.check()


def test_an_older_answer_that_comes_later_takes_nothing_back(lease: Lease, clock: FakeClock) -> None:
    clock.move(10)
    lease.extend(1009)
    until = lease.valid_until

    lease.extend(1005)

    assert lease.valid_until == until


def test_a_lost_lease_stays_lost_and_keeps_its_first_reason(lease: Lease, clock: FakeClock) -> None:
    assert lease.lose("another token")
    assert not lease.lose("something else")

    lease.extend(clock.now())

    with pytest.raises(LeaseLost, match="another token") as lost:
        lease.check()
    assert (lost.value.slot, lost.value.reason) == ("7", "another token")


def test_a_forked_child_has_no_lease(lease: Lease) -> None:
    """Two processes under one token would both be the holder."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            lease.check()
            os.write(writing, b"trusted")
        except LeaseLost:
            os.write(writing, b"lost")
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)

    with os.fdopen(reading, "rb") as answer:
        assert answer.read() == b"lost"
    lease.check()
