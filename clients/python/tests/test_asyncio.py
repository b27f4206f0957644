"""The asyncio client against a real node: cancellation, scopes, tasks."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from typing import Any, Awaitable, Callable, List

import pytest

import redfence
from backends import Backend


SHORT = os.environ.get("REDFENCE_SDK") == "short"


def name() -> str:
    return f"a-{uuid.uuid4().hex}"


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        return await asyncio.wait_for(work(), 90)

    return asyncio.run(main())


async def until(condition: Callable[[], Awaitable[bool]], within: float = 30.0) -> None:
    give_up_at = time.monotonic() + within
    while not await condition():
        assert time.monotonic() < give_up_at
        await asyncio.sleep(0.02)


def test_lost_lock_cancels_the_body_and_raises_lost(any_backend: Backend) -> None:
    async def work() -> None:
        resource = name()
        async with redfence.AsyncClient(any_backend.urls()) as rf:
            with pytest.raises(redfence.Lost):
                async with rf.lock(resource, ttl=1.5):
                    await rf.force_release(resource)
                    await asyncio.sleep(60)
            await asyncio.sleep(0)  # the cancellation is used up: the task goes on

    run(work)


def test_body_error_is_not_masked(single: Backend) -> None:
    async def work() -> None:
        resource = name()
        async with redfence.AsyncClient(single.urls()) as rf:
            with pytest.raises(ZeroDivisionError):
                async with rf.lock(resource, ttl=60):
                    try:
                        await rf.force_release(resource)
                    except asyncio.CancelledError:
                        pass  # the loss was told before the reply
                    1 / 0

    run(work)


def test_cancellation_from_outside_stays_a_cancellation(single: Backend) -> None:
    async def work() -> None:
        resource = name()
        async with redfence.AsyncClient(single.urls()) as rf:
            inside = asyncio.Event()

            async def body() -> None:
                async with rf.lock(resource):
                    inside.set()
                    await asyncio.sleep(60)

            task = asyncio.ensure_future(body())
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not (await rf.info(resource)).held

    run(work)


def test_body_goes_on_where_the_scope_does_not_cancel(single: Backend) -> None:
    async def work() -> None:
        resource = name()
        async with redfence.AsyncClient(single.urls()) as rf:
            with pytest.raises(redfence.Lost):
                async with rf.lock(resource, ttl=1.5, cancel_on_loss=False) as lock:
                    await rf.force_release(resource)
                    loss = await asyncio.wait_for(lock.lost, 30)
                    assert loss.cause in ("forced", "expired")
                    await asyncio.sleep(0.05)

    run(work)


def test_run_cancels_its_work_when_the_lock_is_lost(single: Backend) -> None:
    async def work() -> None:
        resource = name()
        async with redfence.AsyncClient(single.urls()) as rf:
            lock = await rf.lock(resource, ttl=1.5).acquire()

            async def quick() -> int:
                return 7

            assert await lock.run(quick()) == 7
            cancelled: List[bool] = []

            async def slow() -> None:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    cancelled.append(True)
                    raise

            await rf.force_release(resource)
            with pytest.raises(redfence.Lost):
                await lock.run(slow())
            assert cancelled == [True]

    run(work)


def test_cancelled_acquire_leaves_nothing_behind(any_backend: Backend) -> None:
    async def work() -> None:
        resource = name()
        async with redfence.AsyncClient(any_backend.urls()) as rf:
            async with rf.lock(resource, ttl=30) as lock:
                waiting = asyncio.ensure_future(rf.lock(resource, ttl=600, wait=600).acquire())

                async def queued() -> bool:
                    return (await rf.info(resource)).waiters == 1

                async def left() -> bool:
                    return (await rf.info(resource)).waiters == 0

                await until(queued)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                await until(left)
                await lock.release()
            await (await rf.lock(resource, wait=10).acquire()).release()

    run(work)


def test_cancelling_at_any_moment_leaves_no_lock(any_backend: Backend) -> None:
    async def work() -> None:
        prefix = name()
        async with redfence.AsyncClient(any_backend.urls()) as rf:
            await (await rf.lock(prefix).acquire()).release()
            for i in range(60):
                task = asyncio.ensure_future(rf.lock(f"{prefix}:{i}", ttl=600).acquire())
                for _ in range(i % 12):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    lock = await task
                except asyncio.CancelledError:
                    continue
                await lock.release()

            async def none_held() -> bool:
                for i in range(60):
                    if (await rf.info(f"{prefix}:{i}")).held:
                        return False
                return True

            await until(none_held)

    run(work)


def test_tasks_and_sockets_do_not_leak(single: Backend) -> None:
    async def work() -> None:
        def sockets() -> int:
            return len(os.listdir("/proc/self/fd"))

        tasks, before = len(asyncio.all_tasks()), sockets()
        prefix = name()
        async with redfence.AsyncClient(single.urls()) as rf:
            locks = await asyncio.gather(*(rf.lock(f"{prefix}:{i}", ttl=6).acquire() for i in range(200)))
            assert len(asyncio.all_tasks()) - tasks <= 4
            await asyncio.sleep(0.5 if SHORT else 7)  # past the ttl
            assert all(lock.state is redfence.State.HELD for lock in locks)
            await asyncio.gather(*(lock.release() for lock in locks))
        await asyncio.sleep(0.1)
        assert len(asyncio.all_tasks()) == tasks
        assert sockets() <= before + 1

    run(work)


def test_hand_over_between_clients(single: Backend) -> None:
    async def work() -> None:
        async with redfence.AsyncClient(single.urls()) as one, redfence.AsyncClient(single.urls()) as two:
            lock = await one.lock(name(), transferable=True).acquire()
            adopted = await two.adopt(lock.token())
            assert adopted.fence() == lock.fence()
            assert str(await adopted.release()) == "ok"

    run(work)


def test_watch_and_election(any_backend: Backend) -> None:
    async def work() -> None:
        resource = name()
        async with redfence.AsyncClient(any_backend.urls()) as rf:
            async with rf.watch(resource) as events:
                leadership = await rf.election(resource).campaign()
                event = await events.next(20)
                assert event is not None and event.fence == leadership.fence()
            seen: List[Any] = []
            async for leader in rf.election(resource).observe():
                seen.append(leader)
                if leader is None:
                    break
                await rf.election(resource).resign(leadership)
            assert seen[0].fence == leadership.fence() and seen[-1] is None

    run(work)


def test_decorator(single: Backend) -> None:
    async def work() -> None:
        prefix = name()
        async with redfence.AsyncClient(single.urls()) as rf:

            @rf.locked(prefix + ":{invoice}")
            async def pay(invoice: int) -> bool:
                return (await rf.info(f"{prefix}:{invoice}")).held

            assert await pay(7)

    run(work)
