"""Events of locks as an asynchronous stream."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import AsyncIterator, Optional, Type

from .._flows import Unreachable
from .._retry import Backoff
from .._wire import LockEvent, parse_event
from ..watch import payload, public, subscription
from ._transport import Link, Transport

__all__ = ["AsyncWatch"]


class AsyncWatch:
    """An asynchronous iterator of :class:`~redfence.LockEvent`; see :class:`redfence.watch.Watch`."""

    def __init__(self, transport: Transport, pattern: str) -> None:
        self._transport = transport
        self._pattern = pattern
        self._link: Optional[Link] = None
        self._closed = False

    async def __aenter__(self) -> "AsyncWatch":
        try:
            await self._subscribe()
        except Exception as error:
            raise public(error) from error
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the subscription; the iterator stops."""
        self._closed = True
        if self._link is not None:
            await self._link.close()

    async def __aiter__(self) -> AsyncIterator[LockEvent]:
        while not self._is_over():
            event = await self.next()
            if event is not None:
                yield event

    def _is_over(self) -> bool:
        return self._closed or self._transport.closed

    async def next(self, timeout: Optional[float] = None) -> Optional[LockEvent]:
        """The next event, or None where none came within `timeout` seconds (or the watch was closed)."""
        try:
            return await asyncio.wait_for(self._next(), timeout)
        except asyncio.TimeoutError:
            await self._drop()  # a read that was cancelled may have eaten half a message
            return None

    async def _next(self) -> Optional[LockEvent]:
        backoff = Backoff(0.05, 2.0)
        while not self._is_over():
            lost = self._link is None
            try:
                if self._link is None:
                    await self._subscribe()
                    return LockEvent("gap")
                data = payload(await self._link.connection.read_response(push_request=True))
            except Exception:
                await self._drop()
                if lost:
                    await asyncio.sleep(backoff.next())
                continue
            event = None if data is None else parse_event(data)
            if event is not None:
                return event
        return None

    async def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def _subscribe(self) -> None:
        link = await self._transport.link()
        try:
            await link.connection.send_command(*subscription(self._pattern))
            await link.connection.read_response(push_request=True)  # the confirmation, so that no event after this is missed
            if self._closed:
                raise Unreachable("the watch is closed")
        except BaseException:
            await link.close()
            raise
        link.connection.socket_timeout = None
        self._link = link
