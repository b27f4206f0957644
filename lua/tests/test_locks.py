"""One client at a time: what each command answers, what it leaves in the keys, what it publishes."""
import json
import time

from backend import fresh
from resp import ReplyError
from servers import eventually

FIELDS = ["resource", "tier", "state", "fence", "owner", "session", "ttl", "waiters", "mode", "held_ms", "value", "max",
          "holders"]
HOLDER_FIELDS = ["owner", "fence", "session", "ttl", "held_ms", "permits", "value"]
YEAR_MS = 31536000000


def test_acquire_and_release(t):
    r = fresh()
    before_us = time.time() * 1e6
    fence, ttl = t.must("LOCK.ACQUIRE", r, 5000, "OWNER", "me")
    assert before_us - 1000 < fence < time.time() * 1e6 + 1000 and ttl == 5000
    assert t.redis("GET", r) == b"me" and 0 < t.redis("PTTL", r) <= 5000
    packed = t.redis("GET", "__fence__{%s}" % r).split(b" ", 5)
    assert packed[0] == b"%d" % fence and packed[1] == b"h" and packed[3:] == [b"0", b"-", b"me"]
    assert int(packed[2]) == t.redis("PEXPIRETIME", r)
    assert t.redis("PEXPIRETIME", "__fence__{%s}" % r) == int(packed[2]) + 600000
    assert t.must("LOCK.ACQUIRE", r, 5000) is None
    assert t.must("LOCK.RELEASE", r, fence + 1) == [0, b"not_owner"]
    assert t.must("LOCK.RELEASE", r, fence) == [1, b"ok"]
    assert t.redis("EXISTS", r) == 0
    assert t.redis("GET", "__fence__{%s}" % r) == b"%d r %s %d r " % (fence, packed[2], fence)
    assert t.must("LOCK.RELEASE", r, fence) == [0, b"already_released"]
    assert t.must("LOCK.RENEW", r, fence, 10) == [0, b"already_released"]
    again, _ = t.must("LOCK.ACQUIRE", r, 5000)
    assert again > fence
    # The last that ended keeps its reason while another is held; the one before it is nobody's any more.
    assert t.must("LOCK.RELEASE", r, fence) == [0, b"already_released"]
    assert t.must("LOCK.RELEASE", r, again) == [1, b"ok"]
    assert t.must("LOCK.RELEASE", r, fence) == [0, b"not_owner"]
    third, _ = t.must("LOCK.ACQUIRE", r, 5000)
    assert t.must("LOCK.RENEW", r, again, 10) == [0, b"already_released"]
    assert t.must("LOCK.RELEASE", r, fence) == [0, b"not_owner"]
    assert t.must("LOCK.RELEASE", r, third) == [1, b"ok"]


def test_owner_retry(t):
    r = fresh()
    fence, _ = t.must("LOCK.ACQUIRE", r, 5000, "OWNER", "me")
    same, ttl = t.must("LOCK.ACQUIRE", r, 1000, "OWNER", "me")
    assert same == fence and 1000 < ttl <= 5000
    assert t.must("LOCK.ACQUIRE", r, 9000, "OWNER", "me", "WAIT", 50) == [fence, 9000]
    assert 5000 < t.redis("PTTL", r) <= 9000
    deadline = int(t.redis("GET", "__fence__{%s}" % r).split(b" ")[2])
    assert deadline == t.redis("PEXPIRETIME", r)
    assert t.must("LOCK.RELEASE", r, fence) == [1, b"ok"]
    assert t.must("LOCK.ACQUIRE", r, 1000, "OWNER", "me")[0] > fence


def test_made_up_owners_differ(t):
    a, b = fresh(), fresh()
    for r in (a, b, a):
        t.must("LOCK.FORCERELEASE", r)
        t.must("LOCK.ACQUIRE", r, 5000)
        assert t.must("LOCK.ACQUIRE", r, 5000) is None
    assert t.redis("GET", a) != t.redis("GET", b)


