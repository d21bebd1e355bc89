#!/usr/bin/env python3
"""Exhaustive model of shardworker's slots: every order of events of a few workers, one Redis and one database.

The functions under "Redis scripts" and "database transactions" say what each script and each transaction must do; the
worker further down says what may be concluded from each answer. Keep them in step with the Lua files and the table.
(`split` and `extend` are modelled ahead of their scripts; `give_back` is both release.lua and park.lua. What moves no
slot, `create`, `renew`, `settle` and others, is not modelled.)

What can happen, in every possible order and within the budgets of a scenario:
  a worker is killed; a lease ends although its holder works on (a pause, a partition); the hint in `open` has passed
  although the lease lives; a request was executed and its answer lost, so it is sent again; a copy of a request arrives
  late, after its sender has gone on; Redis goes back to an earlier state (failover), loses one key (eviction) or
  everything; a commit is in doubt; rows are committed in another order than their ids; a holder drains, and GRACE may
  end before its rows in work do; a row fails and parks its slot; a claim parks a slot that ended too many holders.
Simplified: a batch is one row; hints, back-off and clocks are "at any time".

    protocol_model.py                 all scenarios; prints states and invariants, exit 0 if all hold
    protocol_model.py --list          names of the scenarios and of the bugs that can be planted
    protocol_model.py --bug NAME      plants a bug and prints the shortest way to the damage, exit 1
    protocol_model.py --all-bugs      plants each bug in turn; exit 0 only if every one is found
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

BUGS = {  # name: (scenario in which it shows, what is wrong)
    "claim-without-ticket": ("claims", "SET NX alone decides a claim: one that arrives late takes a slot that is done"),
    "save-without-number": ("splits", "save compares the token only: an older save of the same holder arrives late"),
    "gap-in-numbers-accepted": ("failover", "after a failover a write is accepted although the one before is missing"),
    "cut-behind-reader": ("drains", "split cuts at the checkpoint instead of behind what has been read"),
    "parked-is-done": ("drains", "the run counts as finished although a slot is parked"),
    "jump-to-the-end": ("follow", "a jump says 'to the end' and the script takes the end of that moment"),
    "extend-by-arithmetic": ("follow", "an extended run goes on counting slots from its old start"),
    "extend-to-the-newest": ("follow", "an extended run ends at the newest id seen, not at that of the look before"),
    "no-account": ("eviction", "finished means that open and ready are empty; nothing is counted"),
    "final-too-early": ("final", "the final slot comes when the frontier is at the end and ready is empty"),
    "fence-by-epoch-only": ("database", "a batch compares the epoch only, and is sent again when its answer is lost"),
    "cut-in-redis-first": ("database-loss", "with checkpoint=database a cut goes to Redis before the database"),
    "children-forgotten": ("database-loss", "a claim does not ask the database for what was split off its slot"),
}
planted: set[str] = set()


def bug(name: str) -> bool:
    assert name in BUGS, name
    return name in planted


NOTHING_YET = -1  # last_id before the first checkpoint (a missing field, or NULL)
TO_THE_END = 1 << 60  # no drain has begun; and for a planted bug
Message = tuple[Any, ...]  # a request: name of the script or transaction, arguments; or an answer: what, values
Segment = tuple[int, int, int, int]  # first slot, first id, last id, ids in one slot


def slots_in(segments: tuple[Segment, ...]) -> int:
    slot, first, last, width = segments[-1]
    return slot + (last - first) // width + 1


def slot_range(segments: tuple[Segment, ...], number: int) -> tuple[int, int]:
    """First and last id of a slot that was never split. The client computes it; Lua does no arithmetic on ids."""
    slot, first, last, width = next(s for s in reversed(segments) if number >= s[0])
    low = first + (number - slot) * width
    return low, min(low + width - 1, last)


def slot_of(segments: tuple[Segment, ...], row: int) -> int:
    """Number of the slot that holds an id; the number of slots if the id lies beyond the run."""
    return next(
        (slot + (row - first) // width for slot, first, last, width in segments if row <= last), slots_in(segments)
    )


# ------------------------------------------------------------------------------------------------------------------
# Redis: the keys of one run
# ------------------------------------------------------------------------------------------------------------------
class Slot(NamedTuple):  # slot:N
    first: int
    last: int
    last_id: int = NOTHING_YET  # every row up to here is done
    seq: int = 0  # number of the last accepted write of a holder
    closed: int = 0  # token of the holder who gave it back or parked it
    children: int = 0


class Redis:
    def __init__(self, uid: int, segments: tuple[Segment, ...], reducing: bool = False, follow: bool = False) -> None:
        # meta
        self.uid = uid
        self.reducing, self.follow = reducing, follow
        self.segments = segments  # only ever appended to
        self.next = 0  # the frontier
        self.skipped = 0  # slots jumped over
        self.extra = 0  # slots that have no number below the frontier: split off, final
        self.final = self.finished = False
        # the other keys
        self.open: dict[str, int] = {}  # slot -> ticket; in Redis: the score that the last pick, claim or renewal wrote
        self.ready: tuple[str, ...] = ()
        self.parked: tuple[str, ...] = ()
        self.slots: dict[str, Slot] = {}
        self.leases: dict[str, int] = {}  # slot -> token
        self.done: dict[str, tuple[int, int, int]] = {}  # slot -> first, last, token of who finished it
        self.gaps: tuple[tuple[int, int], ...] = ()  # numbers of slots proven empty
        self._key: tuple[Any, ...] = ()

    def copy(self) -> Redis:
        new = object.__new__(Redis)
        new.__dict__.update(self.__dict__)
        for name in ("open", "slots", "leases", "done"):
            setattr(new, name, dict(getattr(self, name)))
        new._key = ()
        return new

    def key(self) -> tuple[Any, ...]:
        if not self._key:
            self._key = (
                self.uid,
                self.next,
                self.skipped,
                self.extra,
                self.final,
                self.finished,
                self.segments,
                self.ready,
                self.parked,
                self.gaps,
                *(tuple(sorted(d.items())) for d in (self.open, self.slots, self.leases, self.done)),
            )
        return self._key

    @property
    def total(self) -> int:
        return slots_in(self.segments)


def with_(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(sorted({*names, name}))


def without(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(n for n in names if n != name)


# Redis scripts: each is atomic, changes `r` and returns its answer ---------------------------------------------------
def pick(r: Redis, ticket: int, found: str) -> Message:
    """`found`: a slot whose hint has passed or whose time in `ready` has come, "next", or "nothing"."""
    if r.finished:
        return ("finished",)
    if found == "next":
        found, r.next = str(r.next), r.next + 1
    if found != "nothing":
        r.open[found] = ticket
        r.ready = without(r.ready, found)
        return ("slot", found, ticket)
    if r.next < r.total or r.ready or (r.open and not bug("final-too-early")):
        return ("wait",)
    if r.parked and not bug("parked-is-done"):
        return ("parked",)
    counted = len(r.open) + len(r.ready) + len(r.parked) + len(r.done)
    if counted != r.next - r.skipped + r.extra and not bug("no-account"):
        return ("state lost",)  # absence proves nothing: something has vanished
    if r.reducing and not r.final:
        r.final, r.extra = True, r.extra + 1
        r.slots["final"] = Slot(0, -1)
        r.open["final"] = ticket
        return ("slot", "final", ticket)
    r.finished = not r.follow
    return ("finished",) if r.finished else ("look",)


def claim(r: Redis, name: str, token: int, ticket: int, first: int, last: int, too_often: bool = False) -> Message:
    """`too_often`: its holders ended again and again without any progress (SLOT_ATTEMPTS)."""
    if r.leases.get(name) == token and name in r.slots:  # sent twice: the same answer, attempts not counted again
        return ("claimed", r.slots[name])
    if r.open.get(name) != ticket and not bug("claim-without-ticket"):
        return ("gone",)  # done, parked, given back or picked by another since
    if name not in r.slots and "." in name:
        return ("state lost",)  # the range of a slot that was split off stands nowhere else
    if name in r.leases:
        r.open[name] = 0  # the score becomes the end of that lease, at most one ttl away: no ticket fits any more
        return ("busy",)
    if too_often:
        r.parked = with_(r.parked, name)
        r.slots.setdefault(name, Slot(first, last))
        del r.open[name]
        return ("parked",)
    r.leases[name] = token
    r.open[name] = 0  # a new score: no ticket fits any more
    r.slots[name] = (r.slots.get(name) or Slot(first, last))._replace(closed=0)
    return ("claimed", r.slots[name])


def refused(r: Redis, name: str, token: int, seq: int) -> Message | None:
    """The head of every write of a holder: the token, then the number of the write."""
    if r.leases.get(name) != token or name not in r.slots:
        return ("lost",)
    stored = r.slots[name].seq
    if bug("save-without-number"):
        return None
    if seq <= stored:
        return ("repeated",)  # it is in already, or a later one is
    if seq > stored + 1 and not bug("gap-in-numbers-accepted"):
        return ("lost",)  # Redis went back: a write that it had confirmed is missing
    return None


def save(r: Redis, name: str, token: int, seq: int, last_id: int) -> Message:
    if no := refused(r, name, token, seq):
        return no
    r.slots[name] = r.slots[name]._replace(last_id=last_id, seq=seq)
    return ("ok",)


def split(r: Redis, name: str, token: int, seq: int, cut: int, children: tuple[tuple[str, int, int], ...]) -> Message:
    if no := refused(r, name, token, seq):
        return no
    for child, first, last in children:
        if child not in r.slots and child not in r.done:
            r.slots[child] = Slot(first, last)
            r.ready = with_(r.ready, child)
            r.extra += 1
    r.slots[name] = r.slots[name]._replace(last=cut, seq=seq, children=r.slots[name].children + 1)
    return ("ok",)


def finish(r: Redis, name: str, token: int, seq: int, end: int, jump: int) -> Message:
    if name in r.done and r.done[name][2] == token:
        return ("repeated",)
    if no := refused(r, name, token, seq):
        return no
    if r.slots[name].last != end:  # equality of strings; a second line of defence after the numbers
        return ("other end",)  # the holder reads on to the stored end
    r.done[name] = (r.slots[name].first, r.slots[name].last, token)
    del r.slots[name], r.leases[name]
    r.open.pop(name, None)
    jump = r.total if jump == TO_THE_END else jump
    if jump > r.next:  # a proven gap: only forward, and only under this lease
        r.gaps, r.skipped = (*r.gaps, (r.next, jump - 1)), r.skipped + jump - r.next
        r.next = jump
    return ("ok",)


def give_back(r: Redis, name: str, token: int, seq: int, last_id: int, park: bool) -> Message:
    """`release` and `park`."""
    if name in r.slots and r.slots[name].closed == token:
        return ("repeated",)
    if no := refused(r, name, token, seq):
        return no
    r.slots[name] = r.slots[name]._replace(last_id=last_id, seq=seq, closed=token)
    if park:
        r.parked = with_(r.parked, name)
    else:
        r.ready = with_(r.ready, name)
    del r.leases[name]
    r.open.pop(name, None)
    return ("ok",)


def requeue(r: Redis, name: str) -> Message:
    if name in r.parked:
        r.parked, r.ready = without(r.parked, name), with_(r.ready, name)
    return ("ok",)


def extend(r: Redis, known: int, upto: int) -> Message:
    """Follow mode appends a segment. Slots that exist keep their bounds for ever."""
    slot, first, last, width = r.segments[-1]
    if len(r.segments) == known and upto > last:  # else another worker was first
        r.segments = (
            ((slot, first, upto, width),)
            if bug("extend-by-arithmetic")
            else (*r.segments, (r.total, last + 1, upto, width))
        )
    return ("ok",)


SCRIPTS = {f.__name__: f for f in (pick, claim, save, split, finish, give_back, requeue, extend)}


# ------------------------------------------------------------------------------------------------------------------
# Database: the table shardworker_slot, and the changes of the user's function
# ------------------------------------------------------------------------------------------------------------------
class Row(NamedTuple):
    first: int
    last: int
    last_id: int = NOTHING_YET
    epoch: int = 0
    seq: int = 0
    done: bool = False


class Database:
    def __init__(self, size: int) -> None:
        self.rows: dict[str, Row] = {}
        self.changes = (0,) * size  # how often the change of each id was committed

    def copy(self) -> Database:
        new = object.__new__(Database)
        new.rows, new.changes = dict(self.rows), self.changes
        return new

    def key(self) -> tuple[Any, ...]:
        return tuple(sorted(self.rows.items())), self.changes


# Database transactions: each commits as a whole, and its first statement locks the row of the slot -------------------
def db_claim(d: Database, name: str, first: int, last: int) -> Message:
    row = d.rows.get(name) or Row(first, last)
    d.rows[name] = row = row._replace(epoch=row.epoch + 1)
    descendants = tuple((n, c.first, c.last) for n, c in sorted(d.rows.items()) if n.startswith(name + "."))
    return ("fenced", row, descendants)


def fenced_out(d: Database, name: str, epoch: int, seq: int) -> bool:
    row = d.rows[name]
    return row.epoch != epoch or (row.seq != seq - 1 and not bug("fence-by-epoch-only"))


def db_commit(d: Database, name: str, epoch: int, seq: int, last_id: int, rows: tuple[int, ...]) -> Message:
    if fenced_out(d, name, epoch, seq):
        return ("lost",)
    d.changes = tuple(n + (i in rows) for i, n in enumerate(d.changes))
    d.rows[name] = d.rows[name]._replace(last_id=last_id, seq=seq)
    return ("ok",)


def db_split(d: Database, name: str, epoch: int, seq: int, cut: int, child: str) -> Message:
    if fenced_out(d, name, epoch, seq):
        return ("lost",)
    d.rows[child] = Row(cut + 1, d.rows[name].last)
    d.rows[name] = d.rows[name]._replace(last=cut, seq=seq)
    return ("ok",)


def db_done(d: Database, name: str, epoch: int, seq: int) -> Message:
    if fenced_out(d, name, epoch, seq):
        return ("lost",)
    d.rows[name] = d.rows[name]._replace(done=True, seq=seq)
    return ("ok",)


def db_read(d: Database, name: str, epoch: int, seq: int) -> Message:
    """After a lost answer: a locking read on a new connection, which waits for a commit that is still under way."""
    row = d.rows[name]
    return ("lost",) if row.epoch != epoch else ("ok",) if row.seq == seq else ("not done",)


TRANSACTIONS = {f.__name__: f for f in (db_claim, db_commit, db_split, db_done, db_read)}


# ------------------------------------------------------------------------------------------------------------------
# A worker
# ------------------------------------------------------------------------------------------------------------------
class Worker(NamedTuple):
    mode: str = "idle"  # idle, claiming, work, exit
    request: Message = ()  # sent and not answered: (script or transaction, arguments ...)
    then: tuple[Message, ...] = ()  # what to send after that
    token: int = 0
    uid: int = 0  # of the run it knows
    name: str = ""
    first: int = 0
    end: int = 0  # end of the slot as the worker sees it
    mark: int = NOTHING_YET  # last_id as answered by Redis (or committed)
    ahead: tuple[int, ...] = ()  # rows handled beyond the mark
    stop: int = TO_THE_END  # the last row handed out before a drain began
    seq: int = 0
    children: int = 0
    epoch: int = 0  # of the database
    db_seq: int = 0


BUDGETS = (
    "claims",
    "crash",
    "expire",
    "hint",
    "lost",
    "late",
    "split",
    "drain",
    "grace",
    "park",
    "rollback",
    "evict",
    "wipe",
    "doubt",
    "attempts",
)


class Scenario(NamedTuple):
    about: str
    size: int  # ids 0 .. size-1
    width: int  # ids in one slot
    rows: tuple[int, ...]
    budget: dict[str, int]
    workers: int = 2
    batches: int = 1  # in work at a time
    database: bool = False
    follow: bool = False
    final: bool = False
    once: bool = False  # no row may be handled twice, except those in World.repeatable
    late_rows: tuple[int, ...] = ()  # follow: rows whose transactions commit during the run, in any order
    last: int = -1  # follow: end of the run when it was created


class World:
    __slots__ = ("db", "handled", "late", "left", "redis", "repeatable", "s", "seen", "snapshot", "visible", "workers")
    s: Scenario
    redis: Redis
    db: Database
    workers: tuple[Worker, ...]
    handled: tuple[int, ...]  # how often each id was handed to the user's function: 0, 1, 2 (or more)
    late: tuple[tuple[Message, int], ...]  # requests still on their way, with the uid of their sender's run
    left: tuple[int, ...]  # budgets
    snapshot: Redis | None  # what a replica would come back with
    visible: tuple[int, ...]  # committed rows
    seen: int  # newest id at the last look of follow mode
    repeatable: tuple[int, ...]  # rows handled beyond the mark when their slot was parked or GRACE ended

    def copy(self) -> World:
        new = World()
        for name in World.__slots__:
            setattr(new, name, getattr(self, name))
        return new

    def key(self) -> int:
        return hash(
            (
                self.redis.key(),
                self.db.key() if self.s.database else 0,
                tuple(sorted(self.workers)),
                self.handled,
                self.late,
                self.left,
                self.snapshot.key() if self.snapshot else 0,
                self.visible,
                self.seen,
                self.repeatable,
            )
        )


def rows_left(w: World, k: Worker) -> list[int]:
    """What keyset reads from the mark up to the end would still bring."""
    return [i for i in w.visible if max(k.mark + 1, k.first) <= i <= k.end]


def being_read(w: World, k: Worker) -> list[int]:
    """Rows in work: at most two batches beyond the mark that was answered; in a drain only what was handed out."""
    return [i for i in rows_left(w, k)[: w.s.batches] if i <= k.stop]


def answered(w: World, i: int, request: Message, reply: Message) -> None:
    """What worker i concludes from an answer."""
    k, what, database = w.workers[i], reply[0], w.s.database
    if what in ("lost", "state lost", "gone", "busy", "wait", "parked", "look"):
        k = Worker()  # nothing is released or deleted: it is somebody else's
    elif what == "finished":
        k = Worker(mode="exit")
    elif what == "slot":
        first, last = slot_range(w.redis.segments, int(reply[1])) if reply[1].isdigit() else (0, 0)
        k = k._replace(mode="claiming", name=reply[1], request=("claim", reply[1], k.token, reply[2], first, last))
    elif what == "claimed":
        slot = reply[1]
        k = k._replace(
            mode="work",
            request=(),
            first=slot.first,
            end=slot.last,
            mark=slot.last_id,
            seq=slot.seq,
            children=slot.children,
        )
        if database and k.name != "final":
            k = k._replace(mode="claiming", request=("db_claim", k.name, slot.first, slot.last))
    elif what == "fenced":  # where the slot ends, how far it is, what was split off: the database knows
        row, children = reply[1:]
        k = k._replace(
            mode="work", request=(), epoch=row.epoch, db_seq=row.seq, mark=row.last_id, children=len(children)
        )
        if (row.last != k.end or children) and not bug("children-forgotten"):
            k = k._replace(end=row.last, request=("split", k.name, k.token, k.seq + 1, row.last, children))
        if row.done:
            k = k._replace(mark=k.end)
    elif what == "other end":
        k = k._replace(request=(), end=w.redis.slots[k.name].last)
    elif what == "not done":  # the commit did not happen: now it may be sent again
        k = k._replace(request=k.then[0], then=k.then[1:])
    else:
        assert what in ("ok", "repeated"), reply
        if request[0] == "db_read":  # the commit did happen
            request, k = k.then[0], k._replace(then=k.then[1:])
        k = k._replace(request=k.then[0] if k.then else (), then=k.then[1:])
        if request[0] in ("save", "db_commit"):
            k = k._replace(mark=request[4], ahead=tuple(r for r in k.ahead if r > request[4]))
        if request[0] in ("save", "split"):
            k = k._replace(seq=request[3])
        if request[0] in TRANSACTIONS:
            k = k._replace(db_seq=request[3])
        if request[0] == "db_split" or (request[0] == "split" and not database):
            k = k._replace(children=k.children + 1)
        if request[0] in ("finish", "give_back"):
            k = Worker()
    w.workers = (*w.workers[:i], k, *w.workers[i + 1 :])


def at_work(w: World, k: Worker) -> Iterator[tuple[str, Worker, str, int | None]]:
    """What a holder can do next: (label, the worker after it, its budget, the row handled)."""
    left, doing, database = rows_left(w, k), being_read(w, k), w.s.database
    if not k.request or k.request[0] in ("save", "split"):  # handlers go on while such an answer is awaited
        for row in doing:
            if row not in k.ahead:
                yield f"handles row {row}", k._replace(ahead=tuple(sorted((*k.ahead, row)))), "", row
    if k.request:
        return
    request: Message
    then: tuple[Message, ...]
    mark = k.mark
    for row in left:  # the watermark: end of the finished prefix
        if row not in k.ahead:
            break
        mark = row
    complete = not left or mark == left[-1]
    if mark > k.mark and (database or not complete):
        request = ("save", k.name, k.token, k.seq + 1, mark)
        if database:
            request = ("db_commit", k.name, k.epoch, k.db_seq + 1, mark, tuple(r for r in left if r <= mark))
        yield f"sends {request[0]} up to {mark}", k._replace(request=request), "", None
    elif complete:
        jump = -1
        if not left and k.mark == NOTHING_YET and k.name.isdigit():  # the first read found nothing: probe
            later = [row for row in w.visible if row >= k.first]
            jump = slot_of(w.redis.segments, later[0]) if later else slots_in(w.redis.segments)
            if not later and bug("jump-to-the-end"):
                jump = TO_THE_END
        request, then = ("finish", k.name, k.token, k.seq + 1, k.end, jump), ()
        if database and k.name != "final":
            request, then = ("db_done", k.name, k.epoch, k.db_seq + 1), (request,)
        yield f"has reached the end, {k.end}", k._replace(request=request, then=then), "", None
    if complete:
        return
    # Database: done is what is committed.
    request = ("give_back", k.name, k.token, k.seq + 1, k.mark if database else mark)
    yield "gives up on a row", k._replace(request=(*request, True)), "park", None
    if k.stop != TO_THE_END:
        if all(row in k.ahead for row in doing):
            assert not any(row > mark for row in k.ahead), "what a drain leaves is not a contiguous prefix"
            if mark == k.mark or not database:
                yield "has drained", k._replace(request=(*request, False)), "", None
        else:
            yield "drains too slowly, GRACE ends", k._replace(request=(*request, False)), "grace", None
        return
    handed_out = max([k.mark, *k.ahead])  # parts are handed out in order: these at least,
    for stop in (handed_out, *(row for row in doing if row > handed_out)):  # and perhaps some that still run
        yield f"begins to drain, rows up to {stop} are in work", k._replace(stop=stop), "drain", None
    for cut in range(max([k.mark, k.first, *(() if bug("cut-behind-reader") else doing)]), k.end):
        child = f"{k.name}.{k.children + 1}"
        request, then = ("split", k.name, k.token, k.seq + 1, cut, ((child, cut + 1, k.end),)), ()
        if database:
            first = ("db_split", k.name, k.epoch, k.db_seq + 1, cut, child)
            request, then = (request, (first,)) if bug("cut-in-redis-first") else (first, (request,))
        # The worker's own end moves before the request goes out: its reader never passes the cut again.
        yield f"cuts at {cut}", k._replace(end=cut, request=request, then=then), "split", None


# ------------------------------------------------------------------------------------------------------------------
# The world around it
# ------------------------------------------------------------------------------------------------------------------
def start(s: Scenario) -> World:
    w = World()
    w.s, w.seen = s, s.last if s.follow else s.size - 1
    w.redis, w.db = Redis(1, ((0, 0, w.seen, s.width),), s.final, s.follow), Database(s.size)
    w.workers, w.handled, w.late, w.snapshot = (Worker(),) * s.workers, (0,) * s.size, (), None
    w.left, w.visible, w.repeatable = tuple(s.budget.get(b, 0) for b in BUDGETS), s.rows, ()
    return w


def has(w: World, budget: str) -> bool:
    return not budget or w.left[BUDGETS.index(budget)] > 0


def paid(w: World, budget: str) -> World:
    """A copy of the world with one less of that budget."""
    new = w.copy()
    if budget:
        i = BUDGETS.index(budget)
        new.left = (*w.left[:i], w.left[i] - 1, *w.left[i + 1 :])
    return new


def put(w: World, i: int, worker: Worker) -> None:
    w.workers = (*w.workers[:i], worker, *w.workers[i + 1 :])


def execute(w: World, request: Message, uid: int) -> Message:
    name, *arguments = request
    if name in TRANSACTIONS:
        w.db = w.db.copy()
        return TRANSACTIONS[name](w.db, *arguments)
    if uid != w.redis.uid:
        return ("state lost",)  # every script compares the run's uid first
    w.redis = w.redis.copy()
    return SCRIPTS[name](w.redis, *arguments)


def pickable(w: World) -> Iterator[tuple[str, str]]:
    """What a pick may find, depending on which hints have passed, and the budget that this takes."""
    r = w.redis
    for name in r.open:
        yield name, "hint" if name in r.leases else ""
    if r.ready:
        yield r.ready[0], ""
    if r.next < r.total:
        yield "next", ""
    elif not r.ready:
        yield "nothing", ""


def show(request: Message) -> str:
    return f"{request[0]}({', '.join(map(str, request[1:]))})"


def steps(w: World) -> Iterator[tuple[str, World]]:
    """Every event that can come next, and the world after it."""
    s = w.s
    for i, k in enumerate(w.workers):
        if k in w.workers[:i]:
            continue  # workers in the same state are interchangeable
        if k.request:
            for label, new in on_the_wire(w, i, k):
                yield f"worker {i}: {label}", new
        elif k.mode == "idle" and has(w, "claims"):
            for label, new in asks(w, i):
                yield f"worker {i}: {label}", new
        if k.mode == "work":
            for label, worker, budget, row in at_work(w, k):
                if has(w, budget):
                    new = paid(w, budget)
                    put(new, i, worker)
                    if row is not None:
                        new.handled = tuple(min(2, n + (j == row)) for j, n in enumerate(w.handled))
                    if budget in ("park", "grace"):
                        mark = worker.request[4]
                        new.repeatable = tuple(sorted({*w.repeatable, *(r for r in k.ahead if r > mark)}))
                    yield f"worker {i} {label}", new
        if k.mode in ("claiming", "work") and has(w, "crash"):
            new = paid(w, "crash")
            put(new, i, Worker())
            yield f"worker {i} is killed", new
    yield from faults(w)
    if s.follow:
        yield from growth(w)


def asks(w: World, i: int) -> Iterator[tuple[str, World]]:
    """A free worker picks. (Lost answers and late copies of a pick leave a ticket that nobody has.)"""
    token = 1 + max([k.token for k in w.workers] + [r[2] for r, _ in w.late if r[0] in SCRIPTS])
    for found, budget in pickable(w):
        if has(w, budget):
            new = paid(paid(w, "claims"), budget)
            put(new, i, Worker(token=token, uid=w.redis.uid))
            reply = execute(new, ("pick", token, found), w.redis.uid)
            answered(new, i, ("pick",), reply)
            yield f"pick finds {found} -> {reply[0]}", new
            if has(w, "lost") and reply[0] == "slot":
                new = paid(paid(w, "lost"), budget)
                execute(new, ("pick", 0, found), w.redis.uid)
                yield f"pick finds {found}, the answer is lost", new


def on_the_wire(w: World, i: int, k: Worker) -> Iterator[tuple[str, World]]:
    request, sql = k.request, k.request[0] in TRANSACTIONS
    if sql and any(r[0] in TRANSACTIONS and r[1] == request[1] for r, _ in w.late):
        return  # a transaction under way holds the lock of the row: whoever wants it waits
    new = w.copy()
    reply = execute(new, request, k.uid)
    answered(new, i, request, reply)
    yield f"{show(request)} -> {reply[0]}", new
    if request[0] == "claim" and has(w, "attempts"):
        new = paid(w, "attempts")
        reply = execute(new, (*request, True), k.uid)
        if reply[0] == "parked":
            answered(new, i, request, reply)
            yield f"{show(request)} -> parked, after too many attempts", new
    if not sql and has(w, "lost"):
        new = paid(w, "lost")
        execute(new, request, k.uid)
        yield f"{show(request)} is done, the answer is lost", new
    if not sql and has(w, "late"):
        new = paid(w, "late")
        new.late = (*w.late, (request, k.uid))
        yield f"{show(request)} is delayed and will be sent again", new
    if request[0] in ("db_commit", "db_split", "db_done") and has(w, "doubt"):
        again = k._replace(request=("db_read", *request[1:4]), then=(request, *k.then))
        if bug("fence-by-epoch-only"):
            again = k
        new = paid(w, "doubt")
        execute(new, request, k.uid)
        put(new, i, again)
        yield f"{show(request)} is done, the answer is lost", new
        new = paid(w, "doubt")
        new.late = (*w.late, (request, k.uid))
        put(new, i, again)
        yield f"{show(request)} is under way, the connection is gone", new


def faults(w: World) -> Iterator[tuple[str, World]]:
    r = w.redis
    for n, (request, uid) in enumerate(w.late):
        new = w.copy()
        new.late = w.late[:n] + w.late[n + 1 :]
        if request[0] in TRANSACTIONS:
            yield f"{show(request)} is rolled back after all", new
            new = new.copy()
        execute(new, request, uid)
        yield f"{show(request)} arrives late", new
    for name in r.leases:
        if has(w, "expire"):
            new = paid(w, "expire")
            new.redis = r.copy()
            del new.redis.leases[name]
            yield f"the lease of {name} ends", new
    for name in r.parked:
        new = w.copy()
        execute(new, ("requeue", name), r.uid)
        yield f"an operator requeues {name}", new
    if has(w, "rollback"):
        if w.snapshot is None:
            new = w.copy()
            new.snapshot = r
            yield "a replica holds this state", new
        elif w.snapshot.key() != r.key():
            new = paid(w, "rollback")
            new.redis, new.snapshot = w.snapshot, None
            yield "failover: Redis goes back to the replica's state", new
    if has(w, "evict"):
        for key in ("open", "ready", "parked", "done"):
            if getattr(r, key):
                new = paid(w, "evict")
                new.redis = r.copy()
                setattr(new.redis, key, type(getattr(r, key))())
                yield f"the key {key} vanishes", new
        for name in r.slots:
            new = paid(w, "evict")
            new.redis = r.copy()
            del new.redis.slots[name]
            yield f"the key slot:{name} vanishes", new
    if has(w, "wipe"):
        new = paid(w, "wipe")
        new.redis = Redis(r.uid + 1, r.segments, r.reducing, r.follow)
        yield "Redis is lost, and the run created again with what the database knows", new


def growth(w: World) -> Iterator[tuple[str, World]]:
    for row in w.s.late_rows:
        if row not in w.visible:
            new = w.copy()
            new.visible = tuple(sorted((*w.visible, row)))
            yield f"row {row} is committed", new
    # A look. Assumed: what was being inserted at one look is committed at the next, because the time between two looks
    # is longer than any inserting transaction.
    newest = max(w.visible)
    if newest > w.redis.segments[-1][2] and all(row in w.visible for row in w.s.late_rows if row < w.seen):
        new = w.copy()
        execute(new, ("extend", len(w.redis.segments), newest if bug("extend-to-the-newest") else w.seen), w.redis.uid)
        new.seen = newest
        yield f"a look sees {newest}; the run now ends at {new.redis.segments[-1][2]}", new


def tidy(w: World) -> None:
    """Give the tokens that matter the numbers 1, 2, ... and the others 0, so that equal worlds are equal."""
    live = sorted({k.token for k in w.workers} | {r[2] for r, _ in w.late if r[0] in SCRIPTS} - {0})
    short = {token: n for n, token in enumerate((t for t in live if t), 1)}
    for attribute in ("redis", "snapshot"):
        r = getattr(w, attribute)
        if r is None:
            continue
        tokens = {
            *r.open.values(),
            *r.leases.values(),
            *(d[2] for d in r.done.values()),
            *(slot.closed for slot in r.slots.values()),
        }
        if any(t and short.get(t) != t for t in tokens):
            r = r.copy()
            r.open = {n: short.get(t, 0) for n, t in r.open.items()}
            r.leases = {n: short.get(t, 0) for n, t in r.leases.items()}
            r.done = {n: (d[0], d[1], short.get(d[2], 0)) for n, d in r.done.items()}
            r.slots = {n: slot._replace(closed=short.get(slot.closed, 0)) for n, slot in r.slots.items()}
            setattr(w, attribute, r)
    if any(t != n for t, n in short.items()):

        def renamed(request: Message) -> Message:
            if not request or request[0] in TRANSACTIONS:
                return request
            ticket = (short[request[3]],) if request[0] == "claim" else request[3:4]
            return (*request[:2], short[request[2]], *ticket, *request[4:])

        w.workers = tuple(
            k._replace(token=short.get(k.token, 0), request=renamed(k.request), then=tuple(map(renamed, k.then)))
            for k in w.workers
        )
        w.late = tuple((renamed(request), uid) for request, uid in w.late)


# ------------------------------------------------------------------------------------------------------------------
# Invariants
# ------------------------------------------------------------------------------------------------------------------
INVARIANTS = (
    "every id of the run has exactly one owner: the ledger, a proven gap, a live slot, or the part never claimed",
    "slots are done, and checkpoints stand, only over rows that were handled (or committed)",
    "a checkpoint never goes back; a slot that is done is never claimed again",
    "a worker ends with 0 only when every row was handled; the final slot exists only when all others are done",
    "from every state one fresh worker can complete the run",
    "without crashes and lost leases a row is handled twice only if it lay beyond the mark at a park or as GRACE ended",
    "with checkpoint=database no change is committed twice",
)


def owners(r: Redis) -> list[tuple[int, int, str]]:
    parts = [(first, last, f"done {name}") for name, (first, last, _) in r.done.items() if name != "final"]
    parts += [(*slot_range(r.segments, n), f"gap {n}") for low, high in r.gaps for n in range(low, high + 1)]
    parts += [(*slot_range(r.segments, n), f"never claimed {n}") for n in range(r.next, r.total)]
    for name in (*r.open, *r.ready, *r.parked):
        if name != "final":
            slot = r.slots.get(name)
            parts.append((slot.first, slot.last, name) if slot else (*slot_range(r.segments, int(name)), name))
    return sorted(parts)


def broken(w: World) -> str | None:
    """What is wrong with a state."""
    r, s = w.redis, w.s
    safe = w.db.changes if s.database else w.handled
    if not s.budget.get("evict"):
        at = 0
        for first, last, who in owners(r):
            if first != at:
                return f"ids {min(at, first)} to {max(at, first) - 1} have no owner, or two ({who})"
            at = last + 1
        if at != r.segments[-1][2] + 1:
            return f"ids from {at} on have no owner"
    for name, (first, last, _) in r.done.items():
        for row in w.visible:
            if first <= row <= last and not safe[row] and (row in s.rows or row > s.last):
                return f"slot {name} is done without row {row}"
    for low, high in r.gaps:
        for n in range(low, high + 1):
            first, last = slot_range(r.segments, n)
            if any(first <= row <= last and (row in s.rows or row > s.last) for row in w.visible):
                return f"slot {n} was jumped over and is not empty"
    for name, slot in (w.db.rows if s.database else r.slots).items():
        for row in s.rows:
            if slot.first <= row <= slot.last_id and not safe[row]:
                return f"the checkpoint of {name} is past row {row}, which was not handled"
    for row in s.rows:
        if s.once and w.handled[row] > 1 and row not in w.repeatable:
            return f"row {row} was handled twice"
    if max(w.db.changes) > 1:
        return f"the change of row {w.db.changes.index(max(w.db.changes))} was committed twice"
    if any(k.mode == "exit" for k in w.workers):
        for row in s.rows:
            if not safe[row]:
                return f"a worker ended with 0 although row {row} was not handled"
    if r.final and (r.next < r.total or {*r.open, *r.ready, *r.parked} - {"final"}):
        return "the final slot exists although another slot is not done"
    return None


def broken_step(before: World, after: World) -> str | None:
    """What is wrong with a step (two states of the same Redis)."""
    a, b = before.redis, after.redis
    if a is b or a.uid != b.uid or (before.snapshot is not None and after.snapshot is None):
        return None
    for name, slot in b.slots.items():
        if name in a.slots and slot.last_id < a.slots[name].last_id:
            return f"the checkpoint of {name} went back from {a.slots[name].last_id} to {slot.last_id}"
    for name in b.leases:
        if name in a.done:
            return f"slot {name} was claimed although it is done"
    return None


finishable: dict[int, tuple[str, frozenset[int], frozenset[int]]] = {}


def cannot_finish(w: World) -> str | None:
    """All workers die, all leases end, one fresh worker comes: what keeps it from completing the run?"""
    s = w.s
    if s.budget.get("evict"):
        return None  # there the answer may be "state lost"
    key = hash((w.redis.key(), w.db.key(), w.visible))
    if key not in finishable:
        finishable[key] = lonely_run(w)
    verdict, handled, changed = finishable[key]
    if verdict not in ("finished", "look"):
        return f"nobody can complete the run any more: {verdict}"
    for row in s.rows:
        if row not in changed if s.database else row not in handled and not w.handled[row]:
            return f"row {row} would never be {'changed' if s.database else 'handled'} (or more than once)"
    return None


def lonely_run(world: World) -> tuple[str, frozenset[int], frozenset[int]]:
    w = world.copy()
    w.redis = w.redis.copy()
    w.redis.leases, w.late, w.handled = {}, (), (0,) * w.s.size
    for name in w.redis.parked:
        requeue(w.redis, name)
    for token in range(1000, 1040):
        r = w.redis
        found = next(iter((*r.open, *r.ready, "next" if r.next < r.total else "nothing")))
        w.workers = (Worker(token=token, uid=r.uid),)
        reply = execute(w, ("pick", token, found), r.uid)
        answered(w, 0, ("pick",), reply)
        if reply[0] != "slot":
            return (
                reply[0],
                frozenset(i for i, n in enumerate(w.handled) if n),
                frozenset(i for i, n in enumerate(w.db.changes) if n == 1),
            )
        while (k := w.workers[0]).mode != "idle":
            if k.request:
                answered(w, 0, k.request, execute(w, k.request, k.uid))
            else:
                _, worker, _, row = next(at_work(w, k))
                w.workers = (worker,)
                w.handled = tuple(n + (j == row) for j, n in enumerate(w.handled))
    return "it never ends", frozenset(), frozenset()


# ------------------------------------------------------------------------------------------------------------------
# Scenarios and search
# ------------------------------------------------------------------------------------------------------------------
SCENARIOS = {
    "claims": Scenario(
        "two slots: lost leases, passed hints, lost and late requests",
        2,
        1,
        (0, 1),
        {"claims": 4, "expire": 1, "hint": 1, "lost": 1, "late": 1},
    ),
    "crashes": Scenario(
        "two slots: workers killed, late requests of the dead",
        3,
        2,
        (0, 1, 2),
        {"claims": 4, "crash": 2, "expire": 1, "late": 1, "attempts": 1},
    ),
    "splits": Scenario(
        "a slot that is cut while it is worked on",
        3,
        3,
        (0, 1, 2),
        {"claims": 3, "expire": 1, "lost": 1, "late": 1, "split": 1},
    ),
    "cuts": Scenario("two cuts and a lost lease", 5, 5, (0, 1, 2, 4), {"claims": 4, "expire": 1, "split": 2}),
    "holes": Scenario("holes in the ids and jumps of the frontier", 10, 2, (5,), {"claims": 5, "expire": 1, "late": 1}),
    "drains": Scenario(
        "orderly stops, GRACE too short, parked slots, cuts: who repeats what",
        4,
        4,
        (0, 1, 2, 3),
        {"claims": 3, "drain": 1, "grace": 1, "park": 1, "lost": 1, "split": 1},
        batches=2,
        once=True,
    ),
    "failover": Scenario(
        "Redis goes back to an earlier state", 4, 4, (0, 1, 2, 3), {"claims": 3, "rollback": 1, "split": 2}
    ),
    "eviction": Scenario(
        "one key of the run vanishes", 3, 2, (0, 1, 2), {"claims": 4, "evict": 1, "split": 1, "expire": 1}
    ),
    "final": Scenario(
        "a reducing run: the final slot", 3, 2, (0, 2), {"claims": 5, "crash": 1, "expire": 1}, final=True
    ),
    "follow": Scenario(
        "new rows, committed out of order",
        8,
        2,
        (0, 1),
        {"claims": 5, "expire": 1},
        workers=1,
        follow=True,
        last=3,
        late_rows=(4, 6, 7),
    ),
    "database": Scenario(
        "checkpoint=database: commits in doubt, lost leases, orderly stops",
        3,
        3,
        (0, 1, 2),
        {"claims": 3, "expire": 1, "doubt": 1, "drain": 1, "grace": 1},
        batches=2,
        database=True,
    ),
    "database-cuts": Scenario(
        "checkpoint=database: cuts in doubt, lost leases",
        3,
        3,
        (0, 1, 2),
        {"claims": 3, "expire": 1, "doubt": 1, "split": 1},
        database=True,
    ),
    "database-loss": Scenario(
        "checkpoint=database: Redis is lost and the run created again",
        3,
        3,
        (0, 1, 2),
        {"claims": 4, "split": 1, "wipe": 1, "crash": 1},
        database=True,
    ),
}


class Found(Exception):
    """A broken invariant, with the shortest way to it."""


def explore(s: Scenario, limit: int) -> tuple[int, int]:
    """Visits every state that can be reached; returns how many there are, and in how many the run is complete."""
    finishable.clear()
    complete = 0
    first = start(s)
    came: dict[int, tuple[int, str]] = {first.key(): (0, "")}
    queue = deque([(first.key(), first)])

    def story(key: int, last: str) -> str:
        lines = [last]
        while came[key][1]:
            key, label = came[key]
            lines.append(label)
        return "\n".join(f"  {n:2}. {line}" for n, line in enumerate(reversed(lines), 1))

    while queue:
        key, w = queue.popleft()
        tokens = [k.token for k in w.workers]
        for label, new in steps(w):
            problem = broken_step(w, new)
            if new.redis is not w.redis or new.late is not w.late or [k.token for k in new.workers] != tokens:
                tidy(new)
            new_key = new.key()
            if new_key in came and not problem:
                continue
            problem = problem or broken(new) or cannot_finish(new)
            if problem:
                raise Found(f"{story(key, label)}\n  => {problem}")
            came[new_key] = (key, label)
            queue.append((new_key, new))
            complete += new.redis.finished
            if len(came) > limit:
                raise SystemExit(f"more than {limit} states: the scenario is too large")
    return len(came), complete


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="*", help="default: all")
    parser.add_argument("--bug", choices=BUGS)
    parser.add_argument("--all-bugs", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--limit", type=int, default=2_000_000, help="states in one scenario")
    options = parser.parse_args()
    names = options.scenario or list(SCENARIOS)
    if options.list:
        for name, s in SCENARIOS.items():
            print(f"scenario {name:24} {s.about}")
        for name, (scenario, about) in BUGS.items():
            print(f"bug      {name:24} {about} ({scenario})")
        return 0
    if options.all_bugs:
        return plant_each(options.limit)
    if options.bug:
        planted.add(options.bug)
        names = options.scenario or [BUGS[options.bug][0]]
    states, began = 0, time.monotonic()
    for name in names:
        t = time.monotonic()
        try:
            n, complete = explore(SCENARIOS[name], options.limit)
        except Found as found:
            print(f"BROKEN  {name}: {SCENARIOS[name].about}\n{found}")
            return 1
        states += n
        print(
            f"ok  {name:16} {n:7} states, run complete in {complete:6}, {time.monotonic() - t:5.1f} s   "
            f"{SCENARIOS[name].about}",
            flush=True,
        )
    print(f"{states} states in {time.monotonic() - began:.1f} s. Hold in all of them:")
    print("\n".join(f"  - {invariant}" for invariant in INVARIANTS))
    return 0


def plant_each(limit: int) -> int:
    missed = 0
    for name, (scenario, about) in BUGS.items():
        planted.clear()
        planted.add(name)
        began = time.monotonic()
        try:
            explore(SCENARIOS[scenario], limit)
            missed += 1
            print(f"MISSED  {name:24} in {scenario}: {about}", flush=True)
        except Found as found:
            story, problem = str(found).rsplit("=>", 1)
            print(
                f"found   {name:24} in {scenario}, {len(story.splitlines()) - 1} steps, "
                f"{time.monotonic() - began:.1f} s: {problem.strip()}",
                flush=True,
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
