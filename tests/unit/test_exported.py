"""What is public: the names in `__all__`, and nothing hides one of them."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import shardworker


@pytest.mark.parametrize("name", shardworker.__all__)
def test_each_public_name_can_be_imported(name: str) -> None:
    assert getattr(shardworker, name) is not None


def test_type_checkers_see_the_public_names_and_no_others() -> None:
    """Names are imported at their first use; what checkers are told instead could fall behind."""
    module = ast.parse(Path(shardworker.__file__).read_text())
    imports = [node for node in ast.walk(module) if isinstance(node, ast.ImportFrom) and node.module != "typing"]

    assert sorted(name.name for node in imports for name in node.names) == sorted(shardworker.__all__)


def test_no_public_name_stands_there_twice() -> None:
    assert len(set(shardworker.__all__)) == len(shardworker.__all__)


def test_a_star_import_gives_the_public_names() -> None:
    found: dict[str, object] = {}
    exec("from shardworker import *", found)

    assert set(shardworker.__all__) <= set(found)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        shardworker.__getattr__("no_such_name")


def test_no_module_has_the_name_of_something_that_is_exported() -> None:
    """With a job.py, `import shardworker.job as m` would give the function."""
    modules = {module.name for module in pkgutil.iter_modules(shardworker.__path__)}

    assert modules.isdisjoint(shardworker.__all__)


def test_importing_the_package_alone_is_quick() -> None:
    """`shardworker --help` and the local server need neither SQLAlchemy nor redis."""
    loaded = "import sys, shardworker; print(*sys.modules)"
    printed = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()

    assert {"sqlalchemy", "redis", "pydantic"}.isdisjoint(printed)
