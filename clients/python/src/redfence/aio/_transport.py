"""Sockets of the asyncio client."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from typing import Any, Deque, Dict, List, Optional, Sequence, Set, Tuple

import redis
import redis.asyncio
from redis.asyncio.retry import Retry

from .._flows import ReplyLost, Silent, Unreachable
from .._redis import BROKEN, connection_options, is_broken, is_refusal, is_unix, refusal_of
from .._retry import Addresses
from .._transport import CONNECTIONS_MAX
from .._wire import Words


class Node:
    """One address and its idle connections."""

    def __init__(self, url: str, options: Dict[str, Any]) -> None:
        self.url = url
        keep = {} if is_unix(url) else {"socket_keepalive": True}
        self._options = {**keep, **options}
        self.factory: Any = None
        self.idle: Deque[Any] = deque()

    def make(self) -> Any:
        if self.factory is None:  # in the loop: before Python 3.10 a pool belongs to the loop it was made in
            self.factory = redis.asyncio.ConnectionPool.from_url(self.url, **self._options)
            self.factory.connection_kwargs["decode_responses"] = False
        return self.factory.connection_class(**self.factory.connection_kwargs)

    async def drop_idle(self) -> None:
        while self.idle:
            await close(self.idle.pop())


async def close(connection: Any) -> None:
    writer = connection._writer
    if writer is not None:
        writer.transport.abort()  # at once: closing would wait for what a silent node does not read
    try:
        await connection.disconnect(nowait=True)
    except Exception:  # closing is best effort
        pass


class Link:
    """A connection of its own."""

    def __init__(self, connection: Any, index: int) -> None:
        self.connection = connection
        self.index = index

    async def pipeline(self, words: Sequence[Words], timeout: float) -> List[Any]:
        self.connection.socket_timeout = timeout
        try:
            return await _exchange(self.connection, words)
        except BaseException as error:
            meant = _broken(error, self.connection)
            await self.close()
            raise meant from error

    async def closed(self) -> None:
        """Returns when the server closes the connection, or sends something unexpected. May be cancelled at any time."""
        self.connection.socket_timeout = None
        try:
            await self.connection.read_response(disconnect_on_error=False, push_request=True)
        except Exception:
            pass

    async def close(self) -> None:
        await close(self.connection)


async def _exchange(connection: Any, words: Sequence[Words]) -> List[Any]:
    await connection.send_packed_command(b"".join(connection.pack_commands(words)))
    replies: List[Any] = []
    for _ in words:
        try:
            replies.append(await connection.read_response())
        except Exception as error:
            # redis-py closes a connection by itself after some error replies, such as `LOADING`.
            if not is_refusal(error) or not connection.is_connected:
                raise
            replies.append(refusal_of(error))
    return replies


def _broken(error: BaseException, connection: Any) -> BaseException:
    if isinstance(error, redis.exceptions.TimeoutError):
        return Silent(str(error))
    return ReplyLost(str(error)) if is_broken(error, not connection.is_connected) else error


class Deadline:
    """One timer for sending a command and reading its reply. redis-py makes a task for the first and a timer for each."""

    def __init__(self, connection: Any, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._is_over = False
        connection.socket_timeout = None
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        self._is_over = True
        writer = self._connection._writer
        if writer is not None:
            writer.transport.abort()  # whoever reads or writes finds its end
        else:
            self._timer = asyncio.get_running_loop().call_later(0.1, self._expire)  # it is being connected again

    def meaning(self, error: BaseException) -> BaseException:
        """Of an error that came out of the connection."""
        if self._is_over and is_broken(error, closed=True):
            return redis.exceptions.TimeoutError(f"no reply within {self._seconds:.2f} s")
        return error

    def cancel(self) -> None:
        self._timer.cancel()


class Transport:
    """Calls to whichever node answers."""

    def __init__(
        self, urls: Sequence[str], timeout: float, connect_timeout: float, shuffle: bool, extra: Dict[str, Any]
    ) -> None:
        self.timeout = timeout
        self.connect_timeout = connect_timeout
        options = connection_options(redis.asyncio.Connection, Retry, timeout, connect_timeout, extra)
        self.nodes = [Node(url, options) for url in urls]
        self.addresses = Addresses(len(urls), shuffle)
        self._busy: Set[Tuple[int, Any]] = set()
        self._turns: Optional[asyncio.Semaphore] = None
        self._links: "weakref.WeakSet[Link]" = weakref.WeakSet()
        self.closed = False

    def _turn(self) -> asyncio.Semaphore:
        if self._turns is None:  # made in the loop: before Python 3.10 it belongs to the loop it was made in
            self._turns = asyncio.Semaphore(CONNECTIONS_MAX)
        return self._turns

    async def call(self, words: Words, blocks: float) -> Any:
        """One command. Raises `Refusal`, `ReplyLost` or `Unreachable`."""
        if blocks:
            return await self._call(words, blocks)
        async with self._turn():
            return await self._call(words, 0.0)

    async def _call(self, words: Words, blocks: float) -> Any:
        index, connection = await self._checkout()
        deadline = Deadline(connection, self.timeout + blocks)
        try:
            await connection.send_command(*words)
            reply = await connection.read_response()
        except BaseException as error:
            raise await self._failed(index, connection, deadline.meaning(error)) from error
        finally:
            deadline.cancel()
        await self._checkin(index, connection)
        return reply

    async def pipeline(self, words: Sequence[Words]) -> List[Any]:
        """Several commands in one go. Error replies are in the list."""
        async with self._turn():
            return await self._pipeline(words)

    async def _pipeline(self, words: Sequence[Words]) -> List[Any]:
        index, connection = await self._checkout()
        try:
            connection.socket_timeout = self.timeout
            replies = await _exchange(connection, words)
        except BaseException as error:
            raise await self._failed(index, connection, error) from error
        await self._checkin(index, connection)
        return replies

    async def _failed(self, index: int, connection: Any, error: BaseException) -> BaseException:
        if is_refusal(error):
            refusal = refusal_of(error)
            if refusal.code == "UNAVAILABLE":
                self.addresses.move_on(index)
            await self._checkin(index, connection)
            return refusal
        self._busy.discard((index, connection))
        meant = _broken(error, connection)
        await close(connection)
        if isinstance(meant, Silent):
            self.addresses.move_on(index)
        elif isinstance(meant, ReplyLost):
            await self.nodes[index].drop_idle()
        return meant

    async def _checkout(self) -> Tuple[int, Any]:
        if self.closed:
            raise Unreachable("the client is closed")
        index = self.addresses.current
        try:
            connection = self.nodes[index].idle.pop()
        except IndexError:
            index, connection = await self.connect()
        if self._is_closed():  # meanwhile
            await close(connection)
            raise Unreachable("the client is closed")
        self._busy.add((index, connection))
        return index, connection

    async def _checkin(self, index: int, connection: Any) -> None:
        self._busy.discard((index, connection))
        idle = self.nodes[index].idle
        is_ended = not connection.is_connected or connection._writer.transport.is_closing()
        if is_ended or self.closed or index != self.addresses.current or len(idle) >= CONNECTIONS_MAX:
            await close(connection)
        else:
            idle.append(connection)

    async def connect(self, within: Optional[float] = None) -> Tuple[int, Any]:
        """A new connection to the first address that takes one."""
        last: Optional[BaseException] = None
        for index in self.addresses.round():
            connection = self.nodes[index].make()
            if within is not None:
                # The greeting counts as well: a node that hangs takes connections and says nothing.
                limit = max(0.1, min(self.connect_timeout, within))
                connection.socket_connect_timeout = limit
                connection.socket_timeout = min(self.timeout, limit)
            try:
                await connection.connect()
                return index, connection
            except BaseException as error:
                await close(connection)
                if is_refusal(error):
                    raise refusal_of(error) from error
                if not isinstance(error, BROKEN):
                    raise
                last = error
                await self.nodes[index].drop_idle()
                self.addresses.move_on(index)
        raise Unreachable(f"no node can be reached, the last one said: {last}")

    async def link(self, within: Optional[float] = None) -> Link:
        index, connection = await self.connect(within)
        link = Link(connection, index)
        if self._is_closed():  # meanwhile
            await link.close()
            raise Unreachable("the client is closed")
        self._links.add(link)
        return link

    async def silent(self, index: int) -> None:
        """A node does not answer: whoever waits for it goes to another."""
        self.addresses.move_on(index)
        await self.nodes[index].drop_idle()
        for at, connection in list(self._busy):
            if at == index:
                await close(connection)

    def _is_closed(self) -> bool:
        return self.closed

    async def close(self) -> None:
        self.closed = True
        for node in self.nodes:
            await node.drop_idle()
        busy, self._busy = self._busy, set()
        for _, connection in busy:
            await close(connection)
        for link in list(self._links):
            await link.close()

    def forked(self) -> None:
        """In the child: the sockets are the parent's, and so is the loop. They are forgotten, not closed."""
        self._busy = set()
        self._links = weakref.WeakSet()
        for node in self.nodes:
            node.idle.clear()
