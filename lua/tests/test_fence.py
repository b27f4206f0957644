"""FENCE.*: the high-water mark."""
from backend import fresh
from resp import ReplyError


def test_check_and_get(t):
    r = fresh()
    assert t.must("FENCE.GET", r) == 0
    assert t.must("FENCE.CHECK", r, 42) == 1
    assert t.must("FENCE.CHECK", r, 42) == 1
    assert t.must("FENCE.CHECK", r, 41) == 0
    assert t.must("FENCE.GET", r) == 42
    assert t.redis("GET", "__hwm__{%s}" % r) == b"42"
    assert t.redis("PTTL", "__hwm__{%s}" % r) == -1
    assert t.must("FENCE.CHECK", r, 1700000000000001) == 1
    assert t.must("FENCE.GET", r) == 1700000000000001
    assert t.redis("GET", "__hwm__{%s}" % r) == b"1700000000000001"


def test_call(t):
    r, key = fresh(), fresh("guarded")
    assert t.must("FENCE.CALL", r, 43, "SET", key, "new") == "OK"
    reply = t("FENCE.CALL", r, 42, "SET", key, "old")
    assert isinstance(reply, ReplyError) and str(reply) == "STALE fence 42 is behind 43", reply
    assert t.redis("GET", key) == b"new"
    assert t.must("FENCE.CALL", r, 43, "GET", key) == b"new"
    assert t.must("FENCE.CALL", r, 44, "GET", key + "none") is None
    assert t.must("FENCE.GET", r) == 44
    assert t.must("FENCE.CALL", r, 44, "RPUSH", key + "l", *range(900)) == 900
    assert len(t.must("FENCE.CALL", r, 44, "LRANGE", key + "l", 0, -1)) == 900
    reply = t("FENCE.CALL", r, 45, "INCR", key)
    assert str(reply) == "ERR value is not an integer or out of range", reply
    assert isinstance(t("FENCE.CALL", r, 45, "NOSUCH"), ReplyError)
    assert isinstance(t("FENCE.CALL", r, 45, "BLPOP", key + "l"), ReplyError)
    text = str(t("FENCE.CALL", r, 1, "SET", key, "old"))
    assert text == "STALE fence 1 is behind 45", text


def test_call_leaves_the_database_alone(t):
    r = fresh()
    for word in ("SELECT", "select"):
        reply = t("FENCE.CALL", r, 7, word, 3)
        assert isinstance(reply, ReplyError), reply
        assert str(reply) == "ERR FENCE.CALL cannot run 'select': it is about the connection", reply
    assert t.must("FENCE.GET", r) == 0
    assert t.must("FENCE.CALL", r, 5, "PING") == "PONG"
    assert t.must("FENCE.GET", r) == 5


def test_call_takes_the_keys_of_the_command_too(t):
    r = fresh("{slot}")
    words = t.raw("FENCE.CALL", [r, r + "k"], [7, "SET", r + "k", "v"])
    assert t.redis(*words) == "OK"


def test_damaged_mark(t):
    r = fresh()
    t.redis("SET", "__hwm__{%s}" % r, "junk")
    for command, args in [("FENCE.CHECK", [r, 1]), ("FENCE.GET", [r]), ("FENCE.CALL", [r, 1, "PING"])]:
        reply = t(command, *args)
        assert isinstance(reply, ReplyError) and "damaged" in str(reply), reply


def test_fence_of_a_lock_guards(t):
    r, key = fresh(), fresh("guarded")
    first, _ = t.must("LOCK.ACQUIRE", r, 5000)
    t.must("LOCK.FORCERELEASE", r)
    second, _ = t.must("LOCK.ACQUIRE", r, 5000)
    assert t.must("FENCE.CALL", r, second, "SET", key, 2) == "OK"
    assert str(t("FENCE.CALL", r, first, "SET", key, 1)) == f"STALE fence {first} is behind {second}"
    assert t.redis("GET", key) == b"2"
