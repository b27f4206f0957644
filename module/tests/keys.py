"""Keys: the layout, old clients, replication of effects, ACLs, docs, FENCE.*, settings."""

import time

from resp import Client, Error, Server, until


def own(test):
    test.own_server = True
    return test


def info(client, resource):
    flat = client.call("LOCK.INFO", resource)
    return dict(zip(flat[::2], flat[1::2]))


def test_layout(server):
    c = server.client()
    for name, companion in [(b"a", b"__fence__{a}"), (b"{t}x", b"__fence__:{t}x"), (b"\xff}", b"__fence__:\xff}")]:
        fence, _ = c.call("LOCK.ACQUIRE", name, 5000, "OWNER", b"o \x00\xff")
        fields = c.call("GET", companion).split(b" ", 5)
        assert fields[0] == b"%d" % fence and fields[1] == b"h" and fields[3:] == [b"0", b"-", b"o \x00\xff"]
        assert abs(int(fields[2]) - time.time() * 1000 - 5000) < 1000
        assert c.call("PEXPIRETIME", name) == int(fields[2])
        assert c.call("PEXPIRETIME", companion) == int(fields[2]) + 600000
        assert c.call("LOCK.RELEASE", name, fence) == [1, b"ok"]
        assert c.call("EXISTS", name) == 0
        assert c.call("GET", companion) == b"%d r %d %d r " % (fence, int(fields[2]), fence)


def test_old_and_new_exclude_each_other(server):
    c = server.client()
    fence, _ = c.call("LOCK.ACQUIRE", "r", 30000, "OWNER", "new")
    assert c.call("SET", "r", "old", "NX", "PX", 1000) is None
    assert c.call("LOCK.RELEASE", "r", fence) == [1, b"ok"]
    assert c.call("SET", "r", "old", "NX", "PX", 30000) == b"OK"
    assert c.call("LOCK.ACQUIRE", "r", 1000) is None
    assert info(c, "r")[b"owner"] == b"old" and info(c, "r")[b"fence"] == fence
    adopted, ttl = c.call("LOCK.ACQUIRE", "r", 1000, "OWNER", "old")
    assert adopted > fence and ttl > 29000
    assert c.call("LOCK.ACQUIRE", "r", 1000, "OWNER", "old")[0] == adopted


def test_numbers_as_owners(server):
    c = server.client()
    c.call("SET", "r", "12345", "PX", 5000)
    assert info(c, "r")[b"owner"] == b"12345"
    fence, _ = c.call("LOCK.ACQUIRE", "r", 1000, "OWNER", "12345")
    assert c.call("LOCK.RELEASE", "r", fence) == [1, b"ok"]


def test_reasons(server):
    c = server.client()
    fence, _ = c.call("LOCK.ACQUIRE", "r", 50, "OWNER", "a")
    until(lambda: c.call("EXISTS", "r") == 0)
    assert c.call("LOCK.RELEASE", "r", fence) == [0, b"expired"]
    assert c.call("LOCK.RENEW", "r", fence, 100) == [0, b"expired"]
    assert c.call("LOCK.RELEASE", "r", fence - 1) == [0, b"not_owner"]
    later, _ = c.call("LOCK.ACQUIRE", "r", 5000, "OWNER", "b")
    assert c.call("LOCK.RELEASE", "r", fence) == [0, b"expired"], "the last that ended keeps its reason"
    c.call("DEL", "r")
    assert c.call("LOCK.RELEASE", "r", later) == [0, b"already_released"]
    last, _ = c.call("LOCK.ACQUIRE", "r", 5000)
    assert last > later
    assert c.call("LOCK.RELEASE", "r", fence) == [0, b"not_owner"]
    assert c.call("LOCK.RELEASE", "r", later) == [0, b"already_released"]
    c.call("SET", "r", "stolen")
    assert c.call("LOCK.RELEASE", "r", last) == [0, b"expired"], "not released by its holder"
    assert c.call("GET", "r") == b"stolen" and info(c, "r")[b"ttl"] == -1


