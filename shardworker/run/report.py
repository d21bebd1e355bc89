"""What a finished run has done, in words and as data."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from shardworker.claim.board import Board
from shardworker.clock import Clock
from shardworker.ids import IdRange
from shardworker.outcomes import OUTCOMES
from shardworker.process.table import Table
from shardworker.run.create import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    job: str
    run: str
    counts: dict[str, int]  # rows by outcome
    skip_reasons: dict[str, int]
    seconds: float  # from the run's creation to its end
    finished_at: datetime
    outside: IdRange | None  # the table's ids, if some lie outside the run's bounds
    bounds: IdRange | None

    def text(self) -> str:
        """Some lines for a person."""
        rows = sum(self.counts.values())
        counted = ", ".join(f"{n} {outcome}" for outcome, n in self.counts.items() if n) or "none"
        lines = [f"run {self.run} of {self.job} is complete: {rows} rows in {self.seconds:.1f} s ({counted})"]
        if self.skip_reasons:
            lines.append("skipped: " + ", ".join(f"{n} {reason}" for reason, n in sorted(self.skip_reasons.items())))
        if self.counts.get("failed"):
            lines.append("failed rows: `shardworker failed list` shows them, `failed retry` runs them again")
        if rows and self.counts.get("unchanged") == rows:
            lines.append("no row was changed: is a `return` missing?")
        if self.outside is not None:
            lines.append(f"rows lie outside the run's bounds {self.bounds}: the table has ids {self.outside}")
        return "\n".join(lines)

    def was_complete(self) -> str:
        at = self.finished_at.isoformat(sep=" ", timespec="seconds")
        return (
            f"nothing to do: run {self.run} of {self.job} is complete since {at}. For another pass give it a new name "
            "(SHARDWORKER_RUN) or forget this one (`shardworker reset`)"
        )


def closing_report(board: Board, table: Table, run: Run, *, clock: Clock) -> Report:
    """Read from Redis and, for what lies outside the bounds, from the ends of the table's index."""
    meta = board.meta()
    totals = board.totals()
    now = datetime.fromtimestamp(clock.wall(), UTC)
    finished = datetime.fromtimestamp(int(meta["finished_at"]) / 1000, UTC) if meta.get("finished_at") else now
    found, bounds = table.bounds(), run.slot_map.bounds
    is_outside = found and bounds and (found.first < bounds.first or found.last > bounds.last)
    return Report(
        job=board.keys.job,
        run=board.keys.run,
        counts={outcome: totals.get(outcome, 0) for outcome in OUTCOMES},
        skip_reasons={name.removeprefix("skip:"): n for name, n in totals.items() if name.startswith("skip:")},
        seconds=(finished - run.created_at).total_seconds(),
        finished_at=finished,
        outside=found if is_outside else None,
        bounds=bounds,
    )
