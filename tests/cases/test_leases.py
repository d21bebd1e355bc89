"""Cases 20, 21, 23, 24 and 35, and two of our own: who holds a slot, for how long, and what a late request may do."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from tests.harness import Pod, World, pause, wait_until, watched
from tests.proxy import Proxy

POLL_S = 1.0  # a worker that waits looks for a free slot at least so often
SLACK_S = 2.0  # the cases' own: a machine with two cores
GONE = b"*1\r\n$4\r\ngone\r\n"  # the script's answer, as Redis sends it


@pytest.fixture
def proxy(world: World) -> Iterator[Proxy]:
    """A proxy before the world's Redis; a pod that is to use it is started with `redis_url=proxy.url`."""
    with Proxy(world.redis_url) as made:
        yield made


def log_lines(pod: Pod, message: str, **fields: Any) -> list[dict[str, Any]]:
    return [line for line in pod.lines() if line["message"] == message and fields.items() <= line.items()]


def leases(world: World) -> dict[str, int]:
    """All lease keys with their time to live in ms (-1: none)."""
    keys = [str(key) for key in world.redis.scan_iter(world.key("lease:*").replace("[", "\\["))]
    times: dict[str, int] = {key: world.redis.pttl(key) for key in keys}
    return {key: ms for key, ms in times.items() if ms != -2}  # one that has just ended


def free_at(world: World, slot: int = 0) -> float:
    """When the lease of a slot ends by itself, in seconds since 1970."""
    return time.time() + max(0, world.redis.pttl(world.key(f"lease:{slot}"))) / 1000


def claimed_after(pod: Pod, free_at: float) -> float:
    """How long after the end of the lease before a worker's first claim came; or after its first look, if later."""

    def first(*messages: str) -> float | None:
        times = [line["time"] for line in pod.lines() if line["message"] in messages]
        return datetime.fromisoformat(times[0]).timestamp() if times else None

    claims = ("claimed", "claimed; resumed after last_id")
    claimed = wait_until(lambda: first(*claims), "it has the slot")
    looked = first("waiting; other workers hold what is left", *claims)
    return float(claimed - free_at if claimed < free_at else claimed - max(free_at, looked or 0))


def is_greeting(request: bytes) -> bool:
    """What the client library sends on a new connection."""
    return b"HELLO" in request or b"SETINFO" in request or b"MAINT_NOTIFICATIONS" in request


def runs(values: list[Any]) -> list[Any]:
    """The values without repetitions in a row."""
    return [value for at, value in enumerate(values) if at == 0 or value != values[at - 1]]


def test_case_20_a_batch_that_takes_five_leases_stays_with_its_worker(world: World) -> None:
    """Work longer than a lease is not taken for dead: the lease is renewed while the batch runs."""
    world.create_items(range(1, 101))
    settings: dict[str, Any] = {"lease": "2s", "batch_size": 100, "HANDLER_ROW_S": 0.4}  # 100 * 0.4 / 4 = 10 s
    first = world.start(**settings)
    token = wait_until(world.lease, "the first worker has the slot")

    with watched(world.lease) as tokens:
        second = world.start(**settings)
        codes = [first.wait(), second.wait()]

    assert codes == [0, 0]
    assert sorted(world.seen()) == list(range(1, 101))
    assert world.seen_by(second) == []
    assert runs([value for _, value in tokens]) == [token, None]
    assert log_lines(second, "waiting; other workers hold what is left")
    assert not log_lines(second, "claimed")


