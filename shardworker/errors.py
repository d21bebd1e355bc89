"""Every error that shardworker raises, and the exit code that each leads to.

ShardworkerError                  1   anything unexpected
├── ConfigurationError           78   a person must decide; carries every problem that was found
│   ├── JobNotFound              78   `package.module:name` leads to no job
│   └── RunConflict              78   saved state belongs to another configuration
├── RunStateLost                 78   Redis no longer has what it confirmed (75 beside a database checkpoint)
├── ParkedSlots                  65   everything is done but slots that were parked
├── Unavailable                  69   a server did not answer within RETRY_FOR
│   ├── StoreUnavailable         69   Redis
│   └── DatabaseUnavailable      69   the database
├── LeaseLost                    75   the slot has another holder, or may have
├── StatementRefused             78   the database refused a statement for good (a right, a column, its syntax)
└── HandlerError                 65   the user's function broke one of its rules, or failed for a row or a part

Stopped (not an error) ends a drain: 143 after SIGTERM, 130 after Ctrl-C.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence


class Exit(enum.IntEnum):
    """Exit codes; the documentation and the pod failure policy rely on them."""

    COMPLETE = 0
    UNEXPECTED = 1
    USAGE = 2
    PARKED = 65
    UNAVAILABLE = 69
    TRY_AGAIN = 75
    REFUSED = 78
    INTERRUPTED = 130
    TERMINATED = 143


class ShardworkerError(Exception):
    """Base of all errors of this package."""

    exit_code = Exit.UNEXPECTED


class ConfigurationError(ShardworkerError):
    """Settings, table or job cannot work; `problems` names each with its way out."""

    exit_code = Exit.REFUSED

    def __init__(self, *problems: str) -> None:
        self.problems: Sequence[str] = problems
        super().__init__("\n".join(problems))


class JobNotFound(ConfigurationError):
    """`package.module:name` leads to no job."""


class RunConflict(ConfigurationError):
    """The saved state of the run belongs to another configuration."""


class RunStateLost(ShardworkerError):
    """Redis no longer has what it confirmed: emptied, evicted, or another run's."""

    exit_code = Exit.REFUSED


class ParkedSlots(ShardworkerError):
    """All slots are done but those that were parked."""

    exit_code = Exit.PARKED

    def __init__(self, slots: Sequence[str]) -> None:
        self.slots = slots
        shown = ", ".join(slots[:10]) + (", ..." if len(slots) > 10 else "")
        super().__init__(
            f"{len(slots)} slots are parked ({shown}): a row failed beyond MAX_FAILED_ROWS, or the slot ended "
            "its worker again and again. `status` and `failed list` show why; start again to try them once more"
        )


class Unavailable(ShardworkerError):
    """A server did not answer within RETRY_FOR."""

    exit_code = Exit.UNAVAILABLE


class StoreUnavailable(Unavailable):
    """Redis did not answer in time."""


class DatabaseUnavailable(Unavailable):
    """The database did not answer in time."""


class LeaseLost(ShardworkerError):
    """The slot has another holder, or may have: nothing of it may be written any more."""

    exit_code = Exit.TRY_AGAIN

    def __init__(self, slot: str, reason: str) -> None:
        self.slot = slot
        self.reason = reason
        super().__init__(f"the lease of slot {slot} is lost: {reason}")


class StatementRefused(ShardworkerError):
    """The database refused a statement for a reason that waiting does not mend; values are left out."""

    exit_code = Exit.REFUSED


class HandlerError(ShardworkerError):
    """The user's function failed, or broke one of its rules."""

    exit_code = Exit.PARKED

    def __init__(self, message: str, *, ids: Sequence[int] = (), attempts: int = 1) -> None:
        self.ids = ids
        self.attempts = attempts
        super().__init__(message)


class Stopped(Exception):
    """The worker was asked to stop and has drained."""
