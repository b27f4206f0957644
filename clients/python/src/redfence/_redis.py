"""The little of redis-py that both transports share: how to make a connection, and what its exceptions mean."""

from __future__ import annotations

import inspect
import re
from typing import Any, Dict, Sequence
from urllib.parse import urlsplit

from redis import exceptions
from redis.backoff import NoBackoff

from ._wire import Refusal
from .errors import InvalidRequest

#: redis-py strips the code of the errors it has a class for. This puts it back.
_CODES = {
    "AuthenticationError": "NOAUTH",
    "AuthenticationWrongNumberOfArgsError": "NOAUTH",
    "AuthorizationError": "NOAUTH",
    "BusyLoadingError": "LOADING",
    "ClusterCrossSlotError": "CROSSSLOT",
    "ClusterDownError": "CLUSTERDOWN",
    "ExecAbortError": "EXECABORT",
    "MasterDownError": "MASTERDOWN",
    "NoPermissionError": "NOPERM",
    "NoScriptError": "NOSCRIPT",
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "TryAgainError": "TRYAGAIN",
}
_CODE = re.compile(r"[A-Z]{2,}\b")

#: What a broken or silent connection raises. `OSError` comes through from connects in some versions; what is not RESP ends a connection.
BROKEN = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.InvalidResponse, OSError)
#: What redis-py runs into where another task closes a connection under it.
CLOSED_UNDER_IT = (AttributeError, RuntimeError, TypeError, ValueError)


def refusal_of(error: BaseException) -> Refusal:
    """An error reply as redis-py raised it."""
    text = str(error)
    code = _CODES.get(type(error).__name__)
    if code is not None and not text.startswith(code):
        return Refusal(f"{code} {text}")
    if _CODE.match(text) is None:
        return Refusal(f"ERR {text}")
    return Refusal(text)


def is_refusal(error: BaseException) -> bool:
    """Error replies, also those that redis-py counts among connection errors."""
    return isinstance(error, (exceptions.ResponseError, exceptions.AuthenticationError, exceptions.BusyLoadingError))


def is_broken(error: BaseException, closed: bool = False) -> bool:
    """Whether an error is about the connection. `closed`: it is closed by now, perhaps by another task."""
    return isinstance(error, BROKEN) or (closed and isinstance(error, CLOSED_UNDER_IT))


def check_urls(addresses: Any) -> Sequence[str]:
    """One address or several, as URLs: ``redis://``, ``rediss://``, ``unix://``, or ``host:port``."""
    urls = [addresses] if isinstance(addresses, str) else list(addresses)
    if not urls:
        raise InvalidRequest("at least one address is needed")
    full = [url if "://" in url else f"redis://{url}" for url in urls]
    for url in full:
        if urlsplit(url).scheme not in ("redis", "rediss", "unix"):
            raise InvalidRequest(f"an address is host:port or a redis://, rediss:// or unix:// URL, not {url!r}")
    return full


def connection_options(
    connection: Any, retry: Any, timeout: float, connect_timeout: float, extra: Dict[str, Any]
) -> Dict[str, Any]:
    """Arguments for ``ConnectionPool.from_url``. No retries in redis-py: they are decided here, with the owner in hand."""
    options: Dict[str, Any] = {
        "protocol": 3,
        "socket_timeout": timeout,
        "socket_connect_timeout": connect_timeout,
        "retry": retry(NoBackoff(), 0),
        "health_check_interval": 0,
    }
    # Newer versions of redis-py ask for notifications that a lock server does not have: saves a round trip.
    if any("maint_notifications_config" in inspect.signature(base.__init__).parameters for base in connection.__mro__):
        from redis.maint_notifications import MaintNotificationsConfig

        options["maint_notifications_config"] = MaintNotificationsConfig(enabled=False)
    options.update(extra)
    return options


def is_unix(url: str) -> bool:
    return urlsplit(url).scheme == "unix"

