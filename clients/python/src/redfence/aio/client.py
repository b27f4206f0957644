"""The asyncio client."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import os
import time
import weakref
from dataclasses import replace
from types import TracebackType
from typing import Any, AsyncIterator, Callable, Dict, List, Optional, Sequence, Set, Tuple, Type, TypeVar, Union, cast

from .. import _flows, _wire
from .._flows import Call, Context, Flow, NeedSession, Pause, Pipeline
from .._handle import Released, parse_token
from .._lease import Clock, Lease, monotonic
from .._options import LockOptions, lock_options, name_formatter, session_words
from .._redis import check_urls
from .._telemetry import Telemetry
from .._wire import Grant, LockInfo, Resource, Word, parse_info, text_of
from ..errors import Busy, Indeterminate, InvalidRequest, Loss, Lost, RedfenceError, Unavailable
from ..lock import check_convert
from ._renewer import Renewer
from ._transport import Transport
from .election import AsyncElection
from .lock import AsyncLocalLock, AsyncLock, AsyncPendingLock
from .watch import AsyncWatch

__all__ = ["AsyncClient"]

log = logging.getLogger("redfence")
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class AsyncClient:
    """Locks for asyncio. Takes the arguments of :class:`redfence.Client`; belongs to the loop it is first used in.

    >>> async with AsyncClient(addresses) as rf:                         # doctest: +SKIP
    ...     async with rf.lock("wallet:7", ttl=30, wait=5) as lock:
    ...         await db.execute("UPDATE wallets SET fence = $1 ...", lock.fence())
    """

    def __init__(
        self,
        addresses: Union[str, Sequence[str]] = "redis://127.0.0.1:6380",
        *,
        ttl: float = 30.0,
        max_hold: Optional[float] = 3600.0,
        timeout: float = 15.0,
        request_timeout: float = 6.0,
        connect_timeout: float = 2.0,
        session_ttl: float = 30.0,
        sessions: bool = True,
        session_policy: Optional[str] = None,
        session_age: Optional[int] = None,
        name: Optional[str] = None,
        shuffle: bool = True,
        telemetry: Optional[bool] = None,
        clock: Clock = monotonic,
        **redis_options: Any,
    ) -> None:
        self._options: Dict[str, Any] = {"ttl": ttl, "max_hold": max_hold}
        #: Seconds to go on trying where servers do not answer.
        self.timeout = timeout
        self._telemetry = Telemetry(telemetry)
        self._context = Context(clock, timeout)
        self._context.sessions = sessions
        self._transport = Transport(check_urls(addresses), request_timeout, connect_timeout, shuffle, redis_options)
        opening = session_words(session_ttl, name, session_policy, session_age)
        self._renewer = Renewer(self._context, self._transport, session_ttl, opening)
        self._cleanups: Set["asyncio.Task[Any]"] = set()
        self._local_locks: Dict[Tuple[Resource, ...], asyncio.Lock] = {}
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._closed = False
        self._finished = False
        self._pid = os.getpid()
        dropped: Any = weakref.finalize(self, self._renewer.retire)
        dropped.atexit = False
        _CLIENTS.add(self)

    # ------------------------------------------------------------ locks

    def lock(
        self,
        name: Resource,
        *,
        ttl: Optional[float] = None,
        wait: float = 0.0,
        tier: Optional[str] = None,
        max_hold: Optional[float] = -1.0,
        value: Union[str, bytes, None] = None,
        transferable: bool = False,
        on_unavailable: str = "fail",
        explain: bool = False,
        cancel_on_loss: bool = True,
    ) -> AsyncPendingLock:
        """An exclusive lock, for ``async with`` or ``await ….acquire()``; see :meth:`redfence.Client.lock`."""
        return self._pending(
            [name], cancel_on_loss, ttl=ttl, wait=wait, tier=tier, max_hold=max_hold, value=value, transferable=transferable,
            on_unavailable=on_unavailable, explain=explain,
        )  # fmt: skip

    def shared(
        self,
        name: Resource,
        *,
        ttl: Optional[float] = None,
        wait: float = 0.0,
        max_hold: Optional[float] = -1.0,
        value: Union[str, bytes, None] = None,
        transferable: bool = False,
        explain: bool = False,
        cancel_on_loss: bool = True,
    ) -> AsyncPendingLock:
        """A reader's lock; see :meth:`redfence.Client.shared`."""
        return self._pending(
            [name], cancel_on_loss, kind="shared", ttl=ttl, wait=wait, max_hold=max_hold, value=value,
            transferable=transferable, explain=explain,
        )  # fmt: skip

    def permits(
        self,
        name: Resource,
        permits: int = 1,
        *,
        of: int,
        ttl: Optional[float] = None,
        wait: float = 0.0,
        max_hold: Optional[float] = -1.0,
        value: Union[str, bytes, None] = None,
        transferable: bool = False,
        explain: bool = False,
        cancel_on_loss: bool = True,
    ) -> AsyncPendingLock:
        """`permits` of a semaphore with `of` of them; see :meth:`redfence.Client.permits`."""
        return self._pending(
            [name], cancel_on_loss, kind="permits", permits=permits, permits_of=of, ttl=ttl, wait=wait, max_hold=max_hold,
            value=value, transferable=transferable, explain=explain,
        )  # fmt: skip

    def multi(
        self,
        names: Sequence[Resource],
        *,
        ttl: Optional[float] = None,
        wait: float = 0.0,
        tier: Optional[str] = None,
        max_hold: Optional[float] = -1.0,
        transferable: bool = False,
        on_unavailable: str = "fail",
        explain: bool = False,
        cancel_on_loss: bool = True,
    ) -> AsyncPendingLock:
        """Several locks, all or nothing; see :meth:`redfence.Client.multi`."""
        return self._pending(
            list(names), cancel_on_loss, multi=True, ttl=ttl, wait=wait, tier=tier, max_hold=max_hold,
            transferable=transferable, on_unavailable=on_unavailable, explain=explain,
        )  # fmt: skip

    def locked(self, name: str, *, lock_argument: Optional[str] = None, **options: Any) -> Callable[[F], F]:
        """A decorator for coroutine functions; see :meth:`redfence.Client.locked`."""

        def decorate(function: F) -> F:
            name_of = name_formatter(name, function)

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                async with self.lock(name_of(*args, **kwargs), **options) as lock:
                    if lock_argument is not None:
                        kwargs[lock_argument] = lock
                    return await function(*args, **kwargs)

            return cast(F, wrapper)

        return decorate

    async def adopt(self, token: str, *, max_hold: Optional[float] = -1.0) -> AsyncLock:
        """The lock of a ``token()``; see :meth:`redfence.Client.adopt`."""
        request, grant = parse_token(token)
        renewed = await self._run(_flows.renew(self._context, request, grant, time.monotonic() + self.timeout))
        if renewed is None:
            raise Lost(request.label, Loss("expired"))
        hold = self._options["max_hold"] if max_hold == -1.0 else max_hold
        return self._hold(request, renewed, None, math.inf if hold is None else hold)

    def election(self, name: Resource, *, ttl: Optional[float] = None) -> AsyncElection:
        """A leader election of that name: campaign, observe, resign."""
        return AsyncElection(self, name, ttl)

    def watch(self, pattern: str) -> AsyncWatch:
        """Events of locks, as a stream; see :meth:`redfence.Client.watch`."""
        return AsyncWatch(self._transport, pattern)

    # ------------------------------------------------------------ questions, fences

    async def info(self, name: Resource, *, tier: Optional[str] = None) -> LockInfo:
        """Who holds a lock, and how many wait."""
        checked = _wire.check_tier(tier)
        _wire.check_name(name)
        return parse_info(await self._ask(lambda dialect: dialect.info(name, checked), "info"))

    async def explain(self, name: Resource) -> Dict[str, Any]:
        """``LOCK.EXPLAIN``; see :meth:`redfence.Client.explain`."""
        _wire.check_name(name)
        return _wire.pairs(await self._ask(lambda dialect: dialect.plain("LOCK.EXPLAIN", name), "explain"))

    async def queue(self, name: Resource) -> List[Tuple[str, float]]:
        """Who waits for a lock and for how many seconds, first in line first."""
        _wire.check_name(name)
        reply = await self._ask(lambda dialect: dialect.plain("LOCK.QUEUE", name), "queue")
        return [(text_of(owner), waited / 1000) for owner, waited in reply]

    async def scan(self, match: str = "*") -> AsyncIterator[str]:
        """The names of held locks that match a glob."""
        cursor: Word = 0
        while True:
            words: Tuple[Word, ...] = (cursor, "MATCH", match, "COUNT", 1000)
            cursor, names = await self._run(_flows.ask_plain(self._context, "LOCK.SCAN", *words))
            for name in names:
                yield text_of(name)
            if int(cursor) == 0:
                return

    async def force_release(self, name: Resource) -> bool:
        """Takes a lock away from whoever holds it. For operators. False where it was free."""
        _wire.check_name(name)
        return bool(await self._ask(lambda dialect: dialect.plain("LOCK.FORCERELEASE", name), "force-release"))

    async def fence_check(self, name: Resource, fence: int) -> bool:
        """``FENCE.CHECK``: whether a fence is not behind the newest one seen, which it becomes."""
        return bool(await self._ask(lambda dialect: dialect.plain("FENCE.CHECK", name, fence), "fence check"))

    async def fence_get(self, name: Resource) -> int:
        """``FENCE.GET``: the newest fence seen, 0 if none."""
        return int(await self._ask(lambda dialect: dialect.plain("FENCE.GET", name), "fence get"))

    async def fence_call(self, name: Resource, fence: int, *command: Word) -> Any:
        """``FENCE.CALL``; see :meth:`redfence.Client.fence_call`."""
        return await self._run(_flows.fence_call(self._context, name, fence, command))

    # ------------------------------------------------------------ life

    @property
    def session_id(self) -> Optional[str]:
        """The id of the client's session, None where there is none (yet)."""
        session = self._context.keeper.session
        return None if session is None else session.id

    async def close(self) -> None:
        """Gives back every lock that is still held, closes the session and all connections. May be called twice."""
        if self._finished:
            return
        self._closed = True  # whoever is cancelled in here may call it again
        for lease in self._context.keeper.leases():
            self._context.keeper.remove(lease)
            if lease.lose(Loss("closed")):
                self._clean_up(_flows.release(self._context, lease.request, lease.fences, 2.0))
        await self._finish_cleanups()
        await self._renewer.stop()
        for lease in self._context.keeper.leases():  # granted meanwhile, and ended with the session
            self._context.keeper.remove(lease)
            lease.lose(Loss("closed"))
        await self._finish_cleanups()  # of waiters that were granted what was given back
        await self._transport.close()
        self._finished = True
        _CLIENTS.discard(self)

    aclose = close

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.close()

    # ------------------------------------------------------------ inside

    def _pending(self, names: Sequence[Resource], cancel_on_loss: bool, **options: Any) -> AsyncPendingLock:
        if options.get("ttl") is None:
            options["ttl"] = self._options["ttl"]
        if options["max_hold"] == -1.0:
            options["max_hold"] = self._options["max_hold"]
        options.setdefault("tier", None)
        options.setdefault("on_unavailable", "fail")
        return AsyncPendingLock(self, lock_options(names, **options), cancel_on_loss)

    async def _ask(self, make: Callable[[_wire.Dialect], _wire.Words], what: str) -> Any:
        return await self._run(_flows.ask(self._context, make, what))

    async def _run(self, flow: Flow[T], cleanup: bool = False) -> T:
        """Drives a flow with awaits."""
        if self._closed and not cleanup:
            raise InvalidRequest("the client is closed")
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop:
            raise InvalidRequest("this client belongs to another event loop: make one in each loop")
        self._loop = loop
        transport = self._transport
        try:
            step = next(flow)
            while True:
                try:
                    if type(step) is Call:
                        reply: Any = await transport.call(step.words, step.blocks)
                    elif type(step) is Pipeline:
                        reply = await transport.pipeline(step.words)
                    elif type(step) is Pause:
                        await asyncio.sleep(step.seconds)
                        reply = None
                    else:
                        reply = await self._renewer.session(cast(NeedSession, step).within)
                except Exception as error:
                    if self._closed and not cleanup:
                        flow.close()  # it would try again until its deadline
                        raise InvalidRequest("the client was closed") from error
                    step = flow.throw(error)
                else:
                    step = flow.send(reply)
        except StopIteration as stop:
            return cast(T, stop.value)

    def _clean_up(self, flow: Flow[Any]) -> None:
        """Runs a flow that nobody waits for. The task is the client's own: cancelling the caller does not touch it."""

        async def work() -> None:
            try:
                await self._run(flow, cleanup=True)
            except Exception as error:
                log.warning("clean-up failed, the lock is left to its ttl: %s", error)

        if self._loop is None or self._loop.is_closed():
            return
        task = self._loop.create_task(work())
        self._cleanups.add(task)
        task.add_done_callback(self._cleanups.discard)

    async def _finish_cleanups(self) -> None:
        if self._cleanups:
            _, late = await asyncio.wait(set(self._cleanups), timeout=max(3.0, self._transport.timeout))
            for task in late:
                task.cancel()

    async def _acquire(self, options: LockOptions) -> AsyncLock:
        request = options.request()
        acquisition = _flows.Acquisition(self._context, request, options.with_session, options.explain)
        span = self._telemetry.acquiring(request) if self._telemetry.active else None
        try:
            grant, session = await self._run(acquisition.flow())
        except BaseException as error:
            if span is not None:
                span.failed(error)
            if acquisition.may_have_left(error):
                self._clean_up(_flows.clean_up(self._context, request))
            if isinstance(error, (Unavailable, Indeterminate)) and options.on_unavailable != "fail":
                return await self._degraded(options, error)
            raise
        if span is not None:
            span.granted(grant)
        return self._hold(request, grant, session, options.max_hold)

    def _hold(self, request: _wire.LockRequest, grant: Grant, session: Any, max_hold: float) -> AsyncLock:
        lease = Lease(request, grant, session, self._context.clock() + max_hold, self._context.clock)
        lock = AsyncLock(self, lease)
        if session is not None and session.ended:
            lease.lose(Loss("session_ended"))
        else:
            self._context.keeper.add(lease)
            self._renewer.held(lease)
            if self._closed:  # looked at after it was added: either `close` finds the lease, or this finds the client closed
                self._context.keeper.remove(lease)
                if lease.lose(Loss("closed")):
                    self._clean_up(_flows.release(self._context, request, lease.fences, 2.0))
                raise InvalidRequest("the client was closed")
        return lock

    async def _degraded(self, options: LockOptions, error: RedfenceError) -> AsyncLock:
        local: Optional[asyncio.Lock] = None
        label = ", ".join(_wire.show(name) for name in options.names)
        if options.on_unavailable == "local":
            local = self._local_locks.setdefault(options.names, asyncio.Lock())
            if local.locked() and not options.wait_ms:
                raise Busy(label) from error
            try:
                await asyncio.wait_for(local.acquire(), options.wait_ms / 1000 or None)
            except asyncio.TimeoutError:
                raise Busy(label) from error
        log.warning("no lock server: %r goes on with on_unavailable=%r: %s", label, options.on_unavailable, error)
        request = replace(options.request(), ttl_ms=0)
        lease = Lease(request, Grant((0,) * len(request.names), 0, 0.0), None, math.inf, self._context.clock)
        return AsyncLocalLock(self, lease, options.on_unavailable, local)

    async def _release(self, lock: AsyncLock) -> Released:
        lease = lock._lease
        keeper = self._context.keeper
        if not lease.finish():
            if lease.loss is None:
                return Released("already_released")
            keeper.remove(lease)
            if lease.left_behind():
                self._clean_up(_flows.release(self._context, lease.request, lease.fences, 1.0, tries=1))
            return Released("lost")
        keeper.remove(lease)
        left = self.timeout if lease.session is not None else min(self.timeout, max(1.0, lease.deadline - lease.clock()))
        outcome = "error"
        try:
            outcome = await self._run(_flows.release(self._context, lease.request, lease.fences, left))
        except BaseException:
            self._clean_up(_flows.release(self._context, lease.request, lease.fences, max(left, 1.0)))
            raise
        finally:
            if self._telemetry.active:
                self._telemetry.released(lease.request, lease.clock() - lease.granted_at, outcome)
        return Released(outcome)

    async def _leave(self, lock: AsyncLock, error: Optional[BaseException]) -> None:
        """The end of an ``async with``. The body's own error is never replaced."""
        try:
            released = await lock.release()
        except RedfenceError as trouble:
            log.warning("release of %r at the end of its scope: %s", lock.name, trouble)
            return
        if error is None and not released and released.reason != "already_released":
            raise Lost(lock.name, lock._lease.loss or Loss(released.reason))

    async def _convert(self, lock: AsyncLock, kind: str, wait: float) -> None:
        shared = check_convert(lock, kind)
        wait_ms = _wire.check_ms(wait, "wait", 0, _wire.WAIT_MS_MAX)
        lease = lock._lease
        try:
            grant = await self._run(_flows.convert(self._context, lease, lease.request.names[0], shared, wait_ms))
        except BaseException:
            if lease.converting:
                self._clean_up(_flows.settle_conversion(self._context, lease))
            raise
        if not _flows.converted(self._context, lease, grant, kind):
            await lock.ensure(0.001)
            raise Busy(lock.name)
        if lease.loss is not None:  # by the own clock: nobody works under the new fence
            self._clean_up(_flows.release(self._context, lease.request, lease.fences, 2.0))
            raise Lost(lock.name, lease.loss)
        await self._run(_flows.renew_lease(self._context, lease, lease.until_deadline()))

    def _abandon(self, lease: Lease) -> None:
        """A handle that was dropped without release, perhaps in another thread."""
        self._context.keeper.remove(lease)
        loop = self._loop
        if lease.finish() and not self._closed and loop is not None and loop.is_running() and self._pid == os.getpid():
            flow = _flows.release(self._context, lease.request, lease.fences, 5.0)
            loop.call_soon_threadsafe(self._clean_up, flow)

    def _forked(self) -> None:
        """In the child of a fork: the locks, the loop and the connections are the parent's. Make a new client there."""
        self._pid = os.getpid()
        self._closed = True
        self._transport.forked()
        self._context.forked()

    def _stop_renewals(self) -> None:
        """For tests: as if this program were paused, seen from the server."""
        self._context.keeper.paused = True


_CLIENTS: "weakref.WeakSet[AsyncClient]" = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_CLIENTS):
        client._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