def test_wrong_types(server):
    c = server.client()
    c.call("LPUSH", "r", "x")
    for command in [("LOCK.ACQUIRE", "r", 1), ("LOCK.RELEASE", "r", 1), ("LOCK.RENEW", "r", 1, 1), ("LOCK.INFO", "r"),
                    ("LOCK.FORCERELEASE", "r"), ("LOCK.MACQUIRE", 2, "q", "r", 1)]:
        assert c.fails(*command).startswith("WRONGTYPE"), command
    assert c.call("EXISTS", "q") == 0
    c.call("LPUSH", "__fence__{s}", "x")
    assert c.fails("LOCK.ACQUIRE", "s", 1).startswith("WRONGTYPE")
    assert c.fails("LOCK.MACQUIRE", 2, "q", "s", 1).startswith("WRONGTYPE")
    assert c.call("EXISTS", "q", "s") == 0
    one, two = (c.call("LOCK.ACQUIRE", name, 30000)[0] for name in ("one", "two"))
    rows = c.call("LOCK.MRELEASE", 4, "one", one, "r", 1, "two", two, "s", 1)
    assert rows == [[1, b"ok"], [0, b"not_owner"], [1, b"ok"], [0, b"not_owner"]], rows
    assert c.call("EXISTS", "one", "two") == 0


def test_fences_rise_without_their_record(server):
    c = server.client()
    last = 0
    for _ in range(50):
        fence, _ = c.call("LOCK.ACQUIRE", "r", 1000)
        assert fence > last
        last = fence
        c.call("FLUSHALL")
    c.call("SET", "__fence__{r}", f"{last + 10**12} r 1 0 - ")
    assert c.call("LOCK.ACQUIRE", "r", 1000)[0] == last + 10**12 + 1
    c.call("FLUSHALL")
    assert c.call("LOCK.ACQUIRE", "r", 1000)[0] > last + 10**12 + 1, "the process remembers its highest fence"


def test_a_companion_from_the_far_future_harms_its_own_resource_alone(server):
    c = server.client()
    c.call("SET", "__fence__{r}", "9007199254740990 r 0 0 - ")
    assert c.call("LOCK.ACQUIRE", "r", 1000)[0] == 2**53 - 1
    assert c.call("LOCK.RELEASE", "r", 2**53 - 1) == [1, b"ok"]
    assert "2^53" in c.fails("LOCK.ACQUIRE", "r", 1000)
    assert "2^53" in c.fails("LOCK.MACQUIRE", 2, "a", "r", 1000)
    for n in range(5):
        assert c.call("LOCK.ACQUIRE", f"other{n}", 1000)[0] < 2**52


def test_watch_sees_changes_alone(server):
    c, d = server.client(), server.client()
    c.call("LOCK.ACQUIRE", "r", 30000)
    c.call("WATCH", "r", "__fence__{r}")
    d.call("LOCK.ACQUIRE", "r", 1000)
    d.call("LOCK.RELEASE", "r", 1)
    c.call("MULTI")
    assert c.call("EXEC") == [], "nothing changed"
    c.call("WATCH", "r")
    d.call("LOCK.FORCERELEASE", "r")
    c.call("MULTI")
    assert c.call("EXEC") is None, "the lock changed"


def test_keyspace_events_are_those_of_plain_commands(server):
    c, s = server.client(), server.client()
    c.call("CONFIG", "SET", "notify-keyspace-events", "KA")
    s.call("SUBSCRIBE", "__keyspace@0__:r")
    fence, _ = c.call("LOCK.ACQUIRE", "r", 1000)
    c.call("LOCK.RELEASE", "r", fence)
    assert [s.read()[2] for _ in range(3)] == [b"set", b"expire", b"del"]
    c.call("CONFIG", "SET", "notify-keyspace-events", "")


