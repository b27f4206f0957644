"""aioredlock over aioredis 1: `aioredlock_manager.py single|masters`."""

import asyncio
import logging
import sys

import aioredlock
import pkg_resources
from aioredlock import Aioredlock, LockAcquiringError, LockError, LockRuntimeError

from frame import NODES, REDLOCK, Loop, expect, fresh_name, held_fence, host_port, lock_info
from shared import Library, expect_free, run_shared

logging.disable(logging.CRITICAL)  # it logs an error for every dead master


class AioRedlock(Library):
    name, version = "aioredlock", pkg_resources.get_distribution("aioredlock").version
    errors = (LockRuntimeError, OSError)

    def __init__(self, masters):
        self.masters = masters
        self.variant = "three masters" if masters else "one address"
        self.wait = Loop()

    def client(self, address):
        async def make():
            return Aioredlock([host_port(one) for one in (REDLOCK if self.masters else [address])], retry_count=1)

        return self.wait(make())

    def acquire(self, client, name, ttl_ms, wait_ms=0):
        async def go():
            client.retry_count = 1 + wait_ms // 200
            try:
                return await client.lock(name, lock_timeout=ttl_ms / 1000)
            except LockAcquiringError:
                return None

        return self.wait(go())

    def release(self, client, lock):
        try:
            self.wait(client.unlock(lock))
            return True
        except LockAcquiringError:
            return False

    def extend(self, client, lock, ttl_ms):
        self.wait(client.extend(lock, ttl_ms / 1000))
        return True


def own(library, report):
    client, other = library.client(NODES[0]), library.client(NODES[1])

    def run(coroutine):
        return lambda: library.wait(coroutine())

    async def error_on_contention():
        name = fresh_name("error")
        lock = await client.lock(name, lock_timeout=10)
        expect(lock.valid and await lock.is_locked() and await other.is_locked(name), "not valid or not locked")
        try:
            await other.lock(name, lock_timeout=10)
        except LockError as error:
            expect(type(error) is LockAcquiringError, "contention raised %r, not LockAcquiringError" % error)
        else:
            expect(False, "granted twice")
        await client.unlock(lock)
        expect(not lock.valid, "valid after unlock")

    async def same_identifier():
        """Asking again under the same identifier succeeds, under the same fence; get_lock finds it by its identifier."""
        name = fresh_name("same")
        lock = await client.lock(name, lock_timeout=10, lock_identifier="me")
        fence = held_fence(name)
        await other.lock(name, lock_timeout=20, lock_identifier="me")
        expect(held_fence(name) == fence, "the second request under the same identifier changed the fence")
        found = await other.get_lock(name, "me")
        expect(15 < found.lock_timeout <= 20, "get_lock says %s s" % found.lock_timeout)
        await client.unlock(lock)

    async def watchdog():
        """Without a timeout the library extends by itself every 0.6 of its internal one."""
        name = fresh_name("watchdog")
        client.internal_lock_timeout = 1.0
        async with await client.lock(name):
            fence = held_fence(name)
            await asyncio.sleep(1.5)
            expect(held_fence(name) == fence and lock_info(name)["ttl"] > 0, "lost although the library extends it")
        return name

    def watched():
        expect_free(library, library.wait(watchdog()))

    report.run("LockAcquiringError on contention", run(error_on_contention))
    report.run("same identifier, get_lock", run(same_identifier))
    report.run("watchdog, async with", watched)


def main():
    library = AioRedlock(sys.argv[1] == "masters")
    own(library, run_shared(library))


main()
