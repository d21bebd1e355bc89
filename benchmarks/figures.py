"""A measured figure and its goal; how two things are compared; how figures are shown."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """`value` is at most `goal`, or the figure is not ok."""

    figure: str
    value: float
    unit: str
    goal: float
    ok: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ok", self.value <= self.goal)

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    def as_line(self) -> str:
        bound = f"≤ {self.goal:.4g}"
        return f"{'ok' if self.ok else 'MISSED':<7}{self.value:>10.4g} {bound:<9}{self.unit:<17}{self.figure}"


def seconds(action: Callable[[], object]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def paired_ratio(ours: Callable[[], float], plain: Callable[[], float], *, rounds: int) -> float:
    """The median of ours/plain, both measured in each round, each first in every other one: what else the machine
    does at a moment slows both, and what one leaves behind does not always meet the same one."""
    ratios = []
    for number in range(rounds):
        if number % 2:
            mine = ours()
            ratios.append(mine / plain())
        else:
            theirs = plain()
            ratios.append(ours() / theirs)
    return statistics.median(ratios)
