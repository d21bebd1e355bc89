"""What a user writes: `@job`, and how a job is found by name."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

from sqlalchemy import Engine

from shardworker.errors import ConfigurationError, JobNotFound
from shardworker.handler import Context, Each, JobSpec, Outcome, Row
from shardworker.process.calls import wants_context
from shardworker.run.here import Summary, run_here

P = ParamSpec("P")
Out = TypeVar("Out")
R = TypeVar("R")  # the class of rows
RowOut = TypeVar("RowOut", bound=Outcome | Awaitable[Outcome])
PartOutcomes = (
    Mapping[int, Any] | None
)  # id → Change, DELETE, None, or an exception for that row alone (Skip among them)
PartOut = TypeVar("PartOut", bound=PartOutcomes | Awaitable[PartOutcomes])

EACH = ("row", "part", "batch")


class Job(Generic[P, Out]):
    """A function over the rows of a table. Called, it is the function itself: that is how a unit test uses it."""

    def __init__(self, spec: JobSpec, function: Callable[P, Out]) -> None:
        self.spec = spec
        self._function = function
        functools.update_wrapper(self, function)

    @property
    def name(self) -> str:
        return self.spec.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Out:
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Job {self.spec.name} over {self.spec.table}>"

    def run(self, engine: Engine, *, first_id: int | None = None, last_id: int | None = None) -> Summary:
        """Does the whole table in this process and thread, without Redis: for tests and small tables.

        Nothing is kept between two calls: a second call does every row again.

        Raises:
            ConfigurationError: the table does not fit the job.
            HandlerError: a row or part failed for good (more rows than the job's `max_failed_rows`).
        """
        return run_here(self.spec, engine, first_id=first_id, last_id=last_id)


class _RowDecorator(Protocol[R]):
    @overload
    def __call__(self, function: Callable[[R], RowOut], /) -> Job[[R], RowOut]: ...
    @overload
    def __call__(self, function: Callable[[R, Context], RowOut], /) -> Job[[R, Context], RowOut]: ...


class _PartDecorator(Protocol[R]):
    @overload
    def __call__(self, function: Callable[[list[R]], PartOut], /) -> Job[[list[R]], PartOut]: ...
    @overload
    def __call__(self, function: Callable[[list[R], Context], PartOut], /) -> Job[[list[R], Context], PartOut]: ...


@overload
def job(
    *,
    table: str,
    columns: type[R],
    each: Literal["row"] = "row",
    name: str | None = None,
    schema: str | None = None,
    key: str | None = None,
    where: str | None = None,
    guard: Sequence[str] = (),
    **settings: object,
) -> _RowDecorator[R]: ...
@overload
def job(
    *,
    table: str,
    columns: Sequence[str] | None = None,
    each: Literal["row"] = "row",
    name: str | None = None,
    schema: str | None = None,
    key: str | None = None,
    where: str | None = None,
    guard: Sequence[str] = (),
    **settings: object,
) -> _RowDecorator[Row]: ...
@overload
def job(
    *,
    table: str,
    columns: type[R],
    each: Literal["part", "batch"],
    name: str | None = None,
    schema: str | None = None,
    key: str | None = None,
    where: str | None = None,
    guard: Sequence[str] = (),
    **settings: object,
) -> _PartDecorator[R]: ...
@overload
def job(
    *,
    table: str,
    columns: Sequence[str] | None = None,
    each: Literal["part", "batch"],
    name: str | None = None,
    schema: str | None = None,
    key: str | None = None,
    where: str | None = None,
    guard: Sequence[str] = (),
    **settings: object,
) -> _PartDecorator[Row]: ...
def job(
    *,
    table: str,
    columns: Sequence[str] | type | None = None,
    each: Each = "row",
    name: str | None = None,
    schema: str | None = None,
    key: str | None = None,
    where: str | None = None,
    guard: Sequence[str] = (),
    **settings: object,
) -> Any:
    """Make a function over rows a job.

    `columns`: names, or a NamedTuple or dataclass whose fields they are; all if not given. `key`: the primary key if
    not given; it is always read. `where`: SQL, in which `:as_of` is the instant at which the run was created. `each`:
    what the function is given, a row, or a list of rows ("part": of a bulk API; "batch": of one read). `guard`: a
    change is written only where these columns still hold what the function saw. `settings`: batch_size, part_size,
    parallelism, attempts, max_failed_rows, checkpoint, slot_size; options and the environment win over them.

    Raises:
        ConfigurationError: the arguments contradict each other, or the function takes the wrong ones.
    """
    if each not in EACH:
        raise ConfigurationError(f"@job(each={each!r}): one of {', '.join(map(repr, EACH))}")
    if isinstance(columns, str) or isinstance(guard, str):
        raise ConfigurationError("@job(columns=..., guard=...): a list of names, not one text")
    if each == "batch" and guard:
        raise ConfigurationError(
            "@job(guard=...) needs rows or parts: a batch handler is not called again for single rows"
        )

    def decorate(function: Callable[..., Any]) -> Job[..., Any]:
        try:
            takes_context = wants_context(function)
        except TypeError as error:
            raise ConfigurationError(f"@job on {getattr(function, '__name__', function)}: {error}") from error
        own_name = name or getattr(function, "__name__", None)
        if own_name is None:
            raise ConfigurationError(f"@job on {function}: what is no function needs a name: @job(name=...)")
        spec = JobSpec(
            name=own_name,
            function=function,
            table=table,
            schema=schema,
            key=key,
            columns=columns,
            where=where,
            each=each,
            guard=tuple(guard),
            is_async=inspect.iscoroutinefunction(function),
            wants_context=takes_context,
            code_version=_code_version(function),
            settings=settings,
        )
        return Job(spec, function)

    return decorate


def _code_version(function: Callable[..., Any]) -> str:
    """Twelve digits of a hash of the function's file: says whether a failed row met this code."""
    try:
        source = Path(inspect.getfile(function)).read_bytes()
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(source).hexdigest()[:12]


def load(path: str) -> Job[..., Any]:
    """The job at `package.module:name`; the working directory is on the path.

    Raises:
        JobNotFound: there is no such module, name, or job; errors inside the module go on as they are.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise JobNotFound(f"SHARDWORKER_JOB {path!r}: give `package.module:name`, for instance app.jobs:normalise")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there; something that it imports is not
        raise JobNotFound(
            f"SHARDWORKER_JOB {path!r}: there is no module {error.name!r} in {Path.cwd()} or on the Python path"
        ) from error
    found = getattr(module, name, None)
    if isinstance(found, Job):
        return found
    there = sorted(attribute for attribute, value in vars(module).items() if isinstance(value, Job))
    hint = f"its jobs are {', '.join(there)}" if there else "it has no jobs: a job is a function under @job(table=...)"
    if found is None:
        raise JobNotFound(f"SHARDWORKER_JOB {path!r}: {module_name} has no {name!r}; {hint}")
    raise JobNotFound(f"SHARDWORKER_JOB {path!r}: {name!r} is a {type(found).__name__} and no job; {hint}")