def test_fence_commands(server):
    c = server.client()
    assert c.call("FENCE.GET", "r") == 0
    assert c.call("FENCE.CHECK", "r", 5) == 1 and c.call("FENCE.CHECK", "r", 5) == 1
    assert c.call("FENCE.CHECK", "r", 4) == 0 and c.call("FENCE.GET", "r") == 5
    assert c.call("GET", "__hwm__{r}") == b"5" and c.call("TTL", "__hwm__{r}") == -1
    assert c.fails("FENCE.CALL", "r", 4, "SET", "k", "v") == "STALE fence 4 is behind 5"
    assert c.call("EXISTS", "k") == 0
    assert c.call("FENCE.CALL", "r", 6, "SET", "k", b"v\x00") == b"OK"
    assert c.call("FENCE.CALL", "r", 6, "GET", "k") == b"v\x00"
    assert c.fails("FENCE.CALL", "r", 6, "LPUSH", "k", "x").startswith("WRONGTYPE")
    assert "unknown command" in c.fails("FENCE.CALL", "r", 6, "nonsense")
    assert "unknown command" in c.fails("FENCE.CALL", "r", 6, b"a\x00b")
    assert "wrong number" in c.fails("FENCE.CALL", "r", 6, "GET")
    c.send("FENCE.CALL", "r", 6, "BLPOP", "l", 0)
    reply = c.read(1)
    assert reply is None or isinstance(reply, Error), "7.0 refuses it, later ones answer nil; none blocks"
    for refused in [("SUBSCRIBE", "x"), ("MULTI",), ("FENCE.CALL", "r", 6, "PING"), ("SHUTDOWN",)]:
        c.fails("FENCE.CALL", "r", 6, *refused)
    resp3 = server.client(resp3=True)
    resp3.call("HSET", "h", "a", "1")
    assert resp3.call("FENCE.CALL", "r", 6, "HGETALL", "h") == {b"a": b"1"}
    assert c.call("FENCE.CALL", "r", 6, "HGETALL", "h") == [b"a", b"1"]
    assert c.call("FENCE.CALL", "r", 7, "LOCK.ACQUIRE", "inner", 1000, "WAIT", 5000)[1] == 1000
    assert c.call("FENCE.CALL", "r", 7, "LOCK.ACQUIRE", "inner", 1000, "WAIT", 5000, timeout_s=1) is None


def test_scan_shows_what_is_held(server):
    c = server.client()
    fences = {name: c.call("LOCK.ACQUIRE", name, 30000)[0] for name in [b"w:%d" % n for n in range(300)]}
    for name in list(fences)[::3]:
        c.call("LOCK.RELEASE", name, fences.pop(name))
    c.call("SET", "w:plain", "x", "PX", 30000)

    def scan(*options):
        cursor, found = 0, []
        while True:
            cursor, page = c.call("LOCK.SCAN", cursor, *options)
            found += page
            if cursor == b"0":
                return found

    assert sorted(scan()) == sorted(fences)
    assert sorted(scan("MATCH", "w:1?", "COUNT", 50)) == sorted(n for n in fences if len(n) == 4 and n[2:3] == b"1")


def test_tiers_and_sessions_are_refused(server):
    c = server.client()
    for command in [
        ("LOCK.ACQUIRE", "r", 1000, "TIER", "correctness"),
        ("LOCK.ACQUIRE", "r", 1000, "SESSION", "x"),
        ("LOCK.ACQUIRE", "r", 0, "SESSION", "x"),
        ("LOCK.MACQUIRE", 1, "r", 1000, "SESSION", "x"),
        ("LOCK.INFO", "r", "TIER", "CORRECTNESS"),
        ("LOCK.SESSION", "OPEN", 1000),
        ("LOCK.CLUSTER", "INFO"),
    ]:
        assert c.fails(*command).startswith("TIER "), command
    assert c.call("DBSIZE") == 0


def test_docs_and_key_specs(server):
    c = server.client()
    names = [
        "lock.acquire lock.release lock.renew lock.info lock.macquire lock.mrelease lock.queue lock.scan lock.session",
        "lock.forcerelease lock.cluster fence.check fence.get fence.call",
    ]
    names = " ".join(names).split()
    rows = c.call("COMMAND", "INFO", *names)
    assert all(row and row[0].decode() == name for row, name in zip(rows, names))
    docs = c.call("COMMAND", "DOCS", *names)
    assert len(docs) == 2 * len(names)
    assert c.call("COMMAND", "GETKEYS", "LOCK.ACQUIRE", "r", 1) == [b"r"]
    assert c.call("COMMAND", "GETKEYS", "LOCK.MACQUIRE", 2, "a", "b", 1000, "WAIT", 5) == [b"a", b"b"]
    assert c.call("COMMAND", "GETKEYS", "LOCK.MRELEASE", 2, "a", 1, "b", 2) == [b"a", b"b"]
    assert c.call("COMMAND", "GETKEYS", "FENCE.CALL", "r", 1, "SET", "k", "v") == [b"r", b"k"]
    assert c.call("COMMAND", "GETKEYS", "FENCE.CALL", "r", 1, "FENCE.CALL", "r", 1, "GET", "k") == [b"r"]
    assert "wrong number of arguments" in c.fails("LOCK.ACQUIRE", "r")


