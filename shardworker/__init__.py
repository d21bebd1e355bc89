"""Apply a function to every row of a huge SQL table, by many workers that may crash."""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "DELETE",
    "Change",
    "ConfigurationError",
    "Context",
    "Deletion",
    "HandlerError",
    "Job",
    "Row",
    "ShardworkerError",
    "Skip",
    "job",
]

if TYPE_CHECKING:
    from shardworker.errors import ConfigurationError, HandlerError, ShardworkerError
    from shardworker.handler import DELETE, Change, Context, Deletion, Row, Skip
    from shardworker.jobs import Job, job

_HOMES = {
    "shardworker.errors": ("ConfigurationError", "HandlerError", "ShardworkerError"),
    "shardworker.handler": ("DELETE", "Change", "Context", "Deletion", "Row", "Skip"),
    "shardworker.jobs": ("Job", "job"),
}


def __getattr__(name: str) -> object:
    """Imports a public name at its first use: `shardworker --help` and the local server need none of them."""
    import importlib

    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
