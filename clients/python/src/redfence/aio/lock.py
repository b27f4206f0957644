"""The lock handle of the asyncio client."""

from __future__ import annotations

import asyncio
import sys
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Awaitable, Coroutine, Dict, Generator, List, Optional, Set, Type, TypeVar, Union

from .. import _flows, _wire
from .._handle import BaseLock, Released, warn_forgotten
from .._lease import Lease
from .._options import LockOptions
from ..errors import Busy, InsufficientLease, Loss, Lost

if TYPE_CHECKING:
    from .client import AsyncClient

__all__ = ["AsyncLock", "AsyncPendingLock", "LostSignal"]

T = TypeVar("T")


class LostSignal:
    """Set when the lock is lost. ``await lock.lost`` waits for that, and answers the :class:`~redfence.Loss`."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def is_set(self) -> bool:
        """Whether the lock is lost."""
        self._lease.check()
        return self._lease.loss is not None

    async def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits for the loss. True where the lock is lost."""
        if not self.is_set():
            try:
                await asyncio.wait_for(self._future(), timeout)
            except asyncio.TimeoutError:
                return self.is_set()
        return True

    def _future(self) -> "asyncio.Future[Loss]":
        loop = asyncio.get_running_loop()
        future: "asyncio.Future[Loss]" = loop.create_future()

        def lost(loss: Loss) -> None:
            if not future.done():
                future.set_result(loss)

        self._lease.tell_loss_to(lost)
        return future

    def __await__(self) -> Generator[Any, None, Loss]:
        return self._future().__await__()


class AsyncLock(BaseLock):
    """A lock that is held. The handle is the owner, not the task: pass it on, release it anywhere in the loop."""

    def __init__(self, client: "AsyncClient", lease: Lease) -> None:
        self._client = client
        self._lease = lease
        #: Set when the lock is lost: ``lock.lost.is_set()``, ``await lock.lost``.
        self.lost = LostSignal(lease)

    async def ensure(self, at_least: float) -> None:
        """Makes sure that the lock is held for `at_least` more seconds; renews it if need be. Call it before each step.

        Raises :class:`~redfence.Lost` where the lock is gone, :class:`~redfence.InsufficientLease` where so much time cannot be had.
        """
        self.raise_if_lost()
        lease = self._lease
        if self.remaining() < at_least and not lease.finished and self.degraded is None:
            flow = _flows.renew_lease(self._client._context, lease, min(lease.until_deadline(), self._client.timeout))
            await self._client._run(flow)
            self._client._renewer.wake()
            self.raise_if_lost()
        remaining = self.remaining()
        if remaining < at_least:
            raise InsufficientLease(self.name, at_least, remaining)

    async def renew(self) -> float:
        """Renews now, out of turn. The seconds that remain."""
        self.raise_if_lost()
        if self.degraded is None:
            await self._client._run(_flows.renew_lease(self._client._context, self._lease, self._client.timeout))
            self.raise_if_lost()
        return self.remaining()

    async def release(self) -> Released:
        """Gives the lock back. Says what the server found; never raises because the lock was lost."""
        return await self._client._release(self)

    def token(self) -> str:
        """The lock as a string, for ``adopt`` in another process; see :meth:`redfence.Lock.token`."""
        token = self._token()
        self._client._context.keeper.remove(self._lease)
        self._lease.finish()
        return token

    async def convert(self, kind: str, wait: float = 0.0) -> None:
        """Turns a shared lock into an exclusive one, or the other way round; see :meth:`redfence.Lock.convert`."""
        await self._client._convert(self, kind, wait)

    async def fence_call(self, *command: _wire.Word) -> Any:
        """``FENCE.CALL`` with this lock's fence; see :meth:`redfence.Lock.fence_call`."""
        return await self._client.fence_call(self._lease.request.names[0], self.fence(), *command)

    async def bind(self, connection: Any) -> None:
        """Tells a PostgreSQL connection the fence for the rest of its transaction; see :mod:`redfence.postgres`."""
        from .. import postgres

        await postgres.bind_async(self, connection)

    async def run(self, work: Union[Coroutine[Any, Any, T], Awaitable[T]]) -> T:
        """Awaits `work` and cancels it when the lock is lost; then raises :class:`~redfence.Lost`."""
        task = asyncio.ensure_future(work)
        lost = self.lost._future()
        both: Set["asyncio.Future[Any]"] = {task, lost}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if task.cancelled() and self.loss is not None:
            raise Lost(self.name, self.loss)
        return task.result()

    async def __aenter__(self) -> "AsyncLock":
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self._client._leave(self, error)

    def __del__(self) -> None:
        lease = getattr(self, "_lease", None)
        if lease is not None and not lease.finished and lease.loss is None and self.degraded is None:
            warn_forgotten(self)
            self._client._abandon(lease)