def test_renew(t):
    r = fresh()
    assert t.must("LOCK.RENEW", r, 1, 1000) == [0, b"not_owner"]
    fence, _ = t.must("LOCK.ACQUIRE", r, 1000, "OWNER", "me")
    assert t.must("LOCK.RENEW", r, fence, 60000) == [1, 60000]
    assert 1000 < t.redis("PTTL", r) <= 60000
    assert t.redis("PEXPIRETIME", "__fence__{%s}" % r) == t.redis("PEXPIRETIME", r) + 600000
    assert t.must("LOCK.RENEW", r, fence, 1) == [1, 1]
    eventually(lambda: t.redis("EXISTS", r) == 0)
    assert t.must("LOCK.RENEW", r, fence, 1000) == [0, b"expired"]
    assert t.must("LOCK.RENEW", r, fence - 1, 1000) == [0, b"not_owner"]


def test_expiry_and_deletion_are_told_apart(t):
    r = fresh()
    fence, _ = t.must("LOCK.ACQUIRE", r, 1)
    eventually(lambda: t.redis("EXISTS", r) == 0)
    assert t.must("LOCK.RELEASE", r, fence) == [0, b"expired"]
    assert t.must("LOCK.RELEASE", r, fence) == [0, b"expired"]
    fence, _ = t.must("LOCK.ACQUIRE", r, 60000)
    t.redis("DEL", r)
    assert t.must("LOCK.RELEASE", r, fence) == [0, b"already_released"]
    fence, _ = t.must("LOCK.ACQUIRE", r, 1)
    eventually(lambda: t.redis("EXISTS", r) == 0)
    t.redis("SET", r, "plain", "PX", 60000)
    assert t.must("LOCK.RELEASE", r, fence) == [0, b"expired"]
    assert t.redis("GET", r) == b"plain"


def test_info(t):
    r = fresh()
    info, order = t.info(r)
    assert order == FIELDS
    assert info == {"resource": r.encode(), "tier": b"EFFICIENCY", "state": b"free", "fence": 0, "owner": None,
                    "session": None, "ttl": None, "waiters": 0, "mode": None, "held_ms": None, "value": None, "max": None,
                    "holders": []}
    fence, _ = t.must("LOCK.ACQUIRE", r, 5000, "OWNER", "me")
    info, order = t.info(r)
    ttl, held_ms, (holder,) = info.pop("ttl"), info.pop("held_ms"), info.pop("holders")
    assert order == FIELDS and 0 < ttl <= 5000 and held_ms >= 0
    assert info == {"resource": r.encode(), "tier": b"EFFICIENCY", "state": b"held", "fence": fence, "owner": b"me",
                    "session": None, "waiters": 0, "mode": b"exclusive", "value": None, "max": None}
    assert t.pairs(holder) == list(zip(HOLDER_FIELDS, [b"me", fence, None, ttl, held_ms, None, None]))
    t.redis("SET", r, "plain")
    info, _ = t.info(r)
    assert (info["state"], info["owner"], info["ttl"], info["fence"]) == (b"held", b"plain", -1, fence)
    assert (info["mode"], info["held_ms"], info["value"]) == (b"exclusive", None, None)
    assert t.pairs(info["holders"][0]) == list(zip(HOLDER_FIELDS, [b"plain", 0, None, -1, None, None, None]))
    t.redis("DEL", r)
    assert t.info(r)[0]["fence"] == fence


def test_forcerelease(t):
    r = fresh()
    assert t.must("LOCK.FORCERELEASE", r) == 0
    fence, _ = t.must("LOCK.ACQUIRE", r, 5000)
    assert t.must("LOCK.FORCERELEASE", r) == 1
    assert t.must("LOCK.RELEASE", r, fence) == [0, b"expired"]
    assert t.must("LOCK.FORCERELEASE", r) == 0
    plain = fresh()
    t.redis("SET", plain, "plain")
    assert t.must("LOCK.FORCERELEASE", plain) == 1
    assert t.redis("EXISTS", plain, "__fence__{%s}" % plain) == 0


def test_early_release_lets_the_companion_go_earlier(t):
    r = fresh()
    fence, _ = t.must("LOCK.ACQUIRE", r, YEAR_MS)
    t.must("LOCK.RELEASE", r, fence)
    assert 590000 < t.redis("PTTL", "__fence__{%s}" % r) <= 600000
    fence, _ = t.must("LOCK.ACQUIRE", r, 30000)
    t.must("LOCK.RELEASE", r, fence)
    assert 620000 < t.redis("PTTL", "__fence__{%s}" % r) <= 630000


