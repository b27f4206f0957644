"""The conversations with a server, without I/O: generators that yield what to do next.

A flow yields a :class:`Call`, a :class:`Pipeline` or a :class:`Pause`. The driver (threads or asyncio) does it and sends
the reply in, or throws :class:`Refusal` (an error reply), :class:`ReplyLost` (sent, no reply) or :class:`Unreachable` (not sent). So the
two clients cannot differ in what they do, only in how they wait.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Callable, Generator, List, Optional, Sequence, Tuple, TypeVar, Union

from . import _wire
from ._lease import Clock, Keeper, Lease, SessionLease
from ._retry import Backoff, CircuitBreaker
from ._wire import NOT_APPLIED, Dialect, Grant, LockRequest, Refusal, Resource, Words, parse_grant, parse_info, text_of
from .errors import Busy, CircuitOpen, Indeterminate, Loss, RedfenceError, Unavailable, UnsupportedByServer

T = TypeVar("T")


class ReplyLost(Exception):
    """The command was sent and no reply came: it may have been carried out."""


class Silent(ReplyLost):
    """The connection stands, and nothing comes: a node that hangs, or a cut cable."""


class Unreachable(Exception):
    """No address could be reached: nothing was sent."""


@dataclass(frozen=True)
class Call:
    words: Words
    #: Seconds until the reply counts as lost, beside what the server may block.
    blocks: float = 0.0


@dataclass(frozen=True)
class Pipeline:
    """Several commands at once. The reply is a list; an error reply in it is a :class:`Refusal`, not thrown."""

    words: Sequence[Words]


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class NeedSession:
    """Answered with the client's session, opened if need be, or None where the server has none."""

    within: float


Step = Union[Call, Pipeline, Pause, NeedSession]
Flow = Generator[Step, Any, T]


class Context:
    """What flows share: settings, the dialect once it is known, the breaker."""

    def __init__(self, clock: Clock, timeout: float) -> None:
        self.clock = clock
        self.timeout = timeout
        self.dialect: Dialect = _wire.SERVER
        self.breaker = CircuitBreaker(time.monotonic)
        self.keeper = Keeper(clock)
        #: False once a server said that it has no sessions.
        self.sessions = True
        #: Tiers ("" is the default) in which a lock cannot have a session.
        self.sessionless_tiers: set[str] = set()

    def forked(self) -> None:
        """In the child: another thread of the parent may have been in the middle of it."""
        self.breaker = CircuitBreaker(time.monotonic)
        self.keeper.forked()

    def other_dialect(self, refusal: Refusal) -> bool:
        """A Redis that does not know `LOCK.*` may have the Lua library. True: try again in its dialect."""
        if self.dialect is _wire.SERVER and refusal.unknown_command:
            self.dialect = _wire.FUNCTIONS
            self.sessions = False
            return True
        return False


def _library_missing() -> UnsupportedByServer:
    return UnsupportedByServer(
        "this Redis knows neither LOCK.* nor the Lua library:"
        " load the module, or `FUNCTION LOAD` lua/redfence.lua, or connect to a redfence node"
    )


class Attempts:
    """Retries of one request until its deadline. Remembers whether an attempt may have been carried out."""

    def __init__(self, context: Context, seconds: float, what: str) -> None:
        self.context = context
        self.what = what
        self.give_up_at = time.monotonic() + seconds
        self.maybe_applied = False
        self.sent = False
        self._backoff = Backoff()
        self._last: Optional[BaseException] = None
        self._first = True

    def after(self, error: Exception) -> Optional[Pause]:
        """What to do after a failed attempt: a pause, or None for at once. Raises where there is no sense in trying again."""
        breaker = self.context.breaker
        self._last = error
        if isinstance(error, Refusal):
            if self.context.other_dialect(error):
                return None
            if error.unknown_function:
                raise _library_missing() from error
            if error.code == "INDETERMINATE":
                self.maybe_applied = True
            elif error.code in NOT_APPLIED:
                breaker.failed()
            else:
                raise error.public() from None
        elif isinstance(error, ReplyLost):
            self.maybe_applied = True
            if self._first:  # an idle connection that was closed long ago: no reason to wait
                self._first = False
                return None
        else:
            breaker.failed()
        self._first = False
        pause = self._backoff.next()
        if time.monotonic() + pause >= self.give_up_at:
            raise self.exhausted() from error
        return Pause(pause)

    def exhausted(self) -> RedfenceError:
        if self.maybe_applied:
            return Indeterminate(f"{self.what}: sent, but its outcome is not known: {self._last}")
        return Unavailable(f"{self.what}: {self._last}")

    def admit(self) -> Optional[Pause]:
        """The breaker fails a new request at once; one under way waits for its turn."""
        try:
            self.context.breaker.admit()
        except CircuitOpen:
            if not self.sent:
                raise
            if time.monotonic() >= self.give_up_at:
                raise self.exhausted() from self._last
            return Pause(0.1)
        self.sent = True
        return None


