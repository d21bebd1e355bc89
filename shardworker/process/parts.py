"""Parts: the rows given to one handler thread at once, and what became of them."""

from __future__ import annotations

import bisect
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

    def __init__(self, parts: Sequence[Part] = ()) -> None:
        self.parts = parts

    @property
    def last_id(self) -> int | None:
        """The last id; None if there is none."""
        return self.parts[-1].ids[-1] if self.parts else None

    @property
    def batch_ends(self) -> int:
        """How many batches end in it."""
        return sum(part.ends_batch for part in self.parts)

    @property
    def began(self) -> float:
        return self.parts[0].began

    @property
    def rows(self) -> int:
        return sum(len(part.ids) for part in self.parts)

    def tally(self) -> Tally:
        tally = Tally()
        for part in self.parts:
            if part.handled is not None:
                count_in(tally, part.ids, part.handled)
        return tally

    def failed(self) -> list[FailedRow]:
        outcomes = [part.handled for part in self.parts if part.handled is not None]
        return [row for handled in outcomes for _, row in sorted(handled.failed.items())]

    def with_room_for(self, failed_rows: int) -> Done:
        """The beginning of it, up to just before the first failed row that is one too many."""
        cut = self.failed()[failed_rows].row_id
        return Done([_before(part, cut) for part in self.parts if part.ids[0] < cut])

    def __bool__(self) -> bool:
        return bool(self.parts)


def _before(part: Part, cut: int) -> Part:
    """The beginning of a finished part, with the ids below `cut`: changes of later rows must not be written."""
    assert part.handled is not None
    size = bisect.bisect_left(part.ids, cut)
    handled = Handled(
        {row_id: change for row_id, change in part.handled.changes.items() if row_id < cut},
        {row_id: reason for row_id, reason in part.handled.skipped.items() if row_id < cut},
        {row_id: failed for row_id, failed in part.handled.failed.items() if row_id < cut},
    )
    ends_batch = part.ends_batch and size == len(part.ids)
    return Part(part.batch, part.ids[:size], part.rows[:size], ends_batch, part.began, handled)


def count(ids: Sequence[int], handled: Handled) -> Tally:
    """The tally of one part."""
    tally = Tally()
    count_in(tally, ids, handled)
    return tally


def count_in(tally: Tally, ids: Sequence[int], handled: Handled) -> None:
    """Add one part to a tally. There may be thousands in a batch, most of them without any outcome to count."""
    tally.count_ids(ids)
    unchanged = len(ids)
    if handled.changes:
        deleted = sum(isinstance(change, Deletion) for change in handled.changes.values())
        tally.deleted += deleted
        tally.changed += len(handled.changes) - deleted
        unchanged -= len(handled.changes)
    if handled.skipped:
        tally.skipped += len(handled.skipped)
        tally.reasons.update(handled.skipped.values())
        unchanged -= len(handled.skipped)
    if handled.failed:
        tally.failed += len(handled.failed)
        unchanged -= len(handled.failed)
    tally.unchanged += unchanged
