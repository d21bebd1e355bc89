"""Whole runs over real data: Debian's package index, and a million rows of sysbench."""

from __future__ import annotations

import re
import subprocess
from array import array
from collections import Counter
from collections.abc import Callable
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from shardworker.outcomes import Tally
from shardworker.process import ledger
from tests import services
from tests.harness import Pod, World, wait_until

INDEX = """CREATE TABLE package_index (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, record MEDIUMTEXT NOT NULL,
    name VARCHAR(200), maintainer VARCHAR(200), address VARCHAR(200), section VARCHAR(100), summary VARCHAR(500),
    tags TEXT, needs INT) CHARACTER SET utf8mb4"""
CLEANED = "name, maintainer, address, section, summary, tags, needs"
FEWEST_RECORDS = 10_000  # fewer are no package index but what happens to be installed

ROWS = 1_000_000
BATCH_SIZE = 5_000
SETTINGS: dict[str, object] = {"batch_size": BATCH_SIZE, "slot_size": 50_000, "lease": "5s"}


# Debian's package index --------------------------------------------------------------------------------------------


def records() -> list[str]:
    """The package index of this machine; skips where there is none."""
    program = services.program("apt-cache")
    text = subprocess.run([program, "dumpavail"], check=True, capture_output=True, timeout=120).stdout.decode()
    found = [record for record in text.split("\n\n") if record.strip()]
    if len(found) < FEWEST_RECORDS:
        services.skip_or_fail("apt-cache", f"it knows {len(found)} packages only: `apt-get update` gets the index")
    return found


def cleaned(record: str) -> tuple[Any, ...]:
    """What the job is to make of a record, by other means: the mail package's parser and regular expressions."""
    fields = HeaderParser().parsestr(record)
    if fields["Filename"] is None:
        return (None,) * 7
    found = re.match(r'[\s"]*([^<]*?)[\s"]*<\s*([^@>]*)@([^>]*?)\s*>', fields["Maintainer"])
    assert found, fields["Maintainer"]
    needs = re.findall(r"(?:^|,)\s*([^\s|(,:]+)", fields["Depends"] or "")
    return (
        fields["Package"],
        " ".join(found[1].split()),
        f"{found[2]}@{found[3].lower()}",
        (fields["Section"] or "unknown").lower().split("/")[-1],
        " ".join(fields["Description"].split()),
        ",".join(sorted(re.findall(r"[^\s,]+", fields["Tag"] or ""))) or None,
        len(set(needs)),
    )


@pytest.mark.docker
@pytest.mark.timeout(400)
def test_debians_package_index_is_cleaned_to_the_letter(make_world: Callable[..., World]) -> None:
    """Sixty thousand records of text by thousands of people, emoji among them, through MySQL 9 and back."""
    index = records()
    world = make_world(database="mysql")
    world.sql(INDEX)
    with world.engine.connect() as connection:
        for at in range(0, len(index), 1000):
            connection.exec_driver_sql(
                "INSERT INTO package_index (record) VALUES (%s)", [(record,) for record in index[at : at + 1000]]
            )
    ids = [row[0] for row in world.sql("SELECT id FROM package_index ORDER BY id")]
    assert len(ids) == len(index)

    settings: dict[str, object] = {"batch_size": 500, "slot_size": 10_000}
    pods = [world.start("tests.e2e.jobs:clean", **settings) for _ in range(2)]
    assert [pod.wait(240) for pod in pods] == [0, 0], pods[0].text()

    expected = [cleaned(record) for record in index]
    stored = world.sql(f"SELECT {CLEANED} FROM package_index ORDER BY id")
    differing = [(tuple(is_), must) for is_, must in zip(stored, expected, strict=True) if tuple(is_) != must]
    assert differing == []
    skipped = sum(must[0] is None for must in expected)
    totals: dict[str, str] = world.redis.hgetall(world.key("totals", "clean"))  # type: ignore[assignment]
    assert int(totals["changed"]) == len(index) - skipped
    assert int(totals.get("skip:nothing to download", 0)) == skipped
    kept = [row[0] for row in world.sql("SELECT record FROM package_index ORDER BY id")]
    assert kept == index, "columns that no change names are as they were"


# A million rows ----------------------------------------------------------------------------------------------------


