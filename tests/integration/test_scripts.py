"""What the scripts do, asked through `Board`, on every kind of server that shardworker promises to run on."""

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal

import pytest

from shardworker.claim.board import (
    Board,
    Claimed,
    Finished,
    NotHeld,
    OnlyParked,
    OtherEnd,
    Picked,
    TooManyFailed,
    Wait,
    Write,
    Written,
)
from shardworker.claim.connect import connect
from shardworker.claim.keys import FAILED_LEASE, Keys
from shardworker.claim.slots import MOST_SLOTS, SlotMap
from shardworker.errors import RunStateLost
from shardworker.ids import IdRange
from shardworker.outcomes import FailedRow, Tally
from tests import services
from tests.harness import wait_until

TTL_MS = 30_000
KEEP_MS = 1_000_000
PASSED_MS = -10  # a provisional time that is over already
SERVERS = {
    "redis": ("redis", "redis"),
    "redis8": ("redis8", "redis"),
    "valkey": ("valkey", "redis"),
    "cluster": ("cluster", "redis+cluster"),
    "cluster, asked as one server": ("cluster", "redis"),
}


def failed_row(row_id: int) -> FailedRow:
    return FailedRow(row_id=row_id, error="ValueError: bad row", attempts=3, at="2026-01-01T00:00:00+00:00")


class Hand:
    """What workers do with a board, in short words. Each claim has its own token."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.keys = board.keys
        self.redis: Any = board.client
        self.slot_map = SlotMap(())

    # The run
    def create(self, bounds: IdRange = IdRange(0, 299), size: int = 100) -> None:  # noqa: B008 - it is frozen
        self.slot_map = SlotMap.even(bounds, size)
        self.board.create({"segments": self.slot_map.encode(), "slots": str(self.slot_map.slots)})

    def meta(self, name: str) -> str:
        return self.board.meta()[name]

    # Claiming
    def pick(self, provisional_ms: int = 10_000) -> Picked | Wait | OnlyParked | Finished:
        return self.board.pick(provisional_ms=provisional_ms, keep_ms=KEEP_MS)

    def picked(self, provisional_ms: int = 10_000) -> Picked:
        found = self.pick(provisional_ms)
        assert isinstance(found, Picked), found
        return found

    def claim(
        self, picked: Picked, token: str | None = None, ttl_ms: int = TTL_MS, attempts: int = 5
    ) -> Claimed | Literal["gone", "busy", "parked"]:
        return self.board.try_claim(
            picked,
            token=token or secrets.token_hex(16),
            ttl_ms=ttl_ms,
            bounds=self.slot_map.range_of(int(picked.slot)),
            owner="pod-1/7",
            attempts=attempts,
        )

    def take(self, ttl_ms: int = TTL_MS) -> Claimed:
        claimed = self.claim(self.picked(), ttl_ms=ttl_ms)
        assert isinstance(claimed, Claimed), claimed
        return claimed

    def end_of_lease(self, held: Claimed) -> None:
        """As if its time were over."""
        self.redis.delete(self.keys.lease(held.slot))
        self.pass_hint(held)

    def pass_hint(self, held: Claimed) -> None:
        self.redis.zadd(self.keys["open"], {held.slot: 1})

    # Writing
    def save(self, held: Claimed, seq: int, last_id: int | None, most_failed: int = 0, **more: Any) -> Any:
        return self.board.save(
            held.slot, held.token, seq, self.write(last_id, **more), ttl_ms=TTL_MS, most_failed=most_failed
        )

    def finish(
        self,
        held: Claimed,
        seq: int = 1,
        jump_to: int | None = None,
        end: int | None = None,
        most_failed: int = 0,
        **more: Any,
    ) -> Any:
        return self.board.finish(
            held.slot,
            held.token,
            seq,
            self.write(None, **more),
            end=held.bounds.last if end is None else end,
            jump_to=jump_to,
            most_failed=most_failed,
        )

    def give_back(
        self,
        how: Literal["release", "park"],
        held: Claimed,
        seq: int = 1,
        last_id: int | None = None,
        most_failed: int = 0,
        delay_ms: int = 0,
        **more: Any,
    ) -> Any:
        return self.board.give_back(
            how,
            held.slot,
            held.token,
            seq,
            self.write(last_id, **more),
            why="drained",
            most_failed=most_failed,
            delay_ms=delay_ms,
        )

    def release(self, held: Claimed, seq: int = 1, last_id: int | None = None, **more: Any) -> Any:
        return self.give_back("release", held, seq, last_id, **more)

    def park(self, held: Claimed, seq: int = 1, last_id: int | None = None, **more: Any) -> Any:
        return self.give_back("park", held, seq, last_id, **more)

    def end(self, how: Literal["finish", "release", "park"], held: Claimed) -> None:
        """Ends the work on a slot in one of three ways."""
        answer = self.finish(held) if how == "finish" else self.give_back(how, held)
        assert answer == Written()

    @staticmethod
    def write(last_id: int | None, rows: int = 0, failed: tuple[int, ...] = (), **reasons: int) -> Write:
        fresh = Tally(changed=rows, failed=len(failed), skipped=sum(reasons.values()))
        fresh.reasons.update(reasons)
        return Write(last_id=last_id, tally=fresh, fresh=fresh, failed=[failed_row(row_id) for row_id in failed])

    # Looking
    def slot(self, slot: str, field: str) -> str | None:
        found: str | None = self.redis.hget(self.keys.slot(slot), field)
        return found

    def all_keys(self) -> list[str]:
        return sorted(self.redis.scan_iter(f"{self.keys.prefix}:*", count=1000))

    def everything(self) -> dict[str, Any]:
        """All that is stored, but for times to live."""
        return {key: self._value(key) for key in self.all_keys()}

    def _value(self, key: str) -> Any:
        match self.redis.type(key):
            case "hash":
                return self.redis.hgetall(key)
            case "zset":
                return self.redis.zrange(key, 0, -1, withscores=True)
            case "list":
                return self.redis.lrange(key, 0, -1)
            case _:
                return self.redis.get(key)

    def ttl_ms(self, key: str) -> int:
        return int(self.redis.pttl(key))


@pytest.fixture(params=list(SERVERS))
def hand(request: pytest.FixtureRequest) -> Iterator[Hand]:
    """A hand on a run of its own, not created yet. In the end every key without a time to live is one of the list."""
    server, scheme = SERVERS[request.param]
    client: Any = connect(services.get(server).url.replace("redis", scheme, 1), timeout_s=10)
    hand = Hand(Board(client, Keys(f"t{secrets.token_hex(6)}", "job", "main")))
    try:
        yield hand
        known = {*hand.keys.lasting()}
        for key in hand.all_keys():
            if key.startswith(hand.keys.base) and hand.ttl_ms(key) == -1:
                assert key in known or key.startswith(hand.keys.slot("")), f"{key} has no time to live"
    finally:
        for key in hand.all_keys():
            client.delete(key)
        client.close()


@pytest.fixture
def run(hand: Hand) -> Hand:
    """Three slots of a hundred ids, from 0 to 299."""
    hand.create()
    return hand


# Creating -------------------------------------------------------------------------------------------------------------
def test_who_comes_second_finds_the_run_of_the_first(run: Hand) -> None:
    """MAX is another number in every pod: the first one's bounds hold for all."""
    again = Board(run.board.client, run.keys)

    meta = again.create({"segments": "others", "slots": "99"})

    assert meta["segments"] == run.slot_map.encode()
    assert meta["slots"] == "3"
    assert again.uid == run.board.uid


