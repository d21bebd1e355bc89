"""Clients of Redis from a URL, and which of its errors pass.

The clients never retry by themselves. Ours do, with a limit that the lease sets: the library's default (ten retries of
five seconds) would block for twice the lease.
"""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry
from redis.sentinel import Sentinel

from shardworker.errors import ConfigurationError

_PASSING = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.BusyLoadingError,
    redis.ReadOnlyError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
    redis.exceptions.MasterDownError,
)
_PASSING_REPLIES = (
    "LOADING",
    "READONLY",
    "MISCONF",
    "OOM",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "NOREPLICAS",
    "MASTERDOWN",
    "BUSY",
)
_REFUSING_REPLIES = ("NOAUTH", "WRONGPASS", "invalid username-password", "Authentication required", "NOPERM")


def connect(url: str, *, password: str | None = None, timeout_s: float) -> redis.Redis:
    """A client for `redis://`, `rediss://`, `unix://`, `redis+sentinel://host:port,host:port/service/db` or
    `redis+cluster://`, which connects at its first command. `timeout_s` bounds connecting and each reply.

    Raises:
        ConfigurationError: the URL cannot be understood.
    """
    options: dict[str, Any] = {
        "decode_responses": True,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "health_check_interval": 0,
    }
    if password is not None:
        options["password"] = password
    try:
        scheme = urlsplit(url).scheme
        if scheme == "redis+cluster":
            return cast("redis.Redis", RedisCluster.from_url(url.replace("redis+cluster", "redis", 1), **options))
        if scheme == "redis+sentinel":
            return _from_sentinels(url, options)
        return redis.Redis.from_url(url, **options)
    except ValueError as error:
        raise ConfigurationError(
            "SHARDWORKER_REDIS_URL cannot be understood; it looks like redis://user:password@host:6379/0, with special "
            "characters of the password percent-encoded (or the password as it is in SHARDWORKER_REDIS_PASSWORD)"
        ) from error


def _from_sentinels(url: str, options: dict[str, Any]) -> redis.Redis:
    parts = urlsplit(url)
    credentials, _, hosts = parts.netloc.rpartition("@")
    service, _, database = parts.path.strip("/").partition("/")
    if credentials:
        user, _, password = credentials.partition(":")
        options |= {"username": unquote(user) or None} | ({"password": unquote(password)} if password else {})
    sentinels = [(host, int(port or 26379)) for host, _, port in (h.partition(":") for h in hosts.split(","))]
    patient = {key: options[key] for key in ("socket_timeout", "socket_connect_timeout", "retry")}
    known: Any = Sentinel  # untyped in the library
    master = known(sentinels, sentinel_kwargs=patient).master_for(
        service or "mymaster", db=int(database or 0), **options
    )
    return cast("redis.Redis", master)


def passing_code(error: BaseException) -> str | None:
    """A short name of an error after which the same request may succeed; None for all others.

    The library calls a refused password a connection error; that one does not pass.
    """
    text = str(error)
    if any(reply in text for reply in _REFUSING_REPLIES):
        return None
    if isinstance(error, _PASSING):
        return type(error).__name__
    if isinstance(error, redis.ResponseError):
        return next((reply for reply in _PASSING_REPLIES if text.startswith(reply)), None)
    return None
