"""What a client believes about its locks, by its own clock. No I/O, no threads of its own.

A lease ends, to its holder, `ttl` after the last good renewal was *sent*: the server cannot have begun to count before that.
A lock that is bound to a session ends with whichever is first.
"""

from __future__ import annotations

import enum
import math
import random
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from ._wire import Dialect, Grant, LockRequest, LossNotice, Refusal, Resource, Words, text_of
from .errors import Loss

Clock = Callable[[], float]

if hasattr(time, "CLOCK_BOOTTIME"):

    def monotonic() -> float:
        """Seconds that go on while the machine sleeps, as those of the server do. `time.monotonic` stands still on Linux."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    monotonic = time.monotonic

#: Renewals that fall due within this part of their ttl go with those that are due.
COALESCE = 1 / 12
SUSPECT_AFTER = 2 / 3
#: How long a server keeps a session whose connection was closed and that nobody keeps alive.
SESSION_GRACE = 0.5


class State(str, enum.Enum):
    """Where a handle stands. Only ``HELD`` and ``SUSPECT`` are yours."""

    HELD = "held"
    #: Two thirds of the ttl are over without a good renewal, or the connection of the session is lost and no other one is there yet, or the
    #: server said that it cannot reach its leader.
    SUSPECT = "suspect"
    LOST = "lost"
    RELEASED = "released"

    def __str__(self) -> str:
        return self.value


def renew_after(ttl: float) -> float:
    """A third of the ttl, with jitter, so that many clients do not renew in step."""
    return ttl / 3 * random.uniform(0.85, 1.0)


class SessionLease:
    """The client's session, by its own clock."""

    def __init__(self, session_id: str, ttl: float, sent: float) -> None:
        self.id = session_id
        self.ttl = ttl
        self.ended = False
        #: When its connection was lost, until a keep-alive on another one is answered.
        self.orphaned_at = math.inf
        self.renewed(sent)

    def renewed(self, sent: float) -> None:
        if sent >= self.orphaned_at:
            self.orphaned_at = math.inf
        self.last_good = sent
        self.deadline = sent + self.ttl
        self.renew_at = sent + renew_after(self.ttl)


class Lease:
    """One grant and its deadline. Handles and the keeper share it."""

    __slots__ = (
        "request", "fences", "session", "hold_until", "clock", "ttl", "last_good", "own_deadline", "renew_at", "granted_at",
        "loss", "finished", "suspect_told", "converting", "on_loss", "_mutex", "__weakref__",
    )  # fmt: skip

    def __init__(
        self, request: LockRequest, grant: Grant, session: Optional[SessionLease], hold_until: float, clock: Clock
    ) -> None:
        self.request = request
        self.fences = grant.fences
        self.session = session
        self.hold_until = hold_until
        self.clock = clock
        self.ttl = request.ttl_ms / 1000
        self.loss: Optional[Loss] = None
        self.finished = False
        self.suspect_told = False
        #: A `LOCK.CONVERT` is under way: whether the old fence still counts is known when it is answered.
        self.converting = False
        self.on_loss: List[Callable[[Loss], None]] = []
        # Reentrant: the garbage collection may drop the handle in the middle of anything, in the same thread.
        self._mutex = threading.RLock()
        self.granted_at = clock()
        self.last_good = grant.sent
        self.renewed(grant.sent, grant.ttl_ms)

    def renewed(self, sent: float, ttl_ms: int) -> None:
        """A good reply to what was sent at `sent`. One that was overtaken by a later one changes nothing."""
        if self.last_good > sent:
            return
        self.last_good = sent
        self.suspect_told = False
        if self.request.ttl_ms == 0:
            self.own_deadline = self.renew_at = math.inf
        else:
            self.own_deadline = sent + ttl_ms / 1000
            self.renew_at = sent + renew_after(min(self.ttl, ttl_ms / 1000))

    @property
    def deadline(self) -> float:
        deadline = min(self.own_deadline, self.hold_until)
        return deadline if self.session is None else min(deadline, self.session.deadline)

    def renewal_ttl_ms(self, now: float) -> int:
        """What to ask for: the ttl, but not beyond `max_hold`."""
        left_ms = self.hold_until - now
        if left_ms * 1000 >= self.request.ttl_ms:
            return self.request.ttl_ms
        return max(1, math.ceil(left_ms * 1000) + 50)

    def remaining(self) -> float:
        if self.finished or self.loss is not None:
            return 0.0
        sure = self.deadline
        if self.session is not None:  # without its connection the server may end it long before its ttl
            sure = min(sure, self.session.orphaned_at + SESSION_GRACE)
        return max(0.0, sure - self.clock())

    def until_deadline(self) -> float:
        """Seconds until the lock is lost by the clock. Until then an answer may still say that it is held."""
        if self.finished or self.loss is not None:
            return 0.0
        return max(0.0, self.deadline - self.clock())

    def state(self) -> State:
        self.check()
        if self.loss is not None:
            return State.LOST
        if self.finished:
            return State.RELEASED
        late = self.clock()
        suspect = self.request.ttl_ms != 0 and late - self.last_good >= self.ttl * SUSPECT_AFTER
        if self.session is not None:
            suspect = suspect or self.session.orphaned_at < math.inf or late - self.session.last_good >= self.session.ttl * SUSPECT_AFTER
        return State.SUSPECT if suspect or self.suspect_told else State.HELD

    def check(self) -> None:
        """Turns a deadline that has passed into a loss."""
        if self.loss is None and not self.finished:
            now = self.clock()
            if now >= self.deadline:
                self.lose(Loss("max_hold" if now >= self.hold_until else "deadline"))

    def lose(self, loss: Loss) -> bool:
        """Once, and never after a release."""
        with self._mutex:
            if self.finished or self.loss is not None:
                return False
            self.loss = loss
            listeners, self.on_loss = self.on_loss, []
        for listener in listeners:
            listener(loss)
        return True

    def tell_loss_to(self, listener: Callable[[Loss], None]) -> None:
        with self._mutex:
            if self.loss is None:
                self.on_loss.append(listener)
                return
            loss = self.loss
        listener(loss)

    def finish(self) -> bool:
        """The handle is given back: no renewal and no loss from now on. False where it was lost or finished before."""
        self.check()
        with self._mutex:
            if self.finished or self.loss is not None:
                return False
            self.finished = True
            self.on_loss = []
            return True

    def left_behind(self) -> bool:
        """Whether the server may still hold something of a lost lease: it does not know of the loss, or other names of a multi-lock are held."""
        if self.loss is None or self.loss.cause in ("fork", "closed", "session_ended"):
            return False
        return self.request.multi or self.loss.cause in ("deadline", "max_hold")

    def forget_mutex(self) -> None:
        """In a forked child: another thread may have held it at the fork."""
        self._mutex = threading.RLock()


