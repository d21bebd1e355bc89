"""The typed face of the scripts: one method each, which returns a meaning and not a number.

A board belongs to one run and sends one request a call; repeating and trusting is the business of `holder` and
`renewal`. Methods may be called from several threads.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

import redis

from shardworker.claim.keys import FAILED_LEASE, Keys
from shardworker.errors import RunStateLost
from shardworker.ids import IdRange
from shardworker.outcomes import FailedRow, Tally


@dataclass(frozen=True, slots=True)
class Picked:
    slot: str
    ticket: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Others hold what is left."""

    hint_s: float | None  # until something may become free
    open_slots: int


@dataclass(frozen=True, slots=True)
class OnlyParked:
    slots: int


@dataclass(frozen=True, slots=True)
class Finished:
    at_ms: int
    found_now: bool  # by this very call


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A slot as its new holder finds it."""

    slot: str
    token: str
    bounds: IdRange
    last_id: int | None  # None: nothing is done yet
    seq: int
    tally: Tally
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """What a holder's write carries: how far the slot is done, and what is new since the last one."""

    last_id: int | None
    tally: Tally  # of the whole slot
    fresh: Tally = field(default_factory=Tally)  # what the totals do not have yet
    failed: Sequence[FailedRow] = ()  # new ones

    def arguments(self) -> list[str]:
        counts = {name: n for name, n in self.fresh.counts().items() if n}
        counts |= {f"skip:{reason}": n for reason, n in self.fresh.reasons.items()}
        pairs = [text for name, n in counts.items() for text in (name, str(n))]
        rows = [text for row in self.failed for text in (str(row.row_id), row.encode())]
        return [str(len(counts)), *pairs, *rows]


@dataclass(frozen=True, slots=True)
class Written:
    """It is in: now, or since an earlier request whose answer was lost."""


@dataclass(frozen=True, slots=True)
class TooManyFailed:
    """Nothing was written: the run's failed rows would exceed MAX_FAILED_ROWS."""

    room: int  # how many more fit


@dataclass(frozen=True, slots=True)
class NotHeld:
    """The slot has another holder, or none; nothing was written."""


@dataclass(frozen=True, slots=True)
class OtherEnd:
    """The slot ends elsewhere than its holder thinks; nothing was written."""

    last: int


WriteAnswer = Written | TooManyFailed | NotHeld
Ending = Literal["release", "park"]


