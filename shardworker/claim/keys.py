"""Every Redis key of a run, built here and nowhere else.

All keys of a run share the hash tag `{job/run}`, so that a script's keys lie in one slot of a cluster. Job and run
names have no `:`, `{`, `}` or `/`, so no run's prefix is the beginning of another's. Only leases have a time to live
while a run is alive: everything else is what a resumption needs. The `pick` that finds the run finished gives all keys
one of KEEP_RUN.

| key | type | holds | written by |
|---|---|---|---|
| meta | hash | uid, fingerprint, segments, as_of, slots, frontier, jumped, ... | create, pick, finish |
| open | zset | slot → ms at which its lease ends: a hint; or a ticket | pick, claim, renew, save |
| ready | zset | slots given back → ms from which they may be claimed | release, requeue |
| parked | zset | slots taken out → ms since when | park, claim |
| slot:N | hash | first, last, last_id, seq, tally, attempts, closed, owner, since, why | claim, the holder |
| lease:N | string | the lease: its token, with PX | claim, save, renew |
| done | hash | slot → first last tally token: the ledger | finish |
| gaps | hash | first number jumped over → last one | finish |
| totals | hash | rows by outcome; `skip:<reason>` | save, finish, release, park |
| failed | hash | id → JSON of a failed row | save, finish, release, park, settle |
| wake | list | one element wakes one waiting worker, at most 100 | finish, release, requeue, pick |
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shardworker.errors import ConfigurationError

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
FAILED_LEASE = "failed"  # the lease of `failed retry`; no slot has this name


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one run."""

    prefix: str
    job: str
    run: str

    def __post_init__(self) -> None:
        for what, name in (("job name", self.job), ("SHARDWORKER_RUN", self.run)):
            if not _NAME.fullmatch(name):
                raise ConfigurationError(
                    f"{what} {name!r}: letters, digits, `_`, `.` and `-` are allowed, 100 characters at most"
                )

    @property
    def base(self) -> str:
        """What all keys of the run begin with, and no other key does."""
        return f"{self.prefix}:{{{self.job}/{self.run}}}:"

    def __getitem__(self, name: str) -> str:
        return self.base + name

    def slot(self, slot: str) -> str:
        return f"{self.base}slot:{slot}"

    def lease(self, slot: str) -> str:
        return f"{self.base}lease:{slot}"

    def lasting(self) -> list[str]:
        """The keys that are left once a run is finished; meta first."""
        return [self[name] for name in ("meta", "open", "ready", "parked", "done", "gaps", "totals", "failed", "wake")]


def any_meta(prefix: str, job: str | None = None) -> str:
    """The pattern that finds `meta` of all runs (of a job) by SCAN."""
    quoted = re.sub(r"([*?\[\]\\])", r"\\\1", prefix)
    return f"{quoted}:{{{job or '*'}/*}}:meta"


def job_and_run(meta_key: str) -> tuple[str, str]:
    """Job and run in the name of a `meta` key."""
    job, run = meta_key.rsplit("{", 1)[1].split("}", 1)[0].split("/", 1)
    return job, run
