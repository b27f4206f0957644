"""Many waiters, clients that drop, a server that stalls: one holder at a time, order kept, nobody left without an answer."""

import random
import select
import time

from resp import Error, until


def in_line(client, resource):
    return len(client.call("LOCK.QUEUE", resource))


def test_a_thousand_waiters(server):
    """Some leave, some time out, some holders let the ttl end it: the rest is served in order, one at a time."""
    rng = random.Random(7)
    c = server.client()
    fence, _ = c.call("LOCK.ACQUIRE", "r", 60000, "OWNER", "holder")
    line = []
    for n in range(1000):
        fate = rng.choice(["stays", "stays", "leaves", "gives up", "expires"])
        wait = 300 if fate == "gives up" else 60000
        ttl = 3 if fate == "expires" else 60000
        client = server.client()
        client.send("LOCK.ACQUIRE", "r", ttl, "WAIT", wait, "OWNER", f"w{n}")
        line.append((n, fate, client))
        if n % 100 == 99:
            until(lambda: in_line(c, "r") >= 1)
    until(lambda: c.call("LOCK.INFO", "r")[15] + sum(f == "gives up" for _, f, _ in line) >= 1000 - 5, 10)
    for _, fate, client in line:
        if fate == "leaves":
            client.close()
    for _, fate, client in line:
        if fate == "gives up":
            assert client.read(10) is None
    served = [row for row in line if row[1] in ("stays", "expires")]
    until(lambda: in_line(c, "r") == len(served), 10, "the line of those who stay")
    # Clients that asked at the same time may have been read in any order; from here on the line's order is what counts.
    order = [int(row[0][1:]) for row in c.call("LOCK.QUEUE", "r")]
    assert sorted(order) == sorted(n for n, _, _ in served)
    served.sort(key=lambda row: order.index(row[0]))
    last = fence
    c.call("LOCK.RELEASE", "r", fence)
    for n, fate, client in served:
        got = client.read(10)
        assert got[0] > last, "fences rise in the order of the line"
        last = got[0]
        if fate == "stays":
            info = c.call("LOCK.INFO", "r")
            assert info[9] == b"w%d" % n and info[7] == last, "exactly one holder"
            assert c.call("LOCK.RELEASE", "r", last) == [1, b"ok"]
    assert in_line(c, "r") == 0


def test_a_line_of_ten_thousand_is_full(server):
    c = server.client()
    c.call("LOCK.ACQUIRE", "r", 60000, "OWNER", "holder")
    # Retries of one owner share a place; the limit of one ticket is reached long before that of the line.
    clients = [server.client() for _ in range(17)]
    for client in clients:
        client.send("LOCK.ACQUIRE", "r", 1000, "WAIT", 30000, "OWNER", "same")
    replies = []
    until(lambda: replies.extend(drain(clients)) or len(replies) == 1)
    assert isinstance(replies[0], Error) and str(replies[0]).startswith("OOM"), replies
    assert in_line(c, "r") == 1


def drain(clients):
    ready, _, _ = select.select([client.socket for client in clients], [], [], 0)
    return [client.read(1) for client in clients if client.socket in ready]


def test_kill_storm(server):
    """Clients killed while queued, while granted, and in between: the lock always reaches somebody who is there."""
    rng = random.Random(3)
    c = server.client()
    for _ in range(60):
        fence, _ = c.call("LOCK.ACQUIRE", "r", 60000, "OWNER", "holder")
        clients = [server.client() for _ in range(10)]
        ids = [client.call("CLIENT", "ID") for client in clients]
        for n, client in enumerate(clients):
            client.send("LOCK.ACQUIRE", "r", 60000, "WAIT", 60000, "OWNER", f"w{n}")
        until(lambda: in_line(c, "r") == 10)
        line = [int(owner[1:]) for owner, _ in c.call("LOCK.QUEUE", "r")]
        doomed = rng.sample(range(10), 5)
        c.call("MULTI")
        for n in doomed[:2]:
            c.call("CLIENT", "KILL", "ID", ids[n])
        c.call("LOCK.RELEASE", "r", fence)
        for n in doomed[2:]:
            c.call("CLIENT", "KILL", "ID", ids[n])
        c.call("EXEC")
        for n in line:
            if n not in doomed:
                got = clients[n].read(3)
                assert got[0] > fence
                fence = got[0]
                assert c.call("LOCK.RELEASE", "r", fence) == [1, b"ok"]
        until(lambda: c.call("EXISTS", "r") == 0 and in_line(c, "r") == 0)
        for client in clients:
            client.close()