def test_wrong_type(t):
    text = "WRONGTYPE Operation against a key holding the wrong kind of value"
    r, free = fresh(), fresh()
    t.redis("HSET", r, "f", "v")
    for command, args in [("LOCK.ACQUIRE", [r, 1000]), ("LOCK.ACQUIRE", [r, 1000, "WAIT", 100]),
                          ("LOCK.RELEASE", [r, 1]), ("LOCK.RENEW", [r, 1, 1]), ("LOCK.INFO", [r]),
                          ("LOCK.FORCERELEASE", [r]), ("LOCK.MACQUIRE", [2, free, r, 1000])]:
        reply = t(command, *args)
        assert isinstance(reply, ReplyError) and str(reply) == text, f"{command}: {reply!r}"
    assert t.redis("TYPE", r) == "hash" and t.redis("EXISTS", free, "__fence__{%s}" % r) == 0
    one, two = (t.must("LOCK.ACQUIRE", name, 30000)[0] for name in (free, free + "2"))
    rows = t.must("LOCK.MRELEASE", 3, free, one, r, 1, free + "2", two)
    assert rows == [[1, b"ok"], [0, b"not_owner"], [1, b"ok"]], rows
    assert t.redis("TYPE", r) == "hash" and t.redis("EXISTS", free, free + "2") == 0


def test_any_bytes(t):
    tag = fresh("{tag}").encode()
    for name in [b"\x00\xff\r\n " + fresh().encode(), tag + b"}{", fresh().encode() + b"{}", fresh().encode() + b"}",
                 fresh().encode() + b"{open", b"%d %s" + fresh().encode()]:
        owner = b" \x00\xff}" + name[:20]
        fence, _ = t.must("LOCK.ACQUIRE", name, 5000, "OWNER", owner)
        assert t.redis("GET", name) == owner
        side = (b"__fence__:" + name) if b"}" in name else b"__fence__{" + name + b"}"
        assert t.redis("GET", side).endswith(b" " + owner)
        info, _ = t.info(name)
        assert (info["resource"], info["owner"], info["fence"]) == (name, owner, fence)
        assert t.must("LOCK.ACQUIRE", name, 5000, "OWNER", owner)[0] == fence
        assert t.must("LOCK.RELEASE", name, fence) == [1, b"ok"]


def test_scan(t):
    stem = fresh("scan")
    names = {f"{stem}:{i}" for i in range(40)} | {f"{stem}:{{t}}{i}" for i in range(10)}
    for name in names:
        t.must("LOCK.ACQUIRE", name, 60000)
    fence, _ = t.must("LOCK.ACQUIRE", f"{stem}:released", 60000)
    t.must("LOCK.RELEASE", f"{stem}:released", fence)
    t.redis("SET", f"{stem}:plain", "x")
    t.redis("SET", f"__fence__{{{stem}:x}}y", "no companion")

    def scan(*options):
        found, cursor = [], b"0"
        while True:
            cursor, page = t.must("LOCK.SCAN", cursor, *options)
            found += [name.decode() for name in page]
            if cursor == b"0":
                return set(found)

    assert scan("MATCH", stem + ":*", "COUNT", 7) == names
    assert scan("MATCH", stem + ":[0-3]", "COUNT", 1000) == {f"{stem}:{i}" for i in range(4)}
    assert scan("MATCH", stem + ":{t}?", "COUNT", 1000) == {f"{stem}:{{t}}{i}" for i in range(10)}
    assert scan("COUNT", 10000) >= names
    assert scan("MATCH", "a*" * 500 + "b", "COUNT", 10000) == set()


