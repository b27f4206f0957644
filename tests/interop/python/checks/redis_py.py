"""redis-py's Lock, sync and asyncio: `redis_py.py sync|asyncio resp2|resp3`."""

import asyncio
import sys
import time

import redis
import redis.asyncio
from redis.exceptions import LockError, LockNotOwnedError, RedisError

from frame import NODES, Loop, expect, fresh_name, held_fence, host_port, is_free, lock_info, raises
from shared import Library, run_shared


class SyncLock(Library):
    name, version = "redis-py", redis.__version__
    errors = (RedisError, OSError)

    def __init__(self, protocol):
        self.protocol = protocol
        self.variant = "Lock, RESP%d" % protocol

    def client(self, address):
        host, port = host_port(address)
        return redis.Redis(host=host, port=port, protocol=self.protocol, socket_timeout=10)

    def acquire(self, client, name, ttl_ms, wait_ms=0):
        # thread_local=False: some checks take and release in different threads.
        lock = client.lock(name, timeout=ttl_ms / 1000, thread_local=False)
        return lock if lock.acquire(blocking=wait_ms > 0, blocking_timeout=wait_ms / 1000 or None) else None

    def release(self, client, lock):
        try:
            lock.release()
            return True
        except LockNotOwnedError:
            return False

    def extend(self, client, lock, ttl_ms):
        return lock.extend(ttl_ms / 1000, replace_ttl=True)


class AsyncLock(SyncLock):
    """The same over asyncio: one loop in a thread of its own, every call handed over to it."""

    def __init__(self, protocol):
        super().__init__(protocol)
        self.variant = "asyncio Lock, RESP%d" % protocol
        self.wait = Loop()

    def client(self, address):
        async def make():
            host, port = host_port(address)
            return redis.asyncio.Redis(host=host, port=port, protocol=self.protocol, socket_timeout=10)

        return self.wait(make())

    def acquire(self, client, name, ttl_ms, wait_ms=0):
        async def go():
            lock = client.lock(name, timeout=ttl_ms / 1000, thread_local=False)
            return lock if await lock.acquire(blocking=wait_ms > 0, blocking_timeout=wait_ms / 1000 or None) else None

        return self.wait(go())

    def release(self, client, lock):
        try:
            self.wait(lock.release())
            return True
        except LockNotOwnedError:
            return False

    def extend(self, client, lock, ttl_ms):
        return self.wait(lock.extend(ttl_ms / 1000, replace_ttl=True))


