"""Commands out, replies in: the words of the contract, and nothing about sockets.

A *dialect* is how the words travel: as commands of their own (a node, or a Redis with the module), or as calls of the Lua
library's functions. Replies come as redis-py gives them without decoding: bytes, ints, lists, dicts, None.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from .errors import (
    Deadlock,
    InvalidRequest,
    RedfenceError,
    ServerError,
    StaleFence,
    TierRefused,
    UnsupportedByServer,
    WrongMode,
)

Word = Union[str, bytes, int]
Words = Tuple[Word, ...]
Resource = Union[str, bytes]

NAME_BYTES_MAX = 512
OWNER_BYTES_MAX = 256
VALUE_BYTES_MAX = 1024
TTL_MS_MAX = 365 * 24 * 3600 * 1000
WAIT_MS_MAX = 3600 * 1000
PERMITS_MAX = 1_000_000
MULTI_MAX = 256

#: Codes after which the same request may be sent again, because nothing happened.
NOT_APPLIED = frozenset({"UNAVAILABLE", "LOADING", "BUSY", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "UNBLOCKED"})


class Refusal(Exception):
    """An error reply: its code and its text. Flows turn it into one of the public types."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.code = text.split(" ", 1)[0]

    @property
    def unknown_command(self) -> bool:
        return "unknown command" in self.text.lower()

    @property
    def unknown_function(self) -> bool:
        return "function not found" in self.text.lower()

    @property
    def unsupported(self) -> bool:
        text = self.text.lower()
        return (
            self.unknown_command
            or "needs cluster version" in text
            or "unknown option" in text
            or "unknown subcommand" in text
        )

    def public(self) -> RedfenceError:
        """The error an application sees."""
        if self.code == "TIER":
            return TierRefused(self.text)
        if self.code == "DEADLOCK":
            return Deadlock(self.text)
        if self.code == "MODE":
            return WrongMode(self.text)
        if self.code == "STALE":
            return StaleFence(self.text)
        if self.unsupported or self.unknown_function:
            return UnsupportedByServer(self.text)
        return ServerError(self.code, self.text)


@dataclass(frozen=True)
class LockRequest:
    """One acquisition, checked. ``owner`` is fixed here, before the first byte is sent."""

    names: Tuple[Resource, ...]
    multi: bool
    ttl_ms: int
    wait_ms: int
    owner: str
    tier: Optional[str] = None
    kind: str = "exclusive"
    permits: int = 1
    permits_of: int = 1
    value: Optional[bytes] = None

    @property
    def label(self) -> str:
        return ", ".join(show(name) for name in self.names)


@dataclass(frozen=True)
class Grant:
    """What the server gave: fences in the order of the names, and the milliseconds that count from ``sent``."""

    fences: Tuple[int, ...]
    ttl_ms: int
    sent: float


def show(name: Resource) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name


