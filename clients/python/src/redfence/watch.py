"""Events of locks as a stream, over Redis's publish and subscribe."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any, Iterator, Optional, Type

from ._flows import Unreachable
from ._retry import Backoff
from ._transport import Link, Transport
from ._wire import LockEvent, parse_event

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

    def __enter__(self) -> "Watch":
        self._subscribe()
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
        while not self._closed.is_set():
            event = self.next()
            if event is not None:
                yield event

    def next(self, timeout: Optional[float] = None) -> Optional[LockEvent]:
        """The next event, or None where none came within `timeout` seconds (or the watch was closed)."""
        self._reading = True
        try:
            return self._next(None if timeout is None else time.monotonic() + timeout)
        finally:
            self._reading = False
            if self._closed.is_set() and self._link is not None:
                self._link.close()

    def _next(self, give_up_at: Optional[float]) -> Optional[LockEvent]:
        while True:
            left = 1.0 if give_up_at is None else give_up_at - time.monotonic()
            if self._closed.is_set() or left <= 0:
                return None
            try:
                if self._link is None:
                    self._subscribe()
                event = self._read(min(left, 1.0))
            except Exception:
                if self._link is not None:
                    self._link.close()
                if self._closed.is_set():
                    return None
                self._resubscribe(give_up_at)
                return LockEvent("gap")
            if event is not None:
                return event

    def _read(self, timeout: float) -> Optional[LockEvent]:
        assert self._link is not None
        connection = self._link.connection
        if not connection.can_read(timeout=timeout):
            return None
        data = payload(connection.read_response(push_request=True))
        return None if data is None else parse_event(data)

    def _subscribe(self) -> None:
        link = self._transport.link()
        link.connection.send_command(*subscription(self._pattern))
        # The confirmation, so that no event after this call is missed.
        if not link.connection.can_read(timeout=self._transport.timeout):
            link.close()
            raise Unreachable("the subscription was not confirmed")
        link.connection.read_response(push_request=True)
        self._link = link

    def _resubscribe(self, give_up_at: Optional[float]) -> None:
        backoff = Backoff(0.05, 2.0)
        while not self._closed.is_set():
            try:
                self._subscribe()
                return
            except Exception:
                self._link = None
                pause = backoff.next()
                if give_up_at is not None and time.monotonic() + pause > give_up_at:
                    return
                time.sleep(pause)
