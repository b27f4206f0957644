"""redlock-py: `redlock_py.py single|masters`."""

import logging
import sys
from importlib.metadata import version

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from redlock import MultipleRedlockException, Redlock

from frame import NODES, REDLOCK, expect, fresh_name, held_fence, host_port, raw, raises
from shared import Library, run_shared

logging.disable(logging.CRITICAL)  # it logs a stack for every dead master


class RedlockPy(Library):
    name, version = "redlock-py", version("redlock-py")
    can_extend = False
    tells_release = False
    errors = (RedisError, MultipleRedlockException, OSError)

    def __init__(self, masters):
        self.masters = masters
        self.variant = "three masters" if masters else "one address"
        # With a majority but one master out of reach it raises, and leaves the lock to its ttl.
        self.lives_with_dead_master = not masters

    def client(self, address):
        addresses = REDLOCK if self.masters else [address]
        # redis-py 8 tries a dead server again for seconds; a Redlock client wants to know at once.
        return [redis.Redis(*host_port(one), socket_timeout=10, retry=Retry(NoBackoff(), 0)) for one in addresses]

    def acquire(self, client, name, ttl_ms, wait_ms=0):
        return Redlock(client, retry_count=1 + wait_ms // 100, retry_delay=0.1 if wait_ms else 0.001).lock(name, ttl_ms) or None

    def release(self, client, lock):
        Redlock(client).unlock(lock)
        return True


def main():
    library = RedlockPy(sys.argv[1] == "masters")
    report = run_shared(library)

    def validity():
        name = fresh_name("validity")
        client = library.client(NODES[0])
        lock = library.acquire(client, name, 10000)
        expect(9000 < lock.validity < 10000, "validity %s of 10000 ms" % lock.validity)
        expect(raw("GET", name) == lock.key.decode(), "GET shows %s, not the lock's key" % raw("GET", name))
        raises(ValueError, lambda: library.acquire(client, name, 1.5), "a ttl that is no integer was taken")
        held_fence(name)
        library.release(client, lock)

    report.run("validity, and GET shows its key", validity)


main()
