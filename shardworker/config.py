"""Settings: the environment in, checked values out.

    option > variable > file named by a variable > shardworker.toml > the job's decorator > default

`load` is called once, by the command line, and nothing else reads the environment. A setting has one name everywhere:
BATCH_SIZE is `SHARDWORKER_BATCH_SIZE`, `SHARDWORKER_BATCH_SIZE_FILE`, `--batch-size`, `batch_size` in the file and in
the decorator. Only its field says the unit where there is one (LEASE is `lease_s`).

Values arrive here as texts, and each kind of value is read by one function of `setting_types`; pydantic
applies them and collects what they refuse. Its own messages are never shown: they would repeat a password.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, PrivateAttr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from shardworker.errors import ConfigurationError
from shardworker.setting_types import (
    UNITS_S,
    Allowed,
    Checkpoint,
    Connections,
    Count,
    DatabaseUrl,
    Format,
    Id,
    JobPath,
    KeyPrefix,
    LeaseTime,
    Level,
    Password,
    RedisUrl,
    RunName,
    Size,
    SizeOrAuto,
    Time,
    TimeOrZero,
)

PREFIX = "SHARDWORKER_"
TOML = "shardworker.toml"
IN_DECORATOR = ("BATCH_SIZE", "PART_SIZE", "PARALLELISM", "ATTEMPTS", "MAX_FAILED_ROWS", "CHECKPOINT", "SLOT_SIZE")

# Kubernetes gives every pod variables about each service of its name space; one named `shardworker-redis` or
# `shardworker` makes names that begin like ours. No setting's name looks like these.
_SERVICE_VARIABLE = re.compile(
    r"SHARDWORKER(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)_(ADDR|PORT|PROTO))", re.ASCII
)
_SERVICE_ADDRESS = re.compile(r"SHARDWORKER(_\w+)?_PORT(_\d+_(TCP|UDP|SCTP))?", re.ASCII)


# ------------------------------------------------------------------------------------------------------- Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the value of a setting comes from."""

    source: str  # as `config` prints it: "environment", "option --batch-size", "file /run/secrets/x", "job", ...
    spelled: str  # what messages call the setting: as its reader wrote it
    file: Path | None = None  # of a file variable: to be read again when a password is refused that had worked


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDoc:
    """One setting, for people."""

    name: str
    default: str
    meaning: str
    type: str  # what it may be


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSetting:
    """One setting with the value in force; no secret in it."""

    name: str
    value: str
    source: str


def _setting(default: str | None, meaning: str) -> Any:
    """A field; its default is written as a user would write it, and read in the same way."""
    if default is None:
        return Field(default=None, description=meaning)
    return Field(default=default, validate_default=True, description=meaning)


