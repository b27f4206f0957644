"""Waiting in line: order, hand-over, every way a lock can come free, clients that leave."""

import json
import time

from resp import Error, until


def waiter(server, resource, owner, ttl=30000, wait=20000, resp3=False):
    """A client that is in line when this returns."""
    observer, client = server.client(), server.client(resp3)
    before = in_line(observer, resource)
    client.send("LOCK.ACQUIRE", resource, ttl, "WAIT", wait, "OWNER", owner)
    until(lambda: in_line(observer, resource) == before + 1, what=f"{owner} in line")
    return client


def in_line(client, resource):
    return len(client.call("LOCK.QUEUE", resource))


def info(client, resource):
    flat = client.call("LOCK.INFO", resource)
    return dict(zip(flat[::2], flat[1::2]))


def owner_of(client, resource):
    return info(client, resource)[b"owner"]


def test_release_hands_over_in_order(server):
    c = server.client()
    fence, _ = c.call("LOCK.ACQUIRE", "r", 30000, "OWNER", "first")
    line = [waiter(server, "r", f"w{n}", resp3=n % 2 == 1) for n in range(5)]
    assert [row[0] for row in c.call("LOCK.QUEUE", "r")] == [b"w%d" % n for n in range(5)]
    for n, client in enumerate(line):
        assert c.call("LOCK.RELEASE", "r", fence) == [1, b"ok"]
        assert owner_of(c, "r") == b"w%d" % n, "the next in line has it before the release is answered"
        later, ttl = client.read()
        assert later > fence and ttl == 30000
        fence = later
    assert info(c, "r")[b"waiters"] == 0


def test_a_newcomer_does_not_barge(server):
    c = server.client()
    c.call("LOCK.ACQUIRE", "r", 30000, "OWNER", "holder")
    waiter(server, "r", "w1")
    # In one script nothing runs between the deletion and the newcomer.
    script = "redis.call('DEL', KEYS[1]); return redis.call('LOCK.ACQUIRE', KEYS[1], 1000, 'OWNER', 'barger')"
    assert c.call("EVAL", script, 1, "r") is None
    assert owner_of(c, "r") == b"w1"


def test_wait_runs_out(server):
    c = server.client()
    c.call("LOCK.ACQUIRE", "r", 30000, "OWNER", "holder")
    started = time.monotonic()
    assert c.call("LOCK.ACQUIRE", "r", 1000, "WAIT", 200) is None
    assert 0.19 < time.monotonic() - started < 10
    assert in_line(c, "r") == 0


def test_holder_expires(server):
    c = server.client()
    first, _ = c.call("LOCK.ACQUIRE", "r", 1000, "OWNER", "holder")
    line = [waiter(server, "r", f"w{n}", ttl=150) for n in range(3)]
    last = first
    for client in line:
        fence, _ = client.read(10)
        assert fence > last
        last = fence
    assert c.call("LOCK.RELEASE", "r", first) == [0, b"not_owner"], "others have ended since"


def wakes(server, *command, setup=None):
    c = server.client()
    c.call("LOCK.ACQUIRE", "r", 30000, "OWNER", "holder")
    client = waiter(server, "r", "w")
    if setup:
        setup(c)
        client.silent()
    c.call(*command)
    fence, _ = client.read(2)
    assert owner_of(c, "r") == b"w" and info(c, "r")[b"fence"] == fence


def test_del_wakes(server):
    wakes(server, "DEL", "r")


def test_unlink_wakes(server):
    wakes(server, "UNLINK", "r")


def test_getdel_wakes(server):
    wakes(server, "GETDEL", "r")


def test_compare_and_delete_wakes(server):
    script = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end"
    wakes(server, "EVAL", script, 1, "r", "holder")


def test_rename_wakes(server):
    wakes(server, "RENAME", "r", "elsewhere")


def test_move_wakes(server):
    wakes(server, "MOVE", "r", 5)


def test_flushall_wakes(server):
    wakes(server, "FLUSHALL")


def test_flushdb_async_wakes(server):
    wakes(server, "FLUSHDB", "ASYNC")


def test_force_release_wakes(server):
    wakes(server, "LOCK.FORCERELEASE", "r")


def test_shorter_pexpire_wakes(server):
    wakes(server, "PEXPIRE", "r", 50)


def test_pexpire_in_the_past_wakes(server):
    wakes(server, "PEXPIREAT", "r", 1)


def test_overwrite_with_shorter_time_wakes(server):
    wakes(server, "SET", "r", "plain", "PX", 100)


def test_persist_then_del_wakes(server):
    wakes(server, "DEL", "r", setup=lambda c: c.call("PERSIST", "r"))


def test_getex_wakes(server):
    wakes(server, "GETEX", "r", "PX", 50)


