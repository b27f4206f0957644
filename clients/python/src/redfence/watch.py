"""Events of locks as a stream, over Redis's publish and subscribe."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any, Iterator, Optional, Type

from ._flows import ReplyLost, Unreachable
from ._redis import BROKEN, is_refusal, refusal_of
from ._retry import Backoff
from ._transport import Link, Transport
from ._wire import LockEvent, Refusal, parse_event
from .errors import Unavailable

__all__ = ["LockEvent", "Watch"]

CHANNEL = "__lock__:"


def subscription(pattern: str) -> "tuple[str, str]":
    """`PSUBSCRIBE` for a glob, `SUBSCRIBE` for a plain name."""
    verb = "PSUBSCRIBE" if any(char in pattern for char in "*?[") else "SUBSCRIBE"
    return verb, CHANNEL + pattern


def payload(message: Any) -> Optional[bytes]:
    """The data of a message, None for anything else, such as the answer to a subscription."""
    if isinstance(message, (list, tuple)) and message and message[0] in (b"message", b"pmessage"):
        return bytes(message[-1])
    return None


def public(error: Exception) -> Exception:
    """Why there is no subscription, for the application."""
    if is_refusal(error):
        error = refusal_of(error)
    if isinstance(error, Refusal):
        return error.public()
    return Unavailable(str(error)) if isinstance(error, (Unreachable, ReplyLost, *BROKEN)) else error


class Watch:
    """An iterator of :class:`LockEvent`; use it with ``with`` or call :meth:`close`.

    Delivery is at most once. After a lost connection comes an event ``gap``: look at the state again.
    """

    def __init__(self, transport: Transport, pattern: str) -> None:
        self._transport = transport
        self._pattern = pattern
        self._link: Optional[Link] = None
        self._closed = threading.Event()
        self._reading = False
        #: The connection was lost, and nobody was told.
        self._gap = False

    def __enter__(self) -> "Watch":
        try:
            self._subscribe()
        except Exception as error:
            raise public(error) from error
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the subscription; the iterator stops. May be called from another thread than the one that reads."""
        self._closed.set()
        link = self._link
        if link is not None:
            link.interrupt()
            if not self._reading:
                link.close()

    def __iter__(self) -> Iterator[LockEvent]:
        while not self._is_over():
            event = self.next()
            if event is not None:
                yield event

    def _is_over(self) -> bool:
        return self._closed.is_set() or self._transport.closed

    def next(self, timeout: Optional[float] = None) -> Optional[LockEvent]:
        """The next event, or None where none came within `timeout` seconds (or the watch, or the client, was closed)."""
        self._reading = True
        try:
            return self._next(None if timeout is None else time.monotonic() + timeout)
        finally:
            self._reading = False
            if self._is_over():
                self._drop()

    def _next(self, give_up_at: Optional[float]) -> Optional[LockEvent]:
        backoff = Backoff(0.05, 2.0)
        while not self._is_over():
            left = 1.0 if give_up_at is None else give_up_at - time.monotonic()
            if left <= 0:
                return None
            had_link = self._link is not None
            try:
                if not had_link:
                    self._subscribe()
                    if self._gap:
                        self._gap = False
                        return LockEvent("gap")
                event = self._read(min(left, 1.0))
            except Exception:
                self._drop()
                self._gap = True  # told when it is subscribed again: what happens until then is lost
                if not had_link:
                    pause = backoff.next()
                    self._closed.wait(pause if give_up_at is None else min(pause, left))
                continue
            if event is not None:
                return event
        return None

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _read(self, timeout: float) -> Optional[LockEvent]:
        link = self._link
        if link is None or not link.connection.can_read(timeout=timeout):
            return None
        data = payload(link.connection.read_response(push_request=True))
        return None if data is None else parse_event(data)

    def _subscribe(self) -> None:
        link = self._transport.link()
        try:
            link.connection.send_command(*subscription(self._pattern))
            # The confirmation, so that no event after this call is missed.
            if not link.connection.can_read(timeout=self._transport.timeout):
                raise Unreachable("the subscription was not confirmed")
            link.connection.read_response(push_request=True)
        except BaseException:
            link.close()
            raise
        self._link = link
