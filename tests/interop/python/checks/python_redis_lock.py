"""python-redis-lock: SET NX with a list beside it that wakes waiters by BLPOP."""

import time
from importlib.metadata import version

import redis
import redis_lock
from redis.exceptions import RedisError
from redis_lock import AlreadyAcquired, Lock, NotAcquired, NotExpirable

from frame import NODES, Background, expect, fresh_name, held_fence, host_port, is_free, lock_info, raises
from shared import Library, run_shared


class PythonRedisLock(Library):
    name, version = "python-redis-lock", version("python-redis-lock")
    errors = (RedisError, OSError)
    ttl_step_ms = 1000

    def key(self, name):
        return "lock:" + name

    def client(self, address):
        host, port = host_port(address)
        return redis.StrictRedis(host=host, port=port)

    def acquire(self, client, name, ttl_ms, wait_ms=0):
        lock = Lock(client, name, expire=ttl_ms // 1000)
        return lock if lock.acquire(blocking=wait_ms > 0, timeout=wait_ms // 1000 or None) else None

    def release(self, client, lock):
        try:
            lock.release()
            return True
        except NotAcquired:
            return False

    def extend(self, client, lock, ttl_ms):
        lock.extend(ttl_ms // 1000)
        return True


def main():
    library = PythonRedisLock()
    report = run_shared(library)
    client = library.client(NODES[0])

    def signal():
        """A release wakes a waiter at once by its signal list; nobody polls."""
        name = fresh_name("signal")
        held = library.acquire(client, name, 20000)
        waiter = Background(library.acquire, library.client(NODES[1]), name, 20000, wait_ms=15000)
        time.sleep(0.3)
        expect(waiter.running(), "did not wait: %s" % waiter.error)
        started = time.monotonic()
        held.release()
        got = waiter.result()
        woken_ms = (time.monotonic() - started) * 1000
        expect(woken_ms < 500, "woken after %d ms" % woken_ms)
        got.release()
        return "woken after %d ms" % woken_ms

    def signal_timeout():
        name = fresh_name("timeout")
        held = library.acquire(client, name, 20000)
        started = time.monotonic()
        expect(library.acquire(library.client(NODES[1]), name, 20000, wait_ms=1000) is None, "granted twice")
        expect(0.9 < time.monotonic() - started < 3, "waited %.1f of 1 s" % (time.monotonic() - started))
        held.release()

    def reset_all():
        names = [fresh_name("reset") for _ in range(3)]
        for name in names:
            expect(library.acquire(client, name, 20000), "a free lock was refused")
        waiter = Background(library.acquire, library.client(NODES[1]), names[0], 20000, wait_ms=10000)
        time.sleep(0.2)
        redis_lock.reset_all(library.client(NODES[2]))
        expect(waiter.result(), "the waiter was not woken by reset_all")
        expect(all(is_free(library.key(name)) for name in names[1:]), "held after reset_all")

    def reset_and_ids():
        name = fresh_name("ids")
        lock = Lock(client, name, expire=20, id="me")
        expect(lock.acquire(blocking=False), "a free lock was refused")
        expect(lock.locked() and lock.get_owner_id() == "me", "owner is %s" % lock.get_owner_id())
        expect(lock_info(library.key(name))["owner"] == "me", "LOCK.INFO shows another owner")
        raises(AlreadyAcquired, lambda: lock.acquire(blocking=False), "acquired twice")
        Lock(library.client(NODES[1]), name, id="me").release()
        raises(NotAcquired, lock.release, "a second release")
        for_ever = Lock(client, name)
        expect(for_ever.acquire(blocking=False), "refused after the release")
        raises(NotExpirable, lambda: for_ever.extend(5), "a lock without a ttl was extended")
        for_ever.reset()
        expect(is_free(library.key(name)), "held after reset")

    def auto_renewal():
        name = fresh_name("renewal")
        with Lock(client, name, expire=1, auto_renewal=True):
            fence = held_fence(library.key(name))
            time.sleep(1.6)
            expect(held_fence(library.key(name)) == fence, "the renewal changed the fence")
        expect(is_free(library.key(name)), "held after `with`")

    report.run("BLPOP signal", signal)
    report.run("BLPOP timeout", signal_timeout)
    report.run("owner ids, reset", reset_and_ids)
    report.run("auto renewal, context manager", auto_renewal)
    report.run("reset_all", reset_all)


main()