def ask(context: Context, make: Callable[[Dialect], Words], what: str, seconds: Optional[float] = None) -> Flow[Any]:
    """A request that may be repeated. `make` gives its words for a dialect."""
    attempts = Attempts(context, context.timeout if seconds is None else seconds, what)
    while True:
        wait = attempts.admit()
        if wait is not None:
            yield wait
            continue
        try:
            reply = yield Call(make(context.dialect))
        except (Refusal, ReplyLost, Unreachable) as error:
            pause = attempts.after(error)
            if pause is not None:
                yield pause
        else:
            context.breaker.succeeded()
            return reply


def ask_plain(context: Context, command: str, *words: _wire.Word) -> Flow[Any]:
    """A command without a resource, or with its one resource in front."""
    return ask(context, lambda dialect: dialect.plain(command, *words), command.lower())


class Acquisition:
    """One acquisition on its way. Tells what may have to be cleaned up behind it."""

    def __init__(self, context: Context, request: LockRequest, with_session: bool, explain: bool = False) -> None:
        self.context = context
        self.request = request
        self.with_session = with_session
        self.explain = explain
        self.attempts = Attempts(context, request.wait_ms / 1000 + context.timeout, f"acquire {request.label!r}")
        self.wait_until = time.monotonic() + request.wait_ms / 1000
        self.session: Optional[SessionLease] = None
        #: A grant came, and is not handed out yet.
        self.granted = False

    def may_have_left(self, error: BaseException) -> bool:
        """Whether the server may hold or keep in its queue what nobody here waits for any more."""
        if isinstance(error, RedfenceError):  # an answer, unless an earlier attempt was carried out behind it
            return self.granted or self.attempts.maybe_applied
        return self.attempts.sent

    def _wait_left_ms(self) -> int:
        return max(0, round((self.wait_until - time.monotonic()) * 1000))

    def flow(self) -> Flow[Tuple[Grant, Optional[SessionLease]]]:
        """Until granted, or an error says why not."""
        while True:
            grant = yield from self._granted_once()
            if grant is None:
                if self._wait_left_ms() > 0 and self.attempts.maybe_applied:
                    continue  # the grant ended while its reply was lost: there is time left to wait again
                raise (yield from self._busy())
            if not self._waited_long(grant):
                return grant, self.session
            self.granted = True
            renewed = yield from renew(self.context, self.request, grant, self.attempts.give_up_at)
            if renewed is not None:
                return renewed, self.session
            if self.request.multi:  # one name is lost: give the others back before asking again
                yield from release(self.context, self.request, grant.fences, self.context.timeout)
            self.granted = False
            if self._wait_left_ms() == 0:
                raise (yield from self._busy())

    def _waited_long(self, grant: Grant) -> bool:
        """Counted from the moment of asking, too much of the lease may be over: renew, and count from that."""
        return grant.ttl_ms > 0 and self.context.clock() - grant.sent > grant.ttl_ms / 10_000

    def _granted_once(self) -> Flow[Optional[Grant]]:
        context, request = self.context, self.request
        while True:
            wait = self.attempts.admit()
            if wait is not None:
                yield wait
                continue
            sent = context.clock()
            try:
                session = yield from self._session()
                wait_ms = self._wait_left_ms()
                sent = context.clock()
                words = context.dialect.acquire(request, wait_ms, session)
                reply = yield Call(words, wait_ms / 1000 if context.dialect.blocks else 0.0)
            except (Refusal, ReplyLost, Unreachable) as error:
                pause = self._after(error)
                if pause is not None:
                    yield pause
                continue
            context.breaker.succeeded()
            if reply is None:
                return None
            if isinstance(reply, list) and reply and reply[0] == b"queued":
                reply = yield from self._queued(reply)
                if reply is None:
                    continue
                if reply is GIVEN_UP:
                    return None
            return parse_grant(request, reply, sent)

    def _session(self) -> Flow[Optional[str]]:
        tier = self.request.tier or ""
        self.session = None
        if self.with_session and self.context.sessions and tier not in self.context.sessionless_tiers:
            within = max(0.05, self.attempts.give_up_at - time.monotonic())
            self.session = yield NeedSession(within)
        return None if self.session is None else self.session.id

    def _after(self, error: Exception) -> Optional[Pause]:
        if isinstance(error, Refusal) and self.session is not None:
            if error.code == "NOSESSION":
                self.context.keeper.end_session(self.session)
                return None
            if error.code == "TIER":  # a route to Tier 1, where there are no sessions: ask again without
                self.context.sessionless_tiers.add(self.request.tier or "")
                return None
            by_policy = error.text.startswith("DEADLOCK policy")
            if error.code == "DEADLOCK" and not by_policy and self._shares_with_itself():
                self.with_session = False
                return None
        return self.attempts.after(error)

    def _shares_with_itself(self) -> bool:
        """Whether this client has a part of what is asked for. The server sees one session and cannot know that another
        thread will give that part back: without the session it waits its turn."""
        held = {name for lease in self.context.keeper.leases() for name in lease.request.names}
        return self.request.kind != "exclusive" and any(name in held for name in self.request.names)

    def _queued(self, reply: Sequence[Any]) -> Flow[Any]:
        """The Lua library cannot block: listen on the wake key, then ask again. None: ask again."""
        _, _, wake_key, poll_ms = reply
        left_ms = self._wait_left_ms()
        if left_ms > 0:
            seconds = max(0.01, min(int(poll_ms), left_ms) / 1000)
            try:
                woken = yield Call(("BLPOP", wake_key, f"{seconds:.3f}"), seconds)
            except (Refusal, ReplyLost, Unreachable) as error:
                pause = self.attempts.after(error)
                if pause is not None:
                    yield pause
                return None
            if woken is not None and woken[1] != b"again":
                ttl_ms, *fences = (int(word) for word in woken[1].split())
                return [fences, ttl_ms] if self.request.multi else [fences[0], ttl_ms]
            if self._wait_left_ms() > 0:
                return None
        left = yield from leave_queue(self.context, self.request)
        return GIVEN_UP if left is None else left

    def _busy(self) -> Flow[Busy]:
        request = self.request
        if not self.explain:
            return Busy(request.label)
        try:
            reply = yield from ask(self.context, lambda d: d.info(request.names[0], request.tier), "info", 2.0)
        except RedfenceError:
            return Busy(request.label)
        info = parse_info(reply)
        return Busy(request.label, holder=info.owner, waiters=info.waiters, position=info.waiters + 1)


