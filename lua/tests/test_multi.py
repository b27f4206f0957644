"""Multi-locks: all or nothing, tried and waited for."""
import itertools
import random
import time

from backend import fresh
from servers import eventually
from test_waiting import Waiter, ask, owners, wait_for

FORMS = [("function", 2), ("script", 3)]


def test_all_or_nothing(t):
    a, b, c = fresh(), fresh(), fresh()
    (fa, fb), ttl = t.must("LOCK.MACQUIRE", 2, b, a, 5000, "OWNER", "me")
    assert ttl == 5000 and t.info(b)[0]["fence"] == fa and t.info(a)[0]["fence"] == fb
    assert t.must("LOCK.MACQUIRE", 2, c, a, 5000) is None
    assert t.redis("EXISTS", c, "__fence__{%s}" % c) == 0
    assert t.must("LOCK.MRELEASE", 3, b, fa, c, 1, a, fb) == [[1, b"ok"], [0, b"not_owner"], [1, b"ok"]]
    assert t.must("LOCK.MRELEASE", 2, b, fa, a, fb) == [[0, b"already_released"]] * 2


def test_retry_in_any_order(t):
    a, b = fresh(), fresh()
    (fa, fb), _ = t.must("LOCK.MACQUIRE", 2, a, b, 5000, "OWNER", "me")
    (gb, ga), ttl = t.must("LOCK.MACQUIRE", 2, b, a, 1000, "OWNER", "me")
    assert (fa, fb) == (ga, gb) and 1000 < ttl <= 5000
    assert t.must("LOCK.MACQUIRE", 2, a, b, 9000, "OWNER", "me") == [[fa, fb], 9000]
    assert 8000 < t.redis("PTTL", a) <= 9000


def test_waiting_multi_gets_all_in_one_step(t):
    a, b = fresh(), fresh()
    fa, _ = t.must("LOCK.ACQUIRE", a, 60000)
    fb, _ = t.must("LOCK.ACQUIRE", b, 60000)
    waiter = wait_for(t, a, "LOCK.MACQUIRE", [2, a, b, 5000], wait_ms=10000, owner="m")
    assert owners(t, a) == owners(t, b) == ["m"]
    t.must("LOCK.RELEASE", a, fa)
    assert t.redis("EXISTS", a) == 0, "a multi-lock holds no part"
    assert t.must("LOCK.ACQUIRE", a, 5000) is None, "nobody passes a multi-lock that is first"
    t.must("LOCK.RELEASE", b, fb)
    assert t.redis("MGET", a, b) == [b"m", b"m"]
    (ga, gb), ttl = waiter.answer()
    assert ga > fa and gb > fb and ttl == 5000
    assert t.must("LOCK.MRELEASE", 2, a, ga, b, gb) == [[1, b"ok"]] * 2


def test_mrelease_serves_a_waiting_multi(t):
    a, b = fresh(), fresh()
    (fa, fb), _ = t.must("LOCK.MACQUIRE", 2, a, b, 60000)
    queued = t.must("LOCK.MACQUIRE", 2, b, a, 5000, "WAIT", 2000, "OWNER", "m")
    assert queued[0] == b"queued"
    t.must("LOCK.MRELEASE", 2, a, fa, b, fb)
    ttl, gb, ga = map(int, t.redis("LPOP", queued[2]).split())
    assert ttl == 5000 and t.info(a)[0]["fence"] == ga and t.info(b)[0]["fence"] == gb


def test_who_waits_behind_a_multi_that_leaves_is_served(t):
    a, b = fresh(), fresh()
    t.must("LOCK.ACQUIRE", b, 60000)
    assert t.must("LOCK.MACQUIRE", 2, a, b, 5000, "WAIT", 2000, "OWNER", "m")[0] == b"queued"
    ask(t, a, "single")
    assert owners(t, a) == ["m", "single"]
    assert t.must("LOCK.MCANCEL", 2, b, a, "m") is None
    assert t.redis("GET", a) == b"single" and owners(t, b) == []


def test_who_waits_behind_a_multi_that_dies_is_served(t):
    a, b = fresh(), fresh()
    t.must("LOCK.ACQUIRE", b, 60000)
    assert t.must("LOCK.MACQUIRE", 2, a, b, 5000, "WAIT", 200, "OWNER", "m")[0] == b"queued"
    waiter = wait_for(t, a, wait_ms=8000, owner="single")
    assert waiter.answer() and waiter.seconds < 6, waiter.seconds


