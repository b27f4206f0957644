"""The settings of a client and of a lock, checked once for both clients."""

from __future__ import annotations

import inspect
import math
import uuid
from dataclasses import dataclass
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

from . import _wire
from ._wire import LockRequest, Resource, check_ms, check_name, check_tier
from .errors import InvalidRequest

ON_UNAVAILABLE = ("fail", "proceed", "local")


@dataclass(frozen=True)
class LockOptions:
    """One call of ``lock()``, ``shared()``, ``permits()`` or ``multi()``."""

    names: Tuple[Resource, ...]
    multi: bool
    ttl_ms: int
    wait_ms: int
    tier: Optional[str]
    kind: str
    permits: int
    permits_of: int
    value: Optional[bytes]
    max_hold: float
    with_session: bool
    on_unavailable: str
    explain: bool

    def request(self) -> LockRequest:
        """A new acquisition. The owner is made here, before anything is sent, and stays the same for every retry."""
        return LockRequest(
            names=self.names,
            multi=self.multi,
            ttl_ms=self.ttl_ms,
            wait_ms=self.wait_ms,
            owner=str(uuid.uuid4()),
            tier=self.tier,
            kind=self.kind,
            permits=self.permits,
            permits_of=self.permits_of,
            value=self.value,
        )


SESSION_POLICIES = ("detect", "wait-die", "wound-wait")
SESSION_AGE_MAX = 2**53 - 1


def session_words(ttl: float, name: Optional[str], policy: Optional[str], age: Optional[int]) -> _wire.Words:
    """`LOCK.SESSION OPEN` with the options of a client, checked."""
    words: List[_wire.Word] = ["LOCK.SESSION", "OPEN", check_ms(ttl, "session_ttl", 100, _wire.TTL_MS_MAX)]
    if name:
        words += ["NAME", name]
    if policy is not None:
        if policy not in SESSION_POLICIES:
            raise InvalidRequest(f"session_policy is one of {', '.join(SESSION_POLICIES)}, not {policy!r}")
        words += ["POLICY", policy]
    if age is not None:
        if isinstance(age, bool) or not isinstance(age, int) or not 0 <= age <= SESSION_AGE_MAX:
            raise InvalidRequest(f"session_age is a whole number from 0 to 2^53 - 1, not {age!r}")
        words += ["AGE", age]
    return tuple(words)


def lock_options(
    names: Sequence[Resource],
    *,
    multi: bool = False,
    ttl: float,
    wait: float,
    tier: Optional[str],
    kind: str = "exclusive",
    permits: int = 1,
    permits_of: int = 1,
    value: Union[str, bytes, None] = None,
    max_hold: Optional[float],
    transferable: bool,
    on_unavailable: str,
    explain: bool,
) -> LockOptions:
    checked = tuple(check_name(name) for name in names)
    if multi and not 1 <= len(checked) <= _wire.MULTI_MAX:
        raise InvalidRequest(f"a multi-lock has 1 to {_wire.MULTI_MAX} names, not {len(checked)}")
    if len(set(checked)) != len(checked):
        raise InvalidRequest("a name is given twice")
    if not 1 <= permits <= permits_of <= _wire.PERMITS_MAX:
        raise InvalidRequest(f"permits: 1 <= permits <= of <= {_wire.PERMITS_MAX}, not {permits} of {permits_of}")
    data = value.encode() if isinstance(value, str) else value
    if data is not None and len(data) > _wire.VALUE_BYTES_MAX:
        raise InvalidRequest(f"a value has at most {_wire.VALUE_BYTES_MAX} bytes, this one has {len(data)}")
    if max_hold is not None and not max_hold > 0:
        raise InvalidRequest(f"max_hold is a number of seconds above 0, or None, not {max_hold!r}")
    tier = check_tier(tier)
    if on_unavailable not in ON_UNAVAILABLE:
        raise InvalidRequest(f"on_unavailable is one of {', '.join(ON_UNAVAILABLE)}, not {on_unavailable!r}")
    if on_unavailable != "fail" and tier != "EFFICIENCY":
        raise InvalidRequest(
            f"on_unavailable={on_unavailable!r} works without a lock: it is for tier='efficiency' alone, and must be asked for"
        )
    ttl_ms = check_ms(ttl, "ttl", 1, _wire.TTL_MS_MAX)
    if max_hold is not None:
        ttl_ms = min(ttl_ms, max(1, math.ceil(max_hold * 1000) + 50))
    return LockOptions(
        names=checked,
        multi=multi,
        ttl_ms=ttl_ms,
        wait_ms=check_ms(wait, "wait", 0, _wire.WAIT_MS_MAX),
        tier=tier,
        kind=kind,
        permits=permits,
        permits_of=permits_of,
        value=data,
        max_hold=math.inf if max_hold is None else max_hold,
        with_session=not transferable,
        on_unavailable=on_unavailable,
        explain=explain,
    )


def name_formatter(template: str, function: Callable[..., Any]) -> Callable[..., str]:
    """`"invoice:{id}"` with the arguments of a call of `function`."""
    signature = inspect.signature(function)

    def name(*args: Any, **kwargs: Any) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return template.format(**bound.arguments)

    return name