class Naps:
    """Keeps short locks from waking the renewer one by one: while there are new ones it looks by itself, often enough for all of them."""

    def __init__(self) -> None:
        self._shortest = math.inf
        self._new = False

    def lock(self, ttl: float) -> None:
        self._new = True
        if 0 < ttl < self._shortest:
            self._shortest = ttl

    def until(self, now: float) -> float:
        """When to look again; infinity where there was no new lock since the last look."""
        if not self._new:
            self._shortest = math.inf
            return math.inf
        self._new = False
        return now + self._shortest / 6


class Batch:
    """Commands that go out together, and whom each reply is for: a lease, or the session (None)."""

    def __init__(self, sent: float) -> None:
        self.sent = sent
        self.words: List[Words] = []
        self.targets: List[Optional[Lease]] = []
        self.fences: List[int] = []
        self.session: Optional[SessionLease] = None

    def __len__(self) -> int:
        return len(self.words)


class Keeper:
    """All leases of a client and its session: which renewals are due, and what their replies mean."""

    #: Commands in one batch; the rest is due at once and goes with the next.
    BATCH_MAX = 128
    #: A push knows the cause and the successor, the reply to a renewal does not: the push gets this much time to be first.
    PUSH_FIRST = 0.25
    #: Losses of unknown locks that are remembered.
    EARLY_MAX = 256

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.session: Optional[SessionLease] = None
        self.paused = False
        self._leases: Set[Lease] = set()
        self._by_fence: Dict[Tuple[bytes, int], Lease] = {}
        #: Losses of locks that are not known yet: the listener may be faster than the reply to the acquire.
        self._early: Dict[Tuple[bytes, int], Loss] = {}
        #: When the server last listed what the session holds.
        self._listed_at = -math.inf

    def __len__(self) -> int:
        return len(self._leases)

    # Single operations on sets and dicts, and copies of them, are safe between threads in CPython.

    def add(self, lease: Lease) -> None:
        self._leases.add(lease)
        if lease.session is not None:  # pushes are about sessions
            for key in self._keys(lease):
                self._by_fence[key] = lease
            for key in self._keys(lease):  # after it was put there: whichever thread comes second sees the other's
                loss = self._early.pop(key, None)
                if loss is not None:
                    lease.lose(loss)
                    self.remove(lease)
            if lease.last_good <= self._listed_at:  # a loss before the listener was there is told by a renewal, soon
                lease.renew_at = min(lease.renew_at, self.clock() + self.PUSH_FIRST)

    def remove(self, lease: Lease) -> None:
        self._leases.discard(lease)
        if lease.session is not None:
            for key in self._keys(lease):
                self._by_fence.pop(key, None)

    @staticmethod
    def _keys(lease: Lease) -> List[Tuple[bytes, int]]:
        names = lease.request.names
        return [(n.encode() if isinstance(n, str) else n, fence) for n, fence in zip(names, lease.fences)]

    def leases(self) -> List[Lease]:
        return list(self._leases)

    def next_due(self) -> float:
        """When something has to be done next; infinity where nothing is held."""
        due = math.inf
        for lease in self.leases():
            due = min(due, lease.deadline)
            if not self.paused:
                due = min(due, lease.renew_at)
        if self.session is not None and not self.paused:
            due = min(due, self.session.renew_at)
        return due

    def expire(self) -> None:
        """Tells those whose time is over."""
        for lease in self.leases():
            lease.check()
            if lease.loss is not None:
                self.remove(lease)

    def batch(self, dialect: Dialect) -> Optional[Batch]:
        """What has to be renewed now, or None."""
        now = self.clock()
        if self.paused:
            return None
        batch = Batch(now)
        session = self.session
        if session is not None and session.renew_at <= now + session.ttl * COALESCE:
            batch.session = session
            batch.words.append(("LOCK.SESSION", "KEEPALIVE", session.id))
            batch.targets.append(None)
            batch.fences.append(0)
        due = any(lease.renew_at <= now for lease in self.leases())
        if due:
            for lease in self.leases():
                if lease.renew_at <= now + lease.ttl * COALESCE and len(batch) < self.BATCH_MAX and not lease.finished:
                    self._renew(batch, lease, dialect, now)
        elif session is None or session.renew_at > now:
            return None
        return batch if len(batch) else None

    @staticmethod
    def _renew(batch: Batch, lease: Lease, dialect: Dialect, now: float) -> None:
        ttl_ms = lease.renewal_ttl_ms(now)
        for name, fence in zip(lease.request.names, lease.fences):
            batch.words.append(dialect.renew(name, fence, ttl_ms, lease.request.tier))
            batch.targets.append(lease)
            batch.fences.append(fence)

    def settle(self, batch: Batch, replies: Sequence[Any]) -> None:
        """The replies to a batch. A lease of several names is renewed only if all of them are."""
        renewed: Dict[Lease, int] = {}
        failed: Set[Lease] = set()
        for target, fence, reply in zip(batch.targets, batch.fences, replies):
            if target is None:
                self._settle_session(batch, reply)
            elif isinstance(reply, Refusal):
                failed.add(target)
            elif reply[0] == 1:
                renewed[target] = min(renewed.get(target, int(reply[1])), int(reply[1]))
            else:
                failed.add(target)
                if fence in target.fences and not target.converting:
                    target.lose(Loss(text_of(reply[1])))
        for lease, ttl_ms in renewed.items():
            if lease not in failed:
                lease.renewed(batch.sent, ttl_ms)
        for lease in failed:
            self.retry_soon(lease)
        self.expire()

    def _settle_session(self, batch: Batch, reply: Any) -> None:
        session = batch.session
        if session is None:
            return
        if isinstance(reply, Refusal):
            if reply.code == "NOSESSION":
                self.end_session(session)
            else:
                session.renew_at = self.clock() + session.ttl / 20
        else:
            session.renewed(batch.sent)

    def failed(self, batch: Batch) -> None:
        """No reply: try again soon, not a third of the ttl later."""
        if batch.session is not None:
            batch.session.renew_at = self.clock() + min(0.1, batch.session.ttl / 20)
        for lease in batch.targets:
            if lease is not None:
                self.retry_soon(lease)

    def retry_soon(self, lease: Lease) -> None:
        lease.renew_at = self.clock() + min(0.25, lease.ttl / 20)

    def touch_session(self, within: float) -> None:
        """After a lost connection the server gives a session half a second: the next keep-alive comes at once."""
        if self.session is not None:
            self.session.renew_at = min(self.session.renew_at, self.clock() + within)

    def orphaned(self) -> None:
        """The connection of the session is lost: the next keep-alive comes at once, and until it is answered nothing is sure for long."""
        if self.session is not None:
            self.session.orphaned_at = min(self.session.orphaned_at, self.clock())
            self.touch_session(0.0)

    def end_session(self, session: SessionLease, cause: str = "session_ended") -> None:
        session.ended = True
        if self.session is session:
            self.session = None
        for lease in self.leases():
            if lease.session is session:
                lease.lose(Loss(cause))
                self.remove(lease)

    def notice(self, notice: LossNotice) -> None:
        """A push of the server."""
        key = (notice.resource, notice.fence)
        if key not in self._by_fence and not notice.suspect:
            while len(self._early) >= self.EARLY_MAX:
                self._early.pop(next(iter(self._early), key), None)
            self._early[key] = Loss(notice.cause, notice.successor)
        lease = self._by_fence.get(key)
        if lease is None:
            return
        self._early.pop(key, None)
        if notice.suspect:
            lease.suspect_told = True
        else:
            lease.lose(Loss(notice.cause, notice.successor))
            self.remove(lease)

    def still_held(self, session: SessionLease, held: Sequence[Tuple[Resource, int]]) -> None:
        """The server's list after the listener connected again: what is not on it was lost while nobody listened."""
        self._listed_at = self.clock()
        known = {(n.encode() if isinstance(n, str) else n, fence) for n, fence in held}
        for lease in self.leases():
            if lease.session is session and lease.granted_at < self.clock() and not lease.finished:
                if any(key not in known for key in self._keys(lease)):
                    lease.renew_at = min(lease.renew_at, self.clock())  # the reply to a renewal tells the cause

    def forked(self) -> None:
        """In the child: the locks are the parent's."""
        self.session = None
        leases, self._leases, self._by_fence, self._early = list(self._leases), set(), {}, {}
        for lease in leases:
            lease.forget_mutex()
            lease.lose(Loss("fork"))