GIVEN_UP = object()


def leave_queue(context: Context, request: LockRequest) -> Flow[Any]:
    """Leaves the queue of the Lua library. What it answers is a grant made just before: it stands."""
    words = context.dialect.cancel(request)
    if words is None:
        return None
    return (yield from ask(context, lambda dialect: words, f"leave the queue of {request.label!r}"))


def renew(context: Context, request: LockRequest, grant: Grant, give_up_at: float, ttl_ms: int = 0) -> Flow[Optional[Grant]]:
    """One good renewal of every name of a grant, or None where a name is lost. Raises where no answer comes in time."""
    attempts = Attempts(context, max(0.0, give_up_at - time.monotonic()), f"renew {request.label!r}")
    ttl_ms = ttl_ms or request.ttl_ms
    while True:
        sent = context.clock()
        try:
            replies = yield Pipeline(
                [context.dialect.renew(name, fence, ttl_ms, request.tier) for name, fence in zip(request.names, grant.fences)]
            )
            for reply in replies:
                if isinstance(reply, Refusal):
                    raise reply
        except (Refusal, ReplyLost, Unreachable) as error:
            pause = attempts.after(error)
            if pause is not None:
                yield pause
            continue
        if any(reply[0] != 1 for reply in replies):
            return None
        return Grant(grant.fences, min(int(reply[1]) for reply in replies), sent)


