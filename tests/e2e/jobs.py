"""Jobs of test_real_input.py."""

from __future__ import annotations

import functools
import os
import re
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardworker import Change, Row, Skip, job

# Debian's package index -------------------------------------------------------------------------------------------

_SPACE = re.compile(r"\s+")


@job(table="package_index", columns=["record"])
def clean(row: Row) -> Change:
    """A record of the index into columns that can be compared and grouped by."""
    fields = dict(_fields(row.record))
    if "Filename" not in fields:
        raise Skip("nothing to download")
    maintainer, address = _maintainer(fields["Maintainer"])
    return {
        "name": fields["Package"],
        "maintainer": maintainer,
        "address": address,
        "section": fields.get("Section", "unknown").lower().rpartition("/")[2],
        "summary": _SPACE.sub(" ", fields["Description"]).strip(),
        "tags": ",".join(sorted(tag.strip() for tag in fields.get("Tag", "").split(",") if tag.strip())) or None,
        "needs": len({name for each in fields.get("Depends", "").split(",") if (name := _name_of(each))}),
    }


def _fields(record: str) -> Iterator[tuple[str, str]]:
    """`Name: value`; lines that begin with a space belong to the value before."""
    name, value = "", ""
    for line in record.split("\n"):
        if line.startswith((" ", "\t")):
            value += "\n" + line
            continue
        if name:
            yield name, value.strip()
        name, _, value = line.partition(":")
    yield name, value.strip()


def _maintainer(text: str) -> tuple[str, str]:
    """The first of `A <a@X.org>, B <b@y.org>`; hosts of addresses have no case."""
    name, _, rest = text.partition("<")
    account, _, host = rest.partition(">")[0].partition("@")
    return _SPACE.sub(" ", name).strip(' "'), f"{account.strip()}@{host.strip().lower()}"


def _name_of(dependency: str) -> str:
    """`libc6` of `libc6:any (>= 2.34) | libc6.1`."""
    return dependency.partition("|")[0].partition("(")[0].partition(":")[0].strip()


# sysbench's table -------------------------------------------------------------------------------------------------


@functools.cache
def _journal() -> int:
    """This process's file of handled ids. What was appended stays there when the process is killed."""
    path = Path(os.environ["HANDLER_JOURNAL"]) / os.environ["HANDLER_POD"]
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _note(rows: list[Row]) -> None:
    os.write(_journal(), array("q", [row.id for row in rows]).tobytes())


@job(table="sbtest1", columns=["k", "c", "pad"], each="part", part_size=500)
def inspect(rows: list[Row]) -> None:
    """Looks at every row and changes none."""
    _note(rows)
    for row in rows:
        zlib.crc32(f"{row.k} {row.c} {row.pad}".encode())


@job(table="sbtest1", columns=["n"], each="part", part_size=500)
def count(rows: list[Row]) -> dict[int, Any]:
    """Done twice, it would be seen."""
    _note(rows)
    return {row.id: {"n": row.n + 1} for row in rows}
