"""`shardworker demo`, as somebody who has just installed the package types it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import wait_until


@pytest.fixture
def empty() -> Iterator[Path]:
    """A folder with a short name (pytest's are too long for the path of a Unix socket)."""
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        yield Path(folder)


def _demo(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """What it leaves would be in `folder`."""
    return subprocess.Popen(
        [sys.executable, "-m", "shardworker", "demo", *arguments],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(folder)} | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_demo_proves_by_counting_that_a_killed_worker_loses_no_row(empty: Path) -> None:
    """The first thing that a newcomer sees: the numbers, and the story that they stand for."""
    rows, batch_size = 20_000, 50
    # Somebody else's settings do not reach the demo's workers.
    process = _demo(empty, "--json", "--rows", str(rows), SHARDWORKER_REDIS_URL="redis://127.0.0.1:1/0")

    printed, story = process.communicate(timeout=120)

    assert process.returncode == 0, story
    counts = json.loads(printed)
    assert list(counts) == ["rows", "handled", "repeated", "missing", "seconds"]
    assert (counts["rows"], counts["handled"], counts["missing"]) == (rows, rows, 0)
    assert counts["repeated"] <= 2 * batch_size
    killed = re.search(r"(worker \d) killed with SIGKILL in slot (\d+) .* up to id (\d+)", story)
    resumed = re.search(r"(worker \d) resumed slot (\d+) after id (\d+)", story)
    assert killed, story
    assert resumed, story
    assert resumed[1] != killed[1]
    assert resumed[2] == killed[2]
    assert int(resumed[3]) >= int(killed[3])
    assert list(empty.iterdir()) == [], "something is left"


def test_demo_that_is_told_to_stop_ends_its_workers_and_leaves_nothing(empty: Path) -> None:
    """Nobody wants to look for the processes of a demo."""
    process = _demo(empty, "--rows", "20000")
    assert process.stdout is not None
    pids = re.findall(r"pid (\d+)", wait_until(lambda: _line_with("started", process), "the workers have started"))

    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)

    assert process.returncode == 130
    assert len(pids) == 3
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert list(empty.iterdir()) == [], "something is left"


def _line_with(word: str, process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the demo ended"
    return line if word in line else ""


@pytest.mark.parametrize(
    ("argument", "said"),
    [("--rows=999", "with fewer than 1000"), ("--lease=5s", "--lease: the demo takes no settings")],
)
def test_demo_refuses_what_it_would_not_obey(empty: Path, argument: str, said: str) -> None:
    process = _demo(empty, argument)

    _, complaint = process.communicate(timeout=30)

    assert process.returncode == 2
    assert said in complaint
