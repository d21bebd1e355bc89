"""Ranges of ids. Both ends are in, everywhere."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IdRange:
    """The ids from `first` to `last`, both included. Python integers: exact at any size, negative ones too."""

    first: int
    last: int

    def __contains__(self, row_id: int) -> bool:
        return self.first <= row_id <= self.last

    def __str__(self) -> str:
        return f"{self.first}..{self.last}"