def test_globs_match_as_redis_does(t):
    stem = fresh("glob")
    texts = ["hello", "hllo", "heeeello", "hallo", "h*llo", "h[llo", "h]llo", "h^llo", "h-llo", "h\\llo", "hbllo"]
    for text in texts:
        t.must("LOCK.ACQUIRE", stem + text, 60000)
    for glob in ["h?llo", "h*llo", "h[ae]llo", "h[^e]llo", "h[a-b]llo", "h[b-a]llo", r"h\*llo", r"h[\]]llo", "h[]llo",
                 "h[a", "*", "h*l*o", "*llo", r"h\\llo", "h[^]llo", "h[a-]llo"]:
        found = {name for name in t.must("LOCK.SCAN", 0, "MATCH", stem + glob, "COUNT", 10000)[1]}
        expected = set(t.redis("KEYS", stem + glob))
        assert found == expected, (glob, found, expected)


def test_values(t):
    r, value = fresh(), b"10.0.0.1:80 \x00\xff "
    fence, _ = t.must("LOCK.ACQUIRE", r, 5000, "OWNER", "o w", "VALUE", value)
    assert t.redis("GET", "__fence__{%s}" % r).endswith(b" 0 - 3 o w" + value)
    assert t.must("LOCK.ACQUIRE", r, 9000, "OWNER", "o w", "VALUE", "another") == [fence, 9000]
    t.must("LOCK.RENEW", r, fence, 8000)
    info, _ = t.info(r)
    assert info["value"] == value and t.pairs(info["holders"][0])[6] == ("value", value)
    with t.another() as waiter:
        queued = waiter.must("LOCK.ACQUIRE", r, 5000, "OWNER", "w", "WAIT", 5000, "VALUE", "7 of 9")
        assert queued[0] == b"queued"
        assert t.must("LOCK.RELEASE", r, fence) == [1, b"ok"]
        assert t.info(r)[0]["value"] == b"7 of 9" and t.redis("GET", r) == b"w"
    second = t.info(r)[0]["fence"]
    assert t.must("LOCK.RELEASE", r, second) == [1, b"ok"] and t.info(r)[0]["value"] is None
    t.must("LOCK.ACQUIRE", r, 5000, "VALUE", "")
    assert t.info(r)[0]["value"] is None
    assert str(t("LOCK.ACQUIRE", r, 5000, "VALUE", "v" * 1025)) == "ERR VALUE must be at most 1024 bytes"
    assert str(t("LOCK.MACQUIRE", 1, r, 5000, "VALUE", "v")).startswith("ERR syntax error: unknown option 'VALUE'")


def test_other_kinds_are_refused(t):
    r = fresh()
    for words in (["SHARED"], ["PERMITS", 1, "OF", 2]):
        assert str(t("LOCK.ACQUIRE", r, 5000, *words)).startswith("TIER the efficiency tier has exclusive locks only")
    assert str(t("LOCK.MACQUIRE", 1, r, 5000, "SHARED")).startswith("TIER ")
    assert str(t("LOCK.CONVERT", r, 5, "SHARED")).startswith("TIER ")
    assert str(t("LOCK.EXPLAIN", r)).startswith("TIER ")
    assert "__lost__:<resource>" in str(t("LOCK.NOTIFY", "ON"))


def test_lost_locks_are_told(t):
    r = fresh()
    with t.another() as watcher:
        watcher.redis("SUBSCRIBE", "__lost__:" + r)
        released, _ = t.must("LOCK.ACQUIRE", r, 5000)
        t.must("LOCK.RELEASE", r, released)
        forced, _ = t.must("LOCK.ACQUIRE", r, 5000)
        assert t.must("LOCK.FORCERELEASE", r, "FENCE", forced - 1) == 0
        with t.another() as waiter:
            assert waiter.must("LOCK.ACQUIRE", r, 5000, "OWNER", "w", "WAIT", 5000)[0] == b"queued"
        assert t.must("LOCK.FORCERELEASE", r, "FENCE", forced) == 1
        next_fence = t.info(r)[0]["fence"]
        assert t.must("LOCK.FORCERELEASE", r) == 1
        expired, _ = t.must("LOCK.ACQUIRE", r, 1)
        eventually(lambda: t.redis("EXISTS", r) == 0)
        deleted, _ = t.must("LOCK.ACQUIRE", r, 5000)
        t.redis("DEL", r)
        last, _ = t.must("LOCK.ACQUIRE", r, 5000)
        for fence, cause, successor in [(forced, "forced", next_fence), (next_fence, "forced", None),
                                        (expired, "expired", deleted), (deleted, "deleted", last)]:
            assert json.loads(watcher.client.read()[2]) == {
                "event": "lock-lost", "resource": r, "fence": fence, "cause": cause, "successor": successor}