class Board:
    """One run's state in Redis."""

    def __init__(self, client: redis.Redis, keys: Keys, *, uid: str = "") -> None:
        self.client = client
        self.keys = keys
        self.uid = uid  # of the run that this board knows; `create` sets it

    # The run -----------------------------------------------------------------------------------------------------
    def create(self, fields: Mapping[str, str], *, amid_remains: bool = False) -> dict[str, str]:
        """Creates the run with `fields`, or finds the one that is there; returns the fields of its meta.

        `amid_remains`: also where other keys of the run are there and its meta is not.

        Raises:
            RunStateLost: it is being reset, or its meta is gone.
        """
        new = {"uid": secrets.token_hex(8), "frontier": "0", "jumped": "0", "split_off": "0"} | dict(fields)
        keys = [self.keys[name] for name in ("meta", "open", "ready", "parked", "done")]
        answer = self._run("create", keys, [int(amid_remains), *(text for pair in new.items() for text in pair)])
        if answer == ["resetting"]:
            raise RunStateLost("the run is being reset; `shardworker reset` finishes a reset that was broken off")
        if answer[0] == "remains":
            raise RunStateLost(
                f"Redis has {answer[1]} and no {self.keys['meta']}: the state of this run is lost in part (was it "
                "evicted?). `shardworker reset` removes what is left; the run then begins at the first row"
            )
        meta = _pairs(answer)
        self.uid = meta["uid"]
        return meta

    def meta(self) -> dict[str, str]:
        """The fields of meta; empty if there is no such run."""
        return {str(name): str(value) for name, value in self.client.hgetall(self.keys["meta"]).items()}

    def totals(self) -> dict[str, int]:
        """Rows by outcome, and `skip:<reason>`."""
        return {str(name): int(n) for name, n in self.client.hgetall(self.keys["totals"]).items()}

    def requeue(self, slots: Sequence[str]) -> int:
        """Puts parked slots back, attempts cleared; returns how many were parked."""
        keys = [self.keys[name] for name in ("meta", "parked", "ready", "wake")]
        answer = self._run("requeue", [*keys, *map(self.keys.slot, slots)], [self.uid, *slots])
        return int(self._known(answer)[1])

    def parked(self) -> list[str]:
        return [str(name) for name in self.client.zrange(self.keys["parked"], 0, -1)]

    # Claiming ----------------------------------------------------------------------------------------------------
    def pick(self, *, provisional_ms: int, keep_ms: int) -> Picked | Wait | OnlyParked | Finished:
        """A slot that may be claimed, marked as picked for `provisional_ms`; or why there is none."""
        answer = self._known(self._run("pick", self.keys.lasting(), [self.uid, provisional_ms, keep_ms]))
        if answer[0] == "slot":
            return Picked(str(answer[1]), str(answer[2]))
        if answer[0] == "wait":
            return Wait(max(0, int(answer[1])) / 1000 if int(answer[1]) != -1 else None, int(answer[2]))
        if answer[0] == "parked":
            return OnlyParked(int(answer[1]))
        return Finished(int(answer[1]), bool(int(answer[2])))

    def try_claim(
        self, picked: Picked, *, token: str, ttl_ms: int, bounds: IdRange | None, owner: str, attempts: int
    ) -> Claimed | Literal["gone", "busy", "parked"]:
        """Takes the lease of a picked slot. `bounds`: as computed; None for a slot that was split off.

        "gone": done, given back or picked by another meanwhile; "busy": somebody holds it; "parked": it has ended
        `attempts` holders without any progress. In all three cases: pick again.
        """
        slot = picked.slot
        keys = [self.keys[name] for name in ("meta", "open", "parked")]
        first, last = (str(bounds.first), str(bounds.last)) if bounds else ("", "")
        answer = self._known(
            self._run(
                "claim",
                [*keys, self.keys.slot(slot), self.keys.lease(slot)],
                [self.uid, slot, token, picked.ticket, ttl_ms, first, last, owner, attempts],
            )
        )
        if answer[0] != "claimed":
            return "gone" if answer[0] == "gone" else "busy" if answer[0] == "busy" else "parked"
        return Claimed(
            slot=slot,
            token=token,
            bounds=IdRange(int(answer[1]), int(answer[2])),
            last_id=int(answer[3]) if answer[3] else None,
            seq=int(answer[4]),
            tally=Tally.decode(answer[5]),
            attempts=int(answer[6]),
        )

    def renew(self, held: Mapping[str, str], *, ttl_ms: int) -> dict[str, bool]:
        """Extends the leases of slots (slot → token); says of each whether it is still held."""
        keys = [self.keys["meta"], self.keys["open"], *map(self.keys.lease, held)]
        pairs = [text for pair in held.items() for text in pair]
        answer = self._known(self._run("renew", keys, [self.uid, ttl_ms, *pairs]))
        return dict(zip(held, map(bool, answer[1:]), strict=True))

    # A holder's writes -------------------------------------------------------------------------------------------
    def save(self, slot: str, token: str, seq: int, write: Write, *, ttl_ms: int, most_failed: int) -> WriteAnswer:
        keys = [self.keys["meta"], self.keys["open"], self.keys.slot(slot), self.keys.lease(slot)]
        answer = self._run(
            "save",
            [*keys, self.keys["totals"], self.keys["failed"]],
            [
                self.uid,
                slot,
                token,
                seq,
                ttl_ms,
                _text(write.last_id),
                write.tally.encode(),
                most_failed,
                *write.arguments(),
            ],
        )
        return self._write_answer(answer)

    def finish(
        self, slot: str, token: str, seq: int, write: Write, *, end: int, jump_to: int | None, most_failed: int
    ) -> WriteAnswer | OtherEnd:
        """Enters the slot into the ledger. `jump_to`: number of the slot to which the holder has proven that there are
        no ids; None if it found rows."""
        keys = [self.keys["meta"], self.keys["open"], self.keys.slot(slot), self.keys.lease(slot)]
        answer = self._run(
            "finish",
            [*keys, *(self.keys[name] for name in ("done", "gaps", "totals", "failed", "wake"))],
            [
                self.uid,
                slot,
                token,
                seq,
                end,
                write.tally.encode(),
                most_failed,
                _text(jump_to),
                "",
                *write.arguments(),
            ],
        )
        return OtherEnd(int(answer[1])) if answer[0] == "other end" else self._write_answer(answer)

    def give_back(
        self,
        how: Ending,
        slot: str,
        token: str,
        seq: int,
        write: Write,
        *,
        why: str,
        most_failed: int,
        delay_ms: int = 0,
    ) -> WriteAnswer:
        """Releases or parks the slot at `write.last_id`."""
        target = self.keys["ready" if how == "release" else "parked"]
        keys = [self.keys["meta"], self.keys["open"], target, self.keys.slot(slot), self.keys.lease(slot)]
        answer = self._run(
            how,
            [*keys, *(self.keys[name] for name in ("totals", "failed", "wake"))],
            [
                self.uid,
                slot,
                token,
                seq,
                _text(write.last_id),
                write.tally.encode(),
                most_failed,
                delay_ms,
                why,
                *write.arguments(),
            ],
        )
        return self._write_answer(answer)

    # Failed rows -------------------------------------------------------------------------------------------------
    def failed_rows(self) -> Iterator[FailedRow]:
        for row_id, record in self.client.hscan_iter(self.keys["failed"], count=1000):
            yield FailedRow.decode(int(row_id), record)

    def try_claim_failed(self, token: str, *, ttl_ms: int) -> bool:
        """The lease under which failed rows are run again; False: somebody else is at it. May be repeated."""
        lease = self.keys.lease(FAILED_LEASE)
        return bool(self.client.set(lease, token, nx=True, px=ttl_ms)) or self.client.get(lease) == token

    def free_failed(self, token: str) -> None:
        """Gives that lease back; does nothing where another token holds it."""
        self._run("free_failed", [self.keys.lease(FAILED_LEASE)], [token])

    def settle(self, token: str, outcomes: Mapping[int, str], details: Mapping[int, str] = {}) -> bool:
        """Takes rows off the failed list (id → new outcome); False: the lease is lost, nothing was written.

        One that failed again stays on it. `details`: its new record, or the reason of a row that was skipped.
        """
        keys = [self.keys["meta"], self.keys.lease(FAILED_LEASE), self.keys["failed"], self.keys["totals"]]
        rows = [
            text for row_id, outcome in outcomes.items() for text in (str(row_id), outcome, details.get(row_id, ""))
        ]
        return bool(self._known(self._run("settle", keys, [self.uid, token, *rows]))[0] == "ok")

    # -------------------------------------------------------------------------------------------------------------
    def wait_for_wake(self, seconds: float) -> bool:
        """Sleeps until somebody gives a slot back or finishes one, at most so long."""
        return self.client.blpop([self.keys["wake"]], timeout=seconds) is not None

    def try_mark_reset(self) -> str | None:
        """Begins a reset; the name of a living lease if there is one, and then nothing has changed."""
        while True:
            slots = [str(name) for name in self.client.zrange(self.keys["open"], 0, -1)]
            keys = [self.keys["meta"], self.keys["open"], *map(self.keys.lease, [*slots, FAILED_LEASE])]
            answer = self._run("mark_reset", keys, slots)
            if answer[0] != "again":
                return str(answer[1]) if answer[0] == "alive" else None

    def sweep(self) -> int:
        """Deletes all keys of the run that is marked for reset, meta last; returns how many there were."""
        meta, swept = self.keys["meta"], 0
        pattern = self.keys.base.replace("\\", "\\\\").replace("[", "\\[").replace("*", "\\*").replace("?", "\\?") + "*"
        for key in self.client.scan_iter(pattern, count=1000):
            if key != meta:
                swept += int(self.client.unlink(key))
        return swept + int(self.client.unlink(meta))

    def _run(self, script: str, keys: Sequence[str], arguments: Sequence[object]) -> list[Any]:
        return run_script(self.client, script, keys, arguments)

    def _known(self, answer: list[Any]) -> list[Any]:
        if answer[0] == "state lost":
            raise RunStateLost(
                f"Redis no longer has the state of the run {self.keys.job}/{self.keys.run} that this worker knows: it "
                f"was emptied, evicted, reset, or belongs to another run now (keys {self.keys.base}*)"
            )
        return answer

    def _write_answer(self, answer: list[Any]) -> WriteAnswer:
        match self._known(answer)[0]:
            case "ok" | "repeated":
                return Written()
            case "too many":
                return TooManyFailed(int(answer[1]))
            case _:
                return NotHeld()


def _text(number: int | None) -> str:
    return "" if number is None else str(number)


def _pairs(flat: Sequence[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


_scripts: dict[str, tuple[str, str]] = {}  # name → text, SHA-1; filled at the first use


def run_script(client: redis.Redis, name: str, keys: Sequence[str], arguments: Sequence[object]) -> list[Any]:
    """Runs `lua/<name>.lua` by its SHA-1, or by its text where the server does not know it (any more)."""
    if name not in _scripts:
        folder = resources.files("shardworker.claim") / "lua"
        text = (folder / "prelude.lua").read_text() + (folder / f"{name}.lua").read_text()
        _scripts[name] = (text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
    text, sha = _scripts[name]
    sent = [*keys, *map(str, arguments)]
    try:
        answer = client.evalsha(sha, len(keys), *sent)
    except redis.exceptions.NoScriptError:
        answer = client.eval(text, len(keys), *sent)
    return list(answer)