def renew_lease(context: Context, lease: Lease, seconds: float) -> Flow[None]:
    """Renews a lease now, its session too. Leaves it as it is where no answer comes within `seconds`."""
    sent = context.clock()
    words: List[Words] = []
    session = lease.session
    if session is not None:
        words.append(("LOCK.SESSION", "KEEPALIVE", session.id))
    if lease.request.ttl_ms:
        ttl_ms = lease.renewal_ttl_ms(sent)
        for name, fence in zip(lease.request.names, lease.fences):
            words.append(context.dialect.renew(name, fence, ttl_ms, lease.request.tier))
    give_up_at = time.monotonic() + seconds
    backoff = Backoff()
    while True:
        sent = context.clock()
        try:
            replies = list((yield Pipeline(words)))
        except (ReplyLost, Unreachable):
            replies = None
        if replies is not None:
            if session is not None:
                answer = replies.pop(0)
                if isinstance(answer, Refusal) and answer.code == "NOSESSION":
                    context.keeper.end_session(session)
                    return
                if not isinstance(answer, Refusal):
                    session.renewed(sent)
            for reply in replies:
                if not isinstance(reply, Refusal) and reply[0] != 1:
                    lease.lose(Loss(text_of(reply[1])))
                    return
            if not any(isinstance(reply, Refusal) for reply in replies):
                if replies:
                    lease.renewed(sent, min(int(reply[1]) for reply in replies))
                return
        pause = backoff.next()
        if time.monotonic() + pause >= give_up_at:
            return
        yield Pause(pause)


def release(
    context: Context, request: LockRequest, fences: Sequence[int], seconds: float, tries: Optional[int] = None
) -> Flow[str]:
    """Gives the lock back; the reason the server told. One that a lost reply hid (`already_released`) is `ok`."""
    attempts = Attempts(context, seconds, f"release {request.label!r}")
    while True:
        dialect = context.dialect
        try:
            if request.multi:
                reply = yield Call(dialect.mrelease(request.names, fences, request.tier))
            else:
                reply = [(yield Call(dialect.release(request.names[0], fences[0], request.tier)))]
        except (Refusal, ReplyLost, Unreachable) as error:
            pause = attempts.after(error)
            if tries is not None:
                tries -= 1
                if tries <= 0:
                    raise attempts.exhausted() from error
            if pause is not None:
                yield pause
            continue
        context.breaker.succeeded()
        reasons = [text_of(reason) for _, reason in reply]
        if attempts.maybe_applied:
            reasons = ["ok" if reason == "already_released" else reason for reason in reasons]
        return next((reason for reason in reasons if reason != "ok"), "ok")


def clean_up(context: Context, request: LockRequest) -> Flow[None]:
    """Behind an acquisition that was given up: leaves the queue, and gives back what was granted meanwhile.

    Closing the connection ends the wait at a node and at the module. A grant whose reply nobody read is found by its owner. The
    request may still be on its way, so this looks more than once. What it misses ends with its ttl, because nobody renews it.
    """
    for pause in (0.0, 0.3, 1.5):
        if pause:
            yield Pause(pause)
        try:
            granted = yield from leave_queue(context, request)
            if granted is not None:
                yield from release(context, request, parse_grant(request, granted, 0.0).fences, context.timeout)
                return
            held = yield from _held_by_owner(context, request)
            if held:
                mine = replace(request, names=tuple(name for name, _ in held))
                yield from release(context, mine, [fence for _, fence in held], context.timeout)
                return
        except RedfenceError:
            continue


def _fences_of_owner(context: Context, request: LockRequest) -> Flow[Optional[Tuple[int, ...]]]:
    held = yield from _held_by_owner(context, request)
    return tuple(fence for _, fence in held) if len(held) == len(request.names) else None


