"""@job and its rules, and how a job is found by name."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shardworker import Change, ConfigurationError, Context, Job, Row, job
from shardworker.errors import JobNotFound
from shardworker.jobs import load
from shardworker.testing import context


def test_a_job_is_called_as_the_function_that_it_was() -> None:
    """That is how a unit test uses it."""

    @job(table="users", columns=["email"])
    def normalise(row: Row) -> Change:
        """Clean an address."""
        return {"email": row.email.strip().lower()}

    assert isinstance(normalise, Job)
    assert normalise(Row(id=1, email=" X@Y ")) == {"email": "x@y"}
    assert normalise.__doc__ == "Clean an address."
    assert normalise.name == "normalise"
    assert repr(normalise) == "<Job normalise over users>"


def test_what_stands_in_the_decorator_is_kept() -> None:
    @job(
        table="users",
        schema="app",
        key="user_id",
        columns=["email"],
        where="status = 0",
        guard=["updated_at"],
        name="clean",
        batch_size=50,
        checkpoint="database",
    )
    async def normalise(row: Row, ctx: Context) -> Change:
        return {}

    spec = normalise.spec
    assert (spec.name, spec.table, spec.schema, spec.key, spec.where) == (
        "clean",
        "users",
        "app",
        "user_id",
        "status = 0",
    )
    assert (spec.columns, spec.guard, spec.each) == (["email"], ("updated_at",), "row")
    assert (spec.is_async, spec.wants_context) == (True, True)
    assert spec.settings == {"batch_size": 50, "checkpoint": "database"}


def test_code_of_the_same_file_has_the_same_version() -> None:
    """It stands with a failed row: has the code changed since?"""

    @job(table="users")
    def one(row: Row) -> None: ...

    @job(table="users")
    def two(row: Row) -> None: ...

    assert one.spec.code_version == two.spec.code_version
    assert len(one.spec.code_version) == 12


def test_a_handler_may_take_the_context() -> None:
    @job(table="users", each="part")
    def with_it(rows: list[Row], ctx: Context) -> Mapping[int, Any]:
        return {row.id: {"run": ctx.run} for row in rows}

    @job(table="users", each="part")
    def without_it(rows: list[Row]) -> Mapping[int, Any]:
        return {}

    assert with_it.spec.wants_context
    assert with_it([Row(id=1)], context(run="night")) == {1: {"run": "night"}}
    assert not without_it.spec.wants_context


def test_an_argument_with_a_default_is_the_context_only_if_it_is_called_so() -> None:
    """A default is often a way to bind something: it must not be overwritten."""

    @job(table="users")
    def bound(row: Row, limit: int = 3) -> None: ...

    assert not bound.spec.wants_context


def _none() -> None: ...


def _three(row: Row, ctx: Context, more: int) -> None: ...


def _keyword(row: Row, *, limit: int) -> None: ...


@pytest.mark.parametrize("function", [_none, _three, _keyword])
def test_a_handler_that_cannot_be_called_is_refused_at_once(function: Any) -> None:
    """Else each row of the table would fail."""
    with pytest.raises(ConfigurationError, match=f"@job on {function.__name__}: a handler takes one argument"):
        job(table="users")(function)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"each": "rows"}, r"each='rows'.*'row', 'part', 'batch'"),
        ({"columns": "email"}, "a list of names, not one text"),
        ({"guard": "updated_at"}, "a list of names, not one text"),
        ({"each": "batch", "guard": ["updated_at"]}, "guard=.* needs rows or parts"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        job(table="users", **arguments)(lambda row: None)


def test_what_is_no_function_is_told_its_name() -> None:
    def handler(extra: int, row: Row) -> None: ...

    with pytest.raises(ConfigurationError, match="needs a name"):
        job(table="users")(functools.partial(handler, 1))

    assert job(table="users", name="mine")(functools.partial(handler, 1)).name == "mine"


# By name --------------------------------------------------------------------------------------------------------------
JOBS = """
from shardworker import job

@job(table="users")
def normalise(row):
    return None

@job(table="users")
def anonymise(row):
    return None

def helper(row):
    return None
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory. Its modules have names of their own, since Python keeps what it has imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_job_is_found_in_the_working_directory(folder: Path) -> None:
    package = folder / "found_here"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "jobs.py").write_text(JOBS)

    assert load("found_here.jobs:normalise").name == "normalise"


@pytest.mark.parametrize("path", ["", "module", "module:", ":name"])
def test_a_name_of_another_form_is_refused_with_an_example(path: str) -> None:
    with pytest.raises(JobNotFound, match=r"give `package\.module:name`"):
        load(path)


@pytest.mark.parametrize("module", ["no_such_module", "no_such_package.jobs", "shardworker.no_such_module"])
def test_a_missing_module_is_named_with_the_places_that_were_searched(module: str, folder: Path) -> None:
    with pytest.raises(JobNotFound, match=rf"there is no module '[a-z_.]*no_such_[a-z]+'.*{folder.name}"):
        load(f"{module}:normalise")


def test_a_wrong_name_is_answered_with_the_names_that_there_are(folder: Path) -> None:
    (folder / "wrong_name_here.py").write_text(JOBS)

    with pytest.raises(JobNotFound, match="has no 'normalize'; its jobs are anonymise, normalise"):
        load("wrong_name_here:normalize")


def test_an_object_that_is_no_job_is_refused(folder: Path) -> None:
    """The decorator was forgotten."""
    (folder / "no_job_here.py").write_text(JOBS)

    with pytest.raises(JobNotFound, match="'helper' is a function and no job; its jobs are anonymise, normalise"):
        load("no_job_here:helper")


def test_a_module_without_any_job_says_what_one_is(folder: Path) -> None:
    (folder / "without_jobs.py").write_text("x = 1\n")

    with pytest.raises(JobNotFound, match=r"it has no jobs: a job is a function under @job\(table="):
        load("without_jobs:x")


def test_a_module_that_fails_to_import_something_shows_its_own_error(folder: Path) -> None:
    """`there is no module app.jobs` would send the reader to the wrong place."""
    (folder / "imports_too_much.py").write_text("import no_such_dependency\n" + JOBS)

    with pytest.raises(ModuleNotFoundError, match="no_such_dependency") as raised:
        load("imports_too_much:normalise")

    assert not isinstance(raised.value, JobNotFound)


def test_a_module_that_breaks_while_it_is_imported_shows_its_own_error(folder: Path) -> None:
    (folder / "breaks_at_import.py").write_text("1 / 0\n" + JOBS)

    with pytest.raises(ZeroDivisionError):
        load("breaks_at_import:normalise")


def test_a_job_with_a_mistake_in_its_decorator_shows_its_own_error(folder: Path) -> None:
    (folder / "wrong_decorator.py").write_text(JOBS + '\n@job(table="users", each="rows")\ndef bad(row): ...\n')

    with pytest.raises(ConfigurationError, match="each='rows'"):
        load("wrong_decorator:normalise")
