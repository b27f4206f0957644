"""The waiting protocol: order, time-outs, waiters that die, holders that expire, old clients that delete."""
import threading
import time

from backend import fresh
from resp import ReplyError
from servers import eventually

FORMS = [("function", 2), ("script", 3)]
WAITERS_MAX = 10000


class Waiter(threading.Thread):
    """A client of its own that waits; `reply` is its final answer."""

    def __init__(self, t, command, *args, wait_ms, owner, on_grant=None):
        super().__init__(daemon=True)
        self.backend, self.command, self.args = t.another(), command, args
        self.wait_ms, self.owner, self.on_grant = wait_ms, owner, on_grant
        self.reply, self.error, self.seconds = None, None, None
        self.start()

    def run(self):
        started = time.monotonic()
        try:
            self.reply = self.backend.wait(self.command, *self.args, wait_ms=self.wait_ms, owner=self.owner)
            self.seconds = time.monotonic() - started
            if self.reply and self.on_grant:
                self.on_grant(self)
        except Exception as error:
            self.error = error
        finally:
            self.backend.close()

    def answer(self):
        self.join(100)
        assert not self.is_alive(), f"{self.owner} has no answer"
        if self.error:
            raise self.error
        return self.reply


def owners(t, r):
    return [owner.decode() for owner, _ in t.must("LOCK.QUEUE", r)]


def wait_for(t, r, command="LOCK.ACQUIRE", args=None, **options):
    """Starts a waiter and returns once it stands in the queue of r, or has stood there on a machine too busy to show it."""
    waiter = Waiter(t, command, *(args or [r, 5000]), **options)
    eventually(lambda: options["owner"] in owners(t, r) or not waiter.is_alive(), seconds=30,
               what=f"{options['owner']} in the queue")
    return waiter


def ask(t, r, owner, wait_ms=2000, ttl=5000):
    """Stands in the queue without ever asking again: a waiter that dies."""
    reply = t.must("LOCK.ACQUIRE", r, ttl, "WAIT", wait_ms, "OWNER", owner)
    assert reply[0] == b"queued" and reply[1] == owner.encode(), reply
    return reply


def keep_alive(t, r, owner):
    """As if it went on asking: filling a queue may take longer than a lease on a busy machine."""
    ticket = int(t.redis("ZSCORE", "__wait__{%s}" % r, f"s{owner}"))
    assert t.redis("PERSIST", "__waiter__{%s}:%d" % (r, ticket)) == 1
    t.redis("PERSIST", "__wait__{%s}" % r)


def test_release_hands_over_in_the_same_step(t):
    r = fresh()
    fence, _ = t.must("LOCK.ACQUIRE", r, 60000)
    waiter = wait_for(t, r, wait_ms=5000, owner="w")
    assert t.info(r)[0]["waiters"] == 1
    queue = t.must("LOCK.QUEUE", r)
    assert queue[0][0] == b"w" and 0 <= queue[0][1] < 5000
    started = time.monotonic()
    assert t.must("LOCK.RELEASE", r, fence) == [1, b"ok"]
    assert t.redis("GET", r) == b"w"
    granted, ttl = waiter.answer()
    assert time.monotonic() - started < 20
    assert granted > fence and ttl == 5000 and t.info(r)[0]["fence"] == granted
    assert t.must("LOCK.QUEUE", r) == []
    assert t.must("LOCK.RELEASE", r, granted) == [1, b"ok"]


def test_wait_runs_out(t):
    r = fresh()
    t.must("LOCK.ACQUIRE", r, 60000)
    waiter = wait_for(t, r, wait_ms=300, owner="w")
    assert waiter.answer() is None
    assert 0.3 <= waiter.seconds < 20
    assert t.must("LOCK.QUEUE", r) == [] and t.info(r)[0]["waiters"] == 0
    assert t.must("LOCK.ACQUIRE", r, 1000, "WAIT", 0) is None


def test_sixty_waiters_in_order(t):
    """Some time out, some die, some leave; one holder at a time, order kept, nobody without an answer."""
    r = fresh()
    fence, _ = t.must("LOCK.ACQUIRE", r, 600000)
    order, holding = [], []

    def hold(waiter):
        holding.append(waiter.owner)
        assert holding == [waiter.owner], holding
        order.append((waiter.owner, waiter.reply[0]))
        holding.remove(waiter.owner)
        assert waiter.backend.must("LOCK.RELEASE", r, waiter.reply[0]) == [1, b"ok"]

    waiters = []
    for i in range(60):
        if i % 10 == 3:
            ask(t, r, f"dead{i}", wait_ms=300)
        elif i % 10 == 5:
            ask(t, r, f"left{i}")
            t.must("LOCK.CANCEL", r, f"left{i}")
        elif i % 10 == 7:
            waiters.append(wait_for(t, r, wait_ms=350, owner=f"late{i}", on_grant=hold))
        else:
            waiters.append(wait_for(t, r, wait_ms=300000, owner=f"w{i}", on_grant=hold))
    late = [waiter for waiter in waiters if waiter.owner.startswith("late")]
    assert [waiter.answer() for waiter in late] == [None] * 6
    eventually(lambda: not [owner for owner in owners(t, r) if owner.startswith("dead")], seconds=30)
    expected = [waiter.owner for waiter in waiters if waiter not in late]
    assert len(expected) == 42 and owners(t, r) == expected, owners(t, r)
    assert t.must("LOCK.RELEASE", r, fence) == [1, b"ok"]
    for waiter in waiters:
        waiter.answer()
    assert [owner for owner, _ in order] == expected
    fences = [fence] + [number for _, number in order]
    assert fences == sorted(set(fences)), "fences must rise"
    assert t.info(r)[0]["state"] == b"free"