def test_a_run_whose_meta_was_evicted_is_not_created_anew_beside_its_remains(run: Hand) -> None:
    """A new run's slots may have other bounds; it would take the old ones' checkpoints for its own and skip rows."""
    run.save(run.take(), 1, 40)
    run.redis.delete(run.keys["meta"])

    with pytest.raises(RunStateLost, match="lost in part"):
        run.create()

    assert not run.redis.exists(run.keys["meta"])


def test_where_the_database_knows_what_is_done_remains_do_not_hinder(run: Hand) -> None:
    """checkpoint="database": whoever starts next creates the run again, whatever Redis lost."""
    run.finish(run.take())
    run.redis.delete(run.keys["meta"])

    run.board.create({"segments": run.slot_map.encode(), "slots": "3"}, amid_remains=True)

    assert run.picked().slot == "0"


# Picking --------------------------------------------------------------------------------------------------------------
def test_slots_are_picked_in_order_and_each_ticket_is_unlike_all_others(run: Hand) -> None:
    picked = [run.picked() for _ in range(3)]

    assert [each.slot for each in picked] == ["0", "1", "2"]
    assert len({each.ticket for each in picked}) == 3


def test_two_tickets_of_one_slot_differ_also_within_one_millisecond(run: Hand) -> None:
    """An equal ticket would let a late claim take a slot that another worker has picked since."""
    tickets = set()
    for _ in range(200):
        ticket = run.picked(PASSED_MS).ticket
        tickets.add(ticket)
        assert float(ticket) % 1 != 0  # the ends of leases have no fraction: no hint is ever equal to a ticket

    assert len(tickets) == 200


def test_who_finds_nothing_free_is_told_how_long_until_a_lease_ends(run: Hand) -> None:
    for ttl_ms in (20_000, 5_000, 30_000):
        run.take(ttl_ms)

    found = run.pick()

    assert isinstance(found, Wait)
    assert found.open_slots == 3
    assert found.hint_s is not None
    assert 1 < found.hint_s <= 5


def test_who_finds_nothing_free_is_told_when_a_given_back_slot_is_due(run: Hand) -> None:
    held = [run.take() for _ in range(3)]
    run.release(held[1], delay_ms=7_000)

    found = run.pick()

    assert isinstance(found, Wait)
    assert found.hint_s is not None
    assert 1 < found.hint_s <= 7


