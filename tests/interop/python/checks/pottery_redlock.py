"""pottery's Redlock and AIORedlock: `pottery_redlock.py single|masters sync|asyncio`."""

import logging
import sys
import time
from importlib.metadata import version

import redis
import redis.asyncio
from pottery import (AIORedlock, ExtendUnlockedLock, QuorumNotAchieved, Redlock, ReleaseUnlockedLock, TooManyExtensions, synchronize)
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from frame import NODES, REDLOCK, Background, Loop, expect, fresh_name, held_fence, host_port, is_free, raises, until
from shared import Library, expect_free, run_shared

logging.disable(logging.CRITICAL)  # it logs a stack for every dead master


class PotterySync(Library):
    name, version = "pottery", version("pottery")
    errors = (RedisError, OSError)

    def __init__(self, masters):
        self.masters = masters
        self.variant = "Redlock, " + ("three masters" if masters else "one address")

    def key(self, name):
        return "redlock:" + name

    def client(self, address):
        addresses = REDLOCK if self.masters else [address]
        return {redis.Redis(*host_port(one), socket_timeout=10, retry=Retry(NoBackoff(), 0)) for one in addresses}

    def acquire(self, client, name, ttl_ms, wait_ms=0):
        lock = Redlock(key=name, masters=client, auto_release_time=ttl_ms / 1000)
        return lock if lock.acquire(blocking=wait_ms > 0, timeout=wait_ms / 1000 or -1) else None

    def release(self, client, lock):
        try:
            lock.release()
            return True
        except ReleaseUnlockedLock:
            return False

    def extend(self, client, lock, ttl_ms):
        lock.auto_release_time = ttl_ms / 1000
        lock.extend()
        return True


class PotteryAsync(PotterySync):
    def __init__(self, masters):
        super().__init__(masters)
        self.variant = "AIO" + self.variant
        self.wait = Loop()

    def client(self, address):
        async def make():
            addresses = REDLOCK if self.masters else [address]
            return {redis.asyncio.Redis(host=host, port=port, socket_timeout=10, retry=redis.asyncio.retry.Retry(NoBackoff(), 0))
                    for host, port in map(host_port, addresses)}

        return self.wait(make())

    def acquire(self, client, name, ttl_ms, wait_ms=0):
        async def go():
            lock = AIORedlock(key=name, masters=client, auto_release_time=ttl_ms / 1000)
            return lock if await lock.acquire(blocking=wait_ms > 0, timeout=wait_ms / 1000 or -1) else None

        return self.wait(go())

    def release(self, client, lock):
        try:
            self.wait(lock.release())
            return True
        except ReleaseUnlockedLock:
            return False

    def extend(self, client, lock, ttl_ms):
        lock.auto_release_time = ttl_ms / 1000
        self.wait(lock.extend())
        return True


def sync_only(library, report):
    masters = library.client(NODES[0])

    def extensions():
        name = fresh_name("extensions")
        lock = Redlock(key=name, masters=masters, auto_release_time=5, num_extensions=2)
        expect(lock.acquire(), "a free lock was refused")
        expect(4 < lock.locked() < 5, "locked() says %s" % lock.locked())
        lock.extend()
        lock.extend()
        raises(TooManyExtensions, lock.extend, "a third extension of two")
        lock.release()
        expect(lock.locked() == 0, "locked() after the release")
        raises(ReleaseUnlockedLock, lock.release, "a second release")
        late = Redlock(key=name, masters=masters, auto_release_time=0.2)
        expect(late.acquire(), "refused after the release")
        until(lambda: is_free(library.key(name)), 3, "did not expire")
        expect(late.locked() == 0, "locked() after the end says %s" % late.locked())
        raises(ExtendUnlockedLock, late.extend, "an expired lock was extended")

    def context_manager():
        name = fresh_name("with")
        with Redlock(key=name, masters=masters, auto_release_time=5):
            fence = held_fence(library.key(name))
            other = Redlock(key=name, masters=library.client(NODES[1]), context_manager_timeout=0.3)
            raises(QuorumNotAchieved, other.__enter__, "a second `with` came in")
            expect(held_fence(library.key(name)) == fence, "the fence changed inside `with`")
        expect_free(library, name)

    def decorator():
        inside = []

        @synchronize(key=fresh_name("synchronize"), masters=masters, auto_release_time=5)
        def alone():
            inside.append(1)
            expect(len(inside) == 1, "two inside")
            time.sleep(0.02)
            inside.pop()

        for call in [Background(alone) for _ in range(3)]:
            call.result()

    report.run("extension limit, locked(), late extend", extensions)
    report.run("context manager", context_manager)
    report.run("@synchronize", decorator)


def async_only(library, report):
    masters = library.client(NODES[0])

    def context_manager():
        async def go():
            name = fresh_name("with")
            async with AIORedlock(key=name, masters=masters, auto_release_time=5) as lock:
                held_fence(library.key(name))
                expect(4 < await lock.locked() < 5, "locked() says %s" % await lock.locked())
            return name

        expect_free(library, library.wait(go()))

    report.run("async with", context_manager)


def main():
    masters, kind = sys.argv[1] == "masters", sys.argv[2]
    library = PotteryAsync(masters) if kind == "asyncio" else PotterySync(masters)
    report = run_shared(library)
    (async_only if kind == "asyncio" else sync_only)(library, report)


main()
