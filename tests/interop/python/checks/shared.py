"""The checks every library must pass, written once over a small adapter. ../../README.md tells what each of them demands.

An adapter (`Library`) hides only how a library is called, never what it does: no retries of its own, no waiting of its own.
"""

import threading
import time

from frame import (CHANCE, NODES, Background, Raw, Report, control, expect, fresh_name, held_fence, is_free, lock_info, raw, until)


class Library:
    """One library in one variant. `client` opens a connection of its own; `held` is whatever the library calls a lock."""

    name = version = variant = ""
    can_extend = True
    can_wait = True
    tells_release = True  # whether its release says if it released
    masters = False  # whether it talks to N masters; a release is then over when the last of them has heard of it
    lives_with_dead_master = True  # whether it grants while one of its masters is dead
    ttl_step_ms = 1  # the smallest ttl, and the step between two
    errors = (OSError,)  # what the library raises when a node or the leader is gone

    def client(self, address):
        """A client of this node. A library with N masters may take all of them whatever the address."""
        raise NotImplementedError

    def ttl(self, ttl_ms):
        """The ttl the library can ask for that is nearest from above."""
        return -(-ttl_ms // self.ttl_step_ms) * self.ttl_step_ms

    def key(self, name):
        """The key this library makes of a lock's name."""
        return name

    def acquire(self, client, name, ttl_ms, wait_ms=0):
        """What is held, or None."""
        raise NotImplementedError

    def release(self, client, held):
        """Whether the library says that it released."""
        raise NotImplementedError

    def extend(self, client, held, ttl_ms):
        """Whether the library says that the lock lives ttl_ms from now."""
        raise NotImplementedError


def run_shared(library, report=None):
    report = report or Report(library.name, library.version, library.variant)
    checks = [("acquire", acquire), ("contention", contention), ("expiry", expiry), ("stranger", stranger)]
    checks += [("extend", extend)] if library.can_extend else []
    checks += [("waiting", waiting)] if library.can_wait else []
    checks += [("lock.acquire", lock_acquire), ("exclusion", exclusion), ("leader killed: holding", killed_holding)]
    checks += [("leader killed: waiting", killed_waiting)] if library.can_wait else []
    checks += [("leader killed: working", killed_working)]
    for name, check in checks:
        report.run(name, lambda: check(library))
    return report


def expect_free(library, name, dead_master=False):
    """Free after the release: at once, or with N masters as soon as the last one has heard of it; what a dead one has granted ends with
    its ttl (of which a new leader may count a part twice)."""
    if library.masters:
        until(lambda: is_free(library.key(name)), 15 if dead_master else 3, "still held after the release")
    expect(is_free(library.key(name)), "held after the release: %s" % lock_info(library.key(name)))


def acquire(library):
    name = fresh_name("acquire")
    client = library.client(NODES[0])
    held = library.acquire(client, name, 20000)
    expect(held, "a free lock was refused")
    held_fence(library.key(name))
    expect(library.release(client, held), "the holder's release was refused")
    expect_free(library, name)


def contention(library):
    name = fresh_name("contention")
    first, second = library.client(NODES[0]), library.client(NODES[1])
    held = library.acquire(first, name, 20000)
    expect(held, "a free lock was refused")
    fence = held_fence(library.key(name))
    expect(not library.acquire(second, name, 20000), "granted twice")
    expect(held_fence(library.key(name)) == fence, "the refused attempt changed the fence")
    expect(library.release(first, held), "the holder's release was refused")
    expect_free(library, name)
    held = library.acquire(second, name, 20000)
    expect(held, "refused after the release")
    expect(held_fence(library.key(name)) > fence, "the second grant has no higher fence")
    expect(library.release(second, held), "the second holder's release was refused")


def expiry(library):
    ttl_ms = library.ttl(600)
    name = fresh_name("expiry")
    first, second = library.client(NODES[0]), library.client(NODES[1])
    asked = time.monotonic()
    expect(library.acquire(first, name, ttl_ms), "a free lock was refused")
    fence = held_fence(library.key(name))
    while not library.acquire(second, name, 20000):
        expect(time.monotonic() < asked + 5, "still held 5 s after a ttl of %d ms" % ttl_ms)
        time.sleep(0.02)
    lived_ms = (time.monotonic() - asked) * 1000
    expect(lived_ms >= ttl_ms, "another client got it after %d of %d ms" % (lived_ms, ttl_ms))
    expect(held_fence(library.key(name)) > fence, "the grant after the expiry has no higher fence")
    return "lived %d of %d ms" % (lived_ms, ttl_ms)


def stranger(library):
    """A holder whose lock expired and went to somebody else must not be able to release it."""
    name = fresh_name("stranger")
    first, second = library.client(NODES[0]), library.client(NODES[1])
    late = library.acquire(first, name, library.ttl(300))
    expect(late, "a free lock was refused")
    until(lambda: is_free(library.key(name)), 5, "the first lock did not expire")
    held = library.acquire(second, name, 20000)
    expect(held, "refused after the expiry")
    fence = held_fence(library.key(name))
    said = library.release(first, late)
    expect(held_fence(library.key(name)) == fence, "the late release took the lock from its holder")
    expect(not (said and library.tells_release), "the late release was reported as done")
    expect(library.release(second, held), "the holder's release was refused")


def extend(library):
    name = fresh_name("extend")
    first, second = library.client(NODES[0]), library.client(NODES[1])
    ttl_ms = library.ttl(700)
    held = library.acquire(first, name, ttl_ms)
    expect(held, "a free lock was refused")
    fence = held_fence(library.key(name))
    expect(library.extend(first, held, 20000), "the holder's extension was refused")
    left_ms = lock_info(library.key(name))["ttl"]
    expect(19000 < left_ms <= 20000, "ttl after the extension is %s ms" % left_ms)
    time.sleep(ttl_ms / 1000 + 0.2)
    expect(not library.acquire(second, name, 20000), "granted to another after the first ttl")
    expect(held_fence(library.key(name)) == fence, "the extension changed the fence")
    expect(library.release(first, held), "the release after the extension was refused")


def waiting(library):
    name = fresh_name("waiting")
    first, second = library.client(NODES[0]), library.client(NODES[1])
    held = library.acquire(first, name, 20000)
    expect(held, "a free lock was refused")
    waiter = Background(library.acquire, second, name, 20000, wait_ms=15000)
    time.sleep(0.4)
    expect(waiter.running(), "did not wait: %s" % waiter.value)
    expect(library.release(first, held), "the holder's release was refused")
    released = time.monotonic()
    got = waiter.result()
    after_ms = (time.monotonic() - released) * 1000
    expect(got, "was not granted after the release")
    expect(library.release(second, got), "the waiter's release was refused")
    return "granted %d ms after the release" % after_ms


def lock_acquire(library):
    """LOCK.* and the library on one name."""
    name = fresh_name("mixed")
    key = library.key(name)
    client = library.client(NODES[0])
    fence = raw("LOCK.ACQUIRE", key, 20000)[0]
    expect(not library.acquire(client, name, 20000), "granted while LOCK.ACQUIRE holds")
    expect(raw("LOCK.RELEASE", key, fence) == [1, "ok"], "LOCK.RELEASE was refused")
    held = library.acquire(client, name, 20000)
    expect(held, "refused after LOCK.RELEASE")
    expect(held_fence(key) > fence, "the library's grant has no higher fence")
    fence = held_fence(key)
    expect(raw("LOCK.ACQUIRE", key, 20000) is None, "LOCK.ACQUIRE granted while the library holds")
    with Raw(NODES[2]) as other:
        waiter = Background(other, "LOCK.ACQUIRE", key, 20000, "WAIT", 10000)
        until(lambda: lock_info(key)["waiters"] == 1, 5, "LOCK.ACQUIRE … WAIT is not in the queue")
        expect(library.release(client, held), "the holder's release was refused")
        granted = waiter.result()
    expect(granted and granted[0] > fence, "LOCK.ACQUIRE … WAIT was answered with %s" % granted)
    expect(raw("LOCK.RELEASE", key, granted[0]) == [1, "ok"], "the second LOCK.RELEASE was refused")


class Ledger:
    """Who surely held when, under which fence; and a counter that only the lock protects."""

    def __init__(self):
        self.lock = threading.Lock()
        self.grants = []  # (surely from, surely until, fence or None, address)
        self.counter = self.writes = self.broken = 0
        self.workers = []

    def count(self, address=None):
        """The grants so far; raises what ended a worker that should have gone on."""
        for worker in self.workers:
            if worker.error:
                raise worker.error
        with self.lock:
            return sum(address in (None, grant[3]) for grant in self.grants)

    def judge(self):
        grants = sorted(self.grants)
        for before, after in zip(grants, grants[1:]):
            expect(after[0] >= before[1], "two holders at once: %s and %s" % (before, after))
        fences = [fence for _, _, fence, _ in grants if fence]
        expect(len(fences) >= len(grants) // 2, "only %d of %d fences could be read" % (len(fences), len(grants)))
        expect(all(a < b for a, b in zip(fences, fences[1:])), "fences do not rise strictly: %s" % fences)
        expect(self.counter == self.writes, "%d of %d updates were lost" % (self.writes - self.counter, self.writes))
        return "%d grants, %d broken calls" % (len(grants), self.broken)


def work(library, name, address, ttl_ms, ledger, stop):
    """One worker: takes the lock, changes the counter, gives the lock back; goes on whatever breaks."""
    client = None
    while not stop.is_set():
        asked = time.monotonic()
        try:
            client = client or library.client(address)
            held = library.acquire(client, name, ttl_ms)
        except library.errors:
            ledger.broken += 1
            time.sleep(0.05)
            continue
        if not held:
            time.sleep(CHANCE.uniform(0.005, 0.03))
            continue
        got, lapses = time.monotonic(), asked + ttl_ms / 1000
        value = ledger.counter
        fence = readable_fence(library.key(name), lapses)
        time.sleep(0.002)
        with ledger.lock:
            if time.monotonic() < lapses - 0.1:
                ledger.counter = value + 1
                ledger.writes += 1
            ledger.grants.append((got, min(time.monotonic(), lapses), fence, address))
        try:
            library.release(client, held)
        except library.errors:
            ledger.broken += 1
        time.sleep(CHANCE.uniform(0.005, 0.03))


def readable_fence(key, lapses):
    """The fence of a grant while it surely lasts; None where nobody could be asked in time."""
    try:
        info = lock_info(key)
    except OSError:
        return None
    except Exception as error:
        if str(error).split(" ")[0] in ("UNAVAILABLE", "INDETERMINATE"):
            return None
        raise
    return info["fence"] if time.monotonic() < lapses else None


def crew(library, name, addresses, ttl_ms, during):
    """Workers at these addresses while `during(ledger)` runs; then the verdict."""
    ledger, stop = Ledger(), threading.Event()
    ledger.workers = [Background(work, library, name, address, ttl_ms, ledger, stop) for address in addresses]
    try:
        during(ledger)
    finally:
        stop.set()
    for worker in ledger.workers:
        worker.result()
    return ledger.judge()


def exclusion(library):
    def during(ledger):
        until(lambda: ledger.count() >= 25, 25, "25 grants did not come")

    return crew(library, fresh_name("exclusion"), NODES + NODES[:1], 5000, during)


def killed_working(library):
    def during(ledger):
        until(lambda: ledger.count() >= 6, 20, "the first 6 grants did not come")
        dead = control("kill-leader")[0]
        try:
            before = ledger.count()
            if library.lives_with_dead_master:
                until(lambda: ledger.count() >= before + 6, 25, "6 grants under the next leader did not come")
        finally:
            control("restart-dead")
        before, before_dead = ledger.count(), ledger.count(dead)
        until(lambda: ledger.count() >= before + 6, 20, "6 grants after the restart did not come")
        until(lambda: ledger.count(dead) > before_dead, 20, "the worker of the restarted node got no lock")

    return crew(library, fresh_name("working"), NODES, library.ttl(1000), during)


def held_over_death_ms(library):
    """The ttl of a lock that is held when the leader dies. Short with N masters: the dead one cannot hear of the release."""
    return 5000 if library.masters else 20000


def acquired(library, client, name):
    """What is held, or None: some libraries raise where a lock is held and a master is dead."""
    try:
        return library.acquire(client, name, 20000)
    except library.errors:
        return None


def release_after_death(library, client, held, fence, key):
    """A release soon after the leader's death may break with it, its outcome unknown: then it is made again, as the contract says."""
    expect(held_fence(key) == fence, "the fence changed with the leader")
    for _ in range(5):
        try:
            if library.release(client, held):
                return
        except library.errors:
            pass
        if lock_info(key)["fence"] != fence or is_free(key):
            return  # it had come through after all
        time.sleep(0.1)
    expect(False, "the holder's release was refused after the leader died")


def killed_holding(library):
    name = fresh_name("holding")
    key = library.key(name)
    here, there = control("followers")[:2]
    first, second = library.client(here), library.client(there)
    held = library.acquire(first, name, held_over_death_ms(library))
    expect(held, "a free lock was refused")
    fence = held_fence(key)
    control("kill-leader")
    try:
        expect(not acquired(library, second, name), "granted to another after the leader died")
        expect(held_fence(key) == fence, "the fence changed with the leader")
        if library.can_extend:
            expect(library.extend(first, held, held_over_death_ms(library) + 1000), "the holder's extension was refused after the leader died")
            expect(held_fence(key) == fence, "the extension changed the fence")
        expect(library.release(first, held), "the holder's release was refused after the leader died")
        expect_free(library, name, dead_master=True)
    finally:
        control("restart-dead")


def killed_waiting(library):
    name = fresh_name("killed-waiting")
    here, there = control("followers")[:2]
    first, second = library.client(here), library.client(there)
    held = library.acquire(first, name, held_over_death_ms(library))
    expect(held, "a free lock was refused")
    fence = held_fence(library.key(name))
    broken = []

    def wait():
        """As an application would: an attempt that broke with the leader is made again."""
        while len(broken) < 5:
            try:
                return library.acquire(second, name, 20000, wait_ms=15000)
            except library.errors as error:
                broken.append(error)
        raise broken[-1]

    waiter = Background(wait)
    time.sleep(0.3)
    control("kill-leader")
    try:
        if not library.lives_with_dead_master:
            control("restart-dead")
        release_after_death(library, first, held, fence, library.key(name))
        got = waiter.result(25)
        expect(got, "was not granted after the release")
        expect(held_fence(library.key(name)) > fence, "the waiter's grant has no higher fence")
        expect(library.release(second, got), "the waiter's release was refused")
    finally:
        control("restart-dead")
    return "%d broken calls" % len(broken)
