"""Sockets of the threaded client: idle connections per node, connections of their own for the renewer and the listener."""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

import redis
from redis.retry import Retry

from ._flows import ReplyLost, Silent, Unreachable
from ._redis import BROKEN, connection_options, is_broken, is_refusal, is_unix, refusal_of
from ._retry import Addresses
from ._wire import Refusal, Words

#: Connections for requests that do not wait in a queue, and how many of them are kept idle. More callers take turns.
CONNECTIONS_MAX = 64


class Node:
    """One address and its idle connections."""

    def __init__(self, url: str, options: Dict[str, Any]) -> None:
        self.url = url
        keep = {} if is_unix(url) else {"socket_keepalive": True}
        # Only a factory: connections are kept here, because a broken one has to be told from one whose reply is lost.
        self.factory: Any = redis.ConnectionPool.from_url(url, **{**keep, **options})
        self.factory.connection_kwargs["decode_responses"] = False
        self.idle: Deque[Any] = deque()

    def make(self) -> Any:
        return self.factory.connection_class(**self.factory.connection_kwargs)

    def drop_idle(self) -> None:
        while self.idle:
            try:
                connection = self.idle.pop()
            except IndexError:
                return
            _close(connection)


def _close(connection: Any) -> None:
    try:
        connection.disconnect()
    except Exception:  # closing is best effort: the socket may be half gone
        pass


def _interrupt(connection: Any) -> None:
    """For a connection that another thread reads: that one finds its end, and closes it.

    It must not be closed here. The number of a closed socket goes to the next one that is opened, and a thread that is just waking up
    in `poll` looks at that number again: it would sleep on, at somebody else's socket.
    """
    sock = getattr(connection, "_sock", None)
    if sock is not None and connection.pid == os.getpid():  # what a fork left here belongs to the parent
        try:
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # of TLS too: `SSLSocket.shutdown` drops its state under the reader
        except OSError:
            pass  # it has ended already


def _is_closed(connection: Any) -> bool:
    """redis-py closes a connection by itself after some error replies, such as `LOADING`."""
    return getattr(connection, "_sock", None) is None


class Link:
    """A connection of its own, for commands that must share one (a session) or that listen."""

    def __init__(self, connection: Any, index: int) -> None:
        self.connection = connection
        self.index = index

    def pipeline(self, words: Sequence[Words], timeout: float, idle: Callable[[], float]) -> List[Any]:
        """All commands, all replies; `timeout` is for each reply. `idle` runs while it waits, and says for how long it may wait on."""
        connection = self.connection
        replies: List[Any] = []
        try:
            connection.send_packed_command(connection.pack_commands(words))
            for _ in words:
                give_up_at = time.monotonic() + timeout
                while not connection.can_read(timeout=max(0.0, min(idle(), give_up_at - time.monotonic()))):
                    if time.monotonic() >= give_up_at:
                        raise Silent(f"no reply within {timeout:.2f} s")
                try:
                    replies.append(connection.read_response())
                except Exception as error:
                    if not is_refusal(error) or _is_closed(connection):
                        raise
                    replies.append(refusal_of(error))
        except redis.exceptions.TimeoutError as error:
            self.close()
            raise Silent(str(error)) from error
        except BaseException as error:
            self.close()
            if is_broken(error):
                raise ReplyLost(str(error)) from error
            raise
        return replies

    def is_quiet(self) -> bool:
        """Whether the connection stands and nothing unexpected was sent on it."""
        try:
            return not self.connection.can_read(timeout=0)
        except Exception:
            return False

    def interrupt(self) -> None:
        """Ends it under the thread that reads it, which has to close it."""
        _interrupt(self.connection)

    def close(self) -> None:
        _close(self.connection)