def test_stalled_loop(server):
    """A stall makes WAITs, expiries and releases due in one turn: everybody still gets exactly one answer."""
    c = server.client()
    for _ in range(15):
        fence, _ = c.call("LOCK.ACQUIRE", "r", 40, "OWNER", "holder")
        clients = [server.client() for _ in range(8)]
        for n, client in enumerate(clients):
            client.send("LOCK.ACQUIRE", "r", 30, "WAIT", 30 + 10 * n, "OWNER", f"w{n}")
        c.call("DEBUG", "SLEEP", 0.12)
        c.call("LOCK.RELEASE", "r", fence)
        for client in clients:
            reply = client.read(3)
            assert reply is None or reply[0] > fence, reply
            assert client.call("PING") == b"PONG", "and the connection goes on"
            client.close()
        c.call("DEL", "r")


def test_a_lock_that_came_free_in_time_is_granted(server):
    """The holder's time and the WAIT both end in a stall, the holder's first: the waiter has the lock."""
    c, w = server.client(), server.client()
    for _ in range(5):
        c.call("LOCK.ACQUIRE", "r", 60, "OWNER", "holder")
        w.send("LOCK.ACQUIRE", "r", 5000, "WAIT", 120, "OWNER", "w")
        until(lambda: in_line(c, "r") == 1)
        c.call("DEBUG", "SLEEP", 0.2)
        granted = w.read(2)
        assert granted and granted[1] == 5000, granted
        assert c.call("LOCK.RELEASE", "r", granted[0]) == [1, b"ok"]


def test_pipelined_behind_a_wait(server):
    c, p = server.client(), server.client()
    fence, _ = c.call("LOCK.ACQUIRE", "r", 60000)
    p.send("LOCK.ACQUIRE", "r", 1000, "WAIT", 20000)
    p.send("PING")
    p.silent()
    assert c.call("PING") == b"PONG"
    c.call("LOCK.RELEASE", "r", fence)
    assert p.read()[0] > fence and p.read() == b"PONG"


def test_pause_holds_hand_over(server):
    """While writes are paused (as in a failover) nothing is handed over, and all is afterwards."""
    c, w = server.client(), server.client()
    c.call("LOCK.ACQUIRE", "r", 100, "OWNER", "holder")
    w.send("LOCK.ACQUIRE", "r", 1000, "WAIT", 20000, "OWNER", "w")
    until(lambda: in_line(c, "r") == 1)
    c.call("CLIENT", "PAUSE", 400, "WRITE")
    w.silent(0.25)
    assert w.read(2)[1] == 1000


def test_churn(server):
    """Random traffic from many clients; in the end every lock can be taken and nobody waits."""
    rng = random.Random(11)
    clients = [server.client() for _ in range(40)]
    busy = set()
    control = server.client()
    stop_at = time.monotonic() + 4
    while time.monotonic() < stop_at:
        n = rng.randrange(len(clients))
        if n in busy:
            ready, _, _ = select.select([clients[n].socket], [], [], 0)
            if ready:
                clients[n].read(2)
                busy.discard(n)
            elif rng.random() < 0.1:
                clients[n].close()
                clients[n] = server.client()
                busy.discard(n)
            continue
        names = rng.sample("abcdef", rng.choice([1, 1, 2, 3]))
        action = rng.random()
        if action < 0.45:
            clients[n].send("LOCK.ACQUIRE", names[0], rng.choice([5, 20, 500]), "WAIT", rng.choice([0, 10, 400]))
        elif action < 0.6:
            words = ["LOCK.MACQUIRE", len(names), *names, rng.choice([5, 50]), "WAIT", rng.choice([0, 10, 400])]
            clients[n].send(*words)
        elif action < 0.7:
            clients[n].send("LOCK.FORCERELEASE", names[0])
        elif action < 0.8:
            clients[n].send("DEL", names[0])
        elif action < 0.9:
            clients[n].send("SET", names[0], "plain", "NX", "PX", 20)
        elif action < 0.98:
            clients[n].send("PEXPIRE", names[0], rng.choice([1, 50]))
        else:
            control.call(rng.choice(["FLUSHALL", "PING"]))
            continue
        busy.add(n)
    for n in busy:
        clients[n].read(3)
    until(lambda: all(in_line(control, name) == 0 for name in "abcdef"), 3, "empty lines")
    for name in "abcdef":
        control.call("DEL", name)
        assert control.call("LOCK.ACQUIRE", name, 1000)[1] == 1000
