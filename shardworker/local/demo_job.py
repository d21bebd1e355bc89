"""The job of `shardworker demo`, and the table that it works on: orders whose addresses were typed by hand."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from shardworker.handler import Change, Context, Row
from shardworker.jobs import job

LOOKUP_S = 0.05  # what a part waits for, as if it asked an address service
SHORT_FORMS = {"st": "Street", "rd": "Road", "ave": "Avenue", "sq": "Square", "ln": "Lane"}
STREETS = ("Main", "Church", "Station", "Mill", "Green", "High", "Park", "Queen", "North", "Bridge")
TOWNS = ("Springfield", "Ashford", "Newport", "Oakham", "Riverton", "Milton", "Kingston", "Clifton")

TABLES = """
    CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT NOT NULL, address TEXT NOT NULL);
    CREATE TABLE handled (row_id INTEGER NOT NULL, pid INTEGER NOT NULL);
"""
WITHOUT_A_TRACE = """
    SELECT COUNT(*) FROM orders
    WHERE address <> tidy(address) OR NOT EXISTS (SELECT 1 FROM handled WHERE row_id = orders.id)
"""

_service = threading.Event()  # nobody sets it


@job(table="orders", columns=["address"], each="part")
def clean_addresses(orders: list[Row], ctx: Context) -> dict[int, Change]:
    """Cleans addresses. What it was given is in the table `handled` before anything else happens, and stays there
    whatever becomes of this process: the proof counts these lines."""
    with ctx.engine.begin() as connection:
        lines = [(order.id, os.getpid()) for order in orders]
        connection.exec_driver_sql("INSERT INTO handled VALUES (?, ?)", lines)
    _service.wait(LOOKUP_S)
    return {order.id: {"address": tidy(order.address)} for order in orders}


def tidy(address: str) -> str:
    """`12  main ST.,springfield ,ab1 2cd` → `12 Main Street, Springfield, AB1 2CD`; a clean address stays as it is."""
    parts = (" ".join(filter(None, map(_tidy_word, part.split()))) for part in address.split(","))
    return ", ".join(filter(None, parts))


def _tidy_word(word: str) -> str:
    word = word.rstrip(".")
    if any(character.isdigit() for character in word):
        return word.upper()
    return SHORT_FORMS.get(word.lower(), word.capitalize())


def messy_address(row_id: int) -> str:
    """The address of an order as it was typed; the same for the same id, and never clean."""
    dice = random.Random(row_id)
    street = f"{dice.randint(1, 199)}{dice.choice((' ', '  '))}{dice.choice(STREETS)} {dice.choice(tuple(SHORT_FORMS))}"
    code = f"{dice.choice('ABCDEFGH')}{dice.choice('KLMNOP')}{dice.randint(1, 20)} {dice.randint(1, 9)}XY"
    address = dice.choice((", ", ",", " ,", ",  ,")).join((street, dice.choice(TOWNS), code))
    return dice.choice((str.lower, str.upper, str.swapcase))(address) + dice.choice(("", " ", ".", ","))


@contextmanager
def _opened(file: Path) -> Iterator[sqlite3.Connection]:
    """A connection in one transaction, closed at the end."""
    with closing(sqlite3.connect(file, timeout=30.0)) as connection, connection:
        yield connection


def make_table(file: Path, rows: int) -> None:
    with _opened(file) as connection:
        connection.executescript("PRAGMA journal_mode = WAL;" + TABLES)
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?)", _orders(rows))


def _orders(rows: int) -> Iterator[tuple[int, str, str]]:
    for row_id in range(1, rows + 1):
        yield row_id, f"customer {row_id % 5_000}", messy_address(row_id)


def handled_so_far(file: Path) -> int:
    """Lines in `handled`, with repeats: its last rowid, which is read at once however many there are."""
    with _opened(file) as connection:
        return int(connection.execute("SELECT COALESCE(MAX(rowid), 0) FROM handled").fetchone()[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What became of the rows, counted in the tables; no counter of shardworker's is asked."""

    rows: int
    handled: int  # rows that a handler was given
    repeated: int  # times that a handler was given a row that it, or another, had been given before
    missing: int  # rows that no handler was given, or whose address is not clean


def count(file: Path) -> Proof:
    with _opened(file) as connection:
        connection.create_function("tidy", 1, tidy, deterministic=True)
        connection.execute("CREATE INDEX IF NOT EXISTS handled_row ON handled (row_id)")
        (rows,) = connection.execute("SELECT COUNT(*) FROM orders").fetchone()
        times, handled = connection.execute("SELECT COUNT(*), COUNT(DISTINCT row_id) FROM handled").fetchone()
        (missing,) = connection.execute(WITHOUT_A_TRACE).fetchone()
        return Proof(rows=rows, handled=handled, repeated=times - handled, missing=missing)