def test_a_slot_that_was_picked_and_never_claimed_comes_back(run: Hand) -> None:
    """The worker died between pick and claim: nothing of it is left but an entry that ends."""
    for _ in range(3):
        run.picked(provisional_ms=100)

    again = wait_until(lambda: isinstance(found := run.pick(), Picked) and found, "a picked slot comes back", 10)

    assert isinstance(run.claim(again), Claimed)


def test_slots_whose_lease_has_ended_come_before_new_ones(run: Hand) -> None:
    held = run.take()
    run.end_of_lease(held)

    assert run.picked().slot == held.slot


# Claiming -------------------------------------------------------------------------------------------------------------
def test_a_claim_takes_the_lease_and_stores_the_range(run: Hand) -> None:
    run.take()
    held = run.take()

    assert held.bounds == IdRange(100, 199)
    assert held.last_id is None
    assert held.seq == 0
    assert held.attempts == 1
    assert held.tally == Tally()
    assert run.redis.get(run.keys.lease("1")) == held.token
    assert 0 < run.ttl_ms(run.keys.lease("1")) <= TTL_MS
    assert run.slot("1", "owner") == "pod-1/7"


def test_a_repeated_claim_gets_the_same_answer_and_counts_no_attempt(run: Hand) -> None:
    """The answer was lost, the request is sent again."""
    picked = run.picked()

    first = run.claim(picked, token="mine")
    second = run.claim(picked, token="mine")

    assert isinstance(first, Claimed)
    assert second == first
    assert run.slot("0", "attempts") == "1"


def test_of_two_who_claim_with_one_ticket_one_gets_the_slot(run: Hand) -> None:
    picked = run.picked()

    assert isinstance(run.claim(picked), Claimed)
    assert run.claim(picked) == "gone"


def test_a_ticket_is_void_once_the_slot_was_picked_again(run: Hand) -> None:
    early, late = run.picked(PASSED_MS), run.picked()
    assert late.slot == early.slot

    assert run.claim(early) == "gone"
    assert isinstance(run.claim(late), Claimed)


@pytest.mark.parametrize("how", ["finish", "release", "park"])
def test_a_claim_that_arrives_after_the_slot_was_given_away_takes_nothing(run: Hand, how: Any) -> None:
    """The network held it up; by SET NX alone it would lock a slot that is done."""
    early, held = run.picked(PASSED_MS), run.take()
    assert held.slot == early.slot
    run.end(how, held)
    before = run.everything()

    assert run.claim(early) == "gone"
    assert run.everything() == before


def test_a_slot_whose_lease_lives_cannot_be_claimed_although_its_hint_has_passed(run: Hand) -> None:
    """The hint says where to look; the lease alone decides. It is moved to the end of the lease."""
    held = run.take()
    run.pass_hint(held)
    picked = run.picked()
    assert picked.slot == held.slot

    assert run.claim(picked) == "busy"

    assert run.redis.get(run.keys.lease(held.slot)) == held.token
    now_ms = time.time() * 1000
    assert now_ms + 5_000 < run.redis.zscore(run.keys["open"], held.slot) <= now_ms + TTL_MS + 1_000
    assert isinstance(run.save(held, 1, 10), Written)


def test_of_many_who_race_for_the_slots_each_slot_gets_one_holder(hand: Hand) -> None:
    hand.create(IdRange(1, 40), 1)
    claimed: list[Claimed] = []
    lock = threading.Lock()

    def race() -> None:
        while isinstance(picked := hand.pick(), Picked):
            if isinstance(won := hand.claim(picked), Claimed):
                with lock:
                    claimed.append(won)

    with ThreadPoolExecutor(8) as threads:
        for each in [threads.submit(race) for _ in range(8)]:
            each.result()

    assert sorted(int(each.slot) for each in claimed) == list(range(40))
    assert all(hand.redis.get(hand.keys.lease(each.slot)) == each.token for each in claimed)


def test_of_two_who_race_for_one_ticket_one_wins(hand: Hand) -> None:
    hand.create(IdRange(1, 20), 1)
    with ThreadPoolExecutor(4) as threads:
        for _ in range(20):
            picked = hand.picked()
            answers = [each.result() for each in [threads.submit(hand.claim, picked) for _ in range(4)]]

            assert sum(isinstance(answer, Claimed) for answer in answers) == 1


# Attempts -------------------------------------------------------------------------------------------------------------
def test_a_slot_that_ends_its_holders_again_and_again_is_parked(run: Hand) -> None:
    """A poison row that kills its pod must not go round for ever."""
    for attempt in (1, 2, 3):
        held = run.claim(run.picked(), attempts=3)
        assert isinstance(held, Claimed)
        assert (held.slot, held.attempts) == ("0", attempt)
        run.end_of_lease(held)

    assert run.claim(run.picked(), attempts=3) == "parked"

    assert run.board.parked() == ["0"]
    assert run.slot("0", "why") == "SLOT_ATTEMPTS"
    assert run.picked().slot == "1"


