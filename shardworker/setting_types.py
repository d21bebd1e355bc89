"""Kinds of values that settings have: each is read from text by one function, and says what it allows.

What is refused is said by `Allowed`, never by pydantic's own messages: they would repeat a password.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import unquote

from pydantic import BeforeValidator, SecretStr

# ------------------------------------------------------------------------------------------------------------ URLs

_URL = re.compile(r"(?P<scheme>[\w.+-]+)://((?P<user>[^/?#]*)@)?(?P<hosts>[^/?#@]*)(?P<rest>.*)", re.ASCII | re.DOTALL)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^:\[\]\s]*)(:\d+)?", re.ASCII)
_SECRET_PARAMETER = re.compile(r"([?&][^=&#]*(?:pass|pwd|secret|token)[^=&#]*=)([^&#]*)", re.IGNORECASE)
_DATABASES = ("mysql", "mariadb", "postgresql", "postgres", "sqlite")
_REDIS = ("redis", "rediss", "redis+sentinel", "redis+cluster", "unix")


class SecretUrl(SecretStr):
    """A URL that may hold a password: shown as `mysql://user:***@host/table`, whole by `get_secret_value()`."""

    def _display(self) -> str:
        url = self.get_secret_value()
        match = _URL.fullmatch(url)
        if match is None:
            return "***"
        user, colon, password = (match["user"] or "").partition(":")
        who = f"{user}{colon}{'***' if password else ''}@" if match["user"] is not None else ""
        rest = _SECRET_PARAMETER.sub(r"\1***", match["rest"])
        return f"{match['scheme']}://{who}{match['hosts']}{rest}"

    @property
    def scheme(self) -> str:
        return self.get_secret_value().partition("://")[0]

    @property
    def family(self) -> str:
        """`mysql` of `mysql+pymysql://…`."""
        return self.scheme.partition("+")[0]

    @property
    def passwords(self) -> list[str]:
        """The passwords in it, decoded; in a user's part and in parameters."""
        match = _URL.fullmatch(self.get_secret_value())
        if match is None:
            return []
        found = [(match["user"] or "").partition(":")[2], *(m[2] for m in _SECRET_PARAMETER.finditer(match["rest"]))]
        return [unquote(password) for password in found if password]


def _secret_url(text: str) -> SecretUrl:
    match = _URL.fullmatch(text)
    if match is None:
        raise ValueError("no URL")
    if match["scheme"] not in ("sqlite", "unix"):  # their paths may hold any character
        _check_authority(match)
    return SecretUrl(text)


def _check_authority(match: re.Match[str]) -> None:
    """Refuse what is left of a password that was not encoded: a part of it would be taken for a host, and logged."""
    rest = match["rest"]
    doubtful = rest if match["user"] is None and rest.startswith("?") else rest.partition("?")[0]
    hosts = match["hosts"].split(",")
    if "@" in (match["user"] or "") or "@" in doubtful or not all(_HOST.fullmatch(host) for host in hosts):
        raise ValueError(
            "no URL with a host and port that can be told from the rest; in a password @ is written %40, / %2F, "
            "# %23, ? %3F, : %3A, % %25 (or give the password as it is in the setting for it)"
        )


# ------------------------------------------------------------------------------------------------- Kinds of values
# Each reads what was written and raises ValueError(what it is instead, or nothing) if it cannot be meant.

_WHOLE = re.compile(r"[+-]?[0-9]+(_[0-9]+)*")
_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)?")
UNITS_S = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_LONGEST_S = 3_650 * UNITS_S["d"]
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_PREFIX_OF_KEYS = re.compile(r"[A-Za-z0-9_.:-]{1,100}")


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a setting may be, in words: for messages and for the table."""

    text: str


def is_name(text: str) -> bool:
    """Whether a job or a run may be called so: no name can end another's part of a Redis key."""
    return _NAME.fullmatch(text) is not None


def _text(written: object) -> str:
    if not isinstance(written, str):
        raise ValueError("no text")  # noqa: TRY004 - pydantic collects ValueErrors only
    return written.strip()


def _url_of(schemes: Sequence[str], part: Callable[[SecretUrl], str]) -> Callable[[object], SecretUrl]:
    def read(written: object) -> SecretUrl:
        url = written if isinstance(written, SecretUrl) else _secret_url(_text(written))
        if part(url) not in schemes:
            raise ValueError(f"a URL that begins with {part(url)}://")
        return url

    return read


def _password(written: object) -> SecretStr:
    if not isinstance(written, str):
        raise ValueError("no text")  # noqa: TRY004 - pydantic collects ValueErrors only
    return SecretStr(written)  # as it is: a space at its end may belong to it