def test_acl(server):
    admin, user = server.client(), server.client()
    version = [line for line in admin.call("INFO", "server").split(b"\r\n") if line.startswith(b"redis_version:")][0]
    # 7.0 lets no module put its commands into categories.
    dangerous = "-@dangerous" if tuple(map(int, version[14:].split(b".")[:2])) >= (7, 2) else "-lock.forcerelease"
    admin.call("ACL", "SETUSER", "u", "on", "nopass", "~mine:*", "+@all", "-flushall", dangerous)
    try:
        user.call("AUTH", "u", "x")
        assert user.call("LOCK.ACQUIRE", "mine:1", 1000)[1] == 1000
        for denied in [
            ("LOCK.ACQUIRE", "other", 1000),
            ("LOCK.MACQUIRE", 2, "mine:2", "other", 1000),
            ("LOCK.MRELEASE", 2, "mine:1", 1, "other", 1),
            ("LOCK.INFO", "other"),
            ("LOCK.FORCERELEASE", "mine:1"),
            ("FENCE.CALL", "other", 1, "PING"),
            ("FENCE.CALL", "mine:1", 1, "GET", "other"),
            ("FENCE.CALL", "mine:1", 1, "FLUSHALL"),
        ]:
            assert "NOPERM" in user.fails(*denied) or "acl" in user.fails(*denied), (denied, user.fails(*denied))
        assert user.call("FENCE.CALL", "mine:1", 1, "SET", "mine:k", "v") == b"OK"
        assert user.call("LOCK.MACQUIRE", 2, "mine:2", "mine:3", 1000)[1] == 1000
    finally:
        admin.call("ACL", "DELUSER", "u")


def test_settings(server):
    c = server.client()
    c.call("CONFIG", "SET", "redfence.companion-retention-ms", 5000, "redfence.mark-retention-ms", 60000)
    try:
        c.call("LOCK.ACQUIRE", "r", 1000)
        assert 5000 < c.call("PTTL", "__fence__{r}") <= 6000
        c.call("FENCE.CHECK", "m", 1)
        assert 59000 < c.call("PTTL", "__hwm__{m}") <= 60000
    finally:
        c.call("CONFIG", "SET", "redfence.companion-retention-ms", 600000, "redfence.mark-retention-ms", 0)
    c.call("FENCE.CHECK", "m", 2)
    assert c.call("PTTL", "__hwm__{m}") == -1
    long_fence, _ = c.call("LOCK.ACQUIRE", "long", 86400000)
    assert c.call("LOCK.RELEASE", "long", long_fence) == [1, b"ok"]
    assert 590000 < c.call("PTTL", "__fence__{long}") <= 600000


def test_info_section(server):
    c = server.client()

    def section():
        lines = c.call("INFO", "redfence").decode().split("\r\n")
        return {k: int(v) for k, v in (line.split(":") for line in lines if ":" in line)}

    before = section()
    fence, _ = c.call("LOCK.ACQUIRE", "r", 10000)
    c.call("LOCK.ACQUIRE", "r", 10000)
    between = section()
    c.call("LOCK.RELEASE", "r", fence)
    after = section()
    assert between["redfence_locks_held"] == before["redfence_locks_held"] + 1
    assert between["redfence_refusals"] == before["redfence_refusals"] + 1
    assert after["redfence_grants"] == before["redfence_grants"] + 1
    assert after["redfence_releases"] == before["redfence_releases"] + 1


def aof_commands(server):
    """The commands in the incremental AOF."""
    import glob
    import os

    data = b""
    for path in sorted(glob.glob(os.path.join(server.directory, "appendonlydir", "*.incr.aof"))):
        with open(path, "rb") as aof:
            data += aof.read()
    commands, rest = [], data
    while rest:
        head, rest = rest.split(b"\r\n", 1)
        words = []
        for _ in range(int(head[1:])):
            length, rest = rest.split(b"\r\n", 1)
            size = int(length[1:])
            words.append(rest[:size])
            rest = rest[size + 2 :]
        commands.append(words)
    return commands