def _held_by_owner(context: Context, request: LockRequest) -> Flow[List[Tuple[Resource, int]]]:
    held: List[Tuple[Resource, int]] = []
    for name in request.names:
        words = context.dialect.info(name, request.tier)
        info = parse_info((yield from ask(context, lambda _: words, "info")))
        held += [(name, holder.fence) for holder in info.holders if holder.owner == request.owner][:1]
    return held


def convert(
    context: Context, lease: Lease, name: Resource, shared: bool, wait_ms: int
) -> Flow[Optional[Grant]]:
    """`LOCK.CONVERT`. After a lost reply the owner is asked for, because the old fence no longer says anything."""
    request = lease.request
    attempts = Attempts(context, wait_ms / 1000 + context.timeout, f"convert {request.label!r}")
    wait_until = time.monotonic() + wait_ms / 1000
    lease.converting = True  # a cancellation leaves it so: then the outcome is not known
    try:
        grant = yield from _convert(context, lease, name, shared, wait_until, attempts)
    except RedfenceError:
        lease.converting = attempts.maybe_applied
        raise
    lease.converting = grant is not None  # until `converted`
    return grant


def settle_conversion(context: Context, lease: Lease) -> Flow[None]:
    """After a conversion whose outcome is not known: what its owner holds now is what the lease is."""
    request = lease.request
    words = context.dialect.info(request.names[0], request.tier)
    info = parse_info((yield from ask(context, lambda _: words, "info")))
    fences = [holder.fence for holder in info.holders if holder.owner == request.owner]
    if lease.finished or lease.loss is not None:
        if fences and fences[0] != lease.fences[0]:  # given back, or lost, by a fence that had been replaced
            yield from release(context, request, fences[:1], 2.0)
    elif not fences:
        lease.lose(Loss("expired"))
    else:
        converted(context, lease, Grant((fences[0],), 0, context.clock()), info.mode or request.kind)


def _convert(
    context: Context, lease: Lease, name: Resource, shared: bool, wait_until: float, attempts: Attempts
) -> Flow[Optional[Grant]]:
    request, fence = lease.request, lease.fences[0]
    while True:
        left_ms = max(0, round((wait_until - time.monotonic()) * 1000))
        words: Words = ("LOCK.CONVERT", name, fence, "SHARED" if shared else "EXCLUSIVE")
        if left_ms:
            words = (*words, "WAIT", left_ms)
        sent = context.clock()
        try:
            reply = yield Call(words, left_ms / 1000)
        except (Refusal, ReplyLost, Unreachable) as error:
            if isinstance(error, Refusal) and error.unknown_command:
                raise error.public() from None
            pause = attempts.after(error)
            if pause is not None:
                yield pause
            if attempts.maybe_applied:
                found = yield from _fences_of_owner(context, request)
                if found is not None:
                    fence = found[0]
            continue
        context.breaker.succeeded()
        if reply is None:
            return None
        return Grant((int(reply[0]),), int(reply[1]), sent)


def converted(context: Context, lease: Lease, grant: Optional[Grant], kind: str) -> bool:
    """The lease after a conversion: its new kind and fence, under which renewals and losses are found from now on."""
    if grant is None:
        return False
    context.keeper.remove(lease)
    lease.request = replace(lease.request, kind=kind)
    lease.fences = grant.fences
    lease.converting = False
    context.keeper.add(lease)
    return True


def fence_call(context: Context, name: Resource, fence: int, command: Sequence[_wire.Word]) -> Flow[Any]:
    """`FENCE.CALL`, sent again only where nothing happened."""
    attempts = Attempts(context, context.timeout, f"FENCE.CALL {_wire.show(name)!r}")
    while True:
        wait = attempts.admit()
        if wait is not None:
            yield wait
            continue
        try:
            reply = yield Call(context.dialect.plain("FENCE.CALL", name, fence, *command))
        except (Refusal, ReplyLost, Unreachable) as error:
            pause = attempts.after(error)
            if attempts.maybe_applied:
                raise attempts.exhausted() from error
            if pause is not None:
                yield pause
        else:
            context.breaker.succeeded()
            return reply
