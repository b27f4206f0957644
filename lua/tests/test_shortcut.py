"""The shortcut for the common case and the long way answer, write and publish the same."""
import itertools
import json
import random
import time

from backend import fresh
from resp import ReplyError

FORMS = [("function", 2), ("script", 3)]
RETENTION_MS = 600000
TTLS = [60000, 90000000]

DAMAGED = [b"", b"junk", b"5 r junk", b"0 r 0 0 - ", b"5 v 0 0 - me", b"9007199254740991 r 0 0 - "]


class Way:
    """One name that is locked in one of both ways. Fences are told by the order in which they came up, times by their distance."""

    def __init__(self, t, is_short, stem):
        self.t, self.is_short, self.name = t, is_short, fresh(stem)
        form = ":%s" if "}" in self.name else "{%s}"
        self.companion, self.queue = ("__%s__" % kind + form % self.name for kind in ("fence", "wait"))
        self.fences, self.numbers = [], {}
        self.watcher = t.another()
        self.watcher.redis("SUBSCRIBE", "__lock__:" + self.name)

    def known(self, fence):
        return self.numbers.setdefault(int(fence), "fence %d" % len(self.numbers))

    def shown(self, reply):
        if isinstance(reply, ReplyError):
            return str(reply).replace(self.name, "NAME")
        if isinstance(reply, list) and reply and isinstance(reply[0], int) and reply[0] > 10**12:
            self.fences.append(reply[0])
            # An owner that asks again is told what is left.
            return [self.known(reply[0]), next(ttl for ttl in TTLS if 0 <= ttl - reply[1] < 5000)]
        if isinstance(reply, list) and reply and reply[0] == b"queued":
            return "queued"
        return reply

    def acquire(self, owner, ttl):
        return self.shown(self.t("LOCK.ACQUIRE", self.name, ttl, "OWNER" if self.is_short else "owner", owner))

    def release(self, back):
        fence = self.fences[-back] if len(self.fences) >= back else 17
        tier = [] if self.is_short else ["TIER", "EFFICIENCY"]
        return self.shown(self.t("LOCK.RELEASE", self.name, fence, *tier))

    def other(self, *words):
        return self.shown(self.t(words[0], self.name, *words[1:]))

    def redis(self, *words):
        keys = {"NAME": self.name, "COMPANION": self.companion, "QUEUE": self.queue}
        return self.t.redis(*[keys.get(word, word) for word in words])

    def state(self):
        kind = self.redis("TYPE", "COMPANION")
        packed = self.redis("GET", "COMPANION") if kind in (b"string", "string") else kind
        ends = [self.redis("PEXPIRETIME", "NAME"), self.redis("PEXPIRETIME", "COMPANION")]
        deadline = None
        words = packed.split(b" ", 5) if isinstance(packed, bytes) and packed not in DAMAGED else []
        if len(words) == 6 and words[0].isdigit():
            deadline = int(words[2])
            ended = words[3] if words[3] == b"0" else self.known(words[3])
            packed = [self.known(words[0]), words[1], deadline > 0, ended, words[4:]]
        return packed, [self.end(end, deadline) for end in ends], self.redis("TYPE", "NAME")

    @staticmethod
    def end(end, deadline):
        if end < 0:
            return end
        # The deadline of what a plain client took is counted from what was left of its time.
        for after_ms in (0, RETENTION_MS):
            if deadline is not None and abs(end - deadline - after_ms) < 5000:
                return "deadline + %d" % after_ms
        from_now = end - time.time() * 1000
        return "retention from now" if RETENTION_MS - 60000 < from_now <= RETENTION_MS else "another time"

    def events(self):
        """All so far: what is published behind them ends the reading."""
        self.redis("PUBLISH", "__lock__:" + self.name, "end")
        seen = []
        while True:
            text = self.watcher.client.read()[2]
            if text == b"end":
                return seen
            event = json.loads(text)
            event.pop("seq")
            event["resource"] = event["resource"].replace(self.name, "NAME")
            event["fence"] = self.known(event["fence"]) if event["fence"] else 0
            seen.append(event)


def steps(draw):
    owner = draw.choice(["one", "two", "quote\"\\", "é"])
    kind = draw.randrange(16)
    if kind < 6:
        ttl = draw.choice([*TTLS, 0, "007", "x"])
        return lambda way: way.acquire(owner, ttl)
    if kind < 10:
        back = draw.choice([1, 1, 1, 2])
        return lambda way: way.release(back)
    damaged = draw.choice(DAMAGED)
    return [
        lambda way: way.redis("DEL", "NAME"),
        lambda way: way.redis("SET", "NAME", owner, "PX", "60000"),
        lambda way: way.other("LOCK.FORCERELEASE"),
        lambda way: way.other("LOCK.ACQUIRE", "60000", "OWNER", owner, "VALUE", "v"),
        lambda way: way.other("LOCK.ACQUIRE", "60000", "OWNER", owner, "WAIT", "600000"),
        lambda way: way.redis("SET", "COMPANION", damaged),
    ][kind - 10]


def test_both_ways_do_the_same(t):
    draw = random.Random(5)
    for case, stem in itertools.product(range(12), ["r", "a{b}c", "q\"é", "x{"]):
        short, long = Way(t, True, stem), Way(t, False, stem)
        try:
            for number in range(14):
                step = steps(draw)
                answers = [step(way) for way in (short, long)]
                assert answers[0] == answers[1], (case, stem, number, answers)
                states = [way.state() for way in (short, long)]
                assert states[0] == states[1], (case, stem, number, states)
            events = [way.events() for way in (short, long)]
            assert events[0] == events[1], (case, stem, events)
        finally:
            short.watcher.close()
            long.watcher.close()


def test_keys_of_another_type(t):
    for key in ["NAME", "COMPANION"]:
        answers = []
        for is_short in (True, False):
            way = Way(t, is_short, "r")
            way.redis("HSET", key, "f", "v")
            answers.append([way.acquire("me", 5000), way.release(1), way.state()])
            way.watcher.close()
        assert answers[0] == answers[1], answers
        assert answers[0][0].startswith("WRONGTYPE"), answers


def test_a_fence_ahead_of_the_clock(t):
    for is_short in (True, False):
        way = Way(t, is_short, "r")
        way.redis("SET", "COMPANION", "9007199254740900 r 0 0 - ")
        assert way.t.must("LOCK.ACQUIRE", way.name, 5000, "OWNER" if is_short else "owner", "me")[0] == 9007199254740901
        way.watcher.close()