def test_case_21_a_holder_whose_lease_was_taken_saves_nothing_and_leaves_the_foreign_key_alone(world: World) -> None:
    """It gives the slot up, goes on with another one, and comes back when the foreign key is gone."""
    world.create_items(range(1, 2001))
    pod = world.start(lease="3s", HANDLER_ROW_S=0.02)  # 0.5 s a batch
    wait_until(lambda: world.checkpoint(0) >= 200, "two batches of slot 0 are saved")
    key = world.key("lease:0")

    world.redis.set(key, "somebody else", px=60_000)
    taken_at, saved = time.monotonic(), world.checkpoint(0)
    with watched(lambda: (world.redis.get(key), world.redis.pttl(key)), every=0.02) as samples:
        wait_until(lambda: log_lines(pod, "lost"), "the worker notices", every=0.005)
        noticed_s = time.monotonic() - taken_at
        wait_until(lambda: any(row_id > 1000 for row_id in world.seen()), "it goes on with slot 1")
        in_slot_0 = [row_id for row_id in world.seen() if row_id <= 1000]
        wait_until(lambda: world.checkpoint(1) == 2000, "slot 1 is done")

    assert noticed_s <= 1.0 + SLACK_S / 2  # a third of the lease
    assert world.checkpoint(0) == saved
    assert [row_id for row_id in world.seen() if row_id <= 1000] == in_slot_0  # none was handed out after the loss
    assert {value for _, (value, _) in samples} == {"somebody else"}
    for at, (_, ttl_ms) in samples:
        assert ttl_ms == pytest.approx(60_000 - (at - taken_at) * 1000, abs=500)  # only the clock has touched it

    world.redis.delete(key)
    assert pod.wait() == 0
    assert set(world.seen()) == set(range(1, 2001))
    assert world.repeated() <= set(range(saved + 1, saved + 201))  # the two batches in work at the loss
    assert len(log_lines(pod, "lost")) == 1
    assert log_lines(pod, "claimed; resumed after last_id", slot="0", last_id=saved)


def test_case_21_a_loss_that_a_save_finds_out_is_logged_too(world: World) -> None:
    """The renewal is not due yet; the log must say why the slot is dropped, whoever noticed."""
    world.create_items(range(1, 2001))
    pod = world.start(lease="30s", HANDLER_ROW_S=0.02)  # the first renewal comes 6 s after the claim
    wait_until(lambda: world.checkpoint(0) >= 100, "a batch of slot 0 is saved")

    world.redis.set(world.key("lease:0"), "somebody else", px=60_000)
    saved = world.checkpoint(0)
    wait_until(lambda: world.lease(1), "it goes on with slot 1")
    pod.terminate()

    assert pod.wait() == 143
    assert len(log_lines(pod, "lost", slot="0")) == 1
    assert world.checkpoint(0) == saved
    assert world.lease(0) == "somebody else"


SAME_POD: dict[str, Any] = {"HOSTNAME": "worker-0", "POD_NAME": "worker-0", "lease": "3s", "HANDLER_ROW_S": 0.02}


def test_case_23_a_restarted_container_waits_for_the_lease_of_its_own_earlier_life(world: World) -> None:
    """A name says nothing of who holds a slot: the second life of a pod is somebody else."""
    world.create_items(range(1, 1001))
    first = world.start(**SAME_POD)
    wait_until(lambda: world.checkpoint() >= 200, "two batches are saved")
    first.kill()
    second = world.start(**SAME_POD)
    end_of_lease, saved = free_at(world), world.checkpoint()

    assert -0.1 <= claimed_after(second, end_of_lease) <= POLL_S + SLACK_S
    assert second.wait() == 0
    assert log_lines(second, "claimed; resumed after last_id", last_id=saved)
    assert sorted(world.seen_by(second)) == list(range(saved + 1, 1001))
    assert set(world.seen()) == set(range(1, 1001))
    assert len(world.repeated()) <= 200


def test_case_23_a_worker_that_was_frozen_beyond_its_lease_saves_nothing_when_it_wakes(world: World) -> None:
    """The same name, a new holder: the woken process has to see that it lost the lease, and must not write."""
    world.create_items(range(1, 1001))
    first = world.start(**SAME_POD)
    wait_until(lambda: world.checkpoint() >= 200, "two batches are saved")
    with first.frozen():
        saved = world.checkpoint()
        second = world.start(**SAME_POD)
        wait_until(lambda: world.seen_by(second) and world.checkpoint() > saved, "the second life has saved a batch")
        token = world.lease()

    with watched(lambda: (world.lease(), world.checkpoint())) as samples:
        code = first.wait()
        assert second.wait() == 0

    assert code == 75  # documented: its lease was lost and its work could not be stopped in time
    assert log_lines(first, "lost", slot="0")
    positions = [position for _, (_, position) in samples if position != -1]
    assert positions == sorted(positions)
    assert runs([value for _, (value, _) in samples]) == [token, None]
    assert str(world.redis.hget(world.key("done"), "0")).endswith(str(token))
    assert world.redis.hgetall(world.key("totals")) == {"unchanged": "1000"}  # each row is counted by one of the two
    assert set(world.seen()) == set(range(1, 1001))
    assert len(world.repeated()) <= 200


