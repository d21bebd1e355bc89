"""checkpoint="database": how far each slot is, fenced, in the transaction of the changes.

A row of `shardworker_slot` carries an epoch, raised by each claim, and a running number. A batch's transaction locks
the row where both are the holder's, makes all changes, and moves the checkpoint last: a statement that commits by
itself (DDL in a handler) then repeats a batch, where with the mark moved first it would lose one. Where Redis says
otherwise, this table is right.

After a lost reply to a COMMIT a *locking* read on a new connection tells: it waits for a commit that is still under
way, where a plain read was seen to say no a second before the yes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import sqlalchemy
from sqlalchemy import Column, Connection, Engine, MetaData, Table, func, select
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import CreateTable
from sqlalchemy.types import BigInteger, Boolean, DateTime, Integer, Numeric, String, Text

from shardworker.errors import ConfigurationError, LeaseLost
from shardworker.ids import IdRange
from shardworker.outcomes import FailedRow, Tally
from shardworker.process.database import CommitInDoubt, transaction
from shardworker.process.parts import Done
from shardworker.retry import Patience

T = TypeVar("T")
RUN_ROW = ""  # the slot of the row that keeps a copy of the run's meta

# Names are compared by bytes: in the usual collations two runs could share a row.
_name = String(255).with_variant(mysql.VARCHAR(255, charset="ascii", collation="ascii_bin"), "mysql", "mariadb")
_id = Numeric(20, 0, asdecimal=True).with_variant(BigInteger(), "sqlite")
_long = Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")

metadata = MetaData()
slots = Table(
    "shardworker_slot",
    metadata,
    Column("run", _name, primary_key=True),
    Column("slot", _name, primary_key=True),
    Column("first_id", _id),
    Column("end_id", _id),
    Column("last_id", _id),  # NULL: nothing is done yet
    Column("epoch", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("done", Boolean, nullable=False),
    Column("tally", String(255), nullable=False),
    Column("state", _long),
    Column("owner", String(255), nullable=False),
    Column("connection", BigInteger),  # of the last commit, so that a person can end a frozen holder's
    Column("updated", DateTime, nullable=False),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
)
failed_rows = Table(
    "shardworker_failed",
    metadata,
    Column("run", _name, primary_key=True),
    Column("id", _id, primary_key=True, autoincrement=False),
    Column("error", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("at", String(40), nullable=False),
    Column("code_version", String(100), nullable=False),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """A claim of a slot in the database: what a stale holder does not have."""

    slot: str
    epoch: int
    seq: int
    bounds: IdRange
    last_id: int | None
    is_done: bool
    tally: Tally


class FencedOut(LeaseLost):
    """Another claim has raised the epoch of the slot."""


def ddl(engine: Engine) -> list[str]:
    """The statements that create the tables, in the database's own types."""
    return [str(CreateTable(table).compile(engine)).strip() for table in (slots, failed_rows)]


def missing_tables(engine: Engine) -> list[str]:
    there = sqlalchemy.inspect(engine)
    return [table.name for table in (slots, failed_rows) if not there.has_table(table.name)]


def create_missing(engine: Engine) -> list[str]:
    """Creates the tables that are not there; returns their names."""
    missing = missing_tables(engine)
    metadata.create_all(engine, tables=[metadata.tables[name] for name in missing])
    return missing


