"""What a hostile reader found: beliefs that outlive a lock, things left behind, hangs, errors of the wrong type."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import uuid
from typing import Any, List

import pytest

import redfence
from backends import Backend, poll
from redfence import _flows, _lease, _wire
from redfence._renewer import Cleanup
from redfence._wire import Grant, LossNotice, Refusal
from relay import Relay
from test_threads import run_python


def name() -> str:
    return f"h-{uuid.uuid4().hex}"


def request(*names: str, ttl_ms: int = 30_000, wait_ms: int = 0) -> _wire.LockRequest:
    return _wire.LockRequest(names, len(names) > 1, ttl_ms, wait_ms, "me")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def within(seconds: float, call: Any) -> Any:
    """The result of a call that must not hang."""
    result: List[Any] = []
    thread = threading.Thread(target=lambda: result.append(call()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert result, "it hangs"
    return result[0]


# ------------------------------------------------------------ without a server


def test_the_clock_goes_on_while_the_machine_sleeps() -> None:
    rf = redfence.Client("redis://127.0.0.1:1")
    if hasattr(time, "CLOCK_BOOTTIME"):
        assert abs(rf._context.clock() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 60
        assert rf._context.clock is not time.monotonic
    rf.close()


def test_a_loss_that_is_told_before_the_grant_is_not_forgotten() -> None:
    clock = Clock()
    keeper = _lease.Keeper(clock)
    session = _lease.SessionLease("s", 30, clock.now)
    lease = _lease.Lease(request("r"), Grant((7,), 30_000, clock.now), session, 1e9, clock)
    keeper.notice(LossNotice(False, b"r", 7, "wounded", 8))  # the listener was faster than the reply to the acquire
    keeper.add(lease)
    assert lease.loss == redfence.Loss("wounded", 8)
    assert len(keeper) == 0
    for fence in range(10_000):
        keeper.notice(LossNotice(False, b"other", fence, "expired", None))
    assert len(keeper._early) <= keeper.EARLY_MAX


def test_a_grant_from_before_the_listener_listened_is_renewed_soon() -> None:
    clock = Clock()
    keeper = _lease.Keeper(clock)
    session = _lease.SessionLease("s", 30, clock.now)
    lease = _lease.Lease(request("r"), Grant((7,), 30_000, clock.now), session, 1e9, clock)
    clock.now += 1
    keeper.still_held(session, [])  # asked while the reply was on its way: a loss in between was told to nobody
    keeper.add(lease)
    assert lease.renew_at <= clock.now + keeper.PUSH_FIRST


def drive(flow: Any, *replies: Any) -> "tuple[Any, list[Any]]":
    """Runs a flow with these replies; its result or error, and what it asked."""
    asked: List[Any] = []
    waiting = list(replies)
    try:
        step = next(flow)
        while True:
            if isinstance(step, _flows.Pause):
                step = flow.send(None)
                continue
            asked.append(step.words)
            reply = waiting.pop(0)
            step = flow.throw(reply) if isinstance(reply, Exception) else flow.send(reply)
    except StopIteration as stop:
        return stop.value, asked
    except redfence.RedfenceError as error:
        return error, asked


def test_a_grant_that_could_not_be_renewed_is_cleaned_up() -> None:
    """The wait was long, so the grant is renewed before it is handed out. Nobody answers: the grant must not stay."""
    clock = Clock()
    context = _flows.Context(clock, 0.0)
    acquisition = _flows.Acquisition(context, request("r"), with_session=False)
    flow = acquisition.flow()
    next(flow)
    clock.now += 20
    flow.send([7, 30_000])
    with pytest.raises(redfence.RedfenceError) as raised:
        flow.throw(_flows.Unreachable("gone"))
        flow.throw(_flows.Unreachable("gone"))
    assert acquisition.may_have_left(raised.value)


def test_an_answer_after_a_lost_reply_is_cleaned_up() -> None:
    context = _flows.Context(Clock(), 5.0)
    acquisition = _flows.Acquisition(context, request("r"), with_session=False)
    error, _ = drive(acquisition.flow(), _flows.ReplyLost(), Refusal("NOPERM not any more"))
    assert isinstance(error, redfence.ServerError)
    assert acquisition.may_have_left(error)
    refused = _flows.Acquisition(context, request("r"), with_session=False)
    error, _ = drive(refused.flow(), Refusal("NOPERM never"))
    assert not refused.may_have_left(error)


def test_a_multi_lock_that_lost_a_name_while_it_was_granted_gives_the_others_back() -> None:
    clock = Clock()
    context = _flows.Context(clock, 5.0)
    acquisition = _flows.Acquisition(context, request("a", "b"), with_session=False)
    flow = acquisition.flow()
    next(flow)
    clock.now += 20
    step = flow.send([[1, 2], 30_000])
    assert isinstance(step, _flows.Pipeline)
    step = flow.send([[0, b"expired"], [1, 30_000]])
    assert step.words[0] == "LOCK.MRELEASE"
    with pytest.raises(redfence.Busy) as raised:
        flow.send([[0, b"expired"], [1, b"ok"]])
    assert not acquisition.may_have_left(raised.value)


def test_clean_up_gives_back_what_is_left_of_a_multi_lock() -> None:
    context = _flows.Context(Clock(), 5.0)

    def info(owner: str, fence: int) -> Any:
        return {
            b"resource": b"r", b"tier": b"correctness", b"state": b"held", b"fence": fence, b"owner": owner.encode(),
            b"session": None, b"ttl": 1000, b"waiters": 0,
        }  # fmt: skip

    _, asked = drive(_flows.clean_up(context, request("a", "b")), info("other", 5), info("me", 6), [[1, b"ok"]])
    assert asked[-1] == ("LOCK.MRELEASE", 1, "b", 6)


def test_the_garbage_collection_may_drop_a_handle_in_the_middle_of_a_clean_up() -> None:
    """It runs in whichever thread allocates, perhaps in one that holds the locks of the clean-up queue or of the lease."""
    cleanup = Cleanup(lambda flow: None)

    def nested() -> bool:
        with cleanup._mutex:
            mutex = getattr(cleanup._jobs, "mutex", threading.RLock())
            with mutex:
                cleanup.add(iter(()))  # type: ignore[arg-type]
        lease = _lease.Lease(request("r"), Grant((7,), 30_000, 100.0), None, 1e9, Clock())
        with lease._mutex:
            return lease.finish()

    assert within(20, nested)
    cleanup.finish(20)


def test_a_fork_in_the_middle_of_another_thread_does_not_lock_up_the_child() -> None:
    context = _flows.Context(Clock(), 5.0)
    with context.breaker._mutex:
        context.forked()
        assert within(20, lambda: context.breaker.failed() or True)


@pytest.mark.parametrize(
    "options",
    [{"session_policy": "first-come"}, {"session_age": -1}, {"session_age": "old"}, {"session_age": 2**53}, {"session_age": True}, {"session_ttl": 0.01}],
)
def test_session_options_outside_their_limits_are_refused(options: Any) -> None:
    for kind in (redfence.Client, redfence.AsyncClient):
        with pytest.raises(redfence.InvalidRequest):
            kind("redis://127.0.0.1:1", **options)


# ------------------------------------------------------------ with a node


@pytest.mark.parametrize("_round", range(3))
def test_waiters_at_a_silent_node_go_to_another(single: Backend, _round: int) -> None:
    """Their connections are ended under them by the renewer. That is a lost reply, not an error of Python's sockets."""
    resource = name()
    relays = [Relay(single.addresses()[0]) for _ in range(2)]
    with redfence.Client([relay.url for relay in relays], shuffle=False) as rf, redfence.Client(single.urls()) as other:
        held = other.lock(resource, ttl=30).acquire()
        outcomes: List[Any] = []

        def waiter() -> None:
            try:
                with rf.lock(resource, ttl=30, wait=60):
                    outcomes.append("held")
            except BaseException as error:
                outcomes.append(error)

        threads = [threading.Thread(target=waiter) for _ in range(5)]
        for thread in threads:
            thread.start()
        poll(lambda: other.info(resource).waiters == 5, what="all wait")
        rf._transport.silent(0)
        poll(lambda: other.info(resource).waiters == 5 and relays[1].connections() >= 5, what="they wait at the other node")
        held.release()
        for thread in threads:
            thread.join(60)
        assert outcomes == ["held"] * 5
    for relay in relays:
        relay.close()