def test_case_24_a_worker_killed_around_its_claim_leaves_no_lease_without_an_end(world: World, proxy: Proxy) -> None:
    """Killed between two requests, ten times: each time it is dead when its last request reaches Redis."""
    world.create_items(range(1, 1001))
    moments = ["create", "pick", "claim", "save", "renew", "pick", "claim", "second save", "renew", "second renew"]
    lease_s, taken = 2.0, 0
    with watched(lambda: world.redis.pttl(world.key("lease:0")), every=0.002) as times:
        for moment in moments:
            wait_until(lambda: not leases(world), "the lease of the one before is over")
            held = proxy.hold(world.script(moment.split()[-1]), skip=int(moment.startswith("second")))
            pod = world.start(lease=f"{lease_s:g}s", slot_attempts=100, redis_url=proxy.url, HANDLER_ROW_S=0.03)
            wait_until(lambda: held.is_caught, f"its {moment} was sent", every=0.002)  # noqa: B023
            pod.kill()
            held.deliver()
            left = leases(world)
            taken += bool(left)
            assert all(0 <= ms <= lease_s * 1000 for ms in left.values()), (moment, left)
    end_of_lease = free_at(world)

    last = world.start(lease=f"{lease_s:g}s", slot_attempts=100)

    assert claimed_after(last, end_of_lease) <= POLL_S + SLACK_S
    assert taken == 7  # not after create and pick
    assert all(ms == -2 or 0 <= ms <= lease_s * 1000 for _, ms in times)
    assert last.wait() == 0
    assert set(world.seen()) == set(range(1, 1001))


def test_case_24_a_worker_killed_soon_after_its_start_leaves_no_lease_without_an_end(world: World) -> None:
    """The case as it stands, counted from the moment at which a worker begins to use Redis."""
    world.create_items(range(1, 1001))
    lease_s = 2.0
    # More kills in one slot than the default of SLOT_ATTEMPTS would park it for.
    settings: dict[str, Any] = {"lease": f"{lease_s:g}s", "slot_attempts": 100}
    with watched(lambda: world.redis.pttl(world.key("lease:0")), every=0.002) as times:
        for moment_ms in (0, 5, 10, 20, 30, 50, 80, 150, 300, 500):
            with Proxy(world.redis_url) as door:
                pod = world.start(redis_url=door.url, HANDLER_ROW_S=0.02, **settings)
                wait_until(lambda: door.passed, "the worker talks to Redis", every=0.001)
                pause(moment_ms / 1000)
                pod.kill()
            left = leases(world)
            assert all(0 <= ms <= lease_s * 1000 for ms in left.values()), (moment_ms, left)
    end_of_lease = free_at(world)

    last = world.start(**settings)

    assert claimed_after(last, end_of_lease) <= POLL_S + SLACK_S
    assert all(ms == -2 or 0 <= ms <= lease_s * 1000 for _, ms in times)
    assert last.wait() == 0
    assert set(world.seen()) == set(range(1, 1001))


def test_case_35_a_worker_without_a_slot_waits_until_the_run_is_complete(world: World, proxy: Proxy) -> None:
    """Nothing free is not nothing left: the slot of a worker that dies is taken by whoever waited for it."""
    world.create_items(range(1, 2001))
    settings: dict[str, Any] = {"lease": "2500ms", "HANDLER_ROW_S": 0.04}  # 10 s a slot
    workers = [world.start(**settings) for _ in range(2)]
    wait_until(lambda: {world.slot_of(pod) for pod in workers} == {"0", "1"}, "two workers hold the two slots")
    waiting = world.start(redis_url=proxy.url, **settings)
    wait_until(lambda: any(b"BLPOP" in request for request in proxy.passed), "the third one waits")
    before = len(proxy.passed)
    pause(1.5)
    commands = [request for request in proxy.passed[before:] if not is_greeting(request)]

    killed = next(pod for pod in workers if world.slot_of(pod) == "1")
    other = next(pod for pod in workers if pod is not killed)
    saved = world.checkpoint(1)
    killed.kill()
    killed_at = time.monotonic()
    token = world.lease(1)
    wait_until(lambda: world.lease(1) not in (token, None), "the slot has a new holder", every=0.005)
    taken_s = time.monotonic() - killed_at

    assert 0 < len(commands) <= 1.5 * 5  # calm: a look and a wait, some times a second
    assert saved < 2000, "the slot was meant to be in work"
    assert taken_s <= 2.5 + POLL_S + SLACK_S
    assert [waiting.wait(), other.wait()] == [0, 0]
    assert world.checkpoint(1) == 2000
    assert set(world.seen_by(waiting)) | set(world.seen_by(other)) >= set(range(saved + 1, 2001))
    assert set(world.seen()) == set(range(1, 2001))