def sync_only(library, report):
    client = library.client(NODES[0])

    def not_owned():
        name = fresh_name("not-owned")
        lock = client.lock(name, timeout=20)
        expect(lock.acquire(blocking=False), "a free lock was refused")
        thief = client.lock(name, timeout=20)
        for what in (lambda: thief.extend(5), thief.reacquire, thief.release):
            thief.local.token = b"somebody else"
            raises(LockNotOwnedError, what, "no LockNotOwnedError for a stranger")
        lock.release()
        raises(LockError, lock.release, "no LockError for a second release")

    def context_manager():
        name = fresh_name("with")
        with client.lock(name, timeout=20) as lock:
            fence = held_fence(name)
            expect(lock.locked() and lock.owned(), "not locked or not owned inside `with`")
            other = library.client(NODES[1]).lock(name, timeout=20, blocking_timeout=0.3)
            raises(LockError, other.__enter__, "a second `with` came in")
            expect(held_fence(name) == fence, "the fence changed inside `with`")
        expect(is_free(name), "held after `with`")

    def reacquire_and_add():
        name = fresh_name("reacquire")
        lock = client.lock(name, timeout=20)
        expect(lock.acquire(blocking=False), "a free lock was refused")
        fence = held_fence(name)
        expect(lock.extend(10), "extend was refused")
        expect(28000 < lock_info(name)["ttl"] <= 30000, "extend by 10 s left %s ms" % lock_info(name)["ttl"])
        expect(lock.reacquire(), "reacquire was refused")
        expect(18000 < lock_info(name)["ttl"] <= 20000, "reacquire left %s ms" % lock_info(name)["ttl"])
        expect(held_fence(name) == fence, "the fence changed")
        lock.release()

    def without_ttl():
        name = fresh_name("no-ttl")
        lock = client.lock(name)
        expect(lock.acquire(blocking=False), "a free lock was refused")
        expect(client.pttl(name) == -1, "PTTL of a lock without a ttl is %s" % client.pttl(name))
        lock.release()
        expect(is_free(name), "held after the release")

    def plain_commands():
        name = fresh_name("plain")
        expect(client.set(name, "me", nx=True, px=20000) is True, "SET NX PX of a free key")
        expect(client.set(name, "you", nx=True, px=20000) is None, "SET NX PX of a taken key")
        expect(client.get(name) == b"me", "GET is %r" % client.get(name))
        expect(client.exists(name) == 1 and 0 < client.ttl(name) <= 20, "EXISTS, TTL")
        cad = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"
        expect(client.eval(cad, 1, name, "you") == 0, "compare-and-delete by a stranger")
        script = client.register_script(cad)
        expect(script(keys=[name], args=["me"]) == 1, "compare-and-delete by the holder")
        with client.pipeline(transaction=False) as pipe:
            expect(pipe.set(name, "1").incr(name).get(name).delete(name).execute() == [True, 2, b"2", 1], "pipeline")

    def transactions():
        name = fresh_name("multi")
        with client.pipeline() as pipe:
            expect(pipe.set(name, "a", px=20000).get(name).execute() == [True, b"a"], "MULTI/EXEC")
            pipe.watch(name)
            client.set(name, "b")
            pipe.multi()
            pipe.set(name, "c")
            raises(redis.WatchError, pipe.execute, "EXEC went on although a watched key had changed")
        expect(client.get(name) == b"b", "a refused transaction left its mark")

    def pub_sub():
        channel = fresh_name("channel")
        listener = library.client(NODES[1]).pubsub()
        listener.subscribe(channel)
        expect(listener.get_message(timeout=5)["type"] == "subscribe", "no confirmation of SUBSCRIBE")
        client.publish(channel, "hello")
        deadline, message = time.monotonic() + 5, None
        while message is None and time.monotonic() < deadline:
            message = listener.get_message(timeout=0.2)
        expect(message and message["data"] == b"hello", "PUBLISH at another node brought %s" % message)

    report.run("LockNotOwnedError, LockError", not_owned)
    report.run("context manager", context_manager)
    report.run("reacquire, extend that adds", reacquire_and_add)
    report.run("lock without a ttl", without_ttl)
    report.run("plain commands, scripts, pipeline", plain_commands)
    report.run("MULTI, EXEC, WATCH", transactions)
    report.run("PUBLISH, SUBSCRIBE", pub_sub)


def async_only(library, report):
    client = library.client(NODES[0])

    def not_owned():
        async def go():
            name = fresh_name("not-owned")
            lock = client.lock(name, timeout=20)
            expect(await lock.acquire(blocking=False), "a free lock was refused")
            thief = client.lock(name, timeout=20)
            for what in (lambda: thief.extend(5), thief.reacquire, thief.release):
                thief.local.token = b"somebody else"
                try:
                    await what()
                except LockNotOwnedError:
                    continue
                expect(False, "no LockNotOwnedError for a stranger")
            await lock.release()

        library.wait(go())

    def many_waiters():
        """Tasks of one loop on one lock: everybody gets it, one at a time."""
        async def go():
            name, inside, served = fresh_name("tasks"), 0, 0

            async def task():
                nonlocal inside, served
                async with client.lock(name, timeout=20, sleep=0.02):
                    inside += 1
                    expect(inside == 1, "two tasks inside")
                    await asyncio.sleep(0.002)
                    inside -= 1
                    served += 1

            await asyncio.wait_for(asyncio.gather(*(task() for _ in range(10))), 20)
            expect(served == 10, "%d of 10 tasks were served" % served)

        library.wait(go())

    report.run("LockNotOwnedError, LockError", not_owned)
    report.run("async with, ten tasks", many_waiters)


def main():
    kind, protocol = sys.argv[1], int(sys.argv[2][-1])
    library = AsyncLock(protocol) if kind == "asyncio" else SyncLock(protocol)
    report = run_shared(library)
    (async_only if kind == "asyncio" else sync_only)(library, report)


main()
