"""The protocol, proven on a model of it before any server is asked."""

import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from tests.model.protocol_model import BUGS, SCENARIOS, SCRIPTS

MODEL = Path(__file__).parent / "protocol_model.py"
NOT_MODELLED = {"create", "renew", "settle", "free_failed", "mark_reset", "progress"}  # they move no slot
NOT_BUILT_YET = {"split", "extend"}


def _run_model(*arguments: str) -> str:
    """Its own process: the model keeps what it has visited for as long as it lives."""
    ended = subprocess.run([sys.executable, MODEL, *arguments], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_model_and_scripts_are_about_the_same_operations() -> None:
    """Who adds a script has to think of its place in the model."""
    folder = resources.files("shardworker.claim") / "lua"
    scripts = {entry.name.removesuffix(".lua") for entry in folder.iterdir()} - {"prelude"}

    modelled = {script for name in SCRIPTS for script in (("release", "park") if name == "give_back" else (name,))}

    assert scripts - NOT_MODELLED == modelled - NOT_BUILT_YET


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_invariant_holds_in_every_state_of_every_scenario() -> None:
    """Every order of crashes, lost leases, lost and late requests, failovers and commits in doubt."""
    printed = _run_model()

    assert [line.split()[1] for line in printed.splitlines() if line.startswith("ok ")] == list(SCENARIOS)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_planted_bug_breaks_an_invariant() -> None:
    """A model that finds nothing proves nothing."""
    printed = _run_model("--all-bugs")

    assert [line.split()[1] for line in printed.splitlines() if line.startswith("found ")] == list(BUGS)