def test_holder_expires(t):
    r = fresh()
    fence, _ = t.must("LOCK.ACQUIRE", r, 700, "OWNER", "holder")
    assert ask(t, r, "first")[3] <= 701, "the first in line sleeps no longer than the holder's ttl"
    assert ask(t, r, "second")[3] == 1000
    first = wait_for(t, r, wait_ms=10000, owner="first")
    second = wait_for(t, r, wait_ms=10000, owner="second")
    granted, _ = first.answer()
    assert granted > fence and first.seconds < 9, first.seconds
    assert second.reply is None and owners(t, r) == ["second"]
    assert t.must("LOCK.RELEASE", r, fence) == [0, b"expired"]
    assert t.must("LOCK.RELEASE", r, granted) == [1, b"ok"]
    assert second.answer()[0] > granted


def test_old_client_deletes(t):
    r = fresh()
    t.redis("SET", r, "plain", "NX", "PX", 60000)
    waiter = wait_for(t, r, wait_ms=10000, owner="w")
    t.redis("DEL", r)
    assert waiter.answer()[1] == 5000
    assert waiter.seconds < 9, waiter.seconds


def test_any_call_that_finds_it_free_hands_it_over(t):
    for command, args in [("LOCK.ACQUIRE", [5000, "OWNER", "newcomer"]), ("LOCK.RELEASE", [1]),
                          ("LOCK.RENEW", [1, 1000]), ("LOCK.FORCERELEASE", [])]:
        r = fresh()
        t.must("LOCK.ACQUIRE", r, 60000)
        queued = ask(t, r, "w")
        t.redis("DEL", r)
        t(command, r, *args)
        assert t.redis("GET", r) == b"w", command
        ttl, fence = map(int, t.redis("LPOP", queued[2]).split())
        assert ttl == 5000 and t.must("LOCK.ACQUIRE", r, 1, "OWNER", "w")[0] == fence


def test_newcomers_do_not_barge(t):
    r = fresh()
    t.must("LOCK.ACQUIRE", r, 60000)
    ask(t, r, "w")
    t.redis("DEL", r)
    assert t.must("LOCK.ACQUIRE", r, 5000, "OWNER", "newcomer") is None
    assert t.redis("GET", r) == b"w"


def test_retry_keeps_the_place(t):
    r = fresh()
    t.must("LOCK.ACQUIRE", r, 60000)
    first = ask(t, r, "a")
    ask(t, r, "b")
    assert ask(t, r, "a")[2] == first[2]
    assert owners(t, r) == ["a", "b"]
    assert t.must("LOCK.ACQUIRE", r, 5000, "OWNER", "a") is None
    assert owners(t, r) == ["a", "b"]


def test_forcerelease_serves_the_next(t):
    r = fresh()
    t.must("LOCK.ACQUIRE", r, 60000)
    waiter = wait_for(t, r, wait_ms=5000, owner="w")
    assert t.must("LOCK.FORCERELEASE", r) == 1
    assert waiter.answer()[1] == 5000 and t.redis("GET", r) == b"w"


def test_shortened_ttl_wakes_the_first(t):
    r = fresh()
    fence, _ = t.must("LOCK.ACQUIRE", r, 60000)
    queued = ask(t, r, "w", wait_ms=5000)
    assert t.must("LOCK.RENEW", r, fence, 700) == [1, 700]
    assert t.redis("LPOP", queued[2]) == b"again"
    assert ask(t, r, "w", wait_ms=5000)[3] <= 701
    assert Waiter(t, "LOCK.ACQUIRE", r, 5000, wait_ms=5000, owner="w").answer()


def test_dead_waiters_are_passed_over(t):
    r = fresh()
    fence, _ = t.must("LOCK.ACQUIRE", r, 60000)
    dead = ask(t, r, "dead", wait_ms=100)
    ask(t, r, "alive")
    eventually(lambda: owners(t, r) == ["alive"])
    t.must("LOCK.RELEASE", r, fence)
    assert t.redis("GET", r) == b"alive" and t.redis("EXISTS", dead[2]) == 0


