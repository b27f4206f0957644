"""The threads of a client: one that renews, one that listens, and one for clean-up while there is any.

However many locks a client holds, it has one renewer. It opens the session and keeps it alive on a connection of its own, sends all
renewals that are due in one batch, and watches the deadlines. It never blocks for longer than the next deadline.
"""

from __future__ import annotations

import logging
import math
import queue
import selectors
import socket
import threading
import time
from typing import Any, Callable, Optional

from ._flows import Context, Flow, ReplyLost, Silent, Unreachable
from ._lease import Batch, Lease, Naps, SessionLease
from ._retry import Backoff
from ._transport import Link, Transport
from ._wire import Refusal, Words, parse_push, text_of

log = logging.getLogger("redfence")

#: After a lost connection: keep-alives this often, for this long. The server counts its grace time from when *it* sees the end.
ORPHAN_KEEPALIVE_EVERY = 0.15
ORPHAN_KEEPALIVE_FOR = 1.2
CLEANUP_IDLE_SECONDS = 2.0
CLEANUP_QUEUE_MAX = 10_000
#: Not `select()`, which has no room for descriptors above 1023; and `poll()` where there is one, which needs no descriptor of its own.
SELECTOR: Any = getattr(selectors, "PollSelector", selectors.DefaultSelector)


def _bell() -> "tuple[socket.socket, socket.socket]":
    """What wakes the renewer: a byte in a socket, so that it can wait for its connection at the same time."""
    heard, rung = socket.socketpair()
    rung.setblocking(False)
    return heard, rung


