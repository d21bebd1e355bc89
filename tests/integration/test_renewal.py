"""Leases kept, lost and outlived on a real Redis, in real time."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from shardworker.claim.board import Board, Claimed, Picked
from shardworker.claim.connect import connect
from shardworker.claim.keys import Keys
from shardworker.claim.lease import Lease
from shardworker.claim.renewal import Renewal
from shardworker.claim.slots import SlotMap
from shardworker.clock import SystemClock
from shardworker.events import Event
from shardworker.ids import IdRange
from tests import services
from tests.harness import wait_until

TTL_S = 2.0
SLOTS = SlotMap.even(IdRange(1, 200), 100)
CLOCK = SystemClock()


class Scene:
    def __init__(self, url: str) -> None:
        self.url = url
        self.redis: Any = connect(url, timeout_s=10)
        self.keys = Keys(f"t{secrets.token_hex(6)}", "job", "main")
        self.board = Board(self.redis, self.keys)
        self.board.create({"segments": SLOTS.encode(), "slots": str(SLOTS.slots)})
        self.renewing: Any = connect(url, timeout_s=TTL_S / 6)
        self.events: list[Event] = []
        self.died: list[Lease] = []
        self.renewal = Renewal(
            Board(self.renewing, self.keys, uid=self.board.uid),
            ttl_s=TTL_S,
            clock=CLOCK,
            emit=self.events.append,
            die=self.die,
        )

    def die(self, lease: Lease) -> None:
        self.died.append(lease)
        self.renewal.remove(lease)

    def claim(self) -> Lease:
        """A slot's lease, which is renewed from now on."""
        picked = self.board.pick(provisional_ms=1000, keep_ms=10_000)
        assert isinstance(picked, Picked)
        sent_at = CLOCK.now()
        claimed = self.board.try_claim(
            picked,
            token=secrets.token_hex(16),
            ttl_ms=round(TTL_S * 1000),
            bounds=SLOTS.range_of(int(picked.slot)),
            owner="",
            attempts=5,
        )
        assert isinstance(claimed, Claimed)
        lease = Lease(claimed.slot, claimed.token, ttl_s=TTL_S, sent_at=sent_at, clock=CLOCK)
        self.renewal.add(lease)
        return lease

    def close(self) -> None:
        for key in self.redis.scan_iter(f"{self.keys.prefix}:*", count=1000):
            self.redis.delete(key)
        self.redis.close()
        self.renewing.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene(services.get("redis").url)
    with scene.renewal:
        yield scene
    scene.close()


@pytest.fixture
def alone() -> Iterator[Scene]:
    """On a server of its own, which the test may stop."""
    with ExitStack() as stack:
        scene = Scene(stack.enter_context(services.private("redis")).url)
        stack.callback(scene.close)
        stack.enter_context(scene.renewal)
        yield scene


def test_a_lease_outlives_its_time_as_long_as_it_is_renewed(scene: Scene) -> None:
    lease = scene.claim()
    first_end = lease.valid_until

    wait_until(lambda: lease.valid_until > first_end + 1.5 * TTL_S, "it is renewed again and again")

    lease.check()
    assert scene.redis.get(scene.keys.lease(lease.slot)) == lease.token
    assert scene.redis.zscore(scene.keys["open"], lease.slot) > (CLOCK.wall() + 0.2 * TTL_S) * 1000


def test_a_renewal_that_comes_after_the_end_of_the_key_does_not_bring_it_back(scene: Scene) -> None:
    """Somebody may have had it in between: lost is lost."""
    lease = scene.claim()
    scene.redis.delete(scene.keys.lease(lease.slot))

    wait_until(lease.lost.is_set, "the renewal finds no key")

    assert "another token, or none" in lease.reason
    assert not scene.redis.exists(scene.keys.lease(lease.slot))


def test_a_renewal_leaves_the_lease_of_another_alone(scene: Scene) -> None:
    lease = scene.claim()
    scene.redis.set(scene.keys.lease(lease.slot), "another", px=60_000)

    wait_until(lease.lost.is_set, "the renewal finds another token")

    assert scene.redis.get(scene.keys.lease(lease.slot)) == "another"
    assert scene.redis.pttl(scene.keys.lease(lease.slot)) > 30_000


def test_a_lease_that_is_not_renewed_any_more_goes_to_the_next(scene: Scene) -> None:
    """The holder is dead; nobody has to say so."""
    dead = scene.claim()
    scene.claim()
    scene.renewal.remove(dead)

    again = wait_until(
        lambda: isinstance(found := scene.board.pick(provisional_ms=1000, keep_ms=10_000), Picked) and found,
        "the slot is free",
    )

    assert again.slot == dead.slot


def test_the_holder_stops_before_the_key_ends_while_redis_is_silent(alone: Scene) -> None:
    """Frozen, it may come back at any moment and give the slot to another: trust is counted here, not there."""
    lease = alone.claim()
    server = alone.redis.info("server")["process_id"]
    os.kill(server, signal.SIGSTOP)
    try:
        wait_until(lambda: alone.died == [lease], "the sentinel ends the process")
        assert CLOCK.now() >= lease.valid_until
        assert lease.lost.is_set()
    finally:
        os.kill(server, signal.SIGCONT)


def test_a_connection_that_was_cut_costs_no_lease(alone: Scene) -> None:
    lease = alone.claim()
    until = lease.valid_until
    alone.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    wait_until(lambda: lease.valid_until > until + TTL_S, "it is renewed over a new connection")

    lease.check()
    assert alone.died == []