class Ledger:
    """The rows of one run. Methods wait out passing errors and are safe to repeat."""

    def __init__(self, engine: Engine, run: str, patience: Patience, *, owner: str = "") -> None:
        self._engine = engine
        self._run = run  # prefix, job and run
        self._patience = patience
        self._owner = owner[:255]

    def check_tables(self) -> None:
        """
        Raises:
            ConfigurationError: a table is missing; no command but `ddl` creates one.
        """
        missing = self._patience.call(lambda: missing_tables(self._engine))
        if missing:
            raise ConfigurationError(
                f"SHARDWORKER_CHECKPOINT=database needs the table {' and '.join(missing)}: "
                "`shardworker ddl --apply` creates it, `shardworker ddl` prints the statements"
            )

    # The run -----------------------------------------------------------------------------------------------------
    def remember_run(self, meta: str) -> str:
        """Keeps a copy of the run's meta, unless there is one; returns the one that is kept."""

        def attempt(connection: Connection) -> str:
            kept = connection.execute(select(slots.c.state).where(*self._row(RUN_ROW)).with_for_update()).scalar()
            if kept is None:
                connection.execute(slots.insert().values(self._new(RUN_ROW, None) | {"state": meta}))
            return str(kept) if kept is not None else meta

        return self._transact(attempt)

    def forget_run(self) -> None:
        """Deletes everything of the run."""

        def attempt(connection: Connection) -> None:
            for table in (slots, failed_rows):
                connection.execute(table.delete().where(table.c.run == self._run))

        self._transact(attempt)

    def total(self) -> Tally:
        """The tally of all slots."""
        with_tally = select(slots.c.tally).where(slots.c.run == self._run, slots.c.slot != RUN_ROW)
        return self._read(lambda c: Tally.total(Tally.decode(text) for text in c.execute(with_tally).scalars()))

    def failed(self, ids: IdRange | None = None) -> list[FailedRow]:
        """The failed rows of the run (in a range of ids), by id."""
        query = select(failed_rows).where(failed_rows.c.run == self._run).order_by(failed_rows.c.id)
        if ids is not None:
            query = query.where(failed_rows.c.id.between(ids.first, ids.last))
        return self._read(lambda c: [_failed_row(row) for row in c.execute(query)])

    # A slot ------------------------------------------------------------------------------------------------------
    def claim(self, slot: str, bounds: IdRange) -> Fence:
        """Raises the epoch of a slot: whoever held it before cannot commit any more."""
        row = self._row(slot)

        def attempt(connection: Connection) -> None:
            raised = connection.execute(
                slots.update().where(*row).values(epoch=slots.c.epoch + 1, owner=self._owner, updated=_now())
            )
            if raised.rowcount == 0:
                connection.execute(slots.insert().values(self._new(slot, bounds) | {"epoch": 1}))

        def look(connection: Connection) -> Fence:
            return _fence(connection.execute(select(slots).where(*row).with_for_update()).one())

        self._transact(attempt)
        # In a fresh transaction: a snapshot taken before the lock was granted would not show the commit waited for.
        return self._transact(look)

    def commit(self, fence: Fence, work: Callable[[Connection], Done], *, most_failed: int) -> tuple[Fence, Done] | int:
        """Does `work` (all changes of a batch) and moves the checkpoint over what it returns, in one transaction.

        A number: nothing was written; so many failed rows would fit under MAX_FAILED_ROWS.

        Raises:
            FencedOut: another claim has raised the epoch; nothing was written.
        """
        return self._fenced(fence, lambda connection: self._commit(connection, fence, work, most_failed))

    def finish(self, fence: Fence) -> Fence:
        """Marks the slot as done."""

        def attempt(connection: Connection) -> Fence:
            self._move(connection, fence, {"done": True})
            return replace(fence, seq=fence.seq + 1, is_done=True)

        return self._fenced(fence, attempt)

    def settle(self, ids: Sequence[int], work: Callable[[Connection], Sequence[FailedRow] | None]) -> set[int]:
        """Does `work` and takes rows off the failed list, in one transaction; returns those that were on it.

        The rows that `work` returns failed again: they stay on the list, with their new record. Where not all of `ids`
        are on the list nothing is done: somebody has settled them, or this very call has, whose COMMIT was in doubt.
        """
        chosen = (failed_rows.c.run == self._run, failed_rows.c.id.in_(ids))

        def attempt(connection: Connection) -> set[int]:
            listed = {
                int(i) for i in connection.execute(select(failed_rows.c.id).where(*chosen).with_for_update()).scalars()
            }
            if listed == set(ids):
                failed_again = work(connection)
                connection.execute(failed_rows.delete().where(*chosen))
                if failed_again:
                    self._list_failed(connection, failed_again)
            return listed

        return self._transact(attempt)

    # -------------------------------------------------------------------------------------------------------------
    def _commit(
        self, connection: Connection, fence: Fence, work: Callable[[Connection], Done], most_failed: int
    ) -> tuple[Fence, Done] | int:
        self._lock(connection, fence)
        done = work(connection)
        failed = done.failed()
        if failed:
            room = self._room(connection, failed, most_failed)
            if room is not None:
                raise _TooManyFailed(room)
            self._list_failed(connection, failed)
        moved = replace(
            fence,
            seq=fence.seq + 1,
            last_id=done.last_id if done.last_id is not None else fence.last_id,
            tally=Tally.total((fence.tally, done.tally())),
        )
        self._move(connection, fence, {"last_id": moved.last_id, "tally": moved.tally.encode()})
        return moved, done

    def _lock(self, connection: Connection, fence: Fence) -> None:
        mine = (slots.c.epoch == fence.epoch, slots.c.seq == fence.seq)  # seq, not last_id: `= NULL` matches nothing
        if (
            connection.execute(select(slots.c.seq).where(*self._row(fence.slot), *mine).with_for_update()).first()
            is None
        ):
            raise FencedOut(fence.slot, "another claim has raised its epoch in shardworker_slot")

    def _move(self, connection: Connection, fence: Fence, values: dict[str, Any]) -> None:
        mine = (slots.c.epoch == fence.epoch, slots.c.seq == fence.seq)
        moved = connection.execute(
            slots.update()
            .where(*self._row(fence.slot), *mine)
            .values(values | {"seq": fence.seq + 1, "connection": _connection_id(connection), "updated": _now()})
        )
        if moved.rowcount != 1:
            raise FencedOut(fence.slot, "another claim has raised its epoch in shardworker_slot")

    def _room(self, connection: Connection, failed: Sequence[FailedRow], most_failed: int) -> int | None:
        """None if they fit. The run's row is locked, so that two workers do not both take the last place."""
        connection.execute(select(slots.c.seq).where(*self._row(RUN_ROW)).with_for_update())
        mine = failed_rows.c.run == self._run
        listed = connection.execute(select(func.count()).select_from(failed_rows).where(mine)).scalar_one()
        known = set(
            connection.execute(
                select(failed_rows.c.id).where(mine, failed_rows.c.id.in_([row.row_id for row in failed]))
            ).scalars()
        )
        new = len(failed) - len(known)
        return None if new == 0 or listed + new <= most_failed else max(0, most_failed - listed)

    def _list_failed(self, connection: Connection, failed: Sequence[FailedRow]) -> None:
        ids = [row.row_id for row in failed]
        connection.execute(failed_rows.delete().where(failed_rows.c.run == self._run, failed_rows.c.id.in_(ids)))
        connection.execute(
            failed_rows.insert(),
            [
                {
                    "run": self._run,
                    "id": row.row_id,
                    "error": row.error,
                    "attempts": row.attempts,
                    "at": row.at,
                    "code_version": row.code_version,
                }
                for row in failed
            ],
        )

    def _fenced(self, fence: Fence, attempt: Callable[[Connection], T]) -> T | Any:
        """Runs a transaction until its outcome is known."""

        def once() -> T | int | None:
            result: T | None = None
            try:
                with transaction(self._engine) as connection:
                    result = attempt(connection)
            except _TooManyFailed as full:
                return full.room
            except CommitInDoubt:
                if not self._happened(fence):
                    raise
            return result

        return self._patience.call(once)

    def _happened(self, fence: Fence) -> bool:
        """Whether the transaction that would have raised `seq` by one was committed. A locking read, on a new
        connection."""

        def look(connection: Connection) -> bool:
            row = connection.execute(select(slots).where(*self._row(fence.slot)).with_for_update()).one()
            if int(row.epoch) != fence.epoch:
                raise FencedOut(fence.slot, "another claim has raised its epoch in shardworker_slot")
            return int(row.seq) == fence.seq + 1

        return self._transact(look)

    def _transact(self, attempt: Callable[[Connection], T]) -> T:
        """For what may be done twice."""

        def once() -> T:
            with transaction(self._engine) as connection:
                return attempt(connection)

        return self._patience.call(once)

    def _read(self, look: Callable[[Connection], T]) -> T:
        def once() -> T:
            with self._engine.connect() as connection:
                return look(connection)

        return self._patience.call(once)

    def _row(self, slot: str) -> tuple[sqlalchemy.ColumnElement[bool], ...]:
        return slots.c.run == self._run, slots.c.slot == slot

    def _new(self, slot: str, bounds: IdRange | None) -> dict[str, Any]:
        return {
            "run": self._run,
            "slot": slot,
            "first_id": bounds and bounds.first,
            "end_id": bounds and bounds.last,
            "last_id": None,
            "epoch": 0,
            "seq": 0,
            "done": False,
            "tally": Tally().encode(),
            "owner": self._owner,
            "updated": _now(),
        }


class _TooManyFailed(Exception):
    def __init__(self, room: int) -> None:
        self.room = room


def _fence(row: sqlalchemy.Row[Any]) -> Fence:
    return Fence(
        slot=row.slot,
        epoch=int(row.epoch),
        seq=int(row.seq),
        bounds=IdRange(int(row.first_id), int(row.end_id)),
        last_id=None if row.last_id is None else int(row.last_id),
        is_done=bool(row.done),
        tally=Tally.decode(row.tally),
    )


def _failed_row(row: sqlalchemy.Row[Any]) -> FailedRow:
    return FailedRow(
        row_id=int(row.id), error=row.error, attempts=row.attempts, at=row.at, code_version=row.code_version
    )


def _now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None, microsecond=0)


def _connection_id(connection: Connection) -> Any:
    match connection.dialect.name:
        case "mysql" | "mariadb":
            return func.connection_id()
        case "postgresql":
            return func.pg_backend_pid()
        case _:
            return None
