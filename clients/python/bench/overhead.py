"""What the SDK costs beside bare redis-py: acquire and release, at 1 and 64 lockers, each with a lock of its own.

    python clients/python/bench/overhead.py redis://127.0.0.1:6380 [seconds]

Bare redis-py sends the same two commands by `execute_command`, with a new owner each, and nothing else: no renewal, no session,
no deadline. Both are measured by turns, several times; the ratio is the median of those of neighbouring turns, because machines
change their pace.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import threading
import time
import uuid
from typing import Any, Callable, Dict, List

import redis
import redis.asyncio

import redfence

ROUNDS = 15


def threads(count: int, seconds: float, once: Callable[[str], None]) -> float:
    """Locks a second."""
    done = [0] * count
    start = threading.Barrier(count + 1)
    stop_at = [0.0]

    def work(i: int) -> None:
        name = f"bench-{i}"
        once(name)
        start.wait()
        while time.perf_counter() < stop_at[0]:
            once(name)
            done[i] += 1

    workers = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    stop_at[0] = time.perf_counter() + 3600
    for worker in workers:
        worker.start()
    start.wait()
    stop_at[0] = time.perf_counter() + seconds
    for worker in workers:
        worker.join()
    return sum(done) / seconds


async def tasks(count: int, seconds: float, once: Callable[[str], Any]) -> float:
    done = 0
    await asyncio.gather(*(once(f"bench-{i}") for i in range(count)))
    stop_at = time.perf_counter() + seconds

    async def work(i: int) -> None:
        nonlocal done
        while time.perf_counter() < stop_at:
            await once(f"bench-{i}")
            done += 1

    await asyncio.gather(*(work(i) for i in range(count)))
    return done / seconds


def report(what: str, count: int, results: Dict[str, List[float]]) -> float:
    bare, sdk = statistics.median(results["bare"]), statistics.median(results["sdk"])
    ratio = statistics.median(mine / theirs for mine, theirs in zip(results["sdk"], results["bare"]))
    print(f"{what:8} {count:3} lockers: redis-py {bare:8.0f}/s   redfence {sdk:8.0f}/s   {ratio:.2f} x", flush=True)
    return ratio


def measure_threads(url: str, seconds: float) -> List[float]:
    plain: Any = redis.Redis.from_url(url)
    ratios = []

    def bare(name: str) -> None:
        fence, _ = plain.execute_command("LOCK.ACQUIRE", name, 30000, "OWNER", str(uuid.uuid4()))
        plain.execute_command("LOCK.RELEASE", name, fence)

    with redfence.Client(url) as rf:

        def sdk(name: str) -> None:
            rf.lock(name, ttl=30).acquire().release()

        for count in (1, 64):
            results: Dict[str, List[float]] = {"bare": [], "sdk": []}
            for _ in range(ROUNDS):
                results["bare"].append(threads(count, seconds, bare))
                results["sdk"].append(threads(count, seconds, sdk))
            ratios.append(report("threads", count, results))
    return ratios


async def measure_asyncio(url: str, seconds: float) -> List[float]:
    plain: Any = redis.asyncio.Redis.from_url(url)
    ratios = []

    async def bare(name: str) -> None:
        fence, _ = await plain.execute_command("LOCK.ACQUIRE", name, 30000, "OWNER", str(uuid.uuid4()))
        await plain.execute_command("LOCK.RELEASE", name, fence)

    async with redfence.AsyncClient(url) as rf:

        async def sdk(name: str) -> None:
            await (await rf.lock(name, ttl=30).acquire()).release()

        for count in (1, 64):
            results: Dict[str, List[float]] = {"bare": [], "sdk": []}
            for _ in range(ROUNDS):
                results["bare"].append(await tasks(count, seconds, bare))
                results["sdk"].append(await tasks(count, seconds, sdk))
            ratios.append(report("asyncio", count, results))
    await plain.aclose()
    return ratios


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "redis://127.0.0.1:6380"
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.5
    ratios = measure_threads(url, seconds) + asyncio.run(measure_asyncio(url, seconds))
    print(f"the least of them is {min(ratios):.2f} x; the goal is 0.9 x")


if __name__ == "__main__":
    main()
