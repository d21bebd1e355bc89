"""Log lines: loguru behind this module, for one stream.

Importing it adds no sink and keeps shardworker silent; `configure`, called by the command line only, turns it on. A
line is made here and not by loguru's formats, so that no text of a message, a field or a traceback is ever taken for a
template, and so that secrets are replaced in all of it.

Fields are bound (`logger.bind(slot="17")`) or hold for a while in one thread (`with logger.contextualize(slot="17")`).
Both loguru and the standard library's logging carry the second kind.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC
from typing import TYPE_CHECKING, Any, TextIO

from loguru import logger

if TYPE_CHECKING:
    from loguru import Message, Record

__all__ = ["configure", "logger"]

logger.disable("shardworker")

SHORTEST_SECRET = 4  # a shorter one would be found inside of ordinary words and numbers, and is none
_COLOURS = {"TRACE": "2", "DEBUG": "2", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # a terminal would obey some of them; tab and newline stay
_DEEPEST = 5

Redact = Callable[[str], str]


def configure(
    level: str,
    log_format: str,
    stream: TextIO | None = None,
    *,
    secrets: Iterable[str] = (),
    fields: Mapping[str, str] = {},
) -> None:
    """Send all log lines of the process, the standard library's too, to `stream` (standard output if not given).

    `log_format` is auto (text on a terminal, else JSON), text or json. `secrets` are replaced by *** in all their
    spellings. `fields` stand in every line, whichever thread or library writes it. A second call replaces the first.
    """
    out = stream if stream is not None else sys.stdout
    redact = _redactor(secrets)
    is_terminal = out.isatty()
    if log_format == "json" or (log_format == "auto" and not is_terminal):
        line_of = _json_line
    else:
        line_of = _coloured_line if is_terminal else _text_line

    def sink(message: Message) -> None:
        _write(out, line_of(message.record, redact) + "\n")

    logger.configure(
        handlers=[{"sink": sink, "level": level, "format": _no_format, "backtrace": False, "diagnose": False}],
        extra=dict(fields),
    )
    logger.enable("shardworker")
    logging.basicConfig(handlers=[_ToLoguru()], level=logger.level(level).no, force=True)


def _no_format(_record: Record) -> str:
    return ""


def _write(out: TextIO, line: str) -> None:
    try:
        try:
            out.write(line)
        except UnicodeEncodeError:
            encoding = out.encoding or "ascii"
            out.write(line.encode(encoding, "backslashreplace").decode(encoding))
        out.flush()
    except (OSError, ValueError):
        pass  # a full disk or a closed pipe must not end the work; loguru would print the line, secrets and all


# ---------------------------------------------------------------------------------------------------------- Secrets


def _redactor(secrets: Iterable[str]) -> Redact:
    known = {secret for secret in secrets if len(secret) >= SHORTEST_SECRET}
    if not known:
        return str
    longest_first = sorted(known, key=len, reverse=True)  # else the rest of a longer one would stay
    pattern = re.compile("|".join(map(_in_any_spelling, longest_first)))
    return lambda text: pattern.sub("***", text)


def _in_any_spelling(secret: str) -> str:
    """A pattern for the secret: each character as it is, percent-encoded, or escaped as in Python or JSON."""
    return "".join(f"(?:{'|'.join(map(re.escape, _spellings(character)))})" for character in secret)


def _spellings(character: str) -> list[str]:
    encoded = "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
    escaped = [json.dumps(character)[1:-1], repr(character)[1:-1], f"\\{character}"]
    return list(dict.fromkeys([character, encoded, encoded.lower(), *escaped, *("+" if character == " " else "")]))


# ------------------------------------------------------------------------------------------------------------ Lines


def _json_line(record: Record, redact: Redact) -> str:
    line: dict[str, Any] = {
        "time": record["time"].astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record["level"].name,
        "message": redact(record["message"]),
        "logger": record["name"],
    }
    for name, value in record["extra"].items():
        line[f"field_{name}" if name in line else name] = _plain(value, redact)
    trace = _traceback(record)
    if trace:
        line["traceback"] = redact(trace)
        line.setdefault("error", redact(trace.rstrip().rpartition("\n")[2]))
    return json.dumps(line, ensure_ascii=False)


def _text_line(record: Record, redact: Redact, colour: str = "") -> str:
    fields = "".join(f"  {name}={_plain(value, redact)}" for name, value in record["extra"].items())
    level = f"{record['level'].name:<8}"
    if colour:
        level, fields = f"\x1b[{colour}m{level}\x1b[0m", f"\x1b[2m{_printable(fields)}\x1b[0m" if fields else ""
    else:
        fields = _printable(fields)
    line = f"{record['time']:YYYY-MM-DD HH:mm:ss} {level} {_printable(redact(record['message']))}{fields}"
    trace = _traceback(record)
    return f"{line}\n{_printable(redact(trace.rstrip()))}" if trace else line


def _coloured_line(record: Record, redact: Redact) -> str:
    return _text_line(record, redact, _COLOURS.get(record["level"].name, "32"))


def _traceback(record: Record) -> str:
    exception = record["exception"]
    if exception is None or exception.type is None:
        return ""
    return "".join(traceback.format_exception(exception.type, exception.value, exception.traceback))


def _plain(value: object, redact: Redact, depth: int = 0) -> Any:
    """The value as JSON can hold it; without secrets."""
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Mapping) and depth < _DEEPEST:
        return {redact(_safe_str(key)): _plain(part, redact, depth + 1) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and depth < _DEEPEST:
        return [_plain(part, redact, depth + 1) for part in value]
    return redact(_safe_str(value))


def _safe_str(value: object) -> str:
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - somebody's __str__; a log line is no place to fail
        return f"<{type(value).__name__}, whose text failed with {type(error).__name__}>"


def _printable(text: str) -> str:
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


# ------------------------------------------------------------------------------------------------ Standard library


class _ToLoguru(logging.Handler):
    """Hands lines of the standard library's logging to loguru, as from the logger that wrote them."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - arguments that do not fit; the line is worth more than its form
            message = f"{_safe_str(record.msg)} {_safe_str(record.args)}"
        try:
            level: str | int = logger.level(record.levelname).name
        except ValueError:
            level = record.levelno

        def as_written(made: Record) -> None:
            made["name"] = record.name

        logger.patch(as_written).opt(exception=record.exc_info).log(level, message)
