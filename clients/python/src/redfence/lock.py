"""The lock handle of the threaded client."""

from __future__ import annotations

import threading
import time
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, List, Optional, Type

from . import _flows, _wire
from ._handle import BaseLock, Released, warn_forgotten
from ._lease import Lease, State
from ._options import LockOptions
from .errors import Busy, InsufficientLease, Loss, Lost, RedfenceError, WrongMode

if TYPE_CHECKING:
    from .client import Client

__all__ = ["Lock", "LostEvent", "PendingLock"]


class LostEvent(threading.Event):
    """Set when the lock is lost. Reads the lease's own deadline too, so that it is never late, whatever the threads do."""

    def __init__(self, lease: Lease) -> None:
        super().__init__()
        self._lease = lease
        lease.tell_loss_to(lambda _: self.set())

    def is_set(self) -> bool:
        """Whether the lock is lost."""
        self._lease.check()
        return super().is_set()

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits for the loss. True where the lock is lost."""
        give_up_at = None if timeout is None else time.monotonic() + timeout
        while not self.is_set():
            left = None if give_up_at is None else give_up_at - time.monotonic()
            if left is not None and left <= 0:
                return False
            until_deadline = 0.5 if self._lease.finished else self._lease.until_deadline() + 0.001
            super().wait(min(until_deadline, threading.TIMEOUT_MAX if left is None else left))
        return True


class Lock(BaseLock):
    """A lock that is held. Made by :meth:`Client.lock`, :meth:`Client.adopt` and their like.

    The handle is the owner, not the thread: pass it on, release it anywhere. Its methods may be called from any thread.
    """

    def __init__(self, client: "Client", lease: Lease) -> None:
        self._client = client
        self._lease = lease
        self._lost: Optional[LostEvent] = None

    @property
    def lost(self) -> LostEvent:
        """A :class:`threading.Event` that is set when the lock is lost; :attr:`loss` then says how."""
        if self._lost is None:
            self._lost = LostEvent(self._lease)
        return self._lost

    def ensure(self, at_least: float) -> None:
        """Makes sure that the lock is held for `at_least` more seconds; renews it if need be. Call it before each step.

        Raises :class:`Lost` where the lock is gone, :class:`InsufficientLease` where so much time cannot be had.
        """
        self.raise_if_lost()
        lease = self._lease
        if self.remaining() < at_least and not lease.finished and self.degraded is None:
            self._client._run(_flows.renew_lease(self._client._context, lease, min(lease.until_deadline(), self._client.timeout)))
            self._client._renewer.wake()
            self.raise_if_lost()
        remaining = self.remaining()
        if remaining < at_least:
            raise InsufficientLease(self.name, at_least, remaining)

    def renew(self) -> float:
        """Renews now, out of turn. The seconds that remain. Raises :class:`Lost` where the lock is gone."""
        self.raise_if_lost()
        if self.degraded is None:
            self._client._run(_flows.renew_lease(self._client._context, self._lease, self._client.timeout))
            self.raise_if_lost()
        return self.remaining()

    def release(self) -> Released:
        """Gives the lock back. Says what the server found; never raises because the lock was lost.

        Raises :class:`Unavailable` or :class:`Indeterminate` where no server could be asked in time; the client goes on trying in
        the background.
        """
        return self._client._release(self)

    def token(self) -> str:
        """The lock as a string, for :meth:`Client.adopt` in another process. This handle is released without a word to the server.

        Only for a lock acquired with ``transferable=True``. Adopt it within the time that remains.
        """
        token = self._token()
        self._client._context.keeper.remove(self._lease)
        self._lease.finish()
        return token

    def convert(self, kind: str, wait: float = 0.0) -> None:
        """Turns a shared lock into an exclusive one (with a new fence), or the other way round, in one step.

        Raises :class:`Busy` where other readers are there and the wait ran out: the shared lock stays. Raises
        :class:`Deadlock` where another reader waits for the same.
        """
        self._client._convert(self, kind, wait)

    def fence_call(self, *command: _wire.Word) -> Any:
        """``FENCE.CALL``: runs a Redis command if this lock's fence is not stale. Raises :class:`StaleFence` if it is."""
        return self._client.fence_call(self._lease.request.names[0], self.fence(), *command)

    def bind(self, connection: Any) -> None:
        """Tells a PostgreSQL connection the fence for the rest of its transaction; see :mod:`redfence.postgres`."""
        from . import postgres

        postgres.bind(self, connection)

    def __enter__(self) -> "Lock":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._client._leave(self, error)

    def __del__(self) -> None:
        lease = getattr(self, "_lease", None)
        if lease is not None and not lease.finished and lease.loss is None and self.degraded is None:
            warn_forgotten(self)
            self._client._abandon(lease)


class LocalLock(Lock):
    """Stands for a lock that could not be asked for: ``on_unavailable`` said to go on. It excludes nobody in other processes."""

    def __init__(self, client: "Client", lease: Lease, degraded: str, local: Optional[threading.Lock]) -> None:
        super().__init__(client, lease)
        self.degraded = degraded
        self._local = local

    def release(self) -> Released:
        if self._lease.finish():
            if self._local is not None:
                self._local.release()
            return Released("ok")
        return Released("already_released")

    def __del__(self) -> None:
        if getattr(self, "_local", None) is not None:
            self.release()


#: Which locks each thread has entered. `setdefault` makes one for a pending lock, whichever thread comes first.
_ENTERED: "weakref.WeakKeyDictionary[PendingLock, Any]" = weakref.WeakKeyDictionary()


class PendingLock:
    """What :meth:`Client.lock` returns: use it with ``with``, or call :meth:`acquire`. Each use is an acquisition of its own."""

    def __init__(self, client: "Client", options: LockOptions) -> None:
        self._client = client
        self._options = options
        self._entered: Any = None

    def acquire(self) -> Lock:
        """Takes the lock. Raises :class:`Busy` where it is taken and the wait ran out."""
        return self._client._acquire(self._options)

    def try_acquire(self) -> Optional[Lock]:
        """Like :meth:`acquire`, with None instead of :class:`Busy`."""
        try:
            return self.acquire()
        except Busy:
            return None

    def __enter__(self) -> Lock:
        lock = self.acquire()
        self._stack().append(lock)
        return lock

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._client._leave(self._stack().pop(), error)

    def _stack(self) -> List[Lock]:
        if self._entered is None:
            self._entered = _ENTERED.setdefault(self, threading.local())
        stack: Optional[List[Lock]] = getattr(self._entered, "locks", None)
        if stack is None:
            stack = self._entered.locks = []
        return stack


def check_convert(lock: BaseLock, kind: str) -> bool:
    """Whether to convert to shared. Raises where the handle cannot be converted."""
    if kind not in ("shared", "exclusive"):
        raise WrongMode(f"a lock is converted to 'shared' or 'exclusive', not to {kind!r}")
    if lock.kind == "permits" or lock._lease.request.multi:
        raise WrongMode("permits and multi-locks cannot be converted")
    lock.raise_if_lost()
    if lock._lease.finished:
        raise Lost(lock.name, Loss("already_released"))
    return kind == "shared"


__all__ += ["RedfenceError", "State"]