def test_multi_is_served_when_holders_expire(t):
    a, b = fresh(), fresh()
    t.must("LOCK.ACQUIRE", a, 150)
    t.must("LOCK.ACQUIRE", b, 700)
    poll_ms = t.must("LOCK.MACQUIRE", 2, a, b, 5000, "WAIT", 10000, "OWNER", "m")[3]
    assert 1 <= poll_ms <= 701
    assert Waiter(t, "LOCK.MACQUIRE", 2, a, b, 5000, wait_ms=10000, owner="m").answer()


def test_multi_wait_runs_out(t):
    a, b = fresh(), fresh()
    t.must("LOCK.ACQUIRE", b, 60000)
    waiter = wait_for(t, a, "LOCK.MACQUIRE", [2, a, b, 5000], wait_ms=200, owner="m")
    assert waiter.answer() is None
    assert owners(t, a) == owners(t, b) == [] and t.redis("EXISTS", a) == 0


def test_crossing_multis_never_deadlock(t):
    """Many multi-locks over the same names in random order, each for a moment: all get their turn, no two at once."""
    names = [fresh() for _ in range(4)]
    chooser = random.Random(7)
    held, overlaps = {name: None for name in names}, []

    def hold(waiter):
        mine = waiter.args[1:-1]
        for name in mine:
            if held[name]:
                overlaps.append((name, held[name], waiter.owner))
            held[name] = waiter.owner
        time.sleep(0.002)
        for name in mine:
            held[name] = None
        pairs = itertools.chain(*zip(mine, waiter.reply[0]))
        assert waiter.backend.must("LOCK.MRELEASE", len(mine), *pairs) == [[1, b"ok"]] * len(mine)

    waiters = []
    for i in range(40):
        mine = chooser.sample(names, chooser.randint(1, 3))
        waiters.append(Waiter(t, "LOCK.MACQUIRE", len(mine), *mine, 5000, wait_ms=20000, owner=f"m{i}", on_grant=hold))
    assert all(waiter.answer() for waiter in waiters) and not overlaps, overlaps
    eventually(lambda: t.redis("EXISTS", *names) == 0)


def test_tags_and_braces(t):
    a, b, c = fresh("{t}"), fresh("x}"), fresh("{}")
    t.must("LOCK.ACQUIRE", c, 60000, "OWNER", "h")
    assert t.must("LOCK.MACQUIRE", 3, a, b, c, 5000, "WAIT", 1000, "OWNER", "m")[0] == b"queued"
    assert owners(t, a) == owners(t, b) == owners(t, c) == ["m"]
    t.must("LOCK.FORCERELEASE", c)
    assert t.redis("MGET", a, b, c) == [b"m"] * 3


def test_multi_does_not_pass_who_is_first_elsewhere(t):
    a, b = fresh(), fresh()
    t.must("LOCK.ACQUIRE", b, 60000)
    ask(t, b, "single")
    assert t.must("LOCK.MACQUIRE", 2, a, b, 5000, "WAIT", 2000, "OWNER", "m")[0] == b"queued"
    t.redis("DEL", b)
    assert t.must("LOCK.ACQUIRE", a, 5000, "OWNER", "newcomer") is None
    assert t.redis("MGET", a, b) == [None, None] and owners(t, b) == ["single", "m"]
    t.must("LOCK.FORCERELEASE", b)
    assert t.redis("MGET", a, b) == [None, b"single"]


def test_newcomer_multi_does_not_pass_a_waiting_one(t):
    a, b, c = fresh(), fresh(), fresh()
    t.must("LOCK.ACQUIRE", b, 60000)
    assert t.must("LOCK.MACQUIRE", 2, a, b, 5000, "WAIT", 2000, "OWNER", "m")[0] == b"queued"
    assert t.must("LOCK.MACQUIRE", 2, c, a, 5000) is None
    assert t.redis("EXISTS", a, c) == 0


def test_broken_queue_is_mended_by_asking_again(t):
    a, b = fresh(), fresh()
    fence, _ = t.must("LOCK.ACQUIRE", b, 60000)
    wish = [2, a, b, 5000, "WAIT", 2000, "OWNER", "m"]
    t.must("LOCK.MACQUIRE", *wish)
    entry = t.redis("ZRANGE", "__wait__{%s}" % b, 0, 0)[0]
    for wreck in [("DEL", "__wait__{%s}" % b), ("ZADD", "__wait__{%s}" % b, 7, entry)]:
        t.redis(*wreck)
        t.must("LOCK.MACQUIRE", *wish)
        assert owners(t, a) == owners(t, b) == ["m"]
    t.must("LOCK.RELEASE", b, fence)
    assert t.redis("MGET", a, b) == [b"m", b"m"]
