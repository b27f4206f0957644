"""What can go wrong, as types.

Every error of this package is a :class:`RedfenceError`. Catch the ones you can do something about:

==========================  =====================================================================================
:class:`Busy`               somebody else has the lock and the wait ran out
:class:`Unavailable`        no node could serve it; certainly nothing happened
:class:`Indeterminate`      the outcome could not be found out before the deadline; the client cleans up behind it
:class:`Deadlock`           this wait would close a circle of waiting clients
:class:`Lost`               the lock is no longer yours: stop working
:class:`TierRefused`        this server does not serve the tier, or the kind of lock, in that tier
:class:`UnsupportedByServer`  the server is too old for this feature
==========================  =====================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

__all__ = [
    "Busy",
    "CircuitOpen",
    "Deadlock",
    "Indeterminate",
    "InsufficientLease",
    "InvalidRequest",
    "Loss",
    "Lost",
    "NotFenced",
    "NotTransferable",
    "RedfenceError",
    "ServerError",
    "StaleFence",
    "TierRefused",
    "Unavailable",
    "UnsupportedByServer",
    "WrongMode",
]


class RedfenceError(Exception):
    """The base of every error of this package."""


class InvalidRequest(RedfenceError, ValueError):
    """A name, a time or an option outside its limits. Nothing was sent."""


class Busy(RedfenceError):
    """Somebody else has the lock, and the wait ran out.

    ``holder`` and ``position`` are filled in where the lock was asked for with ``explain=True``.
    """

    def __init__(
        self, resource: str, *, holder: Optional[str] = None, position: Optional[int] = None, waiters: Optional[int] = None
    ) -> None:
        #: The name that was asked for.
        self.resource = resource
        #: The owner of the lock at the time of asking, or None where nobody asked.
        self.holder = holder
        #: How many would have been before us in the queue, or None where nobody asked.
        self.position = position
        #: How many wait for the lock, or None where nobody asked.
        self.waiters = waiters
        told = f", held by {holder!r} with {waiters} waiting" if holder is not None else ""
        super().__init__(f"{resource!r} is taken{told}")


class Unavailable(RedfenceError):
    """No node could serve the request before the deadline. Nothing happened; ask again later."""


class CircuitOpen(Unavailable):
    """The request was not sent: the last ones were answered ``UNAVAILABLE``. One request at a time tries again."""


class Indeterminate(RedfenceError):
    """The request was sent, and its outcome could not be found out before the deadline.

    The client goes on in the background: what may have been granted is given back.
    """


class Deadlock(RedfenceError):
    """This wait would close a circle of sessions that wait for each other. Release what you hold, then begin again."""


class TierRefused(RedfenceError):
    """The server does not serve this tier, or not this kind of lock in this tier. Nothing happened."""


class UnsupportedByServer(TierRefused):
    """The server does not know this feature: it is too old, or its cluster version has not been raised yet."""


class WrongMode(RedfenceError):
    """The lock is held in a mode that does not go with the one asked for (``MODE``). Nothing happened."""


class StaleFence(RedfenceError):
    """A newer fence has been at the resource: this write is late and was refused. Stop, acquire again, read again."""


class ServerError(RedfenceError):
    """Any other error of the server. ``code`` is its first word."""

    def __init__(self, code: str, text: str) -> None:
        #: The first word of the server's error, for example ``NOPERM``.
        self.code = code
        super().__init__(text)


class NotFenced(RedfenceError):
    """The handle has no fence: it stands for work without a lock (``on_unavailable``), or it was never granted."""


class NotTransferable(RedfenceError):
    """The lock is bound to this client's session and ends with it. Acquire it with ``transferable=True`` to hand it over."""


@dataclass(frozen=True)
class Loss:
    """How a lock was lost.

    ``cause`` is one of the server's (``expired``, ``forced``, ``wounded``, ``session_ended``, ``deleted``, ``not_owner``,
    ``already_released``) or of the client's own: ``deadline`` (no renewal came through in time), ``max_hold``, ``fork``,
    ``closed``.
    """

    cause: str
    #: The fence of the next holder, where the server told it.
    successor: Optional[int] = None


class Lost(RedfenceError):
    """The lock is not yours any more. Stop; what you write now must be refused by its fence."""

    def __init__(self, resource: str, loss: Loss) -> None:
        #: The name of the lock.
        self.resource = resource
        #: Cause and successor.
        self.loss = loss
        successor = f"; its successor has fence {loss.successor}" if loss.successor is not None else ""
        super().__init__(f"the lock {resource!r} is lost: {loss.cause}{successor}")

    @property
    def cause(self) -> str:
        """The cause in one word, see :class:`Loss`."""
        return self.loss.cause


class InsufficientLease(Lost):
    """``ensure(at_least)`` could not get that much time. The lock may still be held; the step must not begin."""

    def __init__(self, resource: str, at_least: float, remaining: float) -> None:
        RedfenceError.__init__(
            self, f"the lock {resource!r} is held for {remaining:.3f} s more, {at_least:.3f} s are needed"
        )
        self.resource = resource
        self.loss = Loss("deadline")
        #: Seconds that were asked for.
        self.at_least = at_least
        #: Seconds there are.
        self.remaining = remaining
