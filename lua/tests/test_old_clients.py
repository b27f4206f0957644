"""SET NX PX and compare-and-delete scripts against LOCK.*, on the same names, in both directions, under load."""
import random
import threading
import time
import uuid

from backend import fresh

FORMS = [("function", 2), ("script", 3)]
COMPARE_AND_DELETE = "if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end"
COMPARE_AND_PEXPIRE = (
    "if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('pexpire',KEYS[1],ARGV[2]) else return 0 end"
)


def test_old_holder_keeps_new_out(t):
    r = fresh()
    assert t.redis("SET", r, "old", "NX", "PX", 60000) == "OK"
    assert t.must("LOCK.ACQUIRE", r, 1000) is None
    assert t.must("LOCK.MACQUIRE", 2, fresh(), r, 1000) is None
    info, _ = t.info(r)
    assert (info["state"], info["owner"], info["fence"]) == (b"held", b"old", 0)
    assert t.redis("EVAL", COMPARE_AND_DELETE, 1, r, "old") == 1
    assert t.must("LOCK.ACQUIRE", r, 1000)[1] == 1000


def test_new_holder_keeps_old_out(t):
    r = fresh()
    fence, _ = t.must("LOCK.ACQUIRE", r, 60000, "OWNER", "new")
    assert t.redis("SET", r, "old", "NX", "PX", 60000) is None
    assert t.redis("EVAL", COMPARE_AND_DELETE, 1, r, "old") == 0
    assert t.redis("EVAL", COMPARE_AND_PEXPIRE, 1, r, "new", 90000) == 1
    assert t.must("LOCK.RELEASE", r, fence) == [1, b"ok"]
    assert t.redis("SET", r, "old", "NX", "PX", 60000) == "OK"
    assert t.must("LOCK.RELEASE", r, fence) == [0, b"already_released"]
    assert t.redis("GET", r) == b"old"


def test_adoption_of_a_plain_key(t):
    r = fresh()
    t.redis("SET", r, "me", "NX", "PX", 60000)
    fence, ttl = t.must("LOCK.ACQUIRE", r, 1000, "OWNER", "me")
    assert fence > 10**15 and 59000 < ttl <= 60000
    assert t.must("LOCK.ACQUIRE", r, 1000, "OWNER", "me")[0] == fence
    assert t.must("LOCK.RENEW", r, fence, 5000) == [1, 5000]
    assert t.must("LOCK.RELEASE", r, fence) == [1, b"ok"]
    forever = fresh()
    t.redis("SET", forever, "me")
    fence, ttl = t.must("LOCK.ACQUIRE", forever, 1000, "OWNER", "me")
    assert ttl == 1000 and t.redis("PTTL", forever) == -1
    assert 590000 < t.redis("PTTL", "__fence__{%s}" % forever) <= 600000
    assert t.must("LOCK.ACQUIRE", forever, 3000, "OWNER", "me") == [fence, 3000] and t.info(forever)[0]["ttl"] == -1
    assert t.must("LOCK.RELEASE", forever, fence) == [1, b"ok"]


def test_exclusion_under_load(t):
    """Old and new clients fight for three names; a plain counter per name, read and written back, must lose nothing."""
    names = [fresh() for _ in range(3)]
    counters = dict.fromkeys(names, 0)
    grants = dict.fromkeys(names, 0)
    fences = {name: [] for name in names}
    stop_at = time.monotonic() + 2.5
    errors = []

    def hold(name):
        seen = counters[name]
        time.sleep(random.random() * 0.001)
        counters[name] = seen + 1
        grants[name] += 1

    def old():
        with t.another() as own:
            while time.monotonic() < stop_at:
                name, value = random.choice(names), uuid.uuid4().hex
                if own.redis("SET", name, value, "NX", "PX", 30000) == "OK":
                    hold(name)
                    assert own.redis("EVAL", COMPARE_AND_DELETE, 1, name, value) == 1

    def new(waits):
        with t.another() as own:
            while time.monotonic() < stop_at:
                name, owner = random.choice(names), uuid.uuid4().hex
                if waits:
                    reply = own.wait("LOCK.ACQUIRE", name, 30000, wait_ms=3000, owner=owner)
                else:
                    reply = own.must("LOCK.ACQUIRE", name, 30000, "OWNER", owner)
                if reply:
                    fences[name].append(reply[0])
                    hold(name)
                    assert own.must("LOCK.RELEASE", name, reply[0]) == [1, b"ok"]

    def guarded(work, *args):
        try:
            work(*args)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=guarded, args=work) for work in
               [(old,)] * 3 + [(new, False)] * 3 + [(new, True)] * 3]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(20)
        assert not worker.is_alive()
    assert not errors, errors
    assert counters == grants and all(count > 50 for count in grants.values()), (counters, grants)
    for name in names:
        assert len(fences[name]) > 20
        assert fences[name] == sorted(set(fences[name])), "fences must rise in the order of the holds"