@pytest.fixture
def million(make_world: Callable[..., World]) -> World:
    """sysbench's table in MariaDB, with a counter."""
    program = services.program("sysbench")
    world = make_world(database="mariadb")
    url = sqlalchemy.make_url(world.database_url)
    server = [f"--mysql-{name}={getattr(url, name)}" for name in ("host", "port", "password")]
    server += [f"--mysql-user={url.username}", f"--mysql-db={url.database}"]
    prepare = [program, "oltp_read_write", *server, "--tables=1", f"--table-size={ROWS}", "prepare"]
    made = subprocess.run(prepare, capture_output=True, text=True, timeout=240, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    world.sql("ALTER TABLE sbtest1 ADD COLUMN n INT NOT NULL DEFAULT 0")
    assert [tuple(row) for row in world.sql("SELECT MIN(id), MAX(id), COUNT(*) FROM sbtest1")] == [(1, ROWS, ROWS)]
    ledger.metadata.create_all(world.engine)
    (world.folder / "journal").mkdir()
    return world


def journal(world: World, pod: Pod) -> Path:
    return world.folder / "journal" / pod.name


def handled_by(world: World, pod: Pod) -> int:
    """So far, by the size of its journal."""
    return journal(world, pod).stat().st_size // 8 if journal(world, pod).exists() else 0


def ids_of(world: World, pod: Pod) -> array[int]:
    ids = array("q")
    ids.frombytes(journal(world, pod).read_bytes())
    return ids


def run_with_losses(world: World, job: str, **variables: object) -> list[Pod]:
    """Three workers, of which the first is killed and the second stopped on the way; a fourth comes for them."""

    def start() -> Pod:
        return world.start(job, HANDLER_JOURNAL=world.folder / "journal", **SETTINGS, **variables)

    killed, stopped, steady = pods = [start() for _ in range(3)]
    wait_until(lambda: handled_by(world, killed) > 60_000, "the first worker is in its second slot", every=0.005)
    assert killed.is_running
    killed.kill()
    wait_until(lambda: handled_by(world, stopped) > 60_000, "so is the second", every=0.005)
    stopped.terminate()
    assert stopped.wait() == 143, stopped.text()
    assert steady.is_running, "they were lost on the way, not after the end"
    pods.append(start())
    assert [pod.wait(240) for pod in pods[2:]] == [0, 0], steady.text()
    return pods


def check_that_all_were_handled(world: World, pods: list[Pod]) -> None:
    handled = [ids_of(world, pod) for pod in pods]
    times = Counter[int]()
    for ids in handled:
        times.update(ids)
    assert times.keys() == set(range(1, ROWS + 1))
    repeated = {row_id for row_id, n in times.items() if n > 1}
    assert len(repeated) <= 2 * BATCH_SIZE
    assert repeated <= set(handled[0]), "only rows that the killed worker had in work"
    assert sum(times.values()) == ROWS + len(repeated)


def outcomes(world: World, job: str) -> dict[str, int]:
    totals: dict[str, str] = world.redis.hgetall(world.key("totals", job))  # type: ignore[assignment]
    return {name: int(n) for name, n in totals.items() if int(n)}


@pytest.mark.timeout(600)
def test_a_million_rows_are_all_handled_through_a_kill_and_a_stop(million: World) -> None:
    """Repeated are at most the two batches that the killed worker had begun; the stopped one repeats nothing."""
    pods = run_with_losses(million, "tests.e2e.jobs:inspect")

    check_that_all_were_handled(million, pods)
    assert outcomes(million, "inspect") == {"unchanged": ROWS}


@pytest.mark.timeout(600)
def test_a_million_changes_are_each_made_once_through_a_kill_and_a_stop(million: World) -> None:
    """checkpoint="database": handlers may be called twice, and no change is made twice."""
    pods = run_with_losses(million, "tests.e2e.jobs:count", checkpoint="database")

    assert [tuple(row) for row in million.sql("SELECT n, COUNT(*) FROM sbtest1 GROUP BY n")] == [(1, ROWS)]
    check_that_all_were_handled(million, pods)
    tallies = million.sql("SELECT tally FROM shardworker_slot WHERE slot <> ''")
    total = Tally.total(Tally.decode(row[0]) for row in tallies)
    assert (total.changed, total.rows, total.id_sum) == (ROWS, ROWS, ROWS * (ROWS + 1) // 2)
    assert outcomes(million, "count") == {"changed": ROWS}