def text_of(value: Any) -> Any:
    """Bytes of a reply as text; everything else as it is."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def check_name(name: Resource) -> Resource:
    if not isinstance(name, (str, bytes)):
        raise InvalidRequest(f"a resource name is str or bytes, not {type(name).__name__}")
    size = len(name.encode()) if isinstance(name, str) else len(name)
    if not 1 <= size <= NAME_BYTES_MAX:
        raise InvalidRequest(f"a resource name has 1 to {NAME_BYTES_MAX} bytes, this one has {size}")
    return name


def check_ms(seconds: float, what: str, low: int, high: int) -> int:
    """Seconds as whole milliseconds, within limits."""
    try:
        ms = round(seconds * 1000)
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequest(f"{what} is a number of seconds, not {seconds!r}") from None
    if not low <= ms <= high:
        raise InvalidRequest(f"{what} is {low / 1000:g} to {high / 1000:g} seconds, not {seconds!r}")
    return ms


def check_tier(tier: Optional[str]) -> Optional[str]:
    if tier is None:
        return None
    upper = tier.upper() if isinstance(tier, str) else ""
    if upper not in ("CORRECTNESS", "EFFICIENCY"):
        raise InvalidRequest(f"tier is 'correctness' or 'efficiency', not {tier!r}")
    return upper


class Dialect:
    """The commands as a node and the module know them."""

    #: Whether `LOCK.SESSION` may be tried at all.
    may_have_sessions = True
    #: Whether the server blocks in `WAIT`. The Lua library answers `queued` instead.
    blocks = True

    def _tier(self, tier: Optional[str]) -> Words:
        return ("TIER", tier) if tier else ()

    def _options(self, request: LockRequest, wait_ms: int, session: Optional[str]) -> Words:
        """What stands behind the names of an acquire."""
        words: List[Word] = [request.ttl_ms, "OWNER", request.owner]
        if wait_ms:
            words += ["WAIT", wait_ms]
        if session:
            words += ["SESSION", session]
        if request.kind == "shared":
            words += ["SHARED"]
        elif request.kind == "permits":
            words += ["PERMITS", request.permits, "OF", request.permits_of]
        if request.value is not None:
            words += ["VALUE", request.value]
        return (*words, *self._tier(request.tier))

    def acquire(self, request: LockRequest, wait_ms: int, session: Optional[str]) -> Words:
        words: List[Word] = []
        if request.multi:
            words += ["LOCK.MACQUIRE", len(request.names), *request.names]
        else:
            words += ["LOCK.ACQUIRE", request.names[0]]
        return (*words, *self._options(request, wait_ms, session))

    def release(self, name: Resource, fence: int, tier: Optional[str]) -> Words:
        return ("LOCK.RELEASE", name, fence, *self._tier(tier))

    def mrelease(self, names: Sequence[Resource], fences: Sequence[int], tier: Optional[str]) -> Words:
        pairs: List[Word] = []
        for name, fence in zip(names, fences):
            pairs += [name, fence]
        return ("LOCK.MRELEASE", len(names), *pairs, *self._tier(tier))

    def renew(self, name: Resource, fence: int, ttl_ms: int, tier: Optional[str]) -> Words:
        return ("LOCK.RENEW", name, fence, ttl_ms, *self._tier(tier))

    def info(self, name: Resource, tier: Optional[str]) -> Words:
        return ("LOCK.INFO", name, *self._tier(tier))

    def cancel(self, request: LockRequest) -> Optional[Words]:
        """How to leave the queue. None where closing the connection does it."""
        return None

    def plain(self, command: str, *words: Word) -> Words:
        """A command whose first word is its one resource, or that has none."""
        return (command, *words)


class FunctionDialect(Dialect):
    """The Lua library's functions: `FCALL name numkeys key… arg…`."""

    may_have_sessions = False
    blocks = False

    def acquire(self, request: LockRequest, wait_ms: int, session: Optional[str]) -> Words:
        function = "lock_macquire" if request.multi else "lock_acquire"
        names = request.names
        return ("FCALL", function, len(names), *names, *self._options(request, wait_ms, session))

    def release(self, name: Resource, fence: int, tier: Optional[str]) -> Words:
        return ("FCALL", "lock_release", 1, name, fence, *self._tier(tier))

    def mrelease(self, names: Sequence[Resource], fences: Sequence[int], tier: Optional[str]) -> Words:
        return ("FCALL", "lock_mrelease", len(names), *names, *fences, *self._tier(tier))

    def renew(self, name: Resource, fence: int, ttl_ms: int, tier: Optional[str]) -> Words:
        return ("FCALL", "lock_renew", 1, name, fence, ttl_ms, *self._tier(tier))

    def info(self, name: Resource, tier: Optional[str]) -> Words:
        return ("FCALL", "lock_info", 1, name, *self._tier(tier))

    def cancel(self, request: LockRequest) -> Optional[Words]:
        function = "lock_mcancel" if request.multi else "lock_cancel"
        return ("FCALL", function, len(request.names), *request.names, request.owner)

    def plain(self, command: str, *words: Word) -> Words:
        function = command.lower().replace(".", "_", 1)
        if command in ("LOCK.SCAN",):
            return ("FCALL", function, 0, *words)
        return ("FCALL", function, 1, *words)


SERVER = Dialect()
FUNCTIONS = FunctionDialect()


