"""`python -m benchmarks NAME [--json] [--quick]`: the one place for figures. Exit code 1: one missed its goal."""

from __future__ import annotations

import argparse
import sys

import pytest

from benchmarks import overhead, takeover
from benchmarks.data import bench

NAMES = {"overhead": overhead.figures, "takeover": takeover.figures}


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description="Measures shardworker against the goals it has.")
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds, the same goals; within 50 s")
    arguments = parser.parse_args()
    all_ok = True
    try:
        with bench(is_quick=arguments.quick) as made:
            for figure in NAMES[arguments.name](made):
                print(figure.as_json() if arguments.json else figure.as_line(), flush=True)
                all_ok = all_ok and figure.ok
    except pytest.skip.Exception as missing:  # how tests/services.py says so
        print(missing, file=sys.stderr)
        return 1
    return 0 if all_ok else 1


if __name__ == "__main__":
    sys.exit(main())