def test_attempts_begin_again_once_the_checkpoint_has_moved(run: Hand) -> None:
    """Five crashes in a slot of a day's work are no reason to park it, if it got on between them."""
    for _ in range(3):
        held = run.take()
        run.end_of_lease(held)
    held = run.take()
    run.save(held, 1, 10)
    run.end_of_lease(held)

    assert run.take().attempts == 1


def test_who_gives_back_in_good_order_takes_its_attempt_back(run: Hand) -> None:
    """Nodes are drained often; a slot is not parked for that."""
    for _ in range(10):
        held = run.claim(run.picked(), attempts=2)
        assert isinstance(held, Claimed)
        assert held.attempts == 1
        run.release(held, held.seq + 1)


def test_a_drain_that_moves_the_checkpoint_clears_the_attempts_of_those_before(run: Hand) -> None:
    run.end_of_lease(run.take())
    run.end_of_lease(run.take())
    held = run.take()
    assert held.attempts == 3

    run.release(held, held.seq + 1, 25)

    assert run.take().attempts == 1


def test_a_drain_that_moves_nothing_leaves_the_attempts_of_those_before(run: Hand) -> None:
    held = run.take()
    run.save(held, 1, 25)
    run.end_of_lease(held)
    run.end_of_lease(run.take())
    held = run.take()
    assert held.attempts == 2

    run.release(held, held.seq + 1, 25)

    assert run.take().attempts == 2


# Renewing -------------------------------------------------------------------------------------------------------------
def test_renewing_extends_the_leases_of_its_tokens_only(run: Hand) -> None:
    mine, lost = run.take(ttl_ms=5_000), run.take(ttl_ms=5_000)
    run.redis.set(run.keys.lease(lost.slot), "another", px=5_000)

    renewed = run.board.renew({mine.slot: mine.token, lost.slot: lost.token, "2": "never"}, ttl_ms=TTL_MS)

    assert renewed == {mine.slot: True, lost.slot: False, "2": False}
    assert run.ttl_ms(run.keys.lease(mine.slot)) > 5_000
    assert run.ttl_ms(run.keys.lease(lost.slot)) <= 5_000
    assert not run.redis.exists(run.keys.lease("2"))
    hint: Any = run.redis.zscore(run.keys["open"], mine.slot)
    assert hint > time.time() * 1000 + 5_000


def test_a_renewal_that_arrives_after_the_slot_was_finished_brings_nothing_back(run: Hand) -> None:
    held = run.take()
    run.finish(held)
    before = run.everything()

    assert run.board.renew({held.slot: held.token}, ttl_ms=TTL_MS) == {held.slot: False}
    assert run.everything() == before


# Saving ---------------------------------------------------------------------------------------------------------------
def test_a_save_moves_the_checkpoint_counts_and_extends_the_lease(run: Hand) -> None:
    held = run.take(ttl_ms=5_000)

    assert run.save(held, 1, 42, rows=40, failed=(7,), most_failed=1, blank=2) == Written()

    assert run.slot("0", "last_id") == "42"
    assert run.slot("0", "seq") == "1"
    assert Tally.decode(run.slot("0", "tally") or "").rows == 43
    assert run.board.totals() == {"changed": 40, "failed": 1, "skipped": 2, "skip:blank": 2}
    assert list(run.board.failed_rows()) == [failed_row(7)]
    assert run.ttl_ms(run.keys.lease("0")) > 5_000


def test_a_repeated_save_is_a_success_and_changes_nothing(run: Hand) -> None:
    held = run.take()
    run.save(held, 1, 42, rows=42)
    before = run.everything()

    assert run.save(held, 1, 42, rows=42) == Written()
    assert run.everything() == before


def test_a_save_that_arrives_late_does_not_move_the_checkpoint_back(run: Hand) -> None:
    """Its sender closed that connection and went on; the token alone would not keep it out."""
    held = run.take()
    run.save(held, 1, 10)
    run.save(held, 2, 30)
    before = run.everything()

    run.save(held, 1, 10)

    assert run.everything() == before


def test_a_gap_in_the_numbers_means_that_redis_went_back(run: Hand) -> None:
    """A failover lost a write that had been confirmed: what was done since then is repeated, nothing is skipped."""
    held = run.take()
    run.save(held, 1, 10)
    before = run.everything()

    assert run.save(held, 3, 30) == NotHeld()
    assert run.finish(held, 3) == NotHeld()
    assert run.release(held, 3, 30) == NotHeld()
    assert run.park(held, 3, 30) == NotHeld()
    assert run.everything() == before