def test_swapdb_wakes(server):
    wakes(server, "SWAPDB", 0, 3)


def test_debug_reload_keeps_the_line(server):
    wakes(server, "DEL", "r", setup=lambda c: c.call("DEBUG", "RELOAD"))


def test_rename_onto_keeps_waiting(server):
    c = server.client()
    c.call("LOCK.ACQUIRE", "r", 30000, "OWNER", "holder")
    client = waiter(server, "r", "w")
    c.call("SET", "other", "plain", "PX", 150)
    c.call("RENAME", "other", "r")
    client.silent(0.1)
    assert client.read(2)[0] > 0


def test_a_list_in_its_place_is_refused(server):
    c = server.client()
    c.call("LOCK.ACQUIRE", "r", 30000, "OWNER", "holder")
    client = waiter(server, "r", "w")
    c.call("EVAL", "redis.call('DEL', KEYS[1]); redis.call('LPUSH', KEYS[1], 'x')", 1, "r")
    reply = client.read(2)
    assert isinstance(reply, Error) and str(reply).startswith("WRONGTYPE"), reply


def test_a_client_that_leaves_is_forgotten(server):
    c = server.client()
    fence, _ = c.call("LOCK.ACQUIRE", "r", 30000, "OWNER", "holder")
    gone, stays = waiter(server, "r", "gone"), waiter(server, "r", "stays")
    gone.close()
    until(lambda: in_line(c, "r") == 1, what="the client forgotten")
    c.call("LOCK.RELEASE", "r", fence)
    assert stays.read()[0] > fence


def test_killed_clients_are_forgotten(server):
    c = server.client()
    fence, _ = c.call("LOCK.ACQUIRE", "r", 30000, "OWNER", "holder")
    killed = server.client()
    client_id = killed.call("CLIENT", "ID")
    killed.send("LOCK.ACQUIRE", "r", 1000, "WAIT", 20000)
    until(lambda: in_line(c, "r") == 1)
    stays = waiter(server, "r", "stays")
    assert c.call("CLIENT", "KILL", "ID", client_id) == 1
    c.call("LOCK.RELEASE", "r", fence)
    assert stays.read()[0] > fence


def test_a_grant_that_reaches_nobody_is_passed_on(server):
    c = server.client()
    fence, _ = c.call("LOCK.ACQUIRE", "r", 30000, "OWNER", "holder")
    killed = server.client()
    client_id = killed.call("CLIENT", "ID")
    killed.send("LOCK.ACQUIRE", "r", 60000, "WAIT", 20000, "OWNER", "killed")
    until(lambda: in_line(c, "r") == 1)
    stays = waiter(server, "r", "stays")
    # One script: granted by the release, killed before its reply can leave.
    c.call("MULTI")
    c.call("LOCK.RELEASE", "r", fence)
    c.call("LOCK.INFO", "r")
    c.call("CLIENT", "KILL", "ID", client_id)
    replies = c.call("EXEC")
    assert replies[0] == [1, b"ok"] and replies[1][9] == b"killed" and replies[2] == 1, replies
    assert stays.read(2)[0] > fence
    assert owner_of(c, "r") == b"stays"


def test_client_unblock_changes_nothing(server):
    c = server.client()
    fence, _ = c.call("LOCK.ACQUIRE", "r", 30000, "OWNER", "holder")
    client = server.client()
    client_id = client.call("CLIENT", "ID")
    client.send("LOCK.ACQUIRE", "r", 1000, "WAIT", 20000)
    until(lambda: in_line(c, "r") == 1)
    assert c.call("CLIENT", "UNBLOCK", client_id) == 0
    c.call("LOCK.RELEASE", "r", fence)
    assert client.read()[0] > fence


def test_a_retry_keeps_its_place_and_both_are_told(server):
    c = server.client()
    fence, _ = c.call("LOCK.ACQUIRE", "r", 30000, "OWNER", "holder")
    first = waiter(server, "r", "w")
    other = waiter(server, "r", "other")
    again = server.client()
    again.send("LOCK.ACQUIRE", "r", 40000, "WAIT", 20000, "OWNER", "w")
    again.silent()
    assert in_line(c, "r") == 2
    c.call("LOCK.RELEASE", "r", fence)
    granted = first.read()
    assert granted == again.read() and granted[1] == 40000
    c.call("LOCK.RELEASE", "r", granted[0])
    assert other.read()[0] > granted[0]


def test_a_retry_outlives_the_lost_connection(server):
    c = server.client()
    fence, _ = c.call("LOCK.ACQUIRE", "r", 30000, "OWNER", "holder")
    first, other, again = waiter(server, "r", "w"), waiter(server, "r", "other"), server.client()
    again.send("LOCK.ACQUIRE", "r", 30000, "WAIT", 20000, "OWNER", "w")
    again.silent()
    first.close()
    c.call("LOCK.RELEASE", "r", fence)
    assert again.read()[0] > fence
    other.silent()