@dataclass(frozen=True)
class Holder:
    """One holder of a lock, as ``LOCK.INFO`` shows it."""

    owner: Optional[str]
    fence: int
    session: Optional[str] = None
    ttl_ms: Optional[int] = None
    held_ms: Optional[int] = None
    permits: Optional[int] = None
    value: Optional[bytes] = None


@dataclass(frozen=True)
class LockInfo:
    """What a server says about a lock."""

    resource: str
    tier: str
    held: bool
    fence: int
    owner: Optional[str]
    session: Optional[str]
    ttl_ms: Optional[int]
    waiters: int
    mode: Optional[str]
    value: Optional[bytes]
    holders: Tuple[Holder, ...] = field(default=())


def pairs(reply: Any) -> Dict[str, Any]:
    """A map, which RESP2 sends as a flat array."""
    if isinstance(reply, Mapping):
        return {text_of(key): value for key, value in reply.items()}
    return {text_of(key): value for key, value in zip(reply[::2], reply[1::2])}


def parse_info(reply: Any) -> LockInfo:
    fields = pairs(reply)
    held = text_of(fields["state"]) == "held"
    holders: List[Holder] = []
    for each in fields.get("holders") or ():
        one = pairs(each)
        holders.append(
            Holder(
                text_of(one.get("owner")),
                int(one["fence"]),
                text_of(one.get("session")),
                one.get("ttl"),
                one.get("held_ms"),
                one.get("permits"),
                one.get("value"),
            )
        )
    if held and not holders:
        holders.append(Holder(text_of(fields["owner"]), int(fields["fence"]), text_of(fields["session"]), fields["ttl"]))
    return LockInfo(
        resource=text_of(fields["resource"]),
        tier=text_of(fields["tier"]).lower(),
        held=held,
        fence=int(fields["fence"]),
        owner=text_of(fields["owner"]),
        session=text_of(fields["session"]),
        ttl_ms=fields["ttl"],
        waiters=int(fields["waiters"]),
        mode=text_of(fields.get("mode")) or ("exclusive" if held else None),
        value=fields.get("value"),
        holders=tuple(holders),
    )


def parse_grant(request: LockRequest, reply: Any, sent: float) -> Grant:
    first, ttl_ms = reply
    fences = tuple(int(fence) for fence in first) if request.multi else (int(first),)
    return Grant(fences, int(ttl_ms), sent)


@dataclass(frozen=True)
class LockEvent:
    """One event of :meth:`redfence.Client.watch`.

    ``event`` is ``acquired``, ``renewed``, ``released``, ``expired``, ``queued``, ``abandoned`` or ``session_ended``, or the
    client's own ``gap``: the connection was lost and made again, and what happened meanwhile is not known.
    """

    event: str
    resource: str = ""
    fence: int = 0
    owner: str = ""
    tier: str = ""
    seq: int = 0
    mode: Optional[str] = None
    value: Optional[str] = None
    cause: Optional[str] = None


def parse_event(data: bytes) -> Optional[LockEvent]:
    try:
        fields = json.loads(data)
        return LockEvent(
            event=str(fields["event"]),
            resource=str(fields["resource"]),
            fence=int(fields["fence"]),
            owner=str(fields["owner"]),
            tier=str(fields["tier"]).lower(),
            seq=int(fields["seq"]),
            mode=fields.get("mode"),
            value=fields.get("value"),
            cause=fields.get("cause"),
        )
    except (ValueError, KeyError, TypeError):
        return None  # not ours: somebody published on the channel


@dataclass(frozen=True)
class LossNotice:
    """A push of the server: ``lock-lost`` or ``lock-suspect``."""

    suspect: bool
    resource: bytes
    fence: int
    cause: str
    successor: Optional[int]


def parse_push(push: Any) -> Optional[LossNotice]:
    if not isinstance(push, (list, tuple)) or len(push) != 5:
        return None
    kind, resource, fence, cause, successor = push
    if kind not in (b"lock-lost", b"lock-suspect"):
        return None
    return LossNotice(
        kind == b"lock-suspect", bytes(resource), int(fence), text_of(cause), None if successor is None else int(successor)
    )