def test_a_stale_holder_cannot_write_anything(run: Hand) -> None:
    """It was frozen for longer than its lease, and wakes up."""
    stale = run.take()
    run.save(stale, 1, 10)
    run.end_of_lease(stale)
    fresh = run.take()
    assert fresh.slot == stale.slot
    assert fresh.last_id == 10
    before = run.everything()

    assert run.save(stale, 2, 90) == NotHeld()
    assert run.finish(stale, 2) == NotHeld()
    assert run.release(stale, 2, 90) == NotHeld()
    assert run.park(stale, 2, 90) == NotHeld()
    assert run.everything() == before


def test_a_holder_whose_lease_has_ended_cannot_write_although_nobody_came_after_it(run: Hand) -> None:
    held = run.take()
    run.redis.delete(run.keys.lease(held.slot))
    before = run.everything()

    assert run.save(held, 1, 10) == NotHeld()
    assert run.everything() == before


def test_the_numbers_go_on_with_the_next_holder(run: Hand) -> None:
    held = run.take()
    run.save(held, 1, 10)
    run.save(held, 2, 20)
    run.release(held, 3, 30)

    again = run.take()

    assert (again.seq, again.last_id) == (3, 30)


@pytest.mark.parametrize("how", ["save", "finish", "release", "park"])
def test_too_many_failed_rows_and_nothing_is_written(run: Hand, how: str) -> None:
    held = run.take()
    run.save(held, 1, 10, failed=(3, 4), most_failed=3)
    before = run.everything()
    write: dict[str, Callable[[], Any]] = {
        "save": lambda: run.save(held, 2, 20, failed=(11, 12), most_failed=3),
        "finish": lambda: run.finish(held, 2, failed=(11, 12), most_failed=3),
        "release": lambda: run.release(held, 2, 20, failed=(11, 12), most_failed=3),
        "park": lambda: run.park(held, 2, 20, failed=(11, 12), most_failed=3),
    }

    assert write[how]() == TooManyFailed(room=1)
    assert run.everything() == before


def test_a_row_that_is_listed_already_takes_no_more_room(run: Hand) -> None:
    """A slot taken over repeats rows; the same row failing again is one failed row."""
    held = run.take()
    run.save(held, 1, 10, failed=(3, 4), most_failed=2)

    assert run.save(held, 2, 20, failed=(3, 4), most_failed=2) == Written()
    assert run.save(held, 3, 30, failed=(4, 21), most_failed=2) == TooManyFailed(room=0)


def test_reasons_of_skips_are_counted_up_to_a_hundred_of_them(run: Hand) -> None:
    """A reason with an id in it must not fill Redis."""
    held = run.take()

    run.save(held, 1, 90, **{f"row {n}": 1 for n in range(300)})

    totals = run.board.totals()
    reasons = [name for name in totals if name.startswith("skip:")]
    assert len(reasons) <= 105
    assert totals["skip:other"] >= 195
    assert sum(totals[name] for name in reasons) == totals["skipped"] == 300


# Finishing ------------------------------------------------------------------------------------------------------------
def test_finishing_leaves_one_entry_in_the_ledger_and_nothing_else_of_the_slot(run: Hand) -> None:
    held = run.take()
    run.save(held, 1, 90, rows=90)

    assert run.finish(held, 2, rows=91) == Written()

    tally = Tally(changed=91).encode()
    assert run.redis.hgetall(run.keys["done"]) == {"0": f"0 99 {tally} {held.token}"}
    assert not run.redis.exists(run.keys.slot("0"))
    assert not run.redis.exists(run.keys.lease("0"))
    assert run.redis.zrange(run.keys["open"], 0, -1) == []


def test_a_repeated_finish_is_a_success_and_changes_nothing(run: Hand) -> None:
    held = run.take()
    run.finish(held, 1, rows=5)
    before = run.everything()

    assert run.finish(held, 1, rows=5) == Written()
    assert run.everything() == before


def test_who_worked_to_another_end_cannot_finish(run: Hand) -> None:
    held = run.take()
    before = run.everything()

    assert run.finish(held, 1, end=98) == OtherEnd(99)
    assert run.everything() == before


@pytest.mark.parametrize("how", ["release", "park"])
def test_a_repeated_release_or_park_is_a_success_and_changes_nothing(run: Hand, how: Any) -> None:
    held = run.take()
    run.give_back(how, held, 1, 40, rows=40)
    before = run.everything()

    assert run.give_back(how, held, 1, 40, rows=40) == Written()
    assert run.everything() == before


def test_a_released_slot_goes_on_at_its_checkpoint_with_the_next_holder(run: Hand) -> None:
    held = run.take()
    run.release(held, 1, 40, rows=40)

    again = run.take()

    assert (again.slot, again.last_id, again.tally.changed) == ("0", 40, 40)
    assert run.slot("0", "why") is None


def test_a_slot_given_back_with_a_delay_waits_for_it(run: Hand) -> None:
    run.release(run.take(), delay_ms=300)

    assert [run.take().slot, run.take().slot] == ["1", "2"]
    due = wait_until(lambda: isinstance(found := run.pick(), Picked) and found, "the slot is due", 10)
    assert due.slot == "0"


