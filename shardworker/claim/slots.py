"""The arithmetic of slots: which ids a numbered slot covers, and how large slots should be.

Slot i of a segment covers `first + i*size .. min(first + (i+1)*size - 1, last)`. Clients compute it in Python, where
integers are exact; Lua never calculates with an id.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from shardworker.errors import ConfigurationError
from shardworker.ids import IdRange

MOST_SLOTS = 1 << 53  # their numbers are doubles in Lua
MOST_ROWS_IN_A_SLOT = 1_000_000
WANTED_SLOTS = 256
FEWEST_BATCHES_IN_A_SLOT = 20
FEWEST_TRUSTED_ROWS = 1_000  # estimates below this say little: statistics may never have been made


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of ids cut into slots of one size."""

    first_slot: int
    first: int  # id, included
    last: int  # id, included
    size: int  # ids in one slot

    @property
    def slots(self) -> int:
        return (self.last - self.first) // self.size + 1


@dataclass(frozen=True, slots=True)
class SlotMap:
    """All segments of a run, in the order of their ids; no segments: an empty table."""

    segments: Sequence[Segment]

    @classmethod
    def even(cls, bounds: IdRange | None, size: int) -> SlotMap:
        """One segment over `bounds`, cut into slots of `size` ids.

        Raises:
            ConfigurationError: it would be more slots than can be numbered.
        """
        if bounds is None:
            return cls(())
        segment = Segment(first_slot=0, first=bounds.first, last=bounds.last, size=size)
        if segment.slots >= MOST_SLOTS:
            enough = (bounds.last - bounds.first) // (MOST_SLOTS - 1) + 1
            raise ConfigurationError(
                f"SHARDWORKER_SLOT_SIZE={size} cuts the ids {bounds} into {segment.slots} slots, more than can be "
                f"numbered; {enough} or more would do, and `auto` finds a fitting size"
            )
        return cls((segment,))

    @property
    def slots(self) -> int:
        return self.segments[-1].first_slot + self.segments[-1].slots if self.segments else 0

    @property
    def bounds(self) -> IdRange | None:
        return IdRange(self.segments[0].first, self.segments[-1].last) if self.segments else None

    def range_of(self, slot: int) -> IdRange:
        """The ids of a slot that was never split."""
        segment = next(s for s in reversed(self.segments) if slot >= s.first_slot)
        first = segment.first + (slot - segment.first_slot) * segment.size
        return IdRange(first, min(first + segment.size - 1, segment.last))

    def slot_of(self, row_id: int) -> int:
        """Number of the slot that holds an id; the number of slots if the id lies beyond the last of them."""
        for segment in self.segments:
            if row_id <= segment.last:
                return segment.first_slot + (row_id - segment.first) // segment.size
        return self.slots

    def encode(self) -> str:
        return json.dumps([[str(n) for n in (s.first_slot, s.first, s.last, s.size)] for s in self.segments])

    @classmethod
    def decode(cls, text: str) -> SlotMap:
        return cls(
            tuple(
                Segment(first_slot=int(slot), first=int(first), last=int(last), size=int(size))
                for slot, first, last, size in json.loads(text)
            )
        )


def even_slot_size(bounds: IdRange, *, estimated_rows: int, batch_size: int) -> int:
    """Ids in one slot for SLOT_SIZE=auto, taking the rows to lie evenly.

    About 256 slots, but none under 20 batches or over a million rows. Where the estimate says next to nothing the
    ids are taken to be dense: holes cost two queries each, a slot that is too large cannot be shared.
    """
    width = bounds.last - bounds.first + 1
    rows = width if estimated_rows < FEWEST_TRUSTED_ROWS else min(estimated_rows, width)
    rows_in_slot = max(rows // WANTED_SLOTS, FEWEST_BATCHES_IN_A_SLOT * batch_size)
    rows_in_slot = max(1, min(rows_in_slot, MOST_ROWS_IN_A_SLOT))
    return max(min(width, rows_in_slot * width // rows), width // (MOST_SLOTS - 1) + 1)
