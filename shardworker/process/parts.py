"""Parts: the rows given to one handler thread at once, and what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shardworker.errors import HandlerError
from shardworker.handler import Change, Deletion
from shardworker.outcomes import FailedRow, Tally


@dataclass(slots=True)
class Handled:
    """What a handler made of a part. Rows that stand in none of the three are unchanged."""

    changes: dict[int, Change | Deletion] = field(default_factory=dict)
    skipped: dict[int, str] = field(default_factory=dict)  # id → reason
    failed: dict[int, FailedRow] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Part:
    """A slice of a batch, in the order of its ids."""

    batch: int  # number of the batch in its slot, from 1
    ids: Sequence[int]
    rows: Sequence[Any]
    ends_batch: bool
    began: float  # boot-time seconds
    handled: Handled | None = None  # None: not known to be done
    error: HandlerError | None = None  # the part as a whole failed
    stale: set[int] = field(default_factory=set)  # ids of rows that have changed since they were read (guard)


class Done:
    """A run of finished parts, contiguous and in order: what a checkpoint may move over."""

    def __init__(self, parts: Sequence[Part] = (), before: int | None = None) -> None:
        self._parts = parts
        self._before = before  # only ids below it belong to it; None: all

    @property
    def whole_parts(self) -> Sequence[Part]:
        """The parts themselves, not cut."""
        return self._parts

    @property
    def last_id(self) -> int | None:
        """The last id; None if there is none."""
        for part in reversed(self._parts):
            for row_id in reversed(part.ids):
                if self._before is None or row_id < self._before:
                    return row_id
        return None

    @property
    def batch_ends(self) -> int:
        """How many batches end in it."""
        return sum(part.ends_batch for part in self._parts)

    @property
    def began(self) -> float:
        return self._parts[0].began

    def parts(self) -> list[tuple[Sequence[int], Handled]]:
        """Ids and outcomes of each part, cut at the end."""
        cut = self._before
        pairs = [(part.ids, part.handled) for part in self._parts if part.handled is not None]
        if cut is None:
            return [(ids, handled) for ids, handled in pairs]
        return [
            (
                [row_id for row_id in ids if row_id < cut],
                Handled(
                    {i: change for i, change in handled.changes.items() if i < cut},
                    {i: reason for i, reason in handled.skipped.items() if i < cut},
                    {i: row for i, row in handled.failed.items() if i < cut},
                ),
            )
            for ids, handled in pairs
        ]

    def tally(self) -> Tally:
        return Tally.total(count(ids, handled) for ids, handled in self.parts())

    def failed(self) -> list[FailedRow]:
        return [row for _, handled in self.parts() for _, row in sorted(handled.failed.items())]

    def changes(self) -> dict[int, Change | Deletion]:
        merged: dict[int, Change | Deletion] = {}
        for _, handled in self.parts():
            merged |= handled.changes
        return merged

    def with_room_for(self, failed_rows: int) -> Done:
        """The beginning of it, up to just before the first failed row that is one too many."""
        return Done(self._parts, before=self.failed()[failed_rows].row_id)

    def __bool__(self) -> bool:
        return self.last_id is not None


def count(ids: Sequence[int], handled: Handled) -> Tally:
    """The tally of one part."""
    tally = Tally()
    tally.deleted = sum(isinstance(change, Deletion) for change in handled.changes.values())
    tally.changed = len(handled.changes) - tally.deleted
    tally.skipped, tally.failed = len(handled.skipped), len(handled.failed)
    tally.unchanged = len(ids) - tally.changed - tally.deleted - tally.skipped - tally.failed
    tally.count_ids(ids)
    if handled.skipped:
        tally.reasons = Counter(handled.skipped.values())
    return tally
