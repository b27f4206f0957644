"""A client that is closed, cancelled or dropped in the middle of something: nobody goes on believing, nobody goes on waiting."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import uuid
from typing import Any, List

import pytest

import redfence
from backends import Backend, poll
from redfence import _lease, _wire
from redfence._wire import Grant
from redfence.testing import TestServer
from relay import Relay
from test_threads import run_python


def name() -> str:
    return f"c-{uuid.uuid4().hex}"


def refusing() -> str:
    """An address where nobody listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"redis://127.0.0.1:{unused.getsockname()[1]}"


def outcome_of(call: Any, into: List[Any]) -> threading.Thread:
    def run() -> None:
        try:
            into.append(call())
        except BaseException as error:
            into.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


# ------------------------------------------------------------ close() while somebody waits


def test_a_waiter_is_not_granted_what_close_gives_back(single: Backend) -> None:
    """Its session ends with the client: it would believe in a lock that the next one has."""
    resource = name()
    rf = redfence.Client(single.urls())
    with redfence.Client(single.urls()) as other:
        held = rf.lock(resource, ttl=30, transferable=True).acquire()
        outcome: List[Any] = []
        waiter = outcome_of(rf.lock(resource, ttl=3, wait=60).acquire, outcome)
        poll(lambda: other.info(resource).waiters == 1, what="it waits")
        rf.close()
        waiter.join(30)
        assert len(outcome) == 1 and isinstance(outcome[0], redfence.InvalidRequest), outcome
        assert held.lost.is_set()
        other.lock(resource, ttl=30, wait=40).acquire().release()


def test_a_waiter_is_not_granted_what_close_gives_back_asyncio(single: Backend) -> None:
    async def main() -> None:
        resource = name()
        rf = redfence.AsyncClient(single.urls())
        async with redfence.AsyncClient(single.urls()) as other:
            held = await rf.lock(resource, ttl=30, transferable=True).acquire()
            waiter = asyncio.ensure_future(rf.lock(resource, ttl=3, wait=60).acquire())
            while (await other.info(resource)).waiters < 1:
                await asyncio.sleep(0.02)
            await rf.close()
            with pytest.raises(redfence.InvalidRequest):
                await asyncio.wait_for(waiter, 30)
            assert held.loss is not None
            await (await other.lock(resource, ttl=30, wait=40).acquire()).release()

    for _ in range(10):  # whatever the listener, the renewer and the waiter are at when `close` comes
        asyncio.run(main())


def test_waits_for_a_session_end_with_the_client_asyncio() -> None:
    """Not with a cancellation, which nobody asked for."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            for url in (f"redis://127.0.0.1:{silent.getsockname()[1]}", refusing()):
                rf = redfence.AsyncClient(url, connect_timeout=0.2)
                waiter = asyncio.ensure_future(rf.lock("a", wait=3600).acquire())
                await asyncio.sleep(0.3)
                await rf.close()
                with pytest.raises(redfence.RedfenceError):
                    await asyncio.wait_for(waiter, 30)

    asyncio.run(main())


@pytest.mark.parametrize("way", ["close", "silent"])
def test_a_call_that_a_silent_node_does_not_read_ends(single: Backend, way: str) -> None:
    """Closing a connection in order would wait for what is still to be written."""

    async def main() -> None:
        relay = Relay(single.addresses()[0])
        rf = redfence.AsyncClient(relay.url, request_timeout=1.0, timeout=2.0, sessions=False)
        lock = await rf.lock(name(), ttl=30).acquire()
        relay.cut()
        call = asyncio.ensure_future(rf.fence_call("a", lock.fence(), "SET", "k", b"x" * 40_000_000))
        await asyncio.sleep(0.3)
        if way == "silent":
            await rf._transport.silent(0)
        else:
            await rf.close()
        with pytest.raises(redfence.RedfenceError):
            await asyncio.wait_for(call, 30)
        await rf.close()
        relay.close()

    asyncio.run(main())


def test_a_close_that_was_cancelled_can_be_finished(single: Backend) -> None:
    async def main() -> None:
        relay = Relay(single.addresses()[0])
        rf = redfence.AsyncClient(relay.url, request_timeout=1.0)
        held = await rf.lock(name(), ttl=30).acquire()
        relay.cut()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(rf.close(), 0.1)
        relay.heal()
        await rf.close()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left and held.loss is not None, left
        relay.close()

    asyncio.run(main())


def test_a_program_that_ends_with_a_lock_held_ends(single: Backend) -> None:
    program = f"""
import redfence
rf = redfence.Client({single.urls()!r})
lock = rf.lock({name()!r}).acquire()
"""
    assert run_python(program) == ""


# ------------------------------------------------------------ connections


def test_a_connection_that_redis_py_closed_is_not_used_again() -> None:
    """It closes one after `LOADING`, and would connect again by itself, without a limit."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(client,), daemon=True).start()

        def answer(client: socket.socket) -> None:
            with client:
                while True:
                    data = client.recv(65536)
                    if not data:
                        return
                    hello = b"%1\r\n+proto\r\n:3\r\n"
                    asked = data.count(b"\r\n*") + 1
                    client.sendall(hello if b"HELLO" in data else b"-LOADING the data set\r\n" * asked)

        threading.Thread(target=serve, daemon=True).start()
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}"
        with redfence.Client(url, timeout=1.0, sessions=False) as rf:
            for ask in (lambda: rf.info("a"), lambda: rf.fence_call("a", 1, "GET", "k")):
                with pytest.raises(redfence.Unavailable):
                    ask()
                assert not rf._transport.nodes[0].idle

        async def main() -> None:
            async with redfence.AsyncClient(url, timeout=1.0, sessions=False) as arf:
                with pytest.raises(redfence.Unavailable):
                    await arf.info("a")
                assert not arf._transport.nodes[0].idle

        asyncio.run(main())