def test_lease_ends_without_asking_again(t):
    r = fresh()
    t.must("LOCK.ACQUIRE", r, 60000)
    started = time.monotonic()
    ask(t, r, "silent", wait_ms=60000)
    eventually(lambda: owners(t, r) == [], seconds=20)
    assert time.monotonic() - started > 2.5
    eventually(lambda: t.redis("EXISTS", "__wait__{%s}" % r) == 0, seconds=20, what="the end of the queue's key")
    assert t.redis("KEYS", "__wait*__{%s}*" % r) == []


def test_cancel_after_the_grant_answers_it(t):
    r = fresh()
    fence, _ = t.must("LOCK.ACQUIRE", r, 60000)
    ask(t, r, "w")
    t.must("LOCK.RELEASE", r, fence)
    granted, left_ms = t.must("LOCK.CANCEL", r, "w")
    assert granted > fence and 0 < left_ms <= 5000
    assert t.must("LOCK.RELEASE", r, granted) == [1, b"ok"]
    assert t.must("LOCK.CANCEL", r, "w") is None


def test_forms_wait_in_one_queue(t):
    r = fresh()
    fence, _ = t.must("LOCK.ACQUIRE", r, 60000)
    with t.other_form() as other:
        queued = ask(other, r, "a")
        ask(t, r, "b")
        assert ask(t, r, "a")[2] == queued[2]
        other.must("LOCK.RELEASE", r, fence)
        assert t.redis("GET", r) == b"a"


def test_wake_key_expires(t):
    r = fresh()
    fence, _ = t.must("LOCK.ACQUIRE", r, 60000)
    queued = ask(t, r, "w")
    t.must("LOCK.RELEASE", r, fence)
    assert 0 < t.redis("PTTL", queued[2]) <= 3000


def test_waiter_without_owner_is_told_its_name(t):
    r = fresh()
    fence, _ = t.must("LOCK.ACQUIRE", r, 60000)
    queued = t.must("LOCK.ACQUIRE", r, 5000, "WAIT", 1000)
    assert queued[0] == b"queued" and owners(t, r) == [queued[1].decode()]
    t.must("LOCK.RELEASE", r, fence)
    assert t.must("LOCK.CANCEL", r, queued[1])[0] > fence


def test_queue_is_bounded(t):
    r = fresh()
    t.must("LOCK.ACQUIRE", r, 600000)
    ask(t, r, "live", wait_ms=60000)
    keep_alive(t, r, "live")
    now_us = int(time.time() * 1e6)
    filler = [word for i in range(WAITERS_MAX - 1) for word in (now_us + i, f"sfill{i}")]
    t.redis("ZADD", "__wait__{%s}" % r, *filler)
    alive = ["MSET"] + [word for i in range(WAITERS_MAX - 1) for word in ("__waiter__{%s}:%d" % (r, now_us + i), 1)]
    t.redis(*alive)
    assert t.info(r)[0]["waiters"] == WAITERS_MAX and len(t.must("LOCK.QUEUE", r)) == WAITERS_MAX
    reply = t("LOCK.ACQUIRE", r, 5000, "WAIT", 1000, "OWNER", "one-more")
    text = "OOM the queue of this lock is full (10000 waiters); retry later"
    assert isinstance(reply, ReplyError) and str(reply) == text, reply
    assert ask(t, r, "live")[0] == b"queued"
    keep_alive(t, r, "live")
    t.redis("DEL", *alive[1::2])
    ask(t, r, "one-more", wait_ms=60000)
    assert owners(t, r) == ["live", "one-more"]


def test_clock_behind_the_last_ticket(t):
    r = fresh()
    t.must("LOCK.ACQUIRE", r, 60000)
    ahead = int((time.time() + 3600) * 1e6)
    t.redis("ZADD", "__wait__{%s}" % r, ahead, "sahead")
    t.redis("SET", "__waiter__{%s}:%d" % (r, ahead), 5000, "PX", 60000)
    for name in "abc":
        ask(t, r, name)
    assert owners(t, r) == ["ahead", "a", "b", "c"]


def test_grant_leaves_no_side_keys(t):
    r = fresh()
    fence, _ = t.must("LOCK.ACQUIRE", r, 60000)
    queued = ask(t, r, "w")
    t.must("LOCK.RELEASE", r, fence)
    assert t.redis("KEYS", "__wa*{%s}*" % r) == [queued[2]]
    queued = ask(t, r, "v")
    t.redis("DEL", r)
    assert t.must("LOCK.ACQUIRE", r, 5000, "WAIT", 1000, "OWNER", "v")[1] == 5000
    assert t.redis("EXISTS", queued[2]) == 0, "who asks needs no waking"
