"""The recipes of docs/sdk-python.md. The page shows these functions word for word (test_docs.py compares them)."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from typing import Any, Callable, Dict, List, Optional

import pytest

import redfence
from backends import Backend


def name() -> str:
    return f"{{recipe}}-{uuid.uuid4().hex}"


# recipe: cron job
def run_once_per_day(rf: redfence.Client, day: str, job: Callable[[int], None]) -> bool:
    """Every machine calls it; one of them runs the job. A second call on the same day does nothing."""
    lock = rf.lock("cron:daily-report", ttl=60).try_acquire()
    if lock is None:
        return False  # another machine is at it
    with lock:
        # The mark is written under the fence, so that a paused machine cannot undo it.
        if lock.fence_call("GET", "{cron:daily-report}:done") == day.encode():
            return False
        job(lock.fence())
        lock.ensure(5.0)
        lock.fence_call("SET", "{cron:daily-report}:done", day)
        return True


# recipe: database migration
def migrate(rf: redfence.Client, connection: Any, migrations: List[Callable[[Any], None]]) -> int:
    """Every instance calls it at its start; one migrates, the others wait for it."""
    with rf.lock("migrate:shop", ttl=30, wait=600, max_hold=None) as lock:
        done = 0
        for migration in migrations:
            lock.ensure(10.0)  # not begun where the lock may be gone before it ends
            migration(connection)
            done += 1
        return done


# recipe: leader election
def lead(rf: redfence.Client, address: Optional[str], work: Callable[[int], None], stop: threading.Event) -> None:
    """Campaigns, works while it leads, campaigns again when it lost."""
    while not stop.is_set():
        try:
            leadership = rf.election("scheduler", ttl=10).campaign(address, wait=5)
        except redfence.Busy:
            continue
        while not stop.is_set() and not leadership.lost.wait(0.05):
            work(leadership.fence())
        leadership.release()


# recipe: rate limit
def with_permit(rf: redfence.Client, call: Callable[[], Any]) -> Any:
    """At most three calls of the provider at a time, over all machines. A machine that dies gives its permit back."""
    with rf.permits("provider:calls", 1, of=3, ttl=10, wait=30):
        return call()


# recipe: cache refill
def cached(rf: redfence.Client, cache: Any, key: str, compute: Callable[[], bytes]) -> bytes:
    """One process computes, the others wait for it. Without a lock server each computes for itself: it is only slower."""
    value = cache.get(key)
    if value is None:
        with rf.lock(f"refill:{key}", ttl=10, wait=10, tier="efficiency", on_unavailable="proceed"):
            value = cache.get(key)
            if value is None:
                value = compute()
                cache[key] = value
    return bytes(value)


# recipe: work queue
async def work_on(rf: redfence.AsyncClient, jobs: List[str], handle: Callable[[str, int], Any]) -> int:
    """Takes whatever job nobody else works on. A job whose lock is lost is cancelled, and somebody else takes it."""
    done = 0
    for job in jobs:
        lock = await rf.lock(f"job:{job}", ttl=15).try_acquire()
        if lock is None:
            continue
        async with lock:
            await lock.run(handle(job, lock.fence()))
            done += 1
    return done


# end of recipes


class Renamed:
    """A client under whose names nobody else works."""

    def __init__(self, rf: Any) -> None:
        self._rf, self._prefix = rf, name()

    def __getattr__(self, attribute: str) -> Any:
        method = getattr(self._rf, attribute)
        if attribute in ("lock", "permits", "election"):
            return lambda resource, *args, **more: method(self._prefix + resource, *args, **more)
        return method


def test_cron_job_runs_once(any_backend: Backend) -> None:
    if any_backend.name != "single":
        pytest.skip("the recipe's names are fixed; Tier 1 keeps marks in the same Redis: shown on a node")
    ran: List[int] = []
    with redfence.Client(any_backend.urls()) as rf:
        client: Any = rf
        assert run_once_per_day(client, "2026-11-16", ran.append)
        assert not run_once_per_day(client, "2026-11-16", ran.append)
        assert run_once_per_day(client, "2026-11-17", ran.append)
    assert len(ran) == 2 and ran[0] < ran[1]


def test_migration_runs_by_turns(any_backend: Backend) -> None:
    at_once, most, mutex = 0, 0, threading.Lock()

    def step(_: Any) -> None:
        nonlocal at_once, most
        with mutex:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.05)
        with mutex:
            at_once -= 1

    with redfence.Client(any_backend.urls()) as rf:
        client: Any = Renamed(rf)
        threads = [threading.Thread(target=migrate, args=(client, None, [step, step])) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert most == 1


def test_leader_election_has_one_leader_and_a_next(single: Backend) -> None:
    value = "host:80" if "kinds" in single.features else None
    seen: Dict[str, List[int]] = {"a": [], "b": []}
    with redfence.Client(single.urls()) as one, redfence.Client(single.urls()) as two:
        prefix = Renamed(one)
        other = Renamed(two)
        other._prefix = prefix._prefix
        stops = {"a": threading.Event(), "b": threading.Event()}
        threads = [
            threading.Thread(target=lead, args=(client, value, seen[key].append, stops[key]))
            for key, client in (("a", prefix), ("b", other))
        ]
        for thread in threads:
            thread.start()
        wait_for(lambda: bool(seen["a"] or seen["b"]))
        first = "a" if seen["a"] else "b"
        second = "b" if first == "a" else "a"
        assert not seen[second]
        stops[first].set()
        wait_for(lambda: bool(seen[second]))
        stops[second].set()
        for thread in threads:
            thread.join(30)
        assert max(seen[first]) < min(seen[second])


def wait_for(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def test_rate_limit(single: Backend) -> None:
    if "kinds" not in single.features:
        with redfence.Client(single.urls()) as rf, pytest.raises(redfence.TierRefused):
            with_permit(rf, lambda: None)
        pytest.skip("this server has no permits: it refused them")
    at_once, most, mutex = 0, 0, threading.Lock()

    def call() -> None:
        nonlocal at_once, most
        with mutex:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.05)
        with mutex:
            at_once -= 1

    with redfence.Client(single.urls()) as rf:
        client: Any = Renamed(rf)
        threads = [threading.Thread(target=with_permit, args=(client, call)) for _ in range(9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert 1 < most <= 3


def test_cache_refill_computes_once(any_backend: Backend) -> None:
    computed: List[int] = []

    def compute() -> bytes:
        time.sleep(0.05)
        computed.append(1)
        return b"value"

    cache: Dict[str, bytes] = {}
    with redfence.Client(any_backend.urls()) as rf:
        client: Any = Renamed(rf)
        threads = [threading.Thread(target=cached, args=(client, cache, "k", compute)) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert computed == [1]


def test_work_queue_does_each_job_once_at_a_time(any_backend: Backend) -> None:
    at_work: Dict[str, int] = {}

    async def handle(job: str, fence: int) -> None:
        assert at_work.get(job, 0) == 0
        at_work[job] = 1
        await asyncio.sleep(0.02)
        at_work[job] = 0

    async def work() -> None:
        async with redfence.AsyncClient(any_backend.urls()) as rf:
            client: Any = Renamed(rf)
            jobs = [str(i) for i in range(10)]
            done = await asyncio.gather(*(work_on(client, jobs, handle) for _ in range(3)))
            assert sum(done) >= 10

    asyncio.run(work())