@own
def test_effects_alone_are_replicated(module):
    server = Server(module, "--appendonly", "yes", "--appendfsync", "always")
    try:
        c = server.client()
        start = len(aof_commands(server))
        fence, _ = c.call("LOCK.ACQUIRE", "r", 30000, "OWNER", "a")
        c.call("LOCK.ACQUIRE", "r", 30000, "OWNER", "b")
        c.call("LOCK.INFO", "r")
        c.call("LOCK.RELEASE", "r", 1)
        c.call("LOCK.SCAN", 0)
        c.call("FENCE.CHECK", "r", 5)
        c.call("FENCE.CHECK", "r", 4)
        c.call("FENCE.CALL", "r", 6, "SET", "k", "v", "EX", 100)
        w = server.client()
        w.send("LOCK.ACQUIRE", "r", 30000, "WAIT", 9000, "OWNER", "w")
        until(lambda: len(c.call("LOCK.QUEUE", "r")) == 1)
        c.call("LOCK.RELEASE", "r", fence)
        later = w.read()[0]
        c.call("DEL", "r")
        commands = [cmd for cmd in aof_commands(server)[start:] if cmd[0].upper() != b"SELECT"]
        shown = [b" ".join(cmd[:2]).upper().decode() for cmd in commands]
        assert shown == [
            "MULTI", "SET R", "SET __FENCE__{R}", "EXEC",
            "SET __HWM__{R}",
            "MULTI", "SET K", "SET __HWM__{R}", "EXEC",
            "MULTI", "DEL R", "SET __FENCE__{R}", "SET R", "SET __FENCE__{R}", "EXEC",
            "DEL R",
        ], shown
        assert commands[1][2:4] == [b"a", b"PXAT"] and commands[6][3].upper() == b"PXAT"
        server.kill()
        server.start()
        c = server.client()
        assert info(c, "r")[b"fence"] == later and info(c, "r")[b"state"] == b"free"
        assert c.call("FENCE.GET", "r") == 6
        assert c.call("LOCK.RELEASE", "r", later) == [0, b"already_released"]
    finally:
        server.stop()


@own
def test_hand_over_by_the_timer_is_replicated(module):
    server = Server(module, "--appendonly", "yes", "--appendfsync", "always")
    try:
        c, w = server.client(), server.client()
        w.call("SELECT", 2)
        c.call("SELECT", 2)
        c.call("LOCK.ACQUIRE", "r", 200, "OWNER", "a")
        w.send("LOCK.ACQUIRE", "r", 30000, "WAIT", 9000, "OWNER", "w")
        fence = w.read()[0]
        server.kill()
        server.start()
        c = server.client()
        c.call("SELECT", 2)
        assert c.call("GET", "r") == b"w" and info(c, "r")[b"fence"] == fence
    finally:
        server.stop()


@own
def test_replica(module):
    master, replica, plain = Server(module), Server(module), Server(None)
    try:
        m, r, p = master.client(), replica.client(), plain.client()
        for follower in (r, p):
            follower.call("REPLICAOF", "127.0.0.1", master.port)
            until(lambda f=follower: b"master_link_status:up" in f.call("INFO", "replication"), 10, "replication")
        fence, _ = m.call("LOCK.ACQUIRE", "r", 30000, "OWNER", "a")
        m.call("FENCE.CHECK", "r", 5)
        until(lambda: r.call("EXISTS", "r") == 1 and p.call("EXISTS", "__hwm__{r}") == 1)
        assert info(r, "r")[b"fence"] == fence and info(r, "r")[b"owner"] == b"a"
        assert r.call("FENCE.GET", "r") == 5 and r.call("LOCK.QUEUE", "r") == []
        assert r.call("LOCK.SCAN", 0)[1] == [b"r"]
        assert p.call("GET", "r") == b"a" and p.call("PEXPIRETIME", "r") == m.call("PEXPIRETIME", "r")
        assert p.call("PEXPIRETIME", "__fence__{r}") == m.call("PEXPIRETIME", "__fence__{r}")
        for write in [("LOCK.ACQUIRE", "q", 1000), ("LOCK.RELEASE", "r", fence), ("FENCE.CHECK", "r", 9)]:
            assert r.fails(*write).startswith("READONLY"), write
        assert m.call("DEBUG", "DIGEST") == r.call("DEBUG", "DIGEST")
        # The master becomes a replica: whoever waits there must ask elsewhere.
        w = master.client()
        w.send("LOCK.ACQUIRE", "r", 30000, "WAIT", 20000)
        until(lambda: len(m.call("LOCK.QUEUE", "r")) == 1)
        r.call("REPLICAOF", "NO", "ONE")
        m.call("REPLICAOF", "127.0.0.1", replica.port)
        reply = w.read()
        assert isinstance(reply, Error) and str(reply).startswith("UNBLOCKED"), reply
        assert r.call("LOCK.RELEASE", "r", fence) == [1, b"ok"]
        assert r.call("LOCK.ACQUIRE", "r", 1000)[0] > fence
    finally:
        for server in (master, replica, plain):
            server.stop()


