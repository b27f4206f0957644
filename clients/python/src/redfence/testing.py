"""Tests without a cluster: the real lock machine in a small process, with a clock the test turns by hand.

    with TestServer() as server:
        rf = server.client()
        lock = rf.lock("wallet:7", ttl=30).acquire()
        server.advance(31)                      # renewed on the way: still held
        server.stop_renewals()
        server.advance(31)                      # paused for 31 seconds
        assert lock.lost.is_set()

The pytest plugin of this package has it as the fixture ``redfence_server``. The program is ``redfence testserver``: on the ``PATH``, or named by
``REDFENCE_BIN``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, Type

import redis

from .aio.client import AsyncClient
from .client import Client

__all__ = ["ManualClock", "TestServer", "TestServerMissing"]

READY_SECONDS = 20.0


class TestServerMissing(Exception):
    """There is no ``redfence`` program here, or it is too old to have ``testserver``."""

    __test__ = False


class ManualClock:
    """A monotonic clock that stands still until somebody turns it.

    >>> clock = ManualClock()
    >>> clock.advance(1.5)
    >>> clock() - clock.start
    1.5
    """

    #: Tells clients not to wait on real time for anything that this clock decides.
    manual = True

    def __init__(self) -> None:
        #: Where it began.
        self.start = time.monotonic()
        self._now = self.start
        self._listeners: List[Callable[[], None]] = []
        self._mutex = threading.Lock()

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Turns the clock, and tells the clients that use it."""
        with self._mutex:
            self._now += seconds
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def tell(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after each turn."""
        with self._mutex:
            self._listeners.append(listener)

    def forget_listeners(self) -> None:
        with self._mutex:
            self._listeners.clear()


class TestServer:
    """A running ``redfence testserver`` and the clock of the clients it made."""

    __test__ = False

    def __init__(self, program: Optional[str] = None) -> None:
        path = program or os.environ.get("REDFENCE_BIN") or shutil.which("redfence")
        if path is None:
            raise TestServerMissing("no program redfence: put it on the PATH, or name it in REDFENCE_BIN")
        self._process = subprocess.Popen(
            [path, "testserver", "--until-stdin-closes"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        #: The address for clients of your own.
        self.url = f"redis://{self._ready()}"
        #: The clock of the clients made here.
        self.clock = ManualClock()
        self._control: Any = redis.Redis.from_url(self.url, protocol=3)
        self._clients: List[Client] = []
        self._async_clients: List[AsyncClient] = []

    def _ready(self) -> str:
        assert self._process.stdout is not None and self._process.stderr is not None
        late = threading.Timer(READY_SECONDS, self._process.kill)
        late.start()
        line = self._process.stdout.readline().decode()
        late.cancel()
        if not line.startswith("ready "):
            self._process.kill()
            told = self._process.stderr.read().decode()[-500:]
            raise TestServerMissing(f"`redfence testserver` did not start: {told or line}")
        return line.split()[1]

    def client(self, **options: Any) -> Client:
        """A client of this server whose deadlines run on :attr:`clock`. Closed with the server."""
        client = Client(self.url, clock=self.clock, **options)
        self.clock.tell(client._context.keeper.expire)  # before the server's clock is turned: its own deadline comes first, as in life
        self.clock.tell(client._renewer.wake)
        self._clients.append(client)
        return client

    def async_client(self, **options: Any) -> AsyncClient:
        """The same for asyncio. Close it in its loop."""
        client = AsyncClient(self.url, clock=self.clock, **options)
        self.clock.tell(client._renewer.clock_moved)
        self._async_clients.append(client)
        return client

    def command(self, *words: Any) -> Any:
        """Any command, on a connection of the test's own."""
        return self._control.execute_command(*words)

    def advance(self, seconds: float) -> None:
        """Lets time pass, for the server and for the clients: renewals that are due on the way are sent.

        With asyncio clients run it in a thread: ``await asyncio.to_thread(server.advance, 31)``.
        """
        left = seconds
        while left > 1e-9:
            step = min(left, self._until_due())
            self.clock.advance(step)
            self.command("TEST.ADVANCE", round(step * 1000))
            left -= step
            self.settle()

    def advance_server(self, seconds: float) -> None:
        """Lets time pass for the server alone: a client is told by the server."""
        self.command("TEST.ADVANCE", round(seconds * 1000))

    def advance_clients(self, seconds: float) -> None:
        """Lets time pass for the clients alone: they notice by their own clock."""
        self.clock.advance(seconds)

    def _until_due(self) -> float:
        """Whole milliseconds to the next thing a client has to do; at least one."""
        clients: List[Any] = [*self._clients, *self._async_clients]
        due = min((client._context.keeper.next_due() for client in clients), default=float("inf"))
        ms = (due - self.clock()) * 1000
        return 3600.0 if ms > 3_600_000 else max(1, int(ms) + 1) / 1000

    def settle(self) -> None:
        """Waits until the clients have done what is due."""
        for client in self._clients:
            client._renewer.settled()
        for other in self._async_clients:
            rounds = other._renewer.rounds
            if other._renewer._task is not None and not other._renewer._task.done():
                give_up_at = time.monotonic() + 10
                other._renewer.clock_moved()
                while other._renewer.rounds < rounds + 2 and time.monotonic() < give_up_at:
                    other._renewer.clock_moved()
                    time.sleep(0.002)

    def stop_renewals(self) -> None:
        """The clients made here stop renewing: as a paused program, seen from the server."""
        clients: List[Any] = [*self._clients, *self._async_clients]
        for client in clients:
            client._stop_renewals()

    def lose(self, name: str) -> bool:
        """Takes the lock away from its holder. False where nobody held it."""
        return bool(self.command("TEST.LOSE", name))

    def partition(self, mode: str = "ON") -> "Partition":
        """Until the ``with`` ends, the server has no quorum (``ON``) or does not answer at all (``SILENT``)."""
        return Partition(self, mode)

    def fail(self, kind: str, count: int = 1) -> None:
        """The next commands are answered ``UNAVAILABLE``, or carried out and answered ``INDETERMINATE`` or not at all (``LOSTREPLY``)."""
        self.command("TEST.FAIL", kind, count)

    def stats(self) -> Dict[str, int]:
        """Connections, locks, waiters, sessions, subscriptions, commands."""
        return {key.decode(): int(value) for key, value in self.command("TEST.STATS").items()}

    def calls(self, command: str) -> int:
        """How many such commands were carried out."""
        return int(self.command("TEST.CALLS", command))

    def reset(self) -> None:
        """Forgets locks, sessions and faults, and closes the clients made here."""
        self._close_clients()
        self.command("TEST.RESET")

    def _close_clients(self) -> None:
        clients, self._clients = self._clients, []
        self._async_clients = []
        self.clock.forget_listeners()
        for client in clients:
            client.close()

    def close(self) -> None:
        """Closes the clients made here and ends the process."""
        try:
            self._close_clients()
            self._control.close()
        finally:
            process = self._process
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
            process.terminate()
            process.wait(10)

    def __enter__(self) -> "TestServer":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()


class Partition:
    """The time in which a server does not serve."""

    def __init__(self, server: TestServer, mode: str) -> None:
        self._server = server
        self._mode = mode

    def __enter__(self) -> None:
        self._server.command("TEST.PARTITION", self._mode)

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._server.command("TEST.PARTITION", "OFF")