def test_waiters_at_a_silent_node_go_to_another_asyncio(single: Backend) -> None:
    async def main() -> None:
        resource = name()
        relays = [Relay(single.addresses()[0]) for _ in range(2)]
        async with redfence.AsyncClient([relay.url for relay in relays], shuffle=False) as rf:
            held = await rf.lock(resource, ttl=30, transferable=True).acquire()
            waiting = [asyncio.ensure_future(rf.lock(resource, ttl=30, wait=60).acquire()) for _ in range(3)]
            while (await rf.info(resource)).waiters < 3:
                await asyncio.sleep(0.05)
            await rf._transport.silent(0)
            await held.release()
            for _ in range(3):
                done, _ = await asyncio.wait(waiting, timeout=60, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    waiting.remove(each)
                    await each.result().release()
            assert not waiting
        for relay in relays:
            relay.close()

    asyncio.run(main())


def test_a_session_without_its_connection_is_not_sure(single: Backend) -> None:
    """The server gives such a session half a second. A client that is cut off meanwhile must not say for the rest of its ttl that it holds."""
    resource = name()
    relay = Relay(single.addresses()[0])
    with redfence.Client(relay.url, timeout=1.0) as rf, redfence.Client(single.urls()) as other:
        lock = rf.lock(resource, ttl=60).acquire()
        assert lock.remaining() > 1
        poll(lambda: rf._context.keeper._listed_at > 0, what="no connection is still being made")
        relay.crash()
        with other.lock(resource, ttl=60, wait=60):
            poll(lambda: lock.remaining() == 0, what="it is not sure any more")
            assert lock.state is redfence.State.SUSPECT
            with pytest.raises(redfence.InsufficientLease):
                lock.ensure(0.5)
            relay.heal()
            assert lock.lost.wait(30)  # as soon as somebody can tell, not after the ttl
            assert lock.loss is not None and lock.loss.cause in ("session_ended", "expired")
    relay.close()


def test_a_session_is_sure_again_after_a_keep_alive() -> None:
    clock = Clock()
    keeper = _lease.Keeper(clock)
    keeper.session = _lease.SessionLease("s", 30, clock.now)
    lease = _lease.Lease(request("r"), Grant((7,), 30_000, clock.now), keeper.session, 1e9, clock)
    keeper.add(lease)
    clock.now += 1
    keeper.orphaned()
    assert lease.state() is redfence.State.SUSPECT and 0 < lease.remaining() <= _lease.SESSION_GRACE
    keeper.session.renewed(clock.now - 0.5)  # sent before the connection was lost: says nothing
    assert lease.state() is redfence.State.SUSPECT
    keeper.session.renewed(clock.now)
    assert lease.state() is redfence.State.HELD and lease.remaining() > 20


def test_the_listener_hears_again_after_its_connection_was_ended_under_it(single: Backend) -> None:
    """redis-py connects a closed connection again by itself, and nobody speaks on that one: the renewer must not close it."""
    resource = name()
    with redfence.Client(single.urls()) as rf:
        lock = rf.lock(resource, ttl=3600).acquire()
        listener = rf._renewer._listener
        assert listener is not None
        poll(lambda: listener.link is not None and rf._context.keeper._listed_at > 0, what="it listens")
        first = listener.link
        assert first is not None
        original = first.connection.can_read
        ended = threading.Event()

        def between_two_looks(timeout: float = 0) -> bool:
            if not ended.is_set():
                listener.reconnect()
                ended.set()
            return bool(original(timeout))

        first.connection.can_read = between_two_looks
        poll(lambda: listener.link is not first, what="it connects again")
        with redfence.Client(single.urls()) as other:
            other.force_release(resource)
        assert lock.lost.wait(30)
        assert lock.loss is not None and lock.loss.cause in ("forced", "expired")


def test_many_open_files_do_not_make_the_renewer_spin(single: Backend) -> None:
    """`select()` has no room for descriptors above 1023: a busy server has them."""
    program = """
import os, resource, sys, time
import redfence
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
if hard != resource.RLIM_INFINITY and hard < 1300:
    print("few"); sys.exit()
resource.setrlimit(resource.RLIMIT_NOFILE, (1300, hard))
kept = [os.dup(0) for _ in range(1100)]
rf = redfence.Client(sys.argv[1])
lock = rf.lock(sys.argv[2], ttl=30).acquire()
time.sleep(0.5)
before = rf._renewer._rounds
time.sleep(1.5)
print("calm" if rf._renewer._rounds - before < 8 else rf._renewer._rounds - before)
assert str(lock.release()) == "ok"
rf.close()
"""
    assert run_python(program, single.urls()[0], name()) in ("calm", "few")


def test_a_client_that_is_dropped_leaves_no_thread_and_no_session(single: Backend) -> None:
    with redfence.Client(single.urls()) as other:
        rf = redfence.Client(single.urls())
        rf.lock(name()).acquire().release()
        session, renewer = rf.session_id, rf._renewer
        thread = renewer._thread
        assert thread is not None and session is not None
        del rf
        gc.collect()
        thread.join(30)
        assert not thread.is_alive()
        assert renewer.transport.closed
        poll(lambda: gone(other, session), what="its session is closed")


def gone(rf: redfence.Client, session: str) -> bool:
    try:
        rf._run(_flows.ask_plain(rf._context, "LOCK.SESSION", "INFO", session))
    except redfence.ServerError as error:
        return error.code == "NOSESSION"
    return False


def test_an_asyncio_client_that_is_dropped_leaves_no_task(single: Backend) -> None:
    async def main() -> None:
        rf = redfence.AsyncClient(single.urls())
        lock = await rf.lock(name()).acquire()
        await lock.release()
        del rf, lock
        give_up_at = time.monotonic() + 30
        while len(asyncio.all_tasks()) > 1:
            gc.collect()
            assert time.monotonic() < give_up_at, asyncio.all_tasks()
            await asyncio.sleep(0.05)

    asyncio.run(main())


def test_a_wait_at_a_client_that_is_closed_ends(single: Backend) -> None:
    resource = name()
    with redfence.Client(single.urls()) as other, other.lock(resource, ttl=30):
        rf = redfence.Client(single.urls())
        errors: List[Any] = []

        def waiter() -> None:
            try:
                rf.lock(resource, wait=600).acquire()
            except redfence.RedfenceError as error:
                errors.append(error)

        thread = threading.Thread(target=waiter, daemon=True)
        thread.start()
        poll(lambda: other.info(resource).waiters == 1, what="it waits")
        rf.close()
        thread.join(30)
        assert len(errors) == 1 and isinstance(errors[0], redfence.InvalidRequest)
        poll(lambda: other.info(resource).waiters == 0, what="it left the queue")


def test_a_wait_at_an_asyncio_client_that_is_closed_ends(single: Backend) -> None:
    async def main() -> None:
        resource = name()
        async with redfence.AsyncClient(single.urls()) as other, other.lock(resource, ttl=30):
            rf = redfence.AsyncClient(single.urls())
            waiting = asyncio.ensure_future(rf.lock(resource, wait=600).acquire())
            while (await other.info(resource)).waiters < 1:
                await asyncio.sleep(0.05)
            await rf.close()
            with pytest.raises(redfence.InvalidRequest):
                await asyncio.wait_for(waiting, 30)

    asyncio.run(main())


def test_the_renewer_finds_the_node_that_answers_beside_two_that_hang(single: Backend) -> None:
    """They take connections and say nothing. The lock must be renewed at the third before its ttl is over."""
    relays = [Relay(single.addresses()[0]) for _ in range(3)]
    with redfence.Client([relay.url for relay in relays], shuffle=False, session_ttl=60) as rf:
        lock = rf.lock(name(), ttl=8, transferable=True).acquire()
        for relay in relays[:2]:
            relay.cut()
            relay.disconnect()
        began = lock._lease.last_good
        poll(lambda: lock.lost.is_set() or lock._lease.last_good > began, what="a renewal")
        assert lock.state is not redfence.State.LOST
    for relay in relays:
        relay.heal()
        relay.close()


def test_an_asyncio_client_of_another_loop_says_so(single: Backend) -> None:
    rf = redfence.AsyncClient(single.urls())

    async def use() -> None:
        await rf.info("r")

    asyncio.run(use())
    with pytest.raises(redfence.InvalidRequest, match="loop"):
        asyncio.run(use())


def test_a_handle_that_was_given_back_is_not_held(single: Backend) -> None:
    with redfence.Client(single.urls()) as rf:
        lock = rf.lock(name(), ttl=20, transferable=True).acquire()
        lock.release()
        for call in (lambda: lock.ensure(0), lock.raise_if_lost, lock.renew, lock.token):
            with pytest.raises(redfence.Lost):
                call()
        handed = rf.lock(name(), ttl=20, transferable=True).acquire()
        token = handed.token()
        with pytest.raises(redfence.Lost):
            handed.token()
        rf.adopt(token).release()


def test_a_multi_lock_that_lost_one_name_does_not_keep_the_others(single: Backend) -> None:
    first, second = name(), name()
    with redfence.Client(single.urls()) as rf:
        lock = rf.multi([first, second], ttl=600).acquire()
        rf.force_release(first)
        assert lock.lost.wait(30)
        assert str(lock.release()) == "lost"
        poll(lambda: not rf.info(second).held, what="the other name is free")


def test_an_older_session_wounds_a_younger_one(single: Backend) -> None:
    resource = name()
    options: Any = {"session_policy": "wound-wait"}
    with redfence.Client(single.urls(), **options) as old, redfence.Client(single.urls(), **options) as young:
        if "push" not in single.features:
            pytest.skip("the server has no policies")
        old.lock(name()).acquire().release()  # its session is opened first
        lock = young.lock(resource, ttl=600).acquire()
        with old.lock(resource, ttl=30, wait=30) as taken:
            assert lock.lost.wait(30)
            # By the push, or by a renewal that was faster.
            assert lock.loss is not None and lock.loss.cause in ("wounded", "expired")
            assert taken.fence() > lock.fence()


def test_a_younger_session_dies_rather_than_wait(single: Backend) -> None:
    async def main() -> None:
        resource = name()
        options: Any = {"session_policy": "wait-die"}
        async with redfence.AsyncClient(single.urls(), **options) as old:
            async with redfence.AsyncClient(single.urls(), session_age=2**50, **options) as young:
                async with old.lock(resource, ttl=30):
                    with pytest.raises(redfence.Deadlock):
                        await young.lock(resource, ttl=30, wait=30).acquire()

    if "push" not in single.features:
        pytest.skip("the server has no policies")
    asyncio.run(main())
