"""Tables on the standard output: by rich on a terminal, aligned plain text elsewhere."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")  # a terminal would obey some of them, and a line must stay one


def one_line(text: str) -> str:
    """The text without line ends and other control characters."""
    return _CONTROL.sub(" ", text)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    texts = [[one_line(str(cell)) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(headers, texts)
        return
    lines = [list(headers), *texts] if any(headers) else texts
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Name and value, a line each."""
    print_table(("", ""), facts)


def print_json(data: object) -> None:
    print(json.dumps(data))


def _print_rich(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    has_headers = any(headers)
    table = Table(box=box.SIMPLE_HEAD if has_headers else None, show_header=has_headers, pad_edge=False)
    for number, header in enumerate(headers):
        table.add_column(header, style="dim" if number == 0 and not has_headers else "", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # Text: a `[` in somebody's error is no markup
    Console().print(table)