def _integer(written: object) -> int:
    if isinstance(written, bool):
        raise ValueError("no number")  # noqa: TRY004
    if isinstance(written, int):
        return written
    text = _text(written)
    if len(text) > 1_000 or not _WHOLE.fullmatch(text):
        raise ValueError("")
    return int(text)


def _at_least(least: int) -> Callable[[object], int]:
    def read(written: object) -> int:
        number = _integer(written)
        if number < least:
            raise ValueError("")
        return number

    return read


def _size_or_auto(written: object) -> int | None:
    if isinstance(written, str) and written.strip().lower() == "auto":
        return None
    return _at_least(1)(written)


def _seconds(at_least: float = 0.001) -> Callable[[object], float]:
    def read(written: object) -> float:
        text = str(written) if isinstance(written, int | float) and not isinstance(written, bool) else _text(written)
        match = _TIME.fullmatch(text.lower())
        if match is None:
            raise ValueError("")
        seconds = float(match[1]) * UNITS_S[match[2] or "s"]
        if not at_least <= seconds <= _LONGEST_S:
            raise ValueError("too short" if seconds < at_least else "too long")
        return seconds

    return read


def _one_of(*words: str, change: Callable[[str], str] = str.lower) -> Callable[[object], str]:
    def read(written: object) -> str:
        word = change(_text(written))
        if word not in words:
            raise ValueError("")
        return word

    return read


def _matching(pattern: re.Pattern[str]) -> Callable[[object], str]:
    def read(written: object) -> str:
        text = _text(written)
        if not pattern.fullmatch(text):
            raise ValueError("")
        return text

    return read


def _job(written: object) -> str:
    module, colon, name = (text := _text(written)).partition(":")
    path = all(part.isidentifier() for part in module.split(".")) and name.isidentifier()
    if not (path if colon else is_name(text)):
        raise ValueError("")
    return text


_NAME_RULE = "letters, digits, `_`, `.` and `-`, at most 100"
_TIME_RULE = "a time: 500ms, 30s, 5m, 1h, 7d"
_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

Size = Annotated[int, BeforeValidator(_at_least(1)), Allowed("a whole number, 1 or more")]
SizeOrAuto = Annotated[int | None, BeforeValidator(_size_or_auto), Allowed("auto, or a whole number, 1 or more")]
Count = Annotated[int, BeforeValidator(_at_least(0)), Allowed("a whole number, 0 or more")]
Id = Annotated[int | None, BeforeValidator(_integer), Allowed("a whole number, negative ones too")]
Connections = Annotated[
    int,
    BeforeValidator(_at_least(2)),
    Allowed("a whole number, 2 or more (one connection reads the next batch while another writes)"),
]
Time = Annotated[float, BeforeValidator(_seconds()), Allowed(_TIME_RULE)]
TimeOrZero = Annotated[float, BeforeValidator(_seconds(at_least=0)), Allowed(f"{_TIME_RULE}; or 0")]
LeaseTime = Annotated[float, BeforeValidator(_seconds(at_least=1)), Allowed(f"{_TIME_RULE}; 1s or more")]
Password = Annotated[SecretStr | None, BeforeValidator(_password), Allowed("the password as it is, not encoded")]
DatabaseUrl = Annotated[
    SecretUrl,
    BeforeValidator(_url_of(_DATABASES, lambda url: url.family)),
    Allowed("a SQLAlchemy URL for mysql, mariadb, postgresql or sqlite"),
]
RedisUrl = Annotated[
    SecretUrl | None,
    BeforeValidator(_url_of(_REDIS, lambda url: url.scheme)),
    Allowed("a URL with redis://, rediss://, redis+sentinel://, redis+cluster:// or unix://"),
]
JobPath = Annotated[
    str | None, BeforeValidator(_job), Allowed(f"package.module:name, or the job's own name ({_NAME_RULE})")
]
RunName = Annotated[str, BeforeValidator(_matching(_NAME)), Allowed(_NAME_RULE)]
KeyPrefix = Annotated[str, BeforeValidator(_matching(_PREFIX_OF_KEYS)), Allowed(f"{_NAME_RULE}, and `:`")]
Checkpoint = Annotated[
    Literal["redis", "database"], BeforeValidator(_one_of("redis", "database")), Allowed("redis or database")
]
Level = Annotated[str, BeforeValidator(_one_of(*_LEVELS, change=str.upper)), Allowed(", ".join(_LEVELS))]
Format = Annotated[
    Literal["auto", "json", "text"], BeforeValidator(_one_of("auto", "json", "text")), Allowed("auto, json or text")
]
