"""The background tasks of an asyncio client: one that renews, one that listens; deadlines are timers of the loop."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any, Optional, Set

from .._flows import Context, ReplyLost, Silent, Unreachable
from .._lease import Batch, Lease, Naps, SessionLease
from .._renewer import ORPHAN_KEEPALIVE_EVERY, ORPHAN_KEEPALIVE_FOR
from .._retry import Backoff
from .._wire import Refusal, Words, parse_push, text_of
from ._transport import Link, Transport

log = logging.getLogger("redfence")
#: What ends behind dropped clients. A loop itself does not keep its tasks.
_RETIRING: Set["asyncio.Task[None]"] = set()


async def _end(task: "asyncio.Task[None]") -> None:
    """Cancels until it has ended: before Python 3.12, `asyncio.wait_for`, which redis-py sends with, may swallow a cancellation."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.25)
    await asyncio.gather(task, return_exceptions=True)


class Renewer:
    """Started with the first lock; stopped with the client."""

    def __init__(self, context: Context, transport: Transport, session_ttl: float, opening: Words) -> None:
        self.context = context
        self.transport = transport
        self.session_ttl = session_ttl
        self.opening = opening
        self._task: Optional["asyncio.Task[None]"] = None
        self._listener: Optional["asyncio.Task[None]"] = None
        self._listener_link: Optional[Link] = None
        self._link: Optional[Link] = None
        self._opening: Optional["asyncio.Future[Optional[SessionLease]]"] = None
        self._orphan_until = 0.0
        self._next_due = -math.inf
        self._timer: Optional[asyncio.TimerHandle] = None
        self._timer_at = math.inf
        self._backoff = Backoff(0.02, 0.5)
        self.rounds = 0
        self._naps = Naps()
        self._stopped = False

    # -- called by the client

    def start(self) -> None:
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            self._wake_event = asyncio.Event()
            self._task = self._loop.create_task(self._run())

    def held(self, lease: Lease) -> None:
        """A lock was added."""
        self.start()
        self._naps.lock(lease.ttl)
        if lease.renew_at < self._next_due:
            self.wake()
        if lease.deadline < self._timer_at:
            self._arm()

    def wake(self) -> None:
        if self._task is not None:
            self._next_due = -math.inf
            self._wake_event.set()

    def clock_moved(self) -> None:
        """A clock of a test was turned, perhaps by another thread."""
        if self._task is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tick)
            self._loop.call_soon_threadsafe(self.wake)

    async def session(self, within: float) -> Optional[SessionLease]:
        """The session, opened if need be; None where the server has none."""
        session = self.context.keeper.session
        if session is not None or not self.context.sessions:
            return session
        if self._stopped:
            raise Unreachable("the client is closed")
        self.start()
        if self._opening is None:
            self._opening = self._loop.create_future()
            self.wake()
        try:
            return await asyncio.wait_for(asyncio.shield(self._opening), within)
        except asyncio.TimeoutError:
            raise Unreachable(f"no session could be opened within {within:.1f} s") from None

    async def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for task in (self._listener, self._task):
            if task is not None:
                await _end(task)
        if self._opening is not None:
            self._refuse(self._opening)
        session = self.context.keeper.session
        if session is not None and self._link is not None:
            try:
                await self._link.pipeline([("LOCK.SESSION", "CLOSE", session.id)], 1.0)
            except (ReplyLost, Refusal):
                pass
        for link in (self._link, self._listener_link):
            if link is not None:
                await link.close()

    def retire(self) -> None:
        """The client was dropped without `close()`, perhaps in another thread: nothing of it may stay."""
        if self._task is None or self._task.done():
            return

        async def end() -> None:
            await self.stop()
            await self.transport.close()

        def begin() -> None:
            ending = self._loop.create_task(end())
            _RETIRING.add(ending)
            ending.add_done_callback(_RETIRING.discard)

        try:
            self._loop.call_soon_threadsafe(begin)
        except RuntimeError:
            pass  # the loop is closed, and with it all tasks

    # -- deadlines

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = min((lease.deadline for lease in self.context.keeper.leases()), default=math.inf)
        if self._timer_at < math.inf and not getattr(self.context.clock, "manual", False):
            self._timer = self._loop.call_later(max(0.0, self._timer_at - self.context.clock()), self._tick)

    def _tick(self) -> None:
        self.context.keeper.expire()
        self._arm()

    # -- the task

    async def _run(self) -> None:
        while True:
            self._next_due = min(self.context.keeper.next_due(), self._naps.until(self.context.clock()))
            pause = self._next_due - self.context.clock()
            self.rounds += 1
            if pause > 0 and self._opening is None:
                await self._sleep(pause)
            await self._round()

    async def _sleep(self, pause: float) -> None:
        self._wake_event.clear()
        manual = getattr(self.context.clock, "manual", False)
        timer = None if manual or pause == math.inf else self._loop.call_later(pause, self._wake_event.set)
        idle = None if self._link is None else self._loop.create_task(self._link.closed())
        if idle is not None:
            idle.add_done_callback(lambda _: self._wake_event.set())
        try:
            await self._wake_event.wait()
        finally:
            if timer is not None:
                timer.cancel()
            if idle is not None:
                ended = idle.done()
                idle.cancel()
                await asyncio.gather(idle, return_exceptions=True)
                if ended:  # the session needs a keep-alive at once
                    await self._lost_link()

    async def _round(self) -> None:
        keeper = self.context.keeper
        keeper.expire()
        try:
            if self._opening is not None:
                await self._open_session()
            batch = keeper.batch(self.context.dialect)
            if batch is not None:
                await self._send(batch)
                if self._loop.time() < self._orphan_until:
                    keeper.touch_session(ORPHAN_KEEPALIVE_EVERY)
            self._backoff = Backoff(0.02, 0.5)
        except (Unreachable, ReplyLost, Refusal) as error:
            log.debug("renewer: %s", error)
            await asyncio.sleep(self._backoff.next())
        except Exception:
            log.exception("renewer: unexpected error; it goes on")
            await asyncio.sleep(0.5)

    async def _ask(self, words: Any, timeout: float) -> Any:
        if self._link is None:
            # Time must be left for another node, where the first one hangs.
            now = self.context.clock()
            left = max(0.0, min((lease.deadline - now for lease in self.context.keeper.leases()), default=math.inf))
            self._link = await self.transport.link(within=left / (len(self.transport.nodes) + 1))
        try:
            return await self._link.pipeline(words, timeout)
        except ReplyLost as error:
            await self._lost_link(silent=isinstance(error, Silent))
            raise

    async def _lost_link(self, silent: bool = False) -> None:
        link, self._link = self._link, None
        if link is None:
            return
        await link.close()
        if silent:
            await self.transport.silent(link.index)
        self._orphan_until = self._loop.time() + ORPHAN_KEEPALIVE_FOR
        self.context.keeper.orphaned()
        if self._listener_link is not None and self._listener_link.index == link.index:
            await self._listener_link.close()

    async def _leave_node(self) -> None:
        """This node has no leader; another one may."""
        if self._link is not None and len(self.transport.nodes) > 1:
            self.transport.addresses.move_on(self._link.index)
            await self._lost_link()

    async def _send(self, batch: Batch) -> None:
        ttls = [lease.ttl for lease in batch.targets if lease is not None and lease.ttl > 0]
        if batch.session is not None:
            ttls.append(batch.session.ttl)
        timeout = max(0.1, min(self.transport.timeout, min(ttls) / 4))
        replies: Any = []
        for attempt in (1, 2):  # a connection that was closed while idle costs one try, and no wait
            try:
                batch.sent = self.context.clock()
                replies = await self._ask(batch.words, timeout)
                break
            except ReplyLost:
                if attempt == 2:
                    self.context.keeper.failed(batch)
                    raise
            except BaseException:
                self.context.keeper.failed(batch)
                raise
        if any(isinstance(reply, Refusal) and reply.code == "UNAVAILABLE" for reply in replies):
            await self._leave_node()
        self.context.keeper.settle(batch, replies)
        self._arm()

    async def _open_session(self) -> None:
        keeper = self.context.keeper
        opening, self._opening = self._opening, None
        assert opening is not None
        try:
            if keeper.session is None and self.context.sessions:
                sent = self.context.clock()
                (reply,) = await self._ask([self.opening], self._session_timeout())
                if isinstance(reply, Refusal):
                    await self._no_session(reply)
                else:
                    keeper.session = SessionLease(text_of(reply), self.session_ttl, sent)
                    self._listen(keeper.session)
        except BaseException as error:
            if not opening.done():
                if isinstance(error, Exception):
                    opening.set_exception(error)
                    opening.exception()  # whoever asked may have gone: then nobody looks at it
                else:
                    self._refuse(opening)
            raise
        if not opening.done():
            opening.set_result(keeper.session)

    @staticmethod
    def _refuse(opening: "asyncio.Future[Any]") -> None:
        """Nobody opens a session any more. Whoever waits for one was not cancelled."""
        if not opening.done():
            opening.set_exception(Unreachable("the client is closed"))
            opening.exception()  # whoever asked may have gone: then nobody looks at it

    def _particular(self) -> bool:
        """Whether the application asked for something that must not be left out silently."""
        return "POLICY" in self.opening or "AGE" in self.opening

    def _session_timeout(self) -> float:
        """Locks without a session are renewed by the same task: a silent node must not hold it up for long."""
        ttls = [lease.ttl for lease in self.context.keeper.leases() if lease.ttl > 0]
        return max(0.1, min([self.transport.timeout, *(ttl / 4 for ttl in ttls)]))

    async def _no_session(self, refusal: Refusal) -> None:
        if refusal.code == "TIER" or self.context.other_dialect(refusal) or (refusal.unsupported and not self._particular()):
            self.context.sessions = False
            return
        if refusal.code == "UNAVAILABLE":
            await self._leave_node()
        raise refusal

    # -- pushes

    def _listen(self, session: SessionLease) -> None:
        if self._listener is not None:
            self._listener.cancel()
        self._listener = self._loop.create_task(self._listen_for(session))

    async def _listen_for(self, session: SessionLease) -> None:
        backoff = Backoff(0.02, 1.0)
        link: Optional[Link] = None
        try:
            while not session.ended:
                try:
                    self._listener_link = link = await self.transport.link()
                    (held,) = await link.pipeline([("LOCK.NOTIFY", "ON", "SESSION", session.id)], self.transport.timeout)
                    if isinstance(held, Refusal):
                        if held.code != "UNAVAILABLE":
                            self.context.keeper.touch_session(0.0)
                            self.wake()
                            return  # an older server, or the session is gone: the renewer notices losses
                        raise held
                    self.context.keeper.still_held(session, [(name, int(fence)) for name, fence in held])
                    self.wake()
                    backoff = Backoff(0.02, 1.0)
                    link.connection.socket_timeout = None
                    while not session.ended:
                        notice = parse_push(await link.connection.read_response(push_request=True))
                        if notice is not None:
                            self.context.keeper.notice(notice)
                except (Unreachable, ReplyLost, Refusal, OSError, Exception) as error:
                    log.debug("listener: %s", error)
                    if link is not None:
                        await link.close()
                    await asyncio.sleep(backoff.next())
        finally:
            if link is not None:
                await link.close()