class Settings(BaseSettings):
    """All settings of one process. Made by `load`, which also checks them against each other."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=False)

    job: JobPath = _setting(None, "the job; also the argument of `run`")
    run: RunName = _setting("main", "name of one pass over the table; a finished run is never silently repeated")
    database_url: DatabaseUrl = _setting("sqlite:///.shardworker/data.db", "the database with the table")
    database_password: Password = _setting(None, "its password, instead of one in the URL")
    redis_url: RedisUrl = _setting(None, "the Redis that holds claims and checkpoints")
    redis_password: Password = _setting(None, "its password, instead of one in the URL")
    redis_prefix: KeyPrefix = _setting("shardworker", "first part of every Redis key")
    slot_size: SizeOrAuto = _setting("auto", "ids in one slot")
    batch_size: Size = _setting("1000", "rows in one read")
    part_size: SizeOrAuto = _setting("auto", "most rows that a part handler is given at once")
    parallelism: Size = _setting("8", "handler threads (or concurrent awaits) in one process")
    lease_s: LeaseTime = _setting("30s", "time to live of a claim; renewed every third")
    grace_s: TimeOrZero = _setting("25s", "time to finish after SIGTERM; rows that still run then are repeated")
    attempts: Size = _setting("3", "tries of a failing row, or of a failing part before it is bisected")
    slot_attempts: Size = _setting("5", "claims of a slot without progress before it is parked")
    max_failed_rows: Count = _setting("0", "rows of the run that may be set aside; the next one parks its slot")
    retry_for_s: Time = _setting("5m", "how long an outage of the database or Redis is waited out")
    checkpoint: Checkpoint = _setting("redis", "`database`: in the transaction of the changes")
    first_id: Id = _setting(None, "lowest id of the run, included")
    last_id: Id = _setting(None, "highest id of the run, included")
    db_connections: Connections = _setting("4", "database connections of one process")
    keep_run_s: Time = _setting("30d", "how long the keys of a finished run stay in Redis")
    log_level: Level = _setting("INFO", "least level of a log line")
    log_format: Format = _setting("auto", "`auto`: text on a terminal, else JSON")

    _origins: dict[str, Origin] = PrivateAttr(default_factory=dict)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what `load` found: pydantic's own sources cannot say where a value came from."""
        return (init_settings,)

    def origin(self, name: str) -> Origin:
        """Where the value of the setting (`LEASE`) comes from."""
        return self._origins.get(name) or Origin(source="default", spelled=PREFIX + name)

    def as_written(self) -> dict[str, str]:
        """The settings that are part of a run's identity: `auto` and MAX, not what they turned out to be.

        Spelling does not count: `1_000` is `1000`.
        """
        return {
            "FIRST_ID": "MIN" if self.first_id is None else str(self.first_id),
            "LAST_ID": "MAX" if self.last_id is None else str(self.last_id),
            "SLOT_SIZE": "auto" if self.slot_size is None else str(self.slot_size),
            "CHECKPOINT": self.checkpoint,
        }

    def shown(self) -> list[ShownSetting]:
        """Every setting with its value and source, secrets masked."""
        return [
            ShownSetting(name=name, value=_shown(name, getattr(self, field)), source=self.origin(name).source)
            for name, field in _FIELDS.items()
        ]

    def passwords(self) -> list[str]:
        """Every password in these settings, as it is: what no log line may hold."""
        separate = [self.database_password, self.redis_password]
        given = [secret.get_secret_value() for secret in separate if secret is not None]
        for url in (self.database_url, self.redis_url):
            given += url.passwords if url is not None else []
        return list(dict.fromkeys(given))


_FIELDS = {field.removesuffix("_s").upper(): field for field in Settings.model_fields}
_IF_MISSING = {
    "JOB": "none",
    "DATABASE_URL": "SQLite file `.shardworker/data.db`",
    "DATABASE_PASSWORD": "none",
    "REDIS_URL": "with SQLite: a local server in `.shardworker/`; else it must be given",
    "REDIS_PASSWORD": "none",
    "FIRST_ID": "MIN when the run is created",
    "LAST_ID": "MAX when the run is created",
}
_AUTO = ("SLOT_SIZE", "PART_SIZE")
_SECRET = ("DATABASE_PASSWORD", "REDIS_PASSWORD")
_MAY_HOLD_SECRET = ("DATABASE_URL", "REDIS_URL")


def _shown(name: str, value: object) -> str:
    if value is None:
        return "auto" if name in _AUTO else _IF_MISSING[name].replace("`", "")
    if name in _SECRET:
        return "***"
    return duration(value) if isinstance(value, float) else str(value)


def duration(seconds: float) -> str:
    """Seconds as a setting would be written: 300.0 is `5m`."""
    for unit, length_s in UNITS_S.items():
        if seconds >= length_s and (seconds / length_s).is_integer():
            return f"{seconds / length_s:.0f}{unit}"
    return f"{seconds:g}s"


def describe() -> list[SettingDoc]:
    """Every setting, in the order of the documentation."""
    return [
        SettingDoc(
            name=name,
            default=_IF_MISSING.get(name) or f"`{Settings.model_fields[field].default}`",
            meaning=Settings.model_fields[field].description or "",
            type=_allowed(name),
        )
        for name, field in _FIELDS.items()
    ]


def markdown() -> str:
    """The table of all settings for docs/tuning.md."""
    rows = [f"| {doc.name} | {doc.default} | {doc.meaning} | {doc.type} |" for doc in describe()]
    return "\n".join(["| setting | default | meaning | allowed |", "|---|---|---|---|", *rows]) + "\n"


def _allowed(name: str) -> str:
    return next(part.text for part in Settings.model_fields[_FIELDS[name]].metadata if isinstance(part, Allowed))


# ------------------------------------------------------------------------------------------------------- Loading