# Holes ----------------------------------------------------------------------------------------------------------------
def test_a_proven_hole_moves_the_frontier_and_is_kept(hand: Hand) -> None:
    hand.create(IdRange(0, 9_999), 100)
    hand.finish(hand.take(), jump_to=50)

    assert hand.picked().slot == "50"
    assert hand.redis.hgetall(hand.keys["gaps"]) == {"1": "49"}
    assert hand.meta("jumped") == "49"


def test_a_jump_never_goes_back(hand: Hand) -> None:
    """Slots in front of the frontier were claimed meanwhile: they have their holders."""
    hand.create(IdRange(0, 9_999), 100)
    first = hand.take()
    for _ in range(9):
        hand.take()

    hand.finish(first, jump_to=5)

    assert hand.picked().slot == "10"
    assert hand.redis.hgetall(hand.keys["gaps"]) == {}
    assert hand.meta("jumped") == "0"


def test_a_run_with_holes_is_finished_when_all_others_are_done(hand: Hand) -> None:
    hand.create(IdRange(0, 9_999), 100)
    hand.finish(hand.take(), jump_to=99)
    hand.finish(hand.take())

    assert isinstance(hand.pick(), Finished)


# The end of a run -----------------------------------------------------------------------------------------------------
def test_one_of_those_who_pick_is_told_that_it_found_the_run_finished(run: Hand) -> None:
    for _ in range(3):
        run.finish(run.take())

    first, second = run.pick(), run.pick()

    assert isinstance(first, Finished)
    assert first.found_now
    assert second == Finished(first.at_ms, found_now=False)
    assert abs(first.at_ms / 1000 - time.time()) < 60


def test_keys_get_their_time_to_live_when_the_run_is_finished_and_not_before(run: Hand) -> None:
    """While a run is alive everything is what a resumption needs, be it after a month."""
    for _ in range(2):
        run.finish(run.take(), failed=(), rows=1)
    last = run.take()
    run.save(last, 1, 250, failed=(211,), most_failed=1)
    run.release(last, 2, 260)
    assert {key for key in run.all_keys() if run.ttl_ms(key) != -1} == set()
    run.finish(run.take(), 3)
    assert {key for key in run.all_keys() if run.ttl_ms(key) != -1} == set()

    run.pick()

    for key in run.all_keys():
        assert KEEP_MS - 60_000 < run.ttl_ms(key) <= KEEP_MS, key
    assert run.keys["failed"] in run.all_keys()


@pytest.mark.parametrize("key", ["open", "done"])
def test_a_run_that_lost_a_key_is_never_called_finished(run: Hand, key: str) -> None:
    """Evicted: what is gone looks like what is done; so slots are counted."""
    run.finish(run.take())
    run.take()
    run.finish(run.take())
    run.redis.delete(run.keys[key])
    if key == "done":
        run.redis.delete(run.keys["open"])

    with pytest.raises(RunStateLost):
        run.pick()


def test_a_run_that_lost_its_ready_or_parked_slots_is_never_called_finished(run: Hand) -> None:
    run.finish(run.take())
    run.park(run.take())
    run.finish(run.take())
    run.redis.delete(run.keys["parked"])

    with pytest.raises(RunStateLost):
        run.pick()


def test_a_slot_that_vanished_under_its_holder_is_worked_on_again(run: Hand) -> None:
    run.finish(run.take())
    run.finish(run.take())
    held = run.take()
    run.save(held, 1, 250)
    run.redis.delete(run.keys.slot(held.slot))

    assert run.save(held, 2, 260) == NotHeld()
    assert run.finish(held, 2) == NotHeld()
    assert isinstance(run.pick(), Wait)

    run.end_of_lease(held)
    again = run.take()
    assert (again.bounds, again.last_id) == (held.bounds, None)
    run.finish(again)
    assert isinstance(run.pick(), Finished)


def test_a_run_without_meta_is_lost(run: Hand) -> None:
    run.take()
    run.redis.delete(run.keys["meta"])

    with pytest.raises(RunStateLost):
        run.pick()


def test_an_empty_table_makes_a_run_that_is_finished_at_once(hand: Hand) -> None:
    hand.board.create({"segments": SlotMap(()).encode(), "slots": "0"})

    assert isinstance(hand.pick(), Finished)


# Parked slots ---------------------------------------------------------------------------------------------------------
def test_parked_slots_are_told_of_only_when_nothing_else_is_left(run: Hand) -> None:
    run.park(run.take())
    held = run.take()
    run.finish(run.take())
    assert isinstance(run.pick(), Wait)

    run.finish(held)

    assert run.pick() == OnlyParked(1)


def test_requeued_slots_may_be_claimed_again_with_their_attempts_cleared(run: Hand) -> None:
    run.end_of_lease(run.take())
    held = run.take()
    run.park(held, 1, 30)

    assert run.board.requeue(["0", "1", "2"]) == 1

    again = run.take()
    assert (again.slot, again.last_id, again.attempts) == ("0", 30, 1)
    assert run.board.parked() == []


