"""Every limit of the contract: hit, one more, and nonsense in its place. The texts are those of core's grammar."""
from backend import fresh, side_keys
from resp import ReplyError

TTL = "ERR ttl must be an integer from 1 to 31536000000 milliseconds"
TTL_0 = ("ERR ttl 0 (as long as the session lives) needs SESSION; otherwise ttl must be an integer"
         " from 1 to 31536000000 milliseconds")
WAIT = "ERR WAIT must be an integer from 0 to 3600000 milliseconds"
FENCE = "ERR fence must be an integer from 1 to 9007199254740991"
NAME = "ERR resource name must be 1 to 512 bytes"
OWNER = "ERR owner must be 1 to 256 bytes"
COUNT = "ERR COUNT must be an integer from 1 to 10000"
TIER_2 = "TIER correctness is not served here: this is the efficiency tier; ask a Redfence proxy"
SESSIONS = "TIER sessions live in the correctness tier only; ask a Redfence proxy with TIER CORRECTNESS"
NONSENSE = ["1e3", " 1", "1 ", "+1", "-1", "", "0x1", "1.0", "01", "abc", "9" * 30, "1\x00", "١"]


def refused(t, text, command, *args):
    reply = t(command, *args)
    assert isinstance(reply, ReplyError) and str(reply) == text, f"{command} {args}: {reply!r}"


def untouched(t, *resources):
    for resource in resources:
        assert t.redis("EXISTS", *side_keys(resource)) == 0, resource


def test_ttl(t):
    r = fresh()
    for word in NONSENSE + ["31536000001"]:
        refused(t, TTL, "LOCK.ACQUIRE", r, word)
        refused(t, TTL, "LOCK.MACQUIRE", 1, r, word)
        refused(t, TTL, "LOCK.RENEW", r, 1, word)
    refused(t, TTL_0, "LOCK.ACQUIRE", r, 0)
    refused(t, TTL, "LOCK.RENEW", r, 1, 0)
    untouched(t, r)
    assert t.must("LOCK.ACQUIRE", r, 1)[1] == 1
    longest = fresh()
    fence, ttl = t.must("LOCK.ACQUIRE", longest, 31536000000)
    assert ttl == 31536000000
    assert t.must("LOCK.RELEASE", longest, fence) == [1, b"ok"]


def test_wait(t):
    r = fresh()
    for word in NONSENSE + ["3600001"]:
        refused(t, WAIT, "LOCK.ACQUIRE", r, 1000, "WAIT", word)
    untouched(t, r)
    t.must("LOCK.ACQUIRE", r, 60000)
    assert t.must("LOCK.ACQUIRE", r, 1000, "WAIT", 3600000, "OWNER", "w")[0] == b"queued"
    assert t.must("LOCK.CANCEL", r, "w") is None


def test_fence_numbers(t):
    r = fresh()
    for word in NONSENSE + ["0", "9007199254740992", "9007199254740993"]:
        refused(t, FENCE, "LOCK.RELEASE", r, word)
        refused(t, FENCE, "LOCK.RENEW", r, word, 1000)
        refused(t, FENCE, "LOCK.MRELEASE", 1, r, word)
        refused(t, FENCE, "FENCE.CHECK", r, word)
        refused(t, FENCE, "FENCE.CALL", r, word, "SET", r, "x")
    untouched(t, r)
    assert t.must("LOCK.RELEASE", r, 9007199254740991) == [0, b"not_owner"]
    refused(t, "ERR fence 9007199254740991 is from the future: more than 1 hour ahead of this server's clock",
            "FENCE.CHECK", r, 9007199254740991)
    assert t.must("FENCE.GET", r) == 0


def test_names_and_owners(t):
    for command, rest in [("LOCK.ACQUIRE", [1000]), ("LOCK.RELEASE", [1]), ("LOCK.RENEW", [1, 1]), ("LOCK.INFO", []),
                          ("LOCK.QUEUE", []), ("LOCK.FORCERELEASE", []), ("FENCE.CHECK", [1]), ("FENCE.GET", []),
                          ("FENCE.CALL", [1, "PING"])]:
        refused(t, NAME, command, "", *rest)
        refused(t, NAME, command, "x" * 513, *rest)
    refused(t, NAME, "LOCK.MACQUIRE", 2, "a", "x" * 513, 1000)
    longest = fresh("n").ljust(512, "x")
    refused(t, OWNER, "LOCK.ACQUIRE", longest, 1000, "OWNER", "")
    refused(t, OWNER, "LOCK.ACQUIRE", longest, 1000, "OWNER", "o" * 257)
    untouched(t, longest)
    assert t.must("LOCK.ACQUIRE", longest, 1000, "OWNER", "o" * 256)[1] == 1000
    assert t.redis("GET", longest) == b"o" * 256


