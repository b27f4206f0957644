"""Lost locks: what is told on `__lost__:<resource>`, when, and to whom the lock went."""

import json

from resp import until


class Watcher:
    def __init__(self, server, resource, resp3=False):
        self.client, self.resource = server.client(resp3), resource
        self.client.call("SUBSCRIBE", "__lost__:" + resource)

    def next(self):
        kind, channel, text = self.client.read()
        assert (kind, channel) == (b"message", b"__lost__:" + self.resource.encode())
        loss = json.loads(text)
        assert (loss.pop("event"), loss.pop("resource")) == ("lock-lost", self.resource)
        return loss

    def is_told(self, fence, cause, successor=None):
        assert self.next() == {"fence": fence, "cause": cause, "successor": successor}


def wait_for(server, resource, owner="w", *options):
    waiter = server.client()
    waiter.send("LOCK.ACQUIRE", resource, 30000, "WAIT", 20000, "OWNER", owner, *options)
    return waiter


def test_a_deletion_is_told_at_once_and_once(server):
    c, w = server.client(), Watcher(server, "r")
    ways = {
        "DEL": ("DEL", "r"),
        "UNLINK": ("UNLINK", "r"),
        "GETDEL": ("GETDEL", "r"),
        "a release by a plain script": ("EVAL", "return redis.call('DEL', KEYS[1])", 1, "r"),
        "an expiry in the past": ("PEXPIRE", "r", -1),
        "RENAME": ("RENAME", "r", "elsewhere"),
    }
    for way, command in ways.items():
        fence, _ = c.call("LOCK.ACQUIRE", "r", 30000)
        c.call(*command)
        w.is_told(fence, "deleted")
        assert c.call("LOCK.RELEASE", "r", fence) == [0, b"already_released"], way
    fence, _ = c.call("LOCK.ACQUIRE", "r", 30000)
    c.call("LOCK.RELEASE", "r", fence)
    assert w.client.silent(), "a release is no loss, and nothing is told twice"


def test_a_deletion_that_a_newcomer_sees_first_names_it(server):
    c, w = server.client(), Watcher(server, "r")
    first, _ = c.call("LOCK.ACQUIRE", "r", 30000)
    c.call("MULTI")
    c.call("DEL", "r")
    c.call("LOCK.ACQUIRE", "r", 30000)
    _, (second, _) = c.call("EXEC")
    w.is_told(first, "deleted", second)
    assert w.client.silent()


def test_a_deletion_hands_over_and_names_the_waiter(server):
    c, w = server.client(), Watcher(server, "r")
    first, _ = c.call("LOCK.ACQUIRE", "r", 30000)
    waiter = wait_for(server, "r")
    until(lambda: len(c.call("LOCK.QUEUE", "r")) == 1)
    c.call("DEL", "r")
    second, _ = waiter.read()
    w.is_told(first, "deleted", second)


def test_a_key_deleted_and_taken_by_a_plain_client(server):
    c, w = server.client(), Watcher(server, "r")
    fence, _ = c.call("LOCK.ACQUIRE", "r", 30000)
    c.call("MULTI")
    c.call("DEL", "r")
    c.call("SET", "r", "plain", "PX", 30000)
    c.call("EXEC")
    w.is_told(fence, "deleted")
    assert c.call("LOCK.RELEASE", "r", fence) == [0, b"expired"], "somebody else has it: this was no release"
    c.call("DEL", "r")
    assert w.client.silent(), "a plain client's lock has no fence to be missed"


def test_an_expiry_is_told_without_anybody_asking(server):
    c, w = server.client(), Watcher(server, "r")
    fence, _ = c.call("LOCK.ACQUIRE", "r", 30)
    w.is_told(fence, "expired")
    assert w.client.silent()


def test_an_expiry_names_the_waiter_that_got_the_lock(server):
    c, w = server.client(), Watcher(server, "r")
    for _ in range(10):
        first, _ = c.call("LOCK.ACQUIRE", "r", 30)
        waiter = wait_for(server, "r")
        second, _ = waiter.read()
        # Where the lock ended before the waiter came, nobody was there to get it.
        loss = w.next()
        assert loss["fence"] == first and loss["cause"] == "expired" and loss["successor"] in (None, second), loss
        assert c.call("LOCK.RELEASE", "r", second) == [1, b"ok"]
        waiter.close()


def test_an_expiry_under_a_multi_lock_is_told(server):
    c, wa, wb = server.client(), Watcher(server, "a"), Watcher(server, "b")
    a, _ = c.call("LOCK.ACQUIRE", "a", 300)
    b, _ = c.call("LOCK.ACQUIRE", "b", 600)
    waiter = server.client()
    waiter.send("LOCK.MACQUIRE", 2, "a", "b", 30000, "WAIT", 20000)
    fences, _ = waiter.read()
    wa.is_told(a, "expired")
    wb.is_told(b, "expired", fences[1])


def test_other_databases(server):
    c, d, w = server.client(), server.client(), Watcher(server, "r")
    d.call("SELECT", 3)
    zero, _ = c.call("LOCK.ACQUIRE", "r", 30000)
    three, _ = d.call("LOCK.ACQUIRE", "r", 30000)
    waiter = server.client()
    waiter.call("SELECT", 3)
    waiter.send("LOCK.ACQUIRE", "r", 30000, "WAIT", 20000)
    until(lambda: len(d.call("LOCK.QUEUE", "r")) == 1)
    d.call("LOCK.RENEW", "r", three, 20)
    successor, _ = waiter.read()
    w.is_told(three, "expired", successor)
    assert c.call("LOCK.RELEASE", "r", zero) == [1, b"ok"]
    assert c.call("PING") == b"PONG" and c.call("LOCK.INFO", "r")[5] == b"free", "clients keep their db"


def test_a_resp3_client_hears_of_it_beside_its_replies(server):
    c = server.client(resp3=True)
    c.call("SUBSCRIBE", "__lost__:r")
    fence, _ = c.call("LOCK.ACQUIRE", "r", 30000)
    server.client().call("LOCK.FORCERELEASE", "r", "FENCE", fence)
    kind, _, text = c.read()
    assert kind == b"message" and json.loads(text)["fence"] == fence
    assert "__lost__:<resource>" in c.fails("LOCK.NOTIFY", "ON")


def test_values_go_through_the_queue_and_survive_renewals(server):
    c, value = server.client(), b"10.0.0.1:80 \x00\xff "
    fence, _ = c.call("LOCK.ACQUIRE", "r", 30000, "OWNER", "o w", "VALUE", value)
    assert c.call("GET", "__fence__{r}").endswith(b" 0 - 3 o w" + value), "the layout that the Lua library shares"
    c.call("LOCK.RENEW", "r", fence, 20000)
    assert c.call("LOCK.ACQUIRE", "r", 40000, "OWNER", "o w", "VALUE", "another") == [fence, 40000]
    assert c.call("LOCK.INFO", "r")[21] == value
    waiter = wait_for(server, "r", "w", "VALUE", "w's")
    until(lambda: len(c.call("LOCK.QUEUE", "r")) == 1)
    assert c.call("LOCK.RELEASE", "r", fence) == [1, b"ok"]
    second, _ = waiter.read()
    assert c.call("LOCK.INFO", "r")[21] == b"w's"
    assert c.call("LOCK.RELEASE", "r", second) == [1, b"ok"]
    assert c.call("LOCK.INFO", "r")[21] is None and not c.call("GET", "__fence__{r}").endswith(b"w's")