def test_requeueing_leaves_alone_what_is_not_parked(run: Hand) -> None:
    held = run.take()
    run.finish(run.take())
    before = run.everything()

    assert run.board.requeue([held.slot, "1", "2"]) == 0
    assert run.everything() == before


# Failed rows ----------------------------------------------------------------------------------------------------------
def test_rows_that_were_handled_after_all_leave_the_failed_list(run: Hand) -> None:
    run.save(run.take(), 1, 50, failed=(3, 4, 5), most_failed=3)
    assert run.board.try_claim_failed("mine", ttl_ms=TTL_MS)

    assert run.board.settle("mine", {3: "changed", 5: "skipped"}, {5: "blank"})

    assert [row.row_id for row in run.board.failed_rows()] == [4]
    assert run.board.totals() == {"failed": 1, "changed": 1, "skipped": 1, "skip:blank": 1}


def test_a_row_that_failed_again_stays_on_the_list_with_its_new_error(run: Hand) -> None:
    run.save(run.take(), 1, 50, failed=(3,), most_failed=3)
    run.board.try_claim_failed("mine", ttl_ms=TTL_MS)
    again = replace(failed_row(3), error="KeyError: 'email'")

    assert run.board.settle("mine", {3: "failed"}, {3: again.encode()})

    assert list(run.board.failed_rows()) == [again]
    assert run.board.totals() == {"failed": 1}


def test_a_repeated_settling_counts_nothing_twice(run: Hand) -> None:
    run.save(run.take(), 1, 50, failed=(3,), most_failed=3)
    run.board.try_claim_failed("mine", ttl_ms=TTL_MS)
    run.board.settle("mine", {3: "changed"})

    assert run.board.settle("mine", {3: "changed"})
    assert run.board.totals() == {"failed": 0, "changed": 1}


def test_only_one_runs_failed_rows_again(run: Hand) -> None:
    run.save(run.take(), 1, 50, failed=(3,), most_failed=3)

    assert run.board.try_claim_failed("mine", ttl_ms=TTL_MS)
    assert not run.board.try_claim_failed("theirs", ttl_ms=TTL_MS)
    assert not run.board.settle("theirs", {3: "changed"})
    assert [row.row_id for row in run.board.failed_rows()] == [3]


# Exact numbers --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "bounds",
    [
        IdRange(2**53 + 1, 2**53 + 300),
        IdRange(2**63 - 300, 2**63 - 1),
        IdRange(2**64 - 300, 2**64 - 1),
        IdRange(-(2**63), -(2**63) + 299),
        IdRange(-150, 149),
    ],
    ids=str,
)
def test_ids_are_exact_everywhere(hand: Hand, bounds: IdRange) -> None:
    """A double loses integers above 2^53: a checkpoint would stand one row further than what was done."""
    hand.create(bounds, 100)
    for n in range(3):
        first = bounds.first + 100 * n
        held = hand.take()
        assert held.bounds == IdRange(first, first + 99)
        hand.save(held, 1, first + 33, failed=(first + 7,), most_failed=9)
        hand.release(held, 2, first + 77)
        again = hand.take()
        assert again.bounds == held.bounds
        assert again.last_id == first + 77
        assert hand.finish(again, 3) == Written()

    assert isinstance(hand.pick(), Finished)
    entries = [entry.split()[:2] for entry in hand.redis.hvals(hand.keys["done"])]
    assert sorted((int(first), int(last)) for first, last in entries) == [
        (bounds.first + 100 * n, bounds.first + 100 * n + 99) for n in range(3)
    ]
    assert sorted(row.row_id for row in hand.board.failed_rows()) == [bounds.first + 7 + 100 * n for n in range(3)]


def test_sums_of_ids_are_exact(run: Hand) -> None:
    tally = Tally(changed=2)
    tally.count_ids([2**64 - 1, 2**64 - 3])
    held = run.take()

    run.board.save(held.slot, held.token, 1, Write(last_id=5, tally=tally), ttl_ms=TTL_MS, most_failed=0)
    run.end_of_lease(held)

    assert run.take().tally == tally


@pytest.mark.parametrize("number", [10**14 + 1, 10**15 + 3, MOST_SLOTS - 3])
def test_numbers_of_slots_are_exact_up_to_the_highest(hand: Hand, number: int) -> None:
    """Lua would write them as 1e+14 from there on."""
    hand.create(IdRange(0, MOST_SLOTS - 2), 1)
    hand.finish(hand.take(), jump_to=number)

    held = [hand.take(), hand.take()]

    assert [each.slot for each in held] == [str(number), str(number + 1)]
    assert [each.bounds for each in held] == [IdRange(number, number), IdRange(number + 1, number + 1)]
    assert hand.redis.hgetall(hand.keys["gaps"]) == {"1": str(number - 1)}
    assert hand.meta("jumped") == str(number - 1)
    assert hand.meta("frontier") == str(number + 2)
    for each in held:
        hand.finish(each, jump_to=hand.slot_map.slots)
    assert isinstance(hand.pick(), Finished)


