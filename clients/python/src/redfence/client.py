"""The threaded client."""

from __future__ import annotations

import functools
import logging
import math
import os
import sys
import threading
import time
import weakref
from dataclasses import replace
from types import TracebackType
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Type, TypeVar, Union, cast

from . import _flows, _wire
from ._flows import Call, Context, Flow, NeedSession, Pause, Pipeline
from ._handle import Released, parse_token
from ._lease import Clock, Lease, monotonic
from ._options import LockOptions, lock_options, name_formatter, session_words
from ._redis import check_urls
from ._renewer import Cleanup, Renewer
from ._telemetry import Telemetry
from ._transport import Transport
from ._wire import Grant, LockInfo, Resource, Word, parse_info, text_of
from .election import Election
from .errors import Busy, Indeterminate, InvalidRequest, Loss, Lost, RedfenceError, Unavailable
from .lock import LocalLock, Lock, PendingLock, check_convert
from .watch import Watch

__all__ = ["Client"]

log = logging.getLogger("redfence")
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class Client:
    """Locks of a Redfence cluster, or of a Redis with Redfence's module or Lua library. For threads.

    :param addresses: one address or several (``"redis://n1:6380"``, ``"host:port"``). Any node will do; the client moves on when one dies.
    :param ttl: seconds a lock lives without renewal, unless a lock says otherwise.
    :param max_hold: seconds after which a lock is not renewed any more, unless a lock says otherwise. None: for ever.
    :param timeout: seconds to go on trying where servers do not answer, beside the wait for a taken lock.
    :param request_timeout: seconds for the reply to one request. Longer than the server's own deadline (5 s).
    :param connect_timeout: seconds to connect to one address.
    :param session_ttl: seconds the client's session lives without a keep-alive.
    :param sessions: False: no session. Locks then live for their ttl after a crash, and circles of waiting clients are not seen.
    :param session_policy: what happens where sessions wait for each other: ``"detect"`` (the server's default: :class:`Deadlock` for the one that
        would close a circle), ``"wait-die"`` (waits only for younger ones, else :class:`Deadlock`), ``"wound-wait"`` (takes the lock from a
        younger one, which is told: cause ``wounded``).
    :param session_age: orders sessions for these policies, older is smaller; by default the order of opening. A client that starts its work again
        gives the number it had. It can only make a session younger.
    :param name: shown by the server as the session's name.
    :param shuffle: begin with a random address rather than the first.
    :param telemetry: True or False, or None: OpenTelemetry if the application has set it up.
    :param clock: a monotonic clock, for tests.
    :param redis_options: further arguments for redis-py's connections, for example ``username``, ``password`` or ``ssl_ca_certs``.

    One client is enough for a process. It has at most three threads and a few connections, however many locks it holds.

    >>> with Client(addresses) as rf:                                    # doctest: +SKIP
    ...     with rf.lock("wallet:7", ttl=30, wait=5) as lock:
    ...         db.execute("UPDATE wallets SET fence = %s ...", lock.fence())
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
        self._cleanup = Cleanup(self._run)
        self._local_locks: Dict[Tuple[Resource, ...], threading.Lock] = {}
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
    ) -> PendingLock:
        """An exclusive lock, for ``with`` or :meth:`PendingLock.acquire`.

        :param ttl: seconds the lock lives without renewal; the client renews it at a third of that.
        :param wait: seconds to wait for a taken lock, first come, first served. 0: :class:`Busy` at once.
        :param tier: ``"correctness"`` or ``"efficiency"``; by default what the server's routes say.
        :param max_hold: seconds after which it is not renewed any more. None: for ever.
        :param value: up to 1,024 bytes that others see in :meth:`info` and in events. Needs a server that has it.
        :param transferable: not bound to this client's session, so that :meth:`Lock.token` may hand it to another process.
        :param on_unavailable: ``"fail"``; or, for ``tier="efficiency"`` alone, ``"proceed"`` without a lock or ``"local"`` with a lock of this
            process. Both are logged as a warning, and :attr:`Lock.degraded` says so.
        :param explain: :class:`Busy` tells holder and queue position, at the price of one more request.
        """
        return self._pending(
            [name], ttl=ttl, wait=wait, tier=tier, max_hold=max_hold, value=value, transferable=transferable,
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
    ) -> PendingLock:
        """A reader's lock: any number of them at a time, and no exclusive one beside them. Tier 2 only.

        Its fence says who holds, and orders nothing: guard writes with an exclusive lock.
        """
        return self._pending(
            [name], kind="shared", ttl=ttl, wait=wait, max_hold=max_hold, value=value, transferable=transferable, explain=explain
        )

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
    ) -> PendingLock:
        """`permits` of a semaphore with `of` of them. Tier 2 only."""
        return self._pending(
            [name], kind="permits", permits=permits, permits_of=of, ttl=ttl, wait=wait, max_hold=max_hold, value=value,
            transferable=transferable, explain=explain,
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
    ) -> PendingLock:
        """Several locks, all or nothing. Two multi-locks never deadlock each other."""
        return self._pending(
            list(names), multi=True, ttl=ttl, wait=wait, tier=tier, max_hold=max_hold, transferable=transferable,
            on_unavailable=on_unavailable, explain=explain,
        )  # fmt: skip

    def locked(self, name: str, *, lock_argument: Optional[str] = None, **options: Any) -> Callable[[F], F]:
        """A decorator: the function runs under the lock. The name may use the function's arguments: ``"invoice:{id}"``.

        :param lock_argument: the keyword under which the function gets the handle.
        """

        def decorate(function: F) -> F:
            name_of = name_formatter(name, function)

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                with self.lock(name_of(*args, **kwargs), **options) as lock:
                    if lock_argument is not None:
                        kwargs[lock_argument] = lock
                    return function(*args, **kwargs)

            return cast(F, wrapper)

        return decorate

    def adopt(self, token: str, *, max_hold: Optional[float] = -1.0) -> Lock:
        """The lock of a :meth:`Lock.token`, made in this or another process. Raises :class:`Lost` where it has ended meanwhile.

        Adopt a token once. Two that adopt the same have the same fence, so that no resource can tell them apart; each finds out only when the
        other one has given the lock back.
        """
        request, grant = parse_token(token)
        give_up_at = time.monotonic() + self.timeout
        renewed = self._run(_flows.renew(self._context, request, grant, give_up_at))
        if renewed is None:
            raise Lost(request.label, Loss("expired"))
        hold = self._options["max_hold"] if max_hold == -1.0 else max_hold
        return self._hold(request, renewed, None, math.inf if hold is None else hold)

    def election(self, name: Resource, *, ttl: Optional[float] = None) -> Election:
        """A leader election of that name: campaign, observe, resign."""
        return Election(self, name, ttl)

    def watch(self, pattern: str) -> Watch:
        """Events of locks, as a stream: for dashboards and logs, not for control flow. The pattern is a glob over names."""
        return Watch(self._transport, pattern)

    # ------------------------------------------------------------ questions, fences

    def info(self, name: Resource, *, tier: Optional[str] = None) -> LockInfo:
        """Who holds a lock, and how many wait."""
        checked = _wire.check_tier(tier)
        _wire.check_name(name)
        return parse_info(self._ask(lambda dialect: dialect.info(name, checked), "info"))

    def explain(self, name: Resource) -> Dict[str, Any]:
        """``LOCK.EXPLAIN``: holders, queue, what they wait for themselves, and how long it usually takes. Needs a server that has it."""
        _wire.check_name(name)
        return _wire.pairs(self._ask(lambda dialect: dialect.plain("LOCK.EXPLAIN", name), "explain"))

    def queue(self, name: Resource) -> List[Tuple[str, float]]:
        """Who waits for a lock and for how many seconds, first in line first."""
        _wire.check_name(name)
        reply = self._ask(lambda dialect: dialect.plain("LOCK.QUEUE", name), "queue")
        return [(text_of(owner), waited / 1000) for owner, waited in reply]

    def scan(self, match: str = "*") -> Iterator[str]:
        """The names of held locks that match a glob."""
        cursor: Word = 0
        while True:
            words: Tuple[Word, ...] = (cursor, "MATCH", match, "COUNT", 1000)
            cursor, names = self._run(_flows.ask_plain(self._context, "LOCK.SCAN", *words))
            yield from (text_of(name) for name in names)
            if int(cursor) == 0:
                return

    def force_release(self, name: Resource) -> bool:
        """Takes a lock away from whoever holds it. For operators. False where it was free."""
        _wire.check_name(name)
        return bool(self._ask(lambda dialect: dialect.plain("LOCK.FORCERELEASE", name), "force-release"))

    def fence_check(self, name: Resource, fence: int) -> bool:
        """``FENCE.CHECK``: whether a fence is not behind the newest one seen, which it becomes."""
        return bool(self._ask(lambda dialect: dialect.plain("FENCE.CHECK", name, fence), "fence check"))

    def fence_get(self, name: Resource) -> int:
        """``FENCE.GET``: the newest fence seen, 0 if none."""
        return int(self._ask(lambda dialect: dialect.plain("FENCE.GET", name), "fence get"))

    def fence_call(self, name: Resource, fence: int, *command: Word) -> Any:
        """``FENCE.CALL``: a Redis command that runs only if the fence is not stale; else :class:`StaleFence`.

        It is not repeated when its reply is lost, because commands in general cannot be: :class:`Indeterminate`.
        """
        return self._run(_flows.fence_call(self._context, name, fence, command))

    # ------------------------------------------------------------ life

    @property
    def session_id(self) -> Optional[str]:
        """The id of the client's session, None where there is none (yet)."""
        session = self._context.keeper.session
        return None if session is None else session.id

    def close(self) -> None:
        """Gives back every lock that is still held, closes the session and all connections. May be called twice."""
        if self._finished:
            return
        self._closed = True  # whoever is interrupted in here may call it again
        leases = self._context.keeper.leases()
        for lease in leases:
            self._context.keeper.remove(lease)
            if lease.lose(Loss("closed")):
                self._cleanup.add(_flows.release(self._context, lease.request, lease.fences, 2.0))
        self._cleanup.finish(max(3.0, self._transport.timeout))
        self._renewer.stop()
        for lease in self._context.keeper.leases():  # granted meanwhile, and ended with the session
            self._context.keeper.remove(lease)
            lease.lose(Loss("closed"))
        self._cleanup.finish(max(3.0, self._transport.timeout))  # of waiters that were granted what was given back
        self._transport.close()
        self._finished = True
        _CLIENTS.discard(self)

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    # ------------------------------------------------------------ inside

    def _pending(self, names: Sequence[Resource], **options: Any) -> PendingLock:
        return PendingLock(self, self._checked(names, options))

    def _checked(self, names: Sequence[Resource], options: Dict[str, Any]) -> LockOptions:
        if options.get("ttl") is None:
            options["ttl"] = self._options["ttl"]
        if options["max_hold"] == -1.0:
            options["max_hold"] = self._options["max_hold"]
        options.setdefault("tier", None)
        options.setdefault("on_unavailable", "fail")
        return lock_options(names, **options)

    def _ask(self, make: Callable[[_wire.Dialect], _wire.Words], what: str) -> Any:
        return self._run(_flows.ask(self._context, make, what))

    def _run(self, flow: Flow[T]) -> T:
        """Drives a flow with blocking calls."""
        if self._closed and threading.current_thread().name != "redfence-cleanup":
            raise InvalidRequest("the client is closed")
        transport = self._transport
        try:
            step = next(flow)
            while True:
                try:
                    if type(step) is Call:
                        reply: Any = transport.call(step.words, step.blocks)
                    elif type(step) is Pipeline:
                        reply = transport.pipeline(step.words)
                    elif type(step) is Pause:
                        time.sleep(step.seconds)
                        reply = None
                    else:
                        reply = self._renewer.session(cast(NeedSession, step).within)
                except Exception as error:
                    if self._closed and threading.current_thread().name != "redfence-cleanup":
                        flow.close()  # it would try again until its deadline
                        raise InvalidRequest("the client was closed") from error
                    step = flow.throw(error)
                else:
                    step = flow.send(reply)
        except StopIteration as stop:
            return cast(T, stop.value)

    def _acquire(self, options: LockOptions) -> Lock:
        request = options.request()
        acquisition = _flows.Acquisition(self._context, request, options.with_session, options.explain)
        span = self._telemetry.acquiring(request) if self._telemetry.active else None
        try:
            grant, session = self._run(acquisition.flow())
        except BaseException as error:
            if span is not None:
                span.failed(error)
            if acquisition.may_have_left(error):
                self._cleanup.add(_flows.clean_up(self._context, request))
            if isinstance(error, (Unavailable, Indeterminate)) and options.on_unavailable != "fail":
                return self._degraded(options, error)
            raise
        if span is not None:
            span.granted(grant)
        return self._hold(request, grant, session, options.max_hold)

    def _hold(self, request: _wire.LockRequest, grant: Grant, session: Any, max_hold: float) -> Lock:
        lease = Lease(request, grant, session, self._context.clock() + max_hold, self._context.clock)
        lock = Lock(self, lease)
        if session is not None and session.ended:
            lease.lose(Loss("session_ended"))
        else:
            self._context.keeper.add(lease)
            self._renewer.held(lease)
            if self._closed:  # looked at after it was added: either `close` finds the lease, or this finds the client closed
                self._context.keeper.remove(lease)
                if lease.lose(Loss("closed")):
                    self._cleanup.add(_flows.release(self._context, request, lease.fences, 2.0))
                raise InvalidRequest("the client was closed")
        return lock

    def _degraded(self, options: LockOptions, error: RedfenceError) -> Lock:
        """Goes on without the server, as the caller asked for; never silently."""
        local: Optional[threading.Lock] = None
        if options.on_unavailable == "local":
            local = self._local_locks.setdefault(options.names, threading.Lock())
            if not local.acquire(timeout=options.wait_ms / 1000 if options.wait_ms else 0):
                raise Busy(", ".join(_wire.show(name) for name in options.names)) from error
        request = options.request()
        log.warning("no lock server: %r goes on with on_unavailable=%r: %s", request.label, options.on_unavailable, error)
        request = replace(request, ttl_ms=0)
        lease = Lease(request, Grant((0,) * len(request.names), 0, 0.0), None, math.inf, self._context.clock)
        return LocalLock(self, lease, options.on_unavailable, local)

    def _release(self, lock: Lock) -> Released:
        lease = lock._lease
        keeper = self._context.keeper
        if not lease.finish():
            if lease.loss is None:
                return Released("already_released")
            keeper.remove(lease)
            if lease.left_behind():  # the server may not know yet: one try, and nobody waits for it
                self._cleanup.add(_flows.release(self._context, lease.request, lease.fences, 1.0, tries=1))
            return Released("lost")
        keeper.remove(lease)
        left = self.timeout if lease.session is not None else min(self.timeout, max(1.0, lease.deadline - lease.clock()))
        outcome = "error"
        try:
            outcome = self._run(_flows.release(self._context, lease.request, lease.fences, left))
        except BaseException:
            self._cleanup.add(_flows.release(self._context, lease.request, lease.fences, max(left, 1.0)))
            raise
        finally:
            if self._telemetry.active:
                self._telemetry.released(lease.request, lease.clock() - lease.granted_at, outcome)
        return Released(outcome)

    def _leave(self, lock: Lock, error: Optional[BaseException]) -> None:
        """The end of a ``with``. The body's own error is never replaced."""
        try:
            released = lock.release()
        except RedfenceError as trouble:
            log.warning("release of %r at the end of its scope: %s", lock.name, trouble)
            return
        if error is None and not released and released.reason != "already_released":
            raise Lost(lock.name, lock._lease.loss or Loss(released.reason))

    def _convert(self, lock: Lock, kind: str, wait: float) -> None:
        shared = check_convert(lock, kind)
        wait_ms = _wire.check_ms(wait, "wait", 0, _wire.WAIT_MS_MAX)
        lease = lock._lease
        try:
            grant = self._run(_flows.convert(self._context, lease, lease.request.names[0], shared, wait_ms))
        except BaseException:
            if lease.converting:
                self._cleanup.add(_flows.settle_conversion(self._context, lease))
            raise
        if not _flows.converted(self._context, lease, grant, kind):
            lock.ensure(0.001)
            raise Busy(lock.name)
        if lease.loss is not None:  # by the own clock: nobody works under the new fence
            self._cleanup.add(_flows.release(self._context, lease.request, lease.fences, 2.0))
            raise Lost(lock.name, lease.loss)
        self._run(_flows.renew_lease(self._context, lease, lease.until_deadline()))

    def _abandon(self, lease: Lease) -> None:
        """A handle that was dropped without release."""
        self._context.keeper.remove(lease)
        # At the end of the program no thread can be started any more: the session, or the ttl, ends it.
        if lease.finish() and not self._closed and self._pid == os.getpid() and not sys.is_finalizing():
            self._cleanup.add(_flows.release(self._context, lease.request, lease.fences, 5.0))

    def _forked(self) -> None:
        """In the child of a fork: the locks, the session and the connections are the parent's."""
        self._pid = os.getpid()
        self._transport.forked()
        self._renewer.forked()
        self._cleanup.forked()
        self._context.forked()
        self._local_locks = {}

    def _stop_renewals(self) -> None:
        """For tests: as if this program were paused, seen from the server."""
        self._context.keeper.paused = True


_CLIENTS: "weakref.WeakSet[Client]" = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_CLIENTS):
        client._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