@own
def test_cluster(module):
    server = Server(module, "--cluster-enabled", "yes")
    try:
        c = server.client()
        c.call("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        until(lambda: b"cluster_state:ok" in c.call("CLUSTER", "INFO"), 10, "the cluster")
        fence, _ = c.call("LOCK.ACQUIRE", "r", 30000)
        assert c.call("CLUSTER", "KEYSLOT", "r") == c.call("CLUSTER", "KEYSLOT", "__fence__{r}")
        assert c.fails("LOCK.MACQUIRE", 2, "a", "b", 1000).startswith("CROSSSLOT")
        assert len(c.call("LOCK.MACQUIRE", 2, "{t}a", "{t}b", 1000)[0]) == 2
        assert c.fails("LOCK.ACQUIRE", "a}b", 1000).startswith("CROSSSLOT")
        assert c.call("LOCK.ACQUIRE", "{t}a}b", 1000)[1] == 1000
        w = server.client()
        w.send("LOCK.ACQUIRE", "r", 1500, "WAIT", 9000)
        until(lambda: len(c.call("LOCK.QUEUE", "r")) == 1)
        c.call("DEL", "r")
        assert w.read()[0] > fence, "handed over by the timer"
        # The slot goes away under a waiter.
        c.call("CONFIG", "SET", "cluster-require-full-coverage", "no")
        w.send("LOCK.ACQUIRE", "r", 200, "WAIT", 9000)
        until(lambda: len(c.call("LOCK.QUEUE", "r")) == 1)
        c.call("CLUSTER", "DELSLOTS", c.call("CLUSTER", "KEYSLOT", "r"))
        reply = w.read()
        assert isinstance(reply, Error) and str(reply).startswith("UNBLOCKED"), reply
    finally:
        server.stop()


@own
def test_eviction_wakes_and_is_warned_of(module):
    server = Server(module, "--maxmemory", "20mb", "--maxmemory-policy", "volatile-ttl")
    try:
        assert "may evict keys" in server.log()
        c, w = server.client(), server.client()
        fence, _ = c.call("LOCK.ACQUIRE", "r", 300000)
        w.send("LOCK.ACQUIRE", "r", 300000, "WAIT", 20000)
        until(lambda: len(c.call("LOCK.QUEUE", "r")) == 1)
        # Memory fills with keys that do not expire, so that only the lock and its companion can be evicted.
        for n in range(4000):
            try:
                c.call("SET", f"k{n}", "x" * 10000)
            except Error:
                break
        assert w.read(3)[0] > fence
    finally:
        server.stop()


@own
def test_rdb_and_sigkill(module):
    server = Server(module)
    try:
        c = server.client()
        last = 0
        for _ in range(3):
            fence, _ = c.call("LOCK.ACQUIRE", "r", 30000)
            assert fence > last
            last = fence
            server.kill()
            server.start()
            c = server.client()
    finally:
        server.stop()


@own
def test_unloaded_and_loaded_again(module):
    server = Server(module, "--enable-module-command", "yes")
    try:
        c, w = server.client(), server.client()
        fence, _ = c.call("LOCK.ACQUIRE", "r", 30000)
        w.send("LOCK.ACQUIRE", "r", 30000, "WAIT", 5000)
        until(lambda: len(c.call("LOCK.QUEUE", "r")) == 1)
        c.fails("MODULE", "UNLOAD", "redfence")  # somebody waits
        c.call("LOCK.RELEASE", "r", fence)
        fence = w.read()[0]
        until(lambda: unloaded(c), 10, "the module unloaded")
        assert c.call("GET", "__fence__{r}").startswith(b"%d h" % fence)
        c.call("MODULE", "LOAD", module)
        assert c.call("LOCK.RELEASE", "r", fence) == [1, b"ok"]
        assert c.call("LOCK.ACQUIRE", "r", 1000)[0] > fence
    finally:
        server.stop()


def unloaded(client):
    """Redis refuses as long as a timer runs."""
    try:
        return client.call("MODULE", "UNLOAD", "redfence") == b"OK"
    except Error:
        return False


@own
def test_module_arguments(module):
    try:
        server = Server(None, "--loadmodule", module, "events", "no", "companion-retention-ms", "7000")
    except RuntimeError as error:
        raise AssertionError(str(error)) from None
    try:
        c = server.client()
        assert c.call("CONFIG", "GET", "redfence.*")[1::2].count(b"7000") == 1
        assert c.call("CONFIG", "GET", "redfence.events")[1] == b"no"
    finally:
        server.stop()