class AsyncLocalLock(AsyncLock):
    """Stands for a lock that could not be asked for: ``on_unavailable`` said to go on."""

    def __init__(self, client: "AsyncClient", lease: Lease, degraded: str, local: Optional[asyncio.Lock]) -> None:
        super().__init__(client, lease)
        self.degraded = degraded
        self._local = local

    async def release(self) -> Released:
        if self._lease.finish():
            if self._local is not None:
                self._local.release()
            return Released("ok")
        return Released("already_released")

    def __del__(self) -> None:  # perhaps in another thread
        local, loop = getattr(self, "_local", None), self._client._loop
        if local is not None and loop is not None and not loop.is_closed() and self._lease.finish():
            loop.call_soon_threadsafe(local.release)


class Scope:
    """Cancels the task of an ``async with`` when the lock is lost, and turns that cancellation into :class:`Lost`."""

    def __init__(self, lock: AsyncLock) -> None:
        self.lock = lock
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        self._active = True
        self._fired = False
        self._cancelling = 0
        if sys.version_info >= (3, 11) and self._task is not None:
            self._cancelling = self._task.cancelling()
        lock._lease.tell_loss_to(self._lost)

    def _lost(self, loss: Loss) -> None:
        # Never from inside the task itself: it must be suspended when it is cancelled.
        self._loop.call_soon(self._fire)

    def _fire(self) -> None:
        if self._active and self._task is not None:
            self._fired = True
            self._task.cancel()

    def leave(self, error: Optional[BaseException]) -> bool:
        """Whether the error is a cancellation that this scope made."""
        self._active = False
        if not self._fired or self._task is None:
            return False
        if sys.version_info >= (3, 11) and self._task.uncancel() > self._cancelling:
            return False  # somebody else cancels, too: that goes on
        return isinstance(error, asyncio.CancelledError)


class AsyncPendingLock:
    """What ``AsyncClient.lock`` returns: use it with ``async with``, or ``await`` :meth:`acquire`.

    The body of an ``async with`` is cancelled when the lock is lost, and the statement raises :class:`~redfence.Lost`
    (``cancel_on_loss=False``: it is not, look at ``lock.lost`` yourself).
    """

    def __init__(self, client: "AsyncClient", options: LockOptions, cancel_on_loss: bool) -> None:
        self._client = client
        self._options = options
        self._cancel_on_loss = cancel_on_loss
        self._entered: "weakref.WeakKeyDictionary[asyncio.Task[Any], List[Any]]" = weakref.WeakKeyDictionary()
        self._kept: Dict[int, Any] = {}

    async def acquire(self) -> AsyncLock:
        """Takes the lock. Raises :class:`~redfence.Busy` where it is taken and the wait ran out."""
        return await self._client._acquire(self._options)

    async def try_acquire(self) -> Optional[AsyncLock]:
        """Like :meth:`acquire`, with None instead of :class:`~redfence.Busy`."""
        try:
            return await self.acquire()
        except Busy:
            return None

    async def __aenter__(self) -> AsyncLock:
        lock = await self.acquire()
        scope = Scope(lock) if self._cancel_on_loss else None
        self._stack().append((lock, scope))
        return lock

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        lock, scope = self._stack().pop()
        cancelled_by_us = scope is not None and scope.leave(error)
        await self._client._leave(lock, error)
        if cancelled_by_us:
            raise Lost(lock.name, lock.loss or Loss("deadline")) from error

    def _stack(self) -> List[Any]:
        task = asyncio.current_task()
        assert task is not None
        return self._entered.setdefault(task, [])
