"""What type checkers say to a user: nothing to what is right, and something to each mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

RIGHT = Path(__file__).parent / "users_module.py"
MISTAKE = "# wrong"  # a checker must complain about the statement that begins behind this line

WRONG = """
from dataclasses import dataclass
from typing import NamedTuple

from shardworker import Change, Context, Row, job


class User(NamedTuple):
    id: int
    email: str


@dataclass
class Order:
    id: int


# wrong: a text is no change
@job(table="users")
def returns_text(row: Row) -> str:
    return row.email


# wrong: rows are of the class of `columns`
@job(table="users", columns=User)
def takes_another_class(order: Order) -> Change:
    return {}


# wrong: a row handler takes one row
@job(table="users")
def takes_many(rows: list[Row]) -> Change:
    return {}


# wrong: a part handler takes a list
@job(table="users", each="part")
def takes_one(row: Row) -> dict[int, Change]:
    return {}


# wrong: changes are by id
@job(table="users", each="part")
def returns_by_text(rows: list[Row]) -> dict[str, Change]:
    return {}


# wrong: there are three ways
@job(table="users", each="rows")
def another_way(row: Row) -> Change:
    return {}


# wrong: two arguments at most
@job(table="users")
def takes_three(row: Row, ctx: Context, more: int) -> Change:
    return {}


# wrong: the second one is the context
@job(table="users")
def takes_no_context(row: Row, more: int) -> Change:
    return {}


# wrong: async handlers return the same as others
@job(table="users")
async def returns_number(row: Row) -> int:
    return 1


# wrong: a job without a table
@job(columns=["email"])
def without_table(row: Row) -> Change:
    return {}


@job(table="users", columns=User)
def right(user: User) -> Change:
    # wrong: there is no such field
    return {"email": user.emial}


# wrong: it takes a user
right(Row(id=1))

# wrong: a mapping has no such method
right(User(1, "x")).append(1)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where users' modules lie: outside of this project."""
    folder = tmp_path_factory.mktemp("typing")
    (folder / "wrong.py").write_text(WRONG)
    (folder / "right.py").write_text(RIGHT.read_text())
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    return folder


def _mypy(folder: Path, module: str) -> Iterator[tuple[int, str]]:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--cache-dir",
        str(folder / "cache"),
        "--output",
        "json",
        module,
    ]
    printed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert printed.returncode in (0, 1), printed.stdout + printed.stderr
    for line in filter(str.strip, printed.stdout.splitlines()):
        found = json.loads(line)
        if found["severity"] == "error":
            yield found["line"], found["message"]


def _pyright(folder: Path, module: str) -> Iterator[tuple[int, str]]:
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", module]
    printed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert printed.returncode in (0, 1), printed.stdout + printed.stderr
    for found in json.loads(printed.stdout)["generalDiagnostics"]:
        if found["severity"] == "error":
            yield found["range"]["start"]["line"] + 1, found["message"]


Checker = Callable[[Path, str], Iterator[tuple[int, str]]]
both_checkers = pytest.mark.parametrize("complaints", [_mypy, _pyright], ids=["mypy", "pyright"])


@both_checkers
def test_a_checker_is_content_with_every_signature_that_a_job_may_have(complaints: Checker, folder: Path) -> None:
    """The package ships its types: a false alarm would make users switch the checker off."""
    assert list(complaints(folder, "right.py")) == []


@both_checkers
def test_a_checker_finds_each_mistake_and_nothing_else(complaints: Checker, folder: Path) -> None:
    found = [line for line, _ in complaints(folder, "wrong.py")]

    lines = WRONG.splitlines()
    blocks = [n for n, line in enumerate(lines, 1) if not line or line.lstrip().startswith(MISTAKE)]

    def block_of(line: int) -> str:
        return lines[max(n for n in blocks if n < line) - 1].strip()

    mistakes = [line.strip() for line in lines if line.lstrip().startswith(MISTAKE)]
    assert {block_of(line) for line in found} == set(mistakes)