def test_try_in_multi_and_lua(server):
    c = server.client()
    c.call("LOCK.ACQUIRE", "r", 30000, "OWNER", "holder")
    c.call("MULTI")
    c.call("LOCK.ACQUIRE", "r", 1000, "WAIT", 5000)
    c.call("LOCK.MACQUIRE", 2, "r", "s", 1000, "WAIT", 5000)
    c.call("LOCK.ACQUIRE", "free", 1000, "WAIT", 5000, "OWNER", "x")
    replies = c.call("EXEC", timeout_s=1)
    assert replies[:2] == [None, None] and replies[2][1] == 1000
    assert c.call("EVAL", "return redis.call('LOCK.ACQUIRE', 'r', 1000, 'WAIT', 5000)", 0, timeout_s=1) is None
    got = c.call("EVAL", "return redis.call('LOCK.ACQUIRE', 'l', 1000)", 0)
    assert c.call("EVAL", "return redis.call('LOCK.RELEASE', 'l', ARGV[1])", 0, got[0]) == [1, b"ok"]


def test_release_in_multi_hands_over(server):
    c = server.client()
    fence, _ = c.call("LOCK.ACQUIRE", "r", 30000, "OWNER", "holder")
    client = waiter(server, "r", "w")
    c.call("MULTI")
    c.call("LOCK.RELEASE", "r", fence)
    c.call("GET", "r")
    assert c.call("EXEC") == [[1, b"ok"], b"w"]
    assert client.read()[0] > fence


def test_renew_keeps_waiters_waiting(server):
    c = server.client()
    fence, _ = c.call("LOCK.ACQUIRE", "r", 200, "OWNER", "holder")
    client = waiter(server, "r", "w")
    assert c.call("LOCK.RENEW", "r", fence, 700) == [1, 700]
    client.silent(0.45)
    assert client.read(1)[0] > fence


def test_renew_may_shorten(server):
    c = server.client()
    fence, _ = c.call("LOCK.ACQUIRE", "r", 30000, "OWNER", "holder")
    client = waiter(server, "r", "w")
    assert c.call("LOCK.RENEW", "r", fence, 100) == [1, 100]
    assert client.read(1)[0] > fence


def test_plain_client_takes_and_loses_by_time(server):
    c = server.client()
    assert c.call("SET", "r", "plain", "NX", "PX", 150) == b"OK"
    client = waiter(server, "r", "w")
    assert client.read(1)[0] > 0
    assert c.call("SET", "r", "plain", "NX", "PX", 150) is None


def test_other_dbs_are_other_locks(server):
    c, d = server.client(), server.client()
    d.call("SELECT", 7)
    f0, _ = c.call("LOCK.ACQUIRE", "r", 30000)
    f7, _ = d.call("LOCK.ACQUIRE", "r", 30000)
    w = server.client()
    w.call("SELECT", 7)
    w.send("LOCK.ACQUIRE", "r", 30000, "WAIT", 20000, "OWNER", "w")
    until(lambda: in_line(d, "r") == 1)
    assert in_line(c, "r") == 0
    c.call("LOCK.RELEASE", "r", f0)
    w.silent()
    d.call("DEL", "r")
    assert w.read()[0] > f7
    assert c.call("EXISTS", "r") == 0 and d.call("GET", "r") == b"w"


def test_multi_waits_for_all(server):
    c = server.client()
    fa, _ = c.call("LOCK.ACQUIRE", "a", 30000)
    fb, _ = c.call("LOCK.ACQUIRE", "b", 30000)
    m = server.client()
    m.send("LOCK.MACQUIRE", 3, "b", "c", "a", 30000, "WAIT", 20000, "OWNER", "m")
    until(lambda: in_line(c, "a") == 1)
    assert c.call("LOCK.ACQUIRE", "c", 1000) is None, "a free lock with a multi-lock first in line is not taken"
    behind = waiter(server, "c", "behind", ttl=1000)
    c.call("LOCK.RELEASE", "a", fa)
    m.silent()
    assert owner_of(c, "a") is None, "no partial holding"
    c.call("LOCK.RELEASE", "b", fb)
    fences, ttl = m.read()
    assert ttl == 30000 and fences[2] < fences[0] < fences[1], "minted in sorted order of names"
    behind.silent()
    assert c.call("LOCK.MRELEASE", 3, "a", fences[2], "b", fences[0], "c", fences[1]) == [[1, b"ok"]] * 3
    assert behind.read()[0] > fences[1]


