"""What became of rows: counted (Tally), and the ones that failed (FailedRow)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import xor

OUTCOMES = ("changed", "unchanged", "deleted", "skipped", "failed")
_ALL_BITS = (1 << 64) - 1


@dataclass(slots=True)
class Tally:
    """Rows by outcome, and sum and xor of their ids: enough to compare a slot with the table afterwards."""

    changed: int = 0
    unchanged: int = 0
    deleted: int = 0
    skipped: int = 0
    failed: int = 0
    id_sum: int = 0
    id_xor: int = 0  # 64 bits; negative ids in two's complement, as databases count
    reasons: Counter[str] = field(default_factory=Counter)  # of skips; not part of the encoded form

    @property
    def rows(self) -> int:
        return self.changed + self.unchanged + self.deleted + self.skipped + self.failed

    def counts(self) -> dict[str, int]:
        return {outcome: getattr(self, outcome) for outcome in OUTCOMES}

    def count_ids(self, ids: Sequence[int]) -> None:
        self.id_sum += sum(ids)
        self.id_xor ^= reduce(xor, ids, 0) & _ALL_BITS

    def add(self, other: Tally) -> None:
        for outcome in OUTCOMES:
            setattr(self, outcome, getattr(self, outcome) + getattr(other, outcome))
        self.id_sum += other.id_sum
        self.id_xor ^= other.id_xor
        self.reasons.update(other.reasons)

    def encode(self) -> str:
        """Seven numbers with commas between them. Text, since Lua's numbers would lose large sums."""
        return ",".join(str(n) for n in (*self.counts().values(), self.id_sum, self.id_xor))

    @classmethod
    def decode(cls, text: str) -> Tally:
        if not text:
            return cls()
        changed, unchanged, deleted, skipped, failed, id_sum, id_xor = map(int, text.split(","))
        return cls(changed, unchanged, deleted, skipped, failed, id_sum, id_xor)

    @classmethod
    def total(cls, tallies: Iterable[Tally]) -> Tally:
        whole = cls()
        for tally in tallies:
            whole.add(tally)
        return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRow:
    """A row whose handling was given up; `failed list` shows it and `failed retry` runs it again."""

    row_id: int
    error: str  # type and message of the handler's error; never the row's content
    attempts: int
    at: str  # ISO time, UTC
    code_version: str = ""

    def encode(self) -> str:
        return json.dumps({"error": self.error, "attempts": self.attempts, "at": self.at, "code": self.code_version})

    @classmethod
    def decode(cls, row_id: int, text: str) -> FailedRow:
        record = json.loads(text)
        return cls(
            row_id=row_id,
            error=record["error"],
            attempts=int(record["attempts"]),
            at=record["at"],
            code_version=record.get("code", ""),
        )