def test_a_save_that_arrives_late_does_not_move_the_checkpoint_back(world: World, proxy: Proxy) -> None:
    """Its sender closed that connection, sent it again and went on: the token alone would let the old one in."""
    world.create_items(range(1, 1001))
    held = proxy.hold(world.script("save"))
    pod = world.start(redis_url=proxy.url, lease="3s", HANDLER_ROW_S=0.02)
    wait_until(lambda: held.is_caught, "the first save was sent")
    wait_until(lambda: world.checkpoint() >= 400, "the worker has saved again and gone on")

    pod.send(signal.SIGSTOP)  # so that nobody but the late request moves anything
    before = world.redis.hgetall(world.key("slot:0")), world.redis.hgetall(world.key("totals"))
    reply = held.deliver()
    after = world.redis.hgetall(world.key("slot:0")), world.redis.hgetall(world.key("totals"))
    pod.send(signal.SIGCONT)

    assert b"repeated" in reply
    assert after == before
    assert log_lines(pod, "failed; will be tried again", target="redis")
    assert pod.wait() == 0
    assert b"lost" in held.deliver()  # the slot is done, and nobody's
    assert world.lease() is None
    assert sorted(world.seen()) == list(range(1, 1001))
    assert world.redis.hgetall(world.key("totals")) == {"unchanged": "1000"}


def test_a_save_that_arrives_when_the_slot_has_another_holder_changes_nothing(world: World, proxy: Proxy) -> None:
    world.create_items(range(1, 1001))
    held = proxy.hold(world.script("save"), skip=1)
    first = world.start(redis_url=proxy.url, lease="3s", HANDLER_ROW_S=0.02)
    wait_until(lambda: held.is_caught, "the second save was sent")
    first.kill()
    second = world.start(lease="3s", HANDLER_ROW_S=0.02)
    wait_until(lambda: world.seen_by(second) and world.checkpoint() >= 300, "the second worker has saved")

    second.send(signal.SIGSTOP)
    before = world.redis.hgetall(world.key("slot:0")), world.redis.pttl(world.key("lease:0"))
    reply = held.deliver()
    after = world.redis.hgetall(world.key("slot:0")), world.redis.pttl(world.key("lease:0"))
    second.send(signal.SIGCONT)

    assert b"lost" in reply
    assert after[0] == before[0]
    assert int(after[1]) <= int(before[1])
    assert second.wait() == 0
    assert set(world.seen()) == set(range(1, 1001))


def test_a_claim_that_arrives_late_does_not_get_a_slot_that_is_finished(world: World, proxy: Proxy) -> None:
    """`SET NX` alone would give it the slot again, since a finished slot has no lease."""
    world.create_items(range(1, 2001))
    held = proxy.hold(world.script("claim"))
    pod = world.start(redis_url=proxy.url, lease="3s", HANDLER_ROW_S=0.005)
    wait_until(lambda: held.is_caught, "the claim of slot 0 was sent")
    wait_until(
        lambda: world.checkpoint(0) == 1000 and world.lease(1), "the worker has claimed again and finished slot 0"
    )

    assert held.deliver() == GONE

    assert world.lease(0) is None
    assert not world.redis.exists(world.key("slot:0"))
    assert world.redis.zscore(world.key("open"), "0") is None
    assert pod.wait() == 0
    assert sorted(world.seen()) == list(range(1, 2001))


def test_a_claim_of_a_dead_worker_that_arrives_late_does_not_get_a_slot_that_is_finished(
    world: World, proxy: Proxy
) -> None:
    """Another worker picked the slot meanwhile; the late claim must not bring it back to life."""
    world.create_items(range(1, 1001))
    held = proxy.hold(world.script("claim"))
    first = world.start(redis_url=proxy.url, lease="3s")
    wait_until(lambda: held.is_caught, "the claim was sent")
    first.kill()
    assert world.run(lease="3s") == 0
    before = world.redis.zrange(world.key("open"), 0, -1), world.redis.hgetall(world.key("done"))

    assert held.deliver() == GONE

    assert world.lease() is None
    assert (world.redis.zrange(world.key("open"), 0, -1), world.redis.hgetall(world.key("done"))) == before
    assert world.run(lease="3s") == 0
    assert sorted(world.seen()) == list(range(1, 1001))