class Renewer:
    """Started with the first lock; stopped with the client."""

    def __init__(self, context: Context, transport: Transport, session_ttl: float, opening: Words) -> None:
        self.context = context
        self.transport = transport
        self.session_ttl = session_ttl
        self.opening = opening
        self._reset()

    def _reset(self) -> None:
        self._wake = threading.Condition()
        self._bell, self._ring = _bell()
        self._thread: Optional[threading.Thread] = None
        self._stopping = False
        self._retired = False
        self._session_wanted = False
        self._session_error: Optional[BaseException] = None
        self._link: Optional[Link] = None
        self._listener: Optional[Listener] = None
        self._orphan_until = 0.0
        self._next_due = -math.inf
        self._retry_at = 0.0
        self._backoff = Backoff(0.02, 0.5)
        self._rounds = 0
        self._naps = Naps()

    def forked(self) -> None:
        link, listener = self._link, self._listener
        self._bell.close()
        self._ring.close()
        self._reset()
        if link is not None:
            link.close()
        if listener is not None and listener.link is not None:
            listener.link.close()

    # -- called by the client's threads

    def start(self) -> None:
        if self._thread is None:
            with self._wake:
                if self._thread is None and not self._stopping:
                    self._thread = threading.Thread(target=self._run, name="redfence-renewer", daemon=True)
                    self._thread.start()

    def held(self, lease: Lease) -> None:
        """A lock was added: wake up if it is due before everything else."""
        self.start()
        self._naps.lock(lease.ttl)
        if lease.renew_at < self._next_due or lease.deadline < self._next_due:
            self.wake()

    def wake(self) -> None:
        with self._wake:
            self._next_due = -math.inf
            self._ring_bell()

    def _ring_bell(self) -> None:
        try:
            self._ring.send(b"!")
        except OSError:
            pass  # full: it is awake; closed: it has ended

    def session(self, within: float) -> Optional[SessionLease]:
        """The session, opened if need be; None where the server has none."""
        session = self.context.keeper.session
        if session is not None or not self.context.sessions:
            return session
        self.start()
        with self._wake:
            self._session_wanted = True
            self._session_error = None
            self._next_due = -math.inf
            self._ring_bell()
            self._wake.wait_for(self._session_settled, within)
            if self.context.keeper.session is None and self.context.sessions:
                error = self._session_error
                raise error if error is not None else Unreachable(f"no session could be opened within {within:.1f} s")
        return self.context.keeper.session

    def _session_settled(self) -> bool:
        return (
            self.context.keeper.session is not None
            or not self.context.sessions
            or self._session_error is not None
            or self._stopping
        )

    def stop(self) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
            self._ring_bell()
        thread = self._thread
        if thread is None:
            self._bell.close()
            self._ring.close()
        elif thread is not threading.current_thread():
            thread.join(self.transport.timeout + 1)

    def retire(self) -> None:
        """The client was dropped without `close()`: nothing of it may stay, least of all a session that is kept alive for ever. Waits for nobody."""
        self._stopping = self._retired = True
        if self._thread is None:
            self._bell.close()
            self._ring.close()
            self.transport.close()
        else:
            self._ring_bell()

    def settled(self, timeout: float = 10.0) -> None:
        """Waits until everything that is due now was done. For tests with a clock that is turned by hand."""
        if self._thread is None:
            return
        for _ in range(2):  # the first round may have begun before the clock was turned
            with self._wake:
                rounds = self._rounds
                self._next_due = -math.inf
                self._ring_bell()
                self._wake.wait_for(lambda: self._rounds > rounds, timeout)

    # -- the thread

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._sleep()
                if not self._stopping:
                    self._round()
        finally:
            self._close_session()
            if self._retired:
                self.transport.close()
            self._bell.close()
            self._ring.close()

    def _sleep(self) -> None:
        with self._wake:
            self._rounds += 1
            self._wake.notify_all()
            due = min(self.context.keeper.next_due(), self._naps.until(self.context.clock()))
            if self._session_wanted or self._stopping:
                due = -math.inf
            self._next_due = due
            pause = due - self.context.clock()
            if time.monotonic() < self._retry_at:
                pause = max(pause, 0.0)
                pause = min(max(pause, self._retry_at - time.monotonic()), self._until_deadline())
        if pause > 0:
            manual = getattr(self.context.clock, "manual", False)
            self._wait(None if manual or pause == math.inf else min(pause, 3600.0))

    def _wait(self, seconds: Optional[float]) -> None:
        """Until the bell rings, time is up, or the server closes the connection: then the session needs a keep-alive at once."""
        link = self._link
        sock = None if link is None else getattr(link.connection, "_sock", None)
        try:
            with SELECTOR() as selector:
                selector.register(self._bell, selectors.EVENT_READ)
                if sock is not None:
                    selector.register(sock, selectors.EVENT_READ)
                ready = [key.fileobj for key, _ in selector.select(seconds)]
        except (OSError, ValueError):  # the connection was closed by another thread
            self._lost_link()
            return
        if self._bell in ready:
            self._bell.recv(4096)
        if sock in ready and link is not None and not link.is_quiet():
            self._lost_link()

    def _until_deadline(self) -> float:
        """Seconds to the next moment at which somebody must be told of a loss."""
        now = self.context.clock()
        return max(0.0, min((lease.deadline - now for lease in self.context.keeper.leases()), default=math.inf))

    def _round(self) -> None:
        keeper = self.context.keeper
        keeper.expire()
        try:
            if self._session_wanted:
                self._open_session()
            batch = keeper.batch(self.context.dialect)
            if batch is not None:
                self._send(batch)
                if time.monotonic() < self._orphan_until:
                    keeper.touch_session(ORPHAN_KEEPALIVE_EVERY)
            self._retry_at = 0.0
            self._backoff = Backoff(0.02, 0.5)
        except (Unreachable, ReplyLost, Refusal) as error:
            self._retry_at = time.monotonic() + self._backoff.next()
            log.debug("renewer: %s", error)
        except Exception:
            self._retry_at = time.monotonic() + 0.5
            log.exception("renewer: unexpected error; it goes on")

    def _connected(self) -> Link:
        if self._link is None:
            # Time must be left for another node, where the first one hangs.
            self._link = self.transport.link(within=self._until_deadline() / (len(self.transport.nodes) + 1))
        return self._link

    def _ask(self, *batch_words: Any, timeout: float) -> Any:
        link = self._connected()
        try:
            return link.pipeline(batch_words, timeout, self._while_waiting)
        except ReplyLost as error:
            self._lost_link(silent=isinstance(error, Silent))
            raise

    def _while_waiting(self) -> float:
        self.context.keeper.expire()
        return min(0.5, self._until_deadline()) + 0.001

    def _lost_link(self, silent: bool = False) -> None:
        link, self._link = self._link, None
        if link is None:
            return
        link.close()
        if silent:
            self.transport.silent(link.index)
        self._orphan_until = time.monotonic() + ORPHAN_KEEPALIVE_FOR
        self.context.keeper.orphaned()
        listener = self._listener
        if listener is not None and listener.index == link.index:
            listener.reconnect()

    def _leave_node(self) -> None:
        """This node has no leader; another one may."""
        if self._link is not None and len(self.transport.nodes) > 1:
            self.transport.addresses.move_on(self._link.index)
            self._lost_link()

    def _send(self, batch: Batch) -> None:
        """Renews. A silent node must be noticed early enough for another one to be asked."""
        ttls = [lease.ttl for lease in batch.targets if lease is not None and lease.ttl > 0]
        if batch.session is not None:
            ttls.append(batch.session.ttl)
        timeout = max(0.1, min(self.transport.timeout, min(ttls) / 4))
        for attempt in (1, 2):  # a connection that was closed while idle costs one try, and no wait
            try:
                batch.sent = self.context.clock()
                replies = self._ask(*batch.words, timeout=timeout)
            except ReplyLost:
                if attempt == 2:
                    self.context.keeper.failed(batch)
                    raise
            except BaseException:
                self.context.keeper.failed(batch)
                raise
            else:
                break
        if any(isinstance(reply, Refusal) and reply.code == "UNAVAILABLE" for reply in replies):
            self._leave_node()
        self.context.keeper.settle(batch, replies)

    def _open_session(self) -> None:
        keeper = self.context.keeper
        if keeper.session is None and self.context.sessions:
            try:
                sent = self.context.clock()
                (reply,) = self._ask(self.opening, timeout=self._session_timeout())
                if isinstance(reply, Refusal):
                    self._no_session(reply)
                else:
                    keeper.session = SessionLease(text_of(reply), self.session_ttl, sent)
                    self._listen(keeper.session)
            except (Unreachable, ReplyLost, Refusal) as error:
                self._settle_session(error)
                raise
        self._settle_session(None)

    def _particular(self) -> bool:
        """Whether the application asked for something that must not be left out silently."""
        return "POLICY" in self.opening or "AGE" in self.opening

    def _session_timeout(self) -> float:
        """Locks without a session are renewed by the same thread: a silent node must not hold it up for long."""
        ttls = [lease.ttl for lease in self.context.keeper.leases() if lease.ttl > 0]
        return max(0.1, min([self.transport.timeout, *(ttl / 4 for ttl in ttls)]))

    def _no_session(self, refusal: Refusal) -> None:
        if refusal.code == "TIER" or self.context.other_dialect(refusal) or (refusal.unsupported and not self._particular()):
            self.context.sessions = False
            return
        if refusal.code == "UNAVAILABLE":
            self._leave_node()
        raise refusal

    def _settle_session(self, error: Optional[BaseException]) -> None:
        with self._wake:
            self._session_wanted = False
            self._session_error = error
            self._wake.notify_all()

    def _listen(self, session: SessionLease) -> None:
        if self._listener is not None:
            self._listener.stop()
        self._listener = Listener(self.context, self.transport, session, self.wake)
        self._listener.start()

    def _close_session(self) -> None:
        listener, session = self._listener, self.context.keeper.session
        if listener is not None:
            listener.stop()
        if session is not None and self._link is not None:
            try:
                self._link.pipeline([("LOCK.SESSION", "CLOSE", session.id)], 1.0, lambda: 1.0)
            except (ReplyLost, Refusal):
                pass
        if self._link is not None:
            self._link.close()
        if listener is not None:
            listener.join()


