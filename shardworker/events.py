"""What the core reports of its work. `observe` makes log lines of it; nothing here decides anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotClaimed:
    slot: str
    first: int
    last: int
    last_id: int | None  # None: nothing of it is done yet
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """Every row up to `last_id` is done, and stored so."""

    slot: str
    last_id: int
    rows: int
    seconds: float  # since the batch was begun


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFinished:
    slot: str
    rows: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReleased:
    slot: str
    last_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotParked:
    slot: str
    last_id: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLost:
    slot: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HoleJumped:
    """A hole in the ids was proven empty."""

    slots: int
    next_slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFailed:
    row_id: int
    error: str
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    target: str  # "database", "redis", "row"
    code: str
    error: str
    attempt: int
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    target: str
    after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Nothing is free; other workers hold what is left."""

    open_slots: int
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Draining:
    signal: str


Event = (
    SlotClaimed
    | BatchDone
    | SlotFinished
    | SlotReleased
    | SlotParked
    | SlotLost
    | HoleJumped
    | RowFailed
    | Retrying
    | Recovered
    | Waiting
    | Draining
)
Emit = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """Listens to nothing."""