def test_events(t):
    r = fresh("ev\"\\\n\x01é")
    with t.another() as watcher:
        watcher.redis("SUBSCRIBE", "__lock__:" + r)
        fence, _ = t.must("LOCK.ACQUIRE", r, 5000, "OWNER", b"me\xff")
        t.must("LOCK.RENEW", r, fence, 6000)
        t.must("LOCK.ACQUIRE", r, 5000, "OWNER", "w", "WAIT", 1000)
        t.must("LOCK.CANCEL", r, "w")
        t.must("LOCK.RELEASE", r, fence)
        second, _ = t.must("LOCK.ACQUIRE", r, 1, "OWNER", "b")
        eventually(lambda: t.redis("EXISTS", r) == 0)
        third, _ = t.must("LOCK.ACQUIRE", r, 5000, "OWNER", "c")
        t.redis("DEL", r)
        fourth, _ = t.must("LOCK.ACQUIRE", r, 5000, "OWNER", "d")
        expected = [("acquired", fence, "me\ufffd"), ("renewed", fence, "me\ufffd"), ("queued", fence, "w"),
                    ("abandoned", fence, "w"), ("released", fence, "me\ufffd"), ("acquired", second, "b"),
                    ("expired", second, "b"), ("acquired", third, "c"), ("released", third, "c"),
                    ("acquired", fourth, "d")]
        last_seq = 0
        for event, number, owner in expected:
            text = watcher.client.read()[2].decode()
            assert f'"fence":{number},' in text, text
            message = json.loads(text)
            assert message.pop("seq") > last_seq
            last_seq = json.loads(text)["seq"]
            detail = {"cause": "deleted"} if (event, number) == ("released", third) else {}
            assert message == {"event": event, "resource": r, "fence": number, "owner": owner,
                               "tier": "EFFICIENCY", **detail}, (message, event)


def test_switch_between_forms_on_live_data(t):
    r = fresh()
    with t.other_form() as other:
        last = 0
        for one, two in [(t, other), (other, t)] * 3:
            fence, _ = one.must("LOCK.ACQUIRE", r, 5000, "OWNER", "me")
            assert fence > last
            last = fence
            assert two.must("LOCK.ACQUIRE", r, 5000, "OWNER", "you") is None
            assert two.must("LOCK.ACQUIRE", r, 5000, "OWNER", "me")[0] == fence
            assert two.must("LOCK.RENEW", r, fence, 6000) == [1, 6000]
            assert two.must("LOCK.RELEASE", r, fence) == [1, b"ok"]
            assert one.must("LOCK.RELEASE", r, fence) == [0, b"already_released"]


def test_damaged_companions(t):
    r = fresh()
    for junk in [b"", b"junk", b"1 x 2 me", b"-5 h 0 me", b"h", b"0 r 0 ", b"9007199254740991 r 0 ",
                 b"5 v 0 0 - me", b"5 v 0 0 - 9 me"]:
        t.redis("SET", "__fence__{%s}" % r, junk)
        fence, _ = t.must("LOCK.ACQUIRE", r, 5000)
        assert fence > 10**15
        assert fence < 9 * 10**15
        assert t.must("LOCK.RELEASE", r, fence) == [1, b"ok"]
    t.redis("DEL", "__fence__{%s}" % r)
    t.redis("HSET", "__fence__{%s}" % r, "f", "v")
    assert str(t("LOCK.ACQUIRE", r, 5000)).startswith("WRONGTYPE") and t.redis("EXISTS", r) == 0
    t.redis("SET", "__fence__{%s}" % r, "9007199254740989 r 0 0 - ")
    fence, _ = t.must("LOCK.ACQUIRE", r, 5000)
    assert fence == 9007199254740990 and t.info(r)[0]["fence"] == fence
    assert t.must("LOCK.RELEASE", r, fence) == [1, b"ok"]