# Waking ---------------------------------------------------------------------------------------------------------------
def test_the_list_that_wakes_workers_does_not_grow_beyond_a_hundred(hand: Hand) -> None:
    hand.create(IdRange(1, 150), 1)
    for _ in range(130):
        hand.finish(hand.take())

    assert hand.redis.llen(hand.keys["wake"]) == 100


@pytest.mark.parametrize("how", ["finish", "release"])
def test_a_slot_that_becomes_free_wakes_one_who_waits(run: Hand, how: Any) -> None:
    held = run.take()
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(run.board.wait_for_wake, 8)
        run.end(how, held)

        assert waiting.result() is True


def test_who_is_not_woken_wakes_up_in_the_end(run: Hand) -> None:
    assert run.board.wait_for_wake(0.1) is False


# Another run's state --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "operation", ["pick", "claim", "renew", "save", "finish", "release", "park", "requeue", "settle"]
)
def test_whoever_knows_another_run_is_refused_and_changes_nothing(run: Hand, operation: str) -> None:
    """Redis was emptied, and the run created again: nothing of the old one may go into it."""
    held, picked = run.take(), run.picked()
    run.board.try_claim_failed("mine", ttl_ms=TTL_MS)
    run.redis.hset(run.keys["meta"], "uid", "another")
    before = run.everything()
    operations: dict[str, Callable[[], Any]] = {
        "pick": run.pick,
        "claim": lambda: run.claim(picked),
        "renew": lambda: run.board.renew({held.slot: held.token}, ttl_ms=TTL_MS),
        "save": lambda: run.save(held, 1, 10),
        "finish": lambda: run.finish(held),
        "release": lambda: run.release(held),
        "park": lambda: run.park(held),
        "requeue": lambda: run.board.requeue(["0"]),
        "settle": lambda: run.board.settle("mine", {3: "changed"}),
    }

    with pytest.raises(RunStateLost):
        operations[operation]()

    assert run.everything() == before


# Reset ----------------------------------------------------------------------------------------------------------------
def test_a_reset_refuses_while_a_lease_lives(run: Hand) -> None:
    held = run.take()

    assert run.board.try_mark_reset() == run.keys.lease(held.slot)
    assert run.save(held, 1, 10) == Written()


def test_a_reset_refuses_while_failed_rows_are_run_again(run: Hand) -> None:
    run.board.try_claim_failed("mine", ttl_ms=TTL_MS)

    assert run.board.try_mark_reset() == run.keys.lease(FAILED_LEASE)


def test_from_the_mark_of_a_reset_on_every_script_refuses_and_nobody_creates_the_run(run: Hand) -> None:
    held, picked = run.take(), run.picked()
    run.redis.delete(run.keys.lease(held.slot))

    assert run.board.try_mark_reset() is None

    with pytest.raises(RunStateLost):
        run.pick()
    with pytest.raises(RunStateLost):
        run.claim(picked)
    with pytest.raises(RunStateLost):
        run.save(held, 1, 10)
    with pytest.raises(RunStateLost):
        run.finish(held)
    with pytest.raises(RunStateLost):
        run.board.renew({held.slot: held.token}, ttl_ms=TTL_MS)
    with pytest.raises(RunStateLost, match="being reset"):
        run.create()


def test_a_reset_that_was_broken_off_can_be_done_again(run: Hand) -> None:
    run.release(run.take(), 1, 30)
    assert run.board.try_mark_reset() is None

    assert run.board.try_mark_reset() is None
    assert run.board.sweep() >= 2


def test_a_reset_leaves_nothing_of_the_run_and_touches_no_other(run: Hand) -> None:
    """`job/main` must not take `job/main2` or the same run under another prefix with it."""
    neighbours = [
        Board(run.board.client, Keys(run.keys.prefix, "job", "main2")),
        Board(run.board.client, Keys(run.keys.prefix, "job2", "main")),
        Board(run.board.client, Keys(f"{run.keys.prefix}:more", "job", "main")),
    ]
    for each in neighbours:
        each.create({"segments": "[]", "slots": "0"})
    run.save(run.take(), 1, 10, failed=(3,), most_failed=1)
    run.finish(run.take())
    run.park(run.take())
    run.redis.delete(run.keys.lease("0"))

    assert run.board.try_mark_reset() is None
    swept = run.board.sweep()

    assert swept > 5
    assert run.all_keys() == sorted(each.keys["meta"] for each in neighbours)
    run.create()
    assert run.take().last_id is None


# Scripts --------------------------------------------------------------------------------------------------------------
def test_scripts_that_the_server_has_forgotten_are_sent_again(run: Hand) -> None:
    """After a restart or a failover the server knows none of them."""
    run.redis.script_flush()

    assert isinstance(run.pick(), Picked)
