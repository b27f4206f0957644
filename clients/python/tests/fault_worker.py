"""One client process of test_faults.py: takes locks, writes under their fences, and writes down what it believes, on a clock of the whole machine.

python fault_worker.py threads|asyncio LOG NAMES URL... with a PostgreSQL in REDFENCE_FAULTS_DSN, if any. Ends when its input does.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
from typing import Any, Dict, Iterator, List

import redfence
from redfence import postgres

TTL = 2.0
OPTIONS: Dict[str, Any] = {"session_ttl": TTL, "timeout": 8.0, "request_timeout": 2.0, "connect_timeout": 1.0}
DSN = os.environ.get("REDFENCE_FAULTS_DSN")


def now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


class Diary:
    """One JSON line for each event; whole lines only, whoever is killed when."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, what: str, name: str, fence: int, at: float, **more: Any) -> None:
        line = json.dumps({"what": what, "name": name, "fence": fence, "at": at, **more}) + "\n"
        os.write(self._file, line.encode())


class Work:
    """What both clients do with a lock. Yields what to ask the client, so that threads and asyncio do the same."""

    def __init__(self, diary: Diary, names: List[str], seed: str) -> None:
        self.diary, self.names, self.random = diary, names, random.Random(seed)
        self.connection: Any = None
        if DSN:
            import psycopg

            self.connection = psycopg.connect(DSN, autocommit=True)

    def hold(self, name: str, lock: Any) -> Iterator[Any]:
        diary, fence = self.diary, lock.fence()
        diary.write("acquired", name, fence, now())
        ended = False
        for _ in range(self.random.randrange(1, 12)):
            at = now()  # before the look: it says nothing about later
            if lock.lost.is_set():
                diary.write("lost", name, fence, at, cause=lock.loss.cause)
                ended = True
                break
            if lock.remaining() > 0:
                diary.write("believes", name, fence, at)
            yield from self.write(name, lock)
            yield ("sleep", self.random.uniform(0.0, 0.25))
        if not ended:
            diary.write("released", name, fence, now())
        yield ("release", lock)
        if self.random.random() < 0.5:  # a late write: somebody who does not look whether the lock is still held
            yield ("sleep", self.random.uniform(0.0, 0.5))
            yield from self.write(name, lock)

    def write(self, name: str, lock: Any) -> Iterator[Any]:
        began = now()
        result = yield ("write", name, lock)
        self.diary.write("wrote", name, lock.fence(), began, until=now(), result=result)

    def to_postgres(self, name: str, fence: int) -> str:
        import psycopg

        try:
            with self.connection.transaction():
                self.connection.execute(postgres._statement(fence))
                self.connection.execute("UPDATE faults SET writes = writes + 1 WHERE name = %s", (name,))
            return "ok"
        except psycopg.Error as error:
            return "stale" if error.sqlstate == postgres.STALE_STATE else "unknown"


def threads(work: Work, urls: List[str], stop: threading.Event) -> None:
    def do(step: Any) -> Any:
        if step[0] == "sleep":
            time.sleep(step[1])
        elif step[0] == "release":
            try:
                step[1].release()
            except redfence.RedfenceError:
                pass
        elif work.connection is not None:
            return work.to_postgres(step[1], step[2].fence())
        else:
            try:
                step[2].fence_call("SET", "{data}" + step[1], str(step[2].fence()))
                return "ok"
            except redfence.StaleFence:
                return "stale"
            except redfence.RedfenceError:
                return "unknown"
        return None

    with redfence.Client(urls, **OPTIONS) as rf:
        while not stop.is_set():
            name = work.random.choice(work.names)
            try:
                lock = rf.lock(name, ttl=TTL, wait=work.random.choice((0.0, 1.0, 3.0))).acquire()
            except redfence.RedfenceError as error:
                if not isinstance(error, redfence.Busy):
                    work.diary.write("failed", name, 0, now(), error=type(error).__name__)
                time.sleep(0.05)
                continue
            steps = work.hold(name, lock)
            result = None
            try:
                while True:
                    result = do(steps.send(result))
            except StopIteration:
                pass


async def with_asyncio(work: Work, urls: List[str], stop: threading.Event) -> None:
    async def do(step: Any) -> Any:
        if step[0] == "sleep":
            await asyncio.sleep(step[1])
        elif step[0] == "release":
            try:
                await step[1].release()
            except redfence.RedfenceError:
                pass
        elif work.connection is not None:
            return work.to_postgres(step[1], step[2].fence())
        else:
            try:
                await step[2].fence_call("SET", "{data}" + step[1], str(step[2].fence()))
                return "ok"
            except redfence.StaleFence:
                return "stale"
            except redfence.RedfenceError:
                return "unknown"
        return None

    async def worker(rf: redfence.AsyncClient) -> None:
        while not stop.is_set():
            name = work.random.choice(work.names)
            pending = rf.lock(name, ttl=TTL, wait=work.random.choice((0.0, 1.0, 3.0)))
            try:
                if work.random.random() < 0.2:  # cancelled in the middle: it must leave nothing
                    lock = await asyncio.wait_for(pending.acquire(), work.random.uniform(0.0, 0.3))
                else:
                    lock = await pending.acquire()
            except (redfence.RedfenceError, asyncio.TimeoutError) as error:
                if not isinstance(error, (redfence.Busy, asyncio.TimeoutError)):
                    work.diary.write("failed", name, 0, now(), error=type(error).__name__)
                await asyncio.sleep(0.05)
                continue
            steps = work.hold(name, lock)
            result = None
            try:
                while True:
                    result = await do(steps.send(result))
            except StopIteration:
                pass

    async with redfence.AsyncClient(urls, **OPTIONS) as rf:
        await asyncio.gather(worker(rf), worker(rf))


def main() -> None:
    kind, log, names, *urls = sys.argv[1:]
    stop = threading.Event()

    def until_the_end() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=until_the_end, daemon=True).start()
    work = Work(Diary(log), names.split(","), log)
    work.diary.write("started", "", 0, now())
    if kind == "threads":
        threads(work, urls, stop)
    else:
        asyncio.run(with_asyncio(work, urls, stop))
    work.diary.write("ended", "", 0, now())


if __name__ == "__main__":
    main()