def test_multi_that_gives_up_lets_others_pass(server):
    c = server.client()
    c.call("LOCK.ACQUIRE", "a", 30000)
    m = server.client()
    m.send("LOCK.MACQUIRE", 2, "a", "b", 30000, "WAIT", 300, "OWNER", "m")
    until(lambda: in_line(c, "b") == 1)
    behind = waiter(server, "b", "behind")
    assert m.read(2) is None
    assert behind.read(1)[0] > 0


def test_two_multis_do_not_deadlock(server):
    c = server.client()
    fa, _ = c.call("LOCK.ACQUIRE", "a", 30000)
    one, two = server.client(), server.client()
    one.send("LOCK.MACQUIRE", 2, "a", "b", 30000, "WAIT", 5000, "OWNER", "one")
    until(lambda: in_line(c, "a") == 1)
    two.send("LOCK.MACQUIRE", 2, "b", "a", 30000, "WAIT", 5000, "OWNER", "two")
    until(lambda: in_line(c, "a") == 2)
    c.call("LOCK.RELEASE", "a", fa)
    fences, _ = one.read()
    c.call("LOCK.MRELEASE", 2, "a", fences[0], "b", fences[1])
    assert len(two.read()[0]) == 2


def test_multi_retry_gets_the_same_fences(server):
    c = server.client()
    first = c.call("LOCK.MACQUIRE", 2, "b", "a", 30000, "OWNER", "m")
    again = c.call("LOCK.MACQUIRE", 2, "a", "b", 60000, "OWNER", "m")
    assert again[0] == first[0][::-1] and again[1] == 60000
    assert c.call("LOCK.MACQUIRE", 2, "a", "b", 60000, "OWNER", "other") is None


def test_multi_counts_what_the_owner_holds(server):
    c, m = server.client(), server.client()
    fence, _ = c.call("LOCK.ACQUIRE", "a", 90000, "OWNER", "m")
    fences, ttl = c.call("LOCK.MACQUIRE", 2, "a", "b", 30000, "OWNER", "m")
    assert fences[0] == fence and fences[1] > fence and ttl == 30000
    other, _ = c.call("LOCK.ACQUIRE", "c", 30000)
    m.send("LOCK.MACQUIRE", 2, "c", "a", 30000, "WAIT", 5000, "OWNER", "m")
    until(lambda: in_line(c, "c") == 1)
    c.call("LOCK.RELEASE", "c", other)
    assert m.read()[0][1] == fence


def test_events_tell_the_story(server):
    s, c = server.client(), server.client()
    s.call("PSUBSCRIBE", "__lock__:*")
    fence, _ = c.call("LOCK.ACQUIRE", "e", 30000, "OWNER", "a")
    w = waiter(server, "e", "b", ttl=100)
    leaves = waiter(server, "e", "leaves")
    leaves.close()
    until(lambda: in_line(c, "e") == 1)
    c.call("LOCK.RENEW", "e", fence, 20000)
    c.call("LOCK.RELEASE", "e", fence)
    later = w.read()[0]
    seen = []
    while len(seen) < 8:
        _, _, channel, message = s.read(3)
        event = json.loads(message)
        assert channel == b"__lock__:e" and event["tier"] == "EFFICIENCY" and event["resource"] == "e"
        seen.append((event["event"], event["owner"], event["fence"], event["seq"]))
    assert [row[:3] for row in seen] == [
        ("acquired", "a", fence),
        ("queued", "b", fence),
        ("queued", "leaves", fence),
        ("abandoned", "leaves", fence),
        ("renewed", "a", fence),
        ("released", "a", fence),
        ("acquired", "b", later),
        ("expired", "b", later),
    ], seen
    assert [row[3] for row in seen] == sorted({row[3] for row in seen})


def test_a_plain_delete_is_told_at_the_next_grant(server):
    s, c = server.client(), server.client()
    first, _ = c.call("LOCK.ACQUIRE", "e", 30000, "OWNER", "a")
    s.call("SUBSCRIBE", "__lock__:e")
    c.call("DEL", "e")
    second, _ = c.call("LOCK.ACQUIRE", "e", 30000, "OWNER", "b")
    events = [json.loads(s.read()[2]) for _ in range(2)]
    assert [(e["event"], e["owner"], e["fence"]) for e in events] == [("released", "a", first), ("acquired", "b", second)]


def test_events_can_be_switched_off(server):
    s, c = server.client(), server.client()
    s.call("PSUBSCRIBE", "__lock__:*")
    c.call("CONFIG", "SET", "redfence.events", "no")
    try:
        c.call("LOCK.ACQUIRE", "e", 30000)
        s.silent()
    finally:
        c.call("CONFIG", "SET", "redfence.events", "yes")