class Listener:
    """Reads the server's pushes about one session. Ends where the server has no `LOCK.NOTIFY`."""

    def __init__(self, context: Context, transport: Transport, session: SessionLease, wake: Callable[[], None]) -> None:
        self.context = context
        self.transport = transport
        self.session = session
        self.wake = wake
        self.link: Optional[Link] = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="redfence-listener", daemon=True)

    @property
    def index(self) -> int:
        return -1 if self.link is None else self.link.index

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self.reconnect()

    def reconnect(self) -> None:
        link = self.link
        if link is not None:
            link.interrupt()

    def join(self) -> None:
        self._thread.join(2.0)

    def _run(self) -> None:
        backoff = Backoff(0.02, 1.0)
        while not self._stopping and not self.session.ended:
            try:
                self.link = self.transport.link()
                (held,) = self.link.pipeline(
                    [("LOCK.NOTIFY", "ON", "SESSION", self.session.id)], self.transport.timeout, lambda: 1.0
                )
                if isinstance(held, Refusal):
                    if held.code != "UNAVAILABLE":
                        self.link.close()
                        self.context.keeper.touch_session(0.0)
                        self.wake()
                        return  # an older server, or the session is gone: the renewer notices losses
                    raise held
                self.context.keeper.still_held(self.session, [(name, int(fence)) for name, fence in held])
                self.wake()
                backoff = Backoff(0.02, 1.0)
                self._read_pushes(self.link)
            except Exception as error:
                if self.link is not None:
                    self.link.close()
                if not self._stopping:
                    log.debug("listener: %s", error)
                    time.sleep(backoff.next())
        if self.link is not None:
            self.link.close()

    def _read_pushes(self, link: Link) -> None:
        connection = link.connection
        while not self._stopping and not self.session.ended:
            if not connection.can_read(timeout=1.0):
                continue
            notice = parse_push(connection.read_response(push_request=True))
            if notice is not None:
                self.context.keeper.notice(notice)


class Cleanup:
    """Runs flows that nobody waits for: releases, and what a cancelled acquisition left behind."""

    def __init__(self, run: Callable[[Flow[Any]], Any]) -> None:
        self._run_flow = run
        self._reset()

    def _reset(self) -> None:
        # A dropped handle comes here from the garbage collection, which may run in the middle of `add` and of `get`, in the same thread:
        # both must be reentrant.
        self._jobs: queue.SimpleQueue[Optional[Flow[Any]]] = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self._mutex = threading.RLock()

    forked = _reset

    def add(self, flow: Flow[Any]) -> None:
        if self._jobs.qsize() >= CLEANUP_QUEUE_MAX:
            log.warning("clean-up queue is full (%d): a lock is left to its ttl", CLEANUP_QUEUE_MAX)
            return
        self._jobs.put(flow)
        with self._mutex:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="redfence-cleanup", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            try:
                flow = self._jobs.get(timeout=CLEANUP_IDLE_SECONDS)
            except queue.Empty:
                flow = None
            if flow is None:
                with self._mutex:
                    if self._jobs.empty():
                        self._thread = None
                        return
                continue
            try:
                self._run_flow(flow)
            except Exception as error:
                log.warning("clean-up failed, the lock is left to its ttl: %s", error)

    def finish(self, within: float) -> None:
        """Waits for what is under way."""
        with self._mutex:
            thread = self._thread
        if thread is not None:
            self._jobs.put(None)
            thread.join(within)
