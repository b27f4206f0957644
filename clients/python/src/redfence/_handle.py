"""What the handles of both clients have in common: everything that needs no waiting."""

from __future__ import annotations

import base64
import binascii
import json
import warnings
from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

from ._lease import Lease, State
from ._wire import Grant, LockRequest, Resource, show
from .errors import InvalidRequest, Loss, Lost, NotFenced, NotTransferable

#: HTTP header that carries a fence.
FENCE_HEADER = "Redfence-Fence"


@dataclass(frozen=True)
class Released:
    """What became of a release.

    ``reason`` is the server's (``ok``, ``expired``, ``not_owner``, ``already_released``), or ``lost`` where the handle knew
    already that the lock was gone. True where the lock was held until now:

    >>> bool(Released("ok")), bool(Released("expired"))
    (True, False)
    """

    reason: str

    def __bool__(self) -> bool:
        return self.reason == "ok"

    def __str__(self) -> str:
        return self.reason


class BaseLock:
    """The part of a handle that is the same with threads and with asyncio."""

    _lease: Lease
    #: None for a real lock. ``"proceed"`` or ``"local"`` where the server could not be reached and ``on_unavailable`` said to go on.
    degraded: Optional[str] = None

    @property
    def name(self) -> str:
        """The resource; for a multi-lock all of them, with commas."""
        return self._lease.request.label

    @property
    def names(self) -> Tuple[str, ...]:
        """The resources in the order they were asked for."""
        return tuple(show(name) for name in self._lease.request.names)

    @property
    def owner(self) -> str:
        """The UUID of this acquisition, as ``LOCK.INFO`` shows it."""
        return self._lease.request.owner

    @property
    def kind(self) -> str:
        """``exclusive``, ``shared`` or ``permits``."""
        return self._lease.request.kind

    @property
    def state(self) -> State:
        """Held, suspect, lost or released, as of now."""
        return self._lease.state()

    @property
    def loss(self) -> Optional[Loss]:
        """How the lock was lost, or None."""
        self._lease.check()
        return self._lease.loss

    def fence(self) -> int:
        """The fencing token of this grant. Send it with every write; the resource refuses older ones.

        It does not change, also not when the lock is lost: a late write with it is what the resource must refuse.
        """
        if self.degraded is not None:
            raise NotFenced(f"{self.name!r} has no fence: the work goes on without a lock ({self.degraded})")
        if len(self._lease.fences) != 1:
            raise NotFenced(f"a multi-lock has a fence for each name: use fences()")
        return self._lease.fences[0]

    def fences(self) -> Dict[str, int]:
        """The fence of every name."""
        if self.degraded is not None:
            raise NotFenced(f"{self.name!r} has no fence: the work goes on without a lock ({self.degraded})")
        return dict(zip(self.names, self._lease.fences))

    def headers(self) -> Dict[str, str]:
        """The fence as an HTTP header, for :class:`redfence.asgi.FenceMiddleware` or a service that checks it itself."""
        return {FENCE_HEADER: str(self.fence())}

    def remaining(self) -> float:
        """Seconds for which the lock is surely held, by this client's clock; 0 where it is not."""
        return self._lease.remaining()

    def raise_if_lost(self) -> None:
        """Raises :class:`Lost` where the lock is not held any more, also by this handle's own release. Asks nobody."""
        self._lease.check()
        if self._lease.loss is not None:
            raise Lost(self.name, self._lease.loss)
        if self._lease.finished:
            raise Lost(self.name, Loss("already_released"))

    def _token(self) -> str:
        lease = self._lease
        if self.degraded is not None:
            raise NotFenced(f"{self.name!r} is no lock ({self.degraded}): there is nothing to hand over")
        if lease.session is not None:
            raise NotTransferable(
                f"{self.name!r} is bound to this client's session and ends with it; acquire it with transferable=True"
            )
        self.raise_if_lost()
        request = lease.request
        fields: Dict[str, Any] = {
            "v": 1,
            "names": [base64.b64encode(n.encode() if isinstance(n, str) else n).decode() for n in request.names],
            "multi": request.multi,
            "fences": list(lease.fences),
            "owner": request.owner,
            "ttl_ms": request.ttl_ms,
            "kind": request.kind,
        }
        if request.tier:
            fields["tier"] = request.tier
        return base64.urlsafe_b64encode(json.dumps(fields, separators=(",", ":")).encode()).decode().rstrip("=")

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} {self.name!r} {self.state} fences={self._lease.fences}>"


def parse_token(token: str) -> Tuple[LockRequest, Grant]:
    """The other end of ``token()``. The grant has no time of its own until it was renewed."""
    try:
        fields = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        if fields["v"] != 1:
            raise InvalidRequest(f"this token is of version {fields['v']}, this client knows 1")
        names: Tuple[Resource, ...] = tuple(base64.b64decode(name) for name in fields["names"])
        fences = tuple(int(fence) for fence in fields["fences"])
        request = LockRequest(
            names=names,
            multi=bool(fields["multi"]),
            ttl_ms=int(fields["ttl_ms"]),
            wait_ms=0,
            owner=str(fields["owner"]),
            tier=fields.get("tier"),
            kind=str(fields["kind"]),
        )
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        if isinstance(error, InvalidRequest):
            raise
        raise InvalidRequest("this is not a token of a lock") from None
    if not names or len(names) != len(fences) or request.ttl_ms <= 0:
        raise InvalidRequest("this is not a token of a lock")
    return request, Grant(fences, 0, 0.0)


def warn_forgotten(lock: BaseLock) -> None:
    warnings.warn(f"the lock {lock.name!r} was dropped without release(); use `with`", ResourceWarning, stacklevel=3)