class Turns:
    """Where callers wait while all connections are in use."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._callers = 0

    def wait(self) -> None:
        with self._condition:
            self._callers += 1
            self._condition.wait(0.1)  # one may have become free just before
            self._callers -= 1

    def one_is_free(self) -> None:
        if self._callers:
            with self._condition:
                self._condition.notify()


class Transport:
    """Calls to whichever node answers."""

    def __init__(
        self, urls: Sequence[str], timeout: float, connect_timeout: float, shuffle: bool, extra: Dict[str, Any]
    ) -> None:
        self.timeout = timeout
        self.connect_timeout = connect_timeout
        options = connection_options(redis.Connection, Retry, timeout, connect_timeout, extra)
        self.nodes = [Node(url, options) for url in urls]
        self.addresses = Addresses(len(urls), shuffle)
        #: Connections in use: of which node, and whether in a queue of the server.
        self._busy: Dict[Any, Tuple[int, bool]] = {}
        self._turns = Turns()
        self._links: "weakref.WeakSet[Link]" = weakref.WeakSet()
        self.closed = False

    def call(self, words: Words, blocks: float) -> Any:
        """One command. Raises `Refusal`, `ReplyLost` or `Unreachable`."""
        index, connection = self._checkout(waits=blocks > 0)
        try:
            connection.send_command(*words)
            if blocks and not connection.can_read(timeout=blocks + self.timeout):
                raise Silent(f"no reply within {blocks + self.timeout:.2f} s")
            reply = connection.read_response()
        except BaseException as error:
            raise self._failed(index, connection, error) from error
        self._checkin(index, connection)
        return reply

    def pipeline(self, words: Sequence[Words]) -> List[Any]:
        """Several commands in one go. Error replies are in the list."""
        index, connection = self._checkout(waits=False)
        replies: List[Any] = []
        try:
            connection.send_packed_command(connection.pack_commands(words))
            for _ in words:
                try:
                    replies.append(connection.read_response())
                except Exception as error:
                    if not is_refusal(error) or _is_closed(connection):
                        raise
                    replies.append(refusal_of(error))
        except BaseException as error:
            raise self._failed(index, connection, error) from error
        self._checkin(index, connection)
        return replies

    def _failed(self, index: int, connection: Any, error: BaseException) -> BaseException:
        """What a failed call means. An error reply leaves the connection as it is; anything else ends it."""
        if is_refusal(error):
            refusal = refusal_of(error)
            if refusal.code == "UNAVAILABLE":
                self.addresses.move_on(index)
            self._checkin(index, connection)
            return refusal
        self._given_back(connection)
        _close(connection)
        if isinstance(error, (redis.exceptions.TimeoutError, Silent)):
            self.addresses.move_on(index)
            return Silent(str(error))
        if is_broken(error):
            self.nodes[index].drop_idle()
            return ReplyLost(str(error))
        return error

    # Sets and deques of CPython are safe for single operations; only callers that take turns need a lock.

    def _checkout(self, waits: bool) -> Tuple[int, Any]:
        if self.closed:
            raise Unreachable("the client is closed")
        while True:
            index = self.addresses.current
            try:
                connection = self.nodes[index].idle.pop()
                break
            except IndexError:
                if waits or sum(not queued for _, queued in list(self._busy.values())) < CONNECTIONS_MAX:
                    index, connection = self.connect()
                    break
                self._turns.wait()
        self._busy[connection] = (index, waits)
        if self._is_closed():  # looked at after it was put there: either `close` finds the connection, or this finds the client closed
            self._given_back(connection)
            _close(connection)
            raise Unreachable("the client is closed")
        return index, connection

    def _given_back(self, connection: Any) -> None:
        self._busy.pop(connection, None)
        self._turns.one_is_free()

    def _checkin(self, index: int, connection: Any) -> None:
        idle = self.nodes[index].idle
        is_ended = self._busy.pop(connection, None) is None or _is_closed(connection)
        if is_ended or self.closed or index != self.addresses.current or len(idle) >= CONNECTIONS_MAX:
            _close(connection)
        else:
            idle.append(connection)
        self._turns.one_is_free()

    def connect(self, within: Optional[float] = None) -> Tuple[int, Any]:
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
                connection.connect()
                return index, connection
            except Exception as error:
                _close(connection)
                if is_refusal(error):
                    raise refusal_of(error) from error
                if not isinstance(error, BROKEN):
                    raise
                last = error
                self.nodes[index].drop_idle()
                self.addresses.move_on(index)
        raise Unreachable(f"no node can be reached, the last one said: {last}")

    def link(self, within: Optional[float] = None) -> Link:
        index, connection = self.connect(within)
        link = Link(connection, index)
        self._links.add(link)
        if self.closed:
            link.close()
            raise Unreachable("the client is closed")
        return link

    def silent(self, index: int) -> None:
        """A node does not answer: whoever waits for it goes to another."""
        self.addresses.move_on(index)
        self.nodes[index].drop_idle()
        for connection, (at, _) in list(self._busy.items()):
            if at == index:
                self._end(connection)

    def _end(self, connection: Any) -> None:
        """Under its reader, unless it has just been given back."""
        if self._busy.pop(connection, None) is not None:
            _interrupt(connection)

    def _is_closed(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True
        for node in self.nodes:
            node.drop_idle()
        for connection in list(self._busy):
            self._end(connection)
        for link in list(self._links):
            link.interrupt()

    def forked(self) -> None:
        """In the child: the parent's sockets are closed here and live on there."""
        self._turns = Turns()
        self.addresses = Addresses(len(self.nodes), shuffle=False)
        self._links = weakref.WeakSet()
        busy, self._busy = self._busy, {}
        for connection in busy:
            _close(connection)
        for node in self.nodes:
            node.drop_idle()


__all__ = ["Link", "Refusal", "Transport"]