def load(
    environ: Mapping[str, str],
    *,
    options: Mapping[str, str] = {},
    job_settings: Mapping[str, object] = {},
    folder: Path = Path(),
) -> Settings:
    """The settings in force.

    `options` has the names of the command line without dashes before them (`batch-size`), `job_settings` what stands
    in the job's decorator, `folder` may hold shardworker.toml, and gets the files of the embedded default.

    Raises:
        ConfigurationError: with every problem at once.
    """
    loading = _Loading(folder)
    loading.take_job_settings(job_settings)  # later ones win
    loading.take_toml()
    loading.take_environment(environ)
    loading.take_options(options)
    return loading.settings()


@dataclass(frozen=True, slots=True)
class _Found:
    written: object
    origin: Origin


class _Loading:
    """What was found so far, and what is wrong with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: dict[str, _Found] = {}
        self._problems: list[str] = []
        self._unusable: set[str] = set()  # settings of unknown value: rules with them are not looked at

    def take_job_settings(self, job_settings: Mapping[str, object]) -> None:
        for key, written in job_settings.items():
            if key.upper() not in IN_DECORATOR:
                allowed = ", ".join(name.lower() for name in IN_DECORATOR)
                self._problems.append(f"the job's decorator gives {key}, but only these can stand there: {allowed}")
            elif written is not None:
                self._take(key.upper(), written, Origin(source="job", spelled=f"{key} in the job's decorator"))

    def take_toml(self) -> None:
        file = self._folder / TOML
        try:
            values = tomllib.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            self._problems.append(f"{file} cannot be read: {reason}")
            self._unusable.update(_FIELDS)
            return
        self._take_keys(values, TOML, lambda key: f"{key} in {TOML}", lambda _: TOML)

    def take_options(self, options: Mapping[str, str]) -> None:
        def spelled(key: str) -> str:
            return "--" + key.replace("_", "-")

        self._take_keys(options, "the command line", spelled, lambda key: f"option {spelled(key)}")

    def _take_keys(
        self,
        values: Mapping[str, object],
        place: str,
        spelled: Callable[[str], str],
        source: Callable[[str], str],
    ) -> None:
        taken: dict[str, str] = {}
        for key, written in values.items():
            name = key.replace("-", "_").upper()
            if name not in _FIELDS:
                hint = _suggestion(name, _FIELDS, lambda near: spelled(near.lower().replace("_", "-")))
                self._problems.append(f"{spelled(key)} is no setting{hint}")
            elif name in taken:
                self._problems.append(f"{taken[name]} and {key} in {place} are the same setting: keep one")
            else:
                taken[name] = key
                self._take(name, written, Origin(source=source(key), spelled=spelled(key)))

    def take_environment(self, environ: Mapping[str, str]) -> None:
        for variable, value in sorted(environ.items()):
            if not variable.upper().startswith(PREFIX) or _is_foreign(variable, value):
                continue
            name = variable.removeprefix(PREFIX)
            if name in _FIELDS:
                self._take(name, value, Origin(source="environment", spelled=variable))
            elif name.removesuffix("_FILE") in _FIELDS:
                self._take_file(name.removesuffix("_FILE"), variable, environ)
            else:
                is_file = variable.upper().endswith("_FILE")
                names = [PREFIX + known + ("_FILE" if is_file else "") for known in _FIELDS]
                self._problems.append(f"{variable} is no setting{_suggestion(variable.upper(), names, str)}")

    def _take_file(self, name: str, variable: str, environ: Mapping[str, str]) -> None:
        if PREFIX + name in environ:
            self._problems.append(f"{PREFIX}{name} and {variable} are both given: keep one")
            return
        if not environ[variable].strip():
            self._problems.append(f"{variable} is empty; unset it or give the path of a file with the value")
            self._unusable.add(name)
            return
        file = self._folder / environ[variable].strip()
        try:
            content = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            self._problems.append(f"{variable}: {file} cannot be read: {reason}; allowed: a file with the value")
            self._unusable.add(name)
            return
        content = content.removesuffix("\n").removesuffix("\r")
        self._take(name, content, Origin(source=f"file {file}", spelled=variable, file=file))

    def _take(self, name: str, written: object, origin: Origin) -> None:
        self._unusable.discard(name)
        self._found[name] = _Found(written, origin)

    def settings(self) -> Settings:
        settings = self._read()
        self._problems.extend(_conflicts(settings, self._unusable))
        if self._problems:
            raise ConfigurationError(*self._problems)
        return settings

    def _read(self) -> Settings:
        """The settings, with defaults in place of refused values."""
        written: dict[str, Any] = {"database_url": f"sqlite:///{self._folder / '.shardworker' / 'data.db'}"}
        for name, found in self._found.items():
            if isinstance(found.written, str) and not (found.written if name in _SECRET else found.written.strip()):
                self._refuse(name, f"{found.origin.spelled} is empty; unset it or give {_allowed(name)}")
            else:
                written[_FIELDS[name]] = found.written
        try:
            settings = Settings(**written)
        except ValidationError as refusal:
            reasons = {str(error["loc"][0]): str(error.get("ctx", {}).get("error", "")) for error in refusal.errors()}
            for name, field in _FIELDS.items():
                if field in reasons:
                    self._refuse(name, self._refused_value(name, reasons[field]))
            settings = Settings(**{field: value for field, value in written.items() if field not in reasons})
        settings._origins.update({name: found.origin for name, found in self._found.items()})
        return settings

    def _refuse(self, name: str, problem: str) -> None:
        self._problems.append(problem)
        self._unusable.add(name)

    def _refused_value(self, name: str, reason: str) -> str:
        found = self._found[name]
        if name in _SECRET or name in _MAY_HOLD_SECRET:
            shown = f"refused (it may hold a password and is not shown): {reason}"
        else:
            value = str(found.written) if isinstance(found.written, int | float) else repr(found.written)
            shown = value[:100] + (f", {reason}" if reason else "")
        return f"{found.origin.spelled} is {shown}; allowed: {_allowed(name)}"


def _is_foreign(variable: str, value: str) -> bool:
    """Whether a variable that begins like a setting belongs to the test script or comes from Kubernetes."""
    if variable.startswith(PREFIX + "TEST_") or _SERVICE_VARIABLE.fullmatch(variable):
        return True
    # Kubernetes' value is tcp://10.0.0.9:80; SHARDWORKER_REDIS_PORT=6379 is somebody who takes it for a setting.
    return "://" in value and _SERVICE_ADDRESS.fullmatch(variable) is not None


def _suggestion(name: str, known: Sequence[str] | Mapping[str, str], spelled: Callable[[str], str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; {spelled(near[0])} was probably meant" if near else "; `shardworker config` lists all of them"


def _conflicts(settings: Settings, unusable: set[str]) -> Iterator[str]:
    """The rules between two settings that are broken."""

    def usable(*names: str) -> bool:
        return unusable.isdisjoint(names)

    def called(name: str) -> str:
        return settings.origin(name).spelled

    first, last = settings.first_id, settings.last_id
    if usable("FIRST_ID", "LAST_ID") and first is not None and last is not None and first > last:
        yield f"{called('FIRST_ID')} is {first}, above {called('LAST_ID')}, which is {last}: no id lies between them"

    kind = settings.database_url.family
    if usable("DATABASE_URL", "REDIS_URL") and kind != "sqlite" and settings.redis_url is None:
        yield (
            f"{called('DATABASE_URL')} names a server ({kind}), but {called('REDIS_URL')} is not given. The local "
            "Redis server is never a fallback for a real database: N pods with a server each would each do the whole "
            "table and exit 0"
        )
    if usable("DATABASE_URL") and kind == "sqlite" and settings.database_password is not None:
        yield (
            f"{called('DATABASE_PASSWORD')} is given, but {called('DATABASE_URL')} "
            f"{'names' if settings.origin('DATABASE_URL').source != 'default' else 'is not given, which means'} "
            "a SQLite file, which has no password"
        )
    if usable("REDIS_URL") and settings.redis_url is None and settings.redis_password is not None:
        yield f"{called('REDIS_PASSWORD')} is given, but {called('REDIS_URL')} is not: there is no server to use it for"

    for part, url, password in (
        ("DATABASE", settings.database_url, settings.database_password),
        ("REDIS", settings.redis_url, settings.redis_password),
    ):
        if password is not None and url is not None and url.passwords and usable(f"{part}_URL"):
            yield (
                f"{called(f'{part}_URL')} has a password, and {called(f'{part}_PASSWORD')} is given too: "
                "keep one, so that nobody has to know which one wins"
            )