def test_a_connection_that_was_ended_is_not_kept(single: Backend) -> None:
    """Between its reply and its return to the idle ones."""
    with redfence.Client(single.urls(), sessions=False) as rf:
        rf.info("a")
        transport = rf._transport
        index, connection = transport._checkout(waits=False)
        transport.silent(index)
        transport._checkin(index, connection)
        assert connection not in transport.nodes[index].idle
        rf.info("a")


# ------------------------------------------------------------ watches


def test_a_watch_ends_with_its_client(single: Backend) -> None:
    rf = redfence.Client(single.urls())
    outcome: List[Any] = []
    watch = rf.watch(name() + "*")

    def read() -> List[Any]:
        with watch as events:
            return list(events)

    reader = outcome_of(read, outcome)
    poll(lambda: watch._reading, what="it reads")
    rf.close()
    reader.join(30)
    assert outcome == [[]]
    with pytest.raises(redfence.RedfenceError):
        rf.watch("*").__enter__()


def test_a_watch_without_a_server_is_an_error_of_ours() -> None:
    async def main() -> None:
        async with redfence.AsyncClient(refusing()) as arf:
            with pytest.raises(redfence.Unavailable):
                await arf.watch("*").__aenter__()

    with redfence.Client(refusing()) as rf:
        with pytest.raises(redfence.Unavailable):
            rf.watch("*").__enter__()
        with pytest.raises(redfence.Unavailable):
            next(rf.election("a").observe())
    asyncio.run(main())


def test_a_gap_is_told_once_it_listens_again(single: Backend) -> None:
    relay = Relay(single.addresses()[0])
    with redfence.Client(relay.url, connect_timeout=0.5) as rf, redfence.Client(single.urls()) as other:
        resource = name()
        with rf.watch(resource) as events:
            relay.crash()
            assert events.next(0.5) is None  # it cannot listen: there is nothing to say yet
            relay.heal()
            gap = events.next(30)
            assert gap is not None and gap.event == "gap"
            other.lock(resource).acquire().release()
            event = events.next(30)
            assert event is not None and event.event == "acquired"
    relay.close()


# ------------------------------------------------------------ the rest


def test_a_renewal_of_the_old_fence_during_a_conversion_is_no_loss() -> None:
    keeper = _lease.Keeper(time.monotonic)
    asked = _wire.LockRequest(("a",), False, 30_000, 0, "me")
    lease = _lease.Lease(asked, Grant((1,), 30_000, time.monotonic()), None, float("inf"), time.monotonic)
    keeper.add(lease)
    old = _lease.Batch(time.monotonic())
    keeper._renew(old, lease, _wire.Dialect(), time.monotonic())
    lease.converting = True
    keeper.settle(old, [[0, b"already_released"]])
    assert lease.loss is None, "the reply to the conversion tells"
    lease.fences, lease.converting = (2,), False
    keeper.settle(old, [[0, b"already_released"]])
    assert lease.loss is None, "nobody asked about the new fence"
    new = _lease.Batch(time.monotonic())
    keeper._renew(new, lease, _wire.Dialect(), time.monotonic())
    keeper.settle(new, [[0, b"expired"]])
    assert lease.loss is not None and lease.loss.cause == "expired"


def test_a_forgotten_local_lock_is_given_back() -> None:
    with redfence.Client(refusing(), timeout=0.1) as rf:
        for _ in range(2):
            lock = rf.lock("a", tier="efficiency", on_unavailable="local").acquire()
            assert lock.degraded == "local"
            del lock


def test_the_clock_of_a_test_forgets_clients_of_earlier_tests() -> None:
    try:
        server = TestServer()
    except redfence.testing.TestServerMissing as missing:
        pytest.skip(str(missing))
    with server:

        async def main() -> None:
            client = server.async_client()
            lock = await client.lock("a", ttl=30).acquire()
            await client.close()
            assert lock.loss is not None

        asyncio.run(main())
        server.reset()
        server.advance(31)


@pytest.mark.parametrize("released_at_once", [False, True])
def test_a_conversion_that_was_cancelled_leaves_what_the_server_holds_asyncio(
    single: Backend, released_at_once: bool
) -> None:
    """The server replaced the fence, and nobody heard of it: the lock is neither lost nor left behind."""

    async def main() -> None:
        resource = name()
        async with redfence.AsyncClient(single.urls()) as rf, redfence.AsyncClient(single.urls()) as other:
            lock = await rf.shared(resource, ttl=30).acquire()
            shared_fence, call = lock.fence(), rf._transport.call

            async def hears_nothing(words: Any, blocks: float) -> Any:
                reply = await call(words, blocks)
                if words[0] == "LOCK.CONVERT":
                    await asyncio.sleep(3600)
                return reply

            rf._transport.call = hears_nothing  # type: ignore[method-assign]
            conversion = asyncio.ensure_future(lock.convert("exclusive"))
            while (await other.info(resource)).mode != "exclusive":
                await asyncio.sleep(0.02)
            conversion.cancel()
            with pytest.raises(asyncio.CancelledError):
                await conversion
            if released_at_once:
                await lock.release()
                while (await other.info(resource)).held:
                    await asyncio.sleep(0.02)
                return
            while lock.fence() == shared_fence:
                await asyncio.sleep(0.02)
            await lock.ensure(10)
            assert lock.fence() == (await other.info(resource)).fence
            await lock.release()
            assert not (await other.info(resource)).held

    asyncio.run(asyncio.wait_for(main(), 60))