def test_arity(t):
    for command, keys, rest in [
        ("LOCK.ACQUIRE", [], []), ("LOCK.ACQUIRE", ["a"], []), ("LOCK.ACQUIRE", ["a", "b"], [1000]),
        ("LOCK.RELEASE", ["a"], []), ("LOCK.RENEW", ["a"], [1]), ("LOCK.INFO", [], []), ("LOCK.QUEUE", [], []),
        ("LOCK.MACQUIRE", ["a"], []), ("LOCK.MRELEASE", ["a"], []), ("LOCK.SCAN", [], []), ("LOCK.SCAN", ["a"], [0]),
        ("LOCK.FORCERELEASE", [], []), ("FENCE.CHECK", ["a"], []), ("FENCE.CHECK", ["a"], [1, 2]),
        ("FENCE.GET", ["a"], [1]), ("FENCE.CALL", ["a"], [1]), ("LOCK.SESSION", [], ["OPEN"]),
        ("LOCK.CANCEL", ["a"], []), ("LOCK.MCANCEL", ["a"], []),
    ]:
        reply = t.client.send(*t.raw(command, keys, rest))
        expected = f"ERR wrong number of arguments for '{command.lower()}' command"
        assert isinstance(reply, ReplyError) and str(reply) == expected, f"{command}: {reply!r}"


def test_options(t):
    r = fresh()
    refused(t, "ERR syntax error: unknown option 'FOO'", "LOCK.ACQUIRE", r, 1000, "FOO", 1)
    refused(t, "ERR syntax error: unknown option 'WAIT'", "LOCK.RELEASE", r, 1, "WAIT", 1)
    refused(t, "ERR syntax error: unknown option '??\ufffd'", "LOCK.INFO", r, b"\n\x00\xff")
    refused(t, "ERR syntax error: option WAIT is given twice", "LOCK.ACQUIRE", r, 1000, "wait", 1, "WAIT", 1)
    refused(t, "ERR syntax error: option OWNER is given twice", "LOCK.ACQUIRE", r, 1000, "OWNER", "a", "OWNER")
    refused(t, "ERR syntax error: option TIER needs a value", "LOCK.INFO", r, "TIER")
    refused(t, "ERR unknown tier 'gold': use EFFICIENCY or CORRECTNESS", "LOCK.INFO", r, "TIER", "gold")
    untouched(t, r)
    assert t.must("LOCK.ACQUIRE", r, 1000, "tier", "efficiency", "oWnEr", "me", "Wait", 0)[1] == 1000


def test_other_tier(t):
    r = fresh()
    tier = ["TIER", "correctness"]
    for command, args in [("LOCK.ACQUIRE", [r, 1000]), ("LOCK.RELEASE", [r, 1]), ("LOCK.RENEW", [r, 1, 1]),
                          ("LOCK.INFO", [r]), ("LOCK.MACQUIRE", [1, r, 1000]), ("LOCK.MRELEASE", [1, r, 1]),
                          ("LOCK.QUEUE", [r]), ("LOCK.SCAN", [0]), ("LOCK.FORCERELEASE", [r])]:
        refused(t, TIER_2, command, *args, *tier)
    refused(t, SESSIONS, "LOCK.ACQUIRE", r, 0, "SESSION", "x")
    refused(t, SESSIONS, "LOCK.SESSION", "OPEN", 1000, "NAME", "me")
    for verb in ("KEEPALIVE", "info", "CLOSE"):
        refused(t, SESSIONS, "LOCK.SESSION", verb, "0123456789abcdef")
    refused(t, TTL, "LOCK.SESSION", "OPEN", "x")
    refused(t, "ERR unknown subcommand 'FOO' of LOCK.SESSION", "LOCK.SESSION", "FOO", 1)
    untouched(t, r)


def test_multi_counts(t):
    names = [fresh() for _ in range(257)]
    refused(t, "ERR count must be an integer from 1 to 256", "LOCK.MACQUIRE", 257, *names, 1000)
    refused(t, "ERR count must be an integer from 1 to 256", "LOCK.MACQUIRE", 0, 1000)
    refused(t, "ERR count does not match the number of resources given", "LOCK.MACQUIRE", 2, *names[:2])
    refused(t, f"ERR resource '{names[0]}' is given twice", "LOCK.MACQUIRE", 3, names[0], names[1], names[0], 1000)
    reply = t.client.send(*t.raw("LOCK.MRELEASE", names[:2], [1]))
    assert str(reply) == "ERR count does not match the number of resources given"
    untouched(t, *names)
    fences, ttl = t.must("LOCK.MACQUIRE", 256, *names[:256], 5000)
    assert len(fences) == 256 and ttl == 5000
    pairs = [word for pair in zip(names, fences) for word in pair]
    assert t.must("LOCK.MRELEASE", 256, *pairs) == [[1, b"ok"]] * 256


def test_scan_words(t):
    for word in ["", "-1", "01", "x", "9" * 21]:
        refused(t, "ERR invalid cursor", "LOCK.SCAN", word)
    for word in ["0", "9223372036854775808", "x", "-1", "010", ""]:
        refused(t, COUNT, "LOCK.SCAN", 0, "COUNT", word)
    refused(t, "ERR pattern must be 1 to 1024 bytes", "LOCK.SCAN", 0, "MATCH", "")
    refused(t, "ERR pattern must be 1 to 1024 bytes", "LOCK.SCAN", 0, "MATCH", "x" * 1025)
    t.must("LOCK.SCAN", 0, "MATCH", "x" * 1024, "COUNT", 10000)
    for word in ["10001", "9223372036854775807"]:  # as for SCAN, any positive number
        t.must("LOCK.SCAN", 0, "COUNT", word)


def test_unknown_command_of_the_script(t):
    if t.form == "script":
        reply = t.client.send("EVALSHA", t.sha, 0, "LOCK.NONE")
        assert str(reply) == "ERR unknown command 'LOCK.NONE' of the Redfence script", reply
        assert isinstance(t.client.send("EVALSHA", t.sha, 0), ReplyError)
