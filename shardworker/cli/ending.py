"""What an error means for the process: exit code and last words."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import redis
from sqlalchemy.exc import DBAPIError

from shardworker.errors import ConfigurationError, Exit, RunStateLost, ShardworkerError
from shardworker.process.faults import Fault, fault_of

TERMINATION_LOG = Path("/dev/termination-log")  # what `kubectl describe pod` shows


def end_of(error: BaseException, *, has_database_checkpoint: bool = False) -> tuple[Exit, str]:
    """The exit code and the message for a person. Values of statements are never shown."""
    if isinstance(error, RunStateLost) and has_database_checkpoint:
        return Exit.TRY_AGAIN, f"{error}; the database has the checkpoints: start again"
    if isinstance(error, RunStateLost):
        return (
            Exit.REFUSED,
            f"{error}. Starting over would begin at the first row: `shardworker reset` if that is right",
        )
    if isinstance(error, ConfigurationError):
        return Exit.REFUSED, "\n".join(error.problems)
    if isinstance(error, ShardworkerError):
        return Exit(error.exit_code), str(error)
    found = fault_of(error)
    if found is not None and found[0] is Fault.PERMANENT:
        statement = f" Statement: {error.statement}" if isinstance(error, DBAPIError) else ""
        cause = error.orig if isinstance(error, DBAPIError) else error
        return Exit.REFUSED, f"the database refuses a statement for good ({cause}).{statement}"
    if found is not None:
        return Exit.UNAVAILABLE, f"the database failed with {found[1]}: {error}"
    if isinstance(error, redis.RedisError):
        return Exit.REFUSED, f"Redis refuses a command for good ({type(error).__name__}: {error})"
    return Exit.UNEXPECTED, f"unexpected {type(error).__name__}: {error}"


def leave_termination_message(text: str) -> None:
    if TERMINATION_LOG.exists() and os.access(TERMINATION_LOG, os.W_OK):
        with contextlib.suppress(OSError):
            TERMINATION_LOG.write_text(text[-4000:])


def command(work: Callable[[], int]) -> int:
    """The exit code of a command that is no worker; what is expected to fail becomes a message on standard error."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 is no reason to fail
    try:
        code = int(work())
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:  # the reader (`| head`) has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.COMPLETE
    except Exception as error:  # noqa: BLE001 - the edge of the process
        code, last_words = end_of(error)
        if code is Exit.UNEXPECTED:
            traceback.print_exc()
        print(last_words, file=sys.stderr)
        return code
