"""Replication and AOF that begin, stop and begin again under load. The module builds effects only where somebody is there to take them;
here it must never be wrong about that: in the end replica and master hold the same, and so does a server restarted from its AOF."""

import threading
import time

from resp import Server, until


def own(test):
    test.own_server = True
    return test


class Load:
    """Locks taken, waited for and released by a few clients until stopped."""

    def __init__(self, server):
        self.server, self.stopped, self.failure, self.pairs = server, False, None, 0
        self.threads = [threading.Thread(target=self.work, args=(n,)) for n in range(4)]
        for thread in self.threads:
            thread.start()

    def work(self, n):
        client = self.server.client()
        at = 0
        try:
            while not self.stopped:
                at += 1
                name = f"own:{n}:{at % 50}" if at % 3 else f"shared:{at % 5}"
                granted = client.call("LOCK.ACQUIRE", name, 3600000, "WAIT", 2000)
                if granted:
                    client.call("FENCE.CALL", name, granted[0], "INCR", f"counter:{n}")
                if granted and at % 7:
                    client.call("LOCK.RELEASE", name, granted[0])
                    self.pairs += 1
                elif granted:
                    client.call("LOCK.FORCERELEASE", name)
        except Exception as error:  # shown by stop()
            self.failure = error

    def stop(self):
        self.stopped = True
        for thread in self.threads:
            thread.join()
        if self.failure:
            raise self.failure


def wait_for_link(replica):
    until(lambda: b"master_link_status:up" in replica.call("INFO", "replication"), 20, "replication")


def same(master, replica):
    """Both have the same keys, values and expiries once the stream has been read to its end."""
    until(lambda: master.call("DEBUG", "DIGEST") == replica.call("DEBUG", "DIGEST"), 5, "the same digest")
    assert master.call("DBSIZE") > 10


def replica_attaches(module, diskless):
    master = Server(module, "--repl-diskless-sync", diskless, "--repl-diskless-sync-delay", "0")
    replica = Server(module)
    master.client().call("CONFIG", "SET", "repl-backlog-ttl", "1")
    load = None
    try:
        m, r = master.client(), replica.client()
        load = Load(master)
        for turn in range(3):
            time.sleep(1.3)  # long enough for the module to have seen that nobody is there
            r.call("REPLICAOF", "127.0.0.1", master.port)
            wait_for_link(r)
            # A broken link comes back by a partial resynchronisation, from the backlog.
            m.call("CLIENT", "KILL", "TYPE", "replica")
            wait_for_link(r)
            load.stop()
            same(m, r)
            r.call("REPLICAOF", "NO", "ONE")
            until(lambda: b"repl_backlog_active:0" in m.call("INFO", "replication"), 10, "the backlog let go")
            load = Load(master) if turn < 2 else None
    finally:
        if load:
            load.stop()
        master.stop()
        replica.stop()


@own
def test_replica_attaches_under_load_with_a_file(module):
    replica_attaches(module, "no")


@own
def test_replica_attaches_under_load_without_a_file(module):
    replica_attaches(module, "yes")


@own
def test_aof_switched_on_under_load(module):
    server = Server(module, "--appendfsync", "always")
    try:
        c = server.client()
        load = Load(server)
        time.sleep(1.3)
        c.call("CONFIG", "SET", "appendonly", "yes")
        until(lambda: b"aof_rewrite_in_progress:0" in c.call("INFO", "persistence"), 10)
        time.sleep(0.3)
        load.stop()
        until(lambda: b"aof_rewrite_in_progress:0" in c.call("INFO", "persistence"), 10)
        before = c.call("DEBUG", "DIGEST")
        assert load.pairs > 10
        server.kill()
        server.options += ("--appendonly", "yes")
        server.start()
        assert server.client().call("DEBUG", "DIGEST") == before
    finally:
        server.stop()


@own
def test_save_points_count_lock_changes(module):
    server = Server(module, "--save", "1 10")
    try:
        c = server.client()
        time.sleep(1.2)
        assert b"rdb_changes_since_last_save:0" in c.call("INFO", "persistence")
        for n in range(20):
            c.call("LOCK.ACQUIRE", f"r{n}", 60000)
        until(lambda: b"rdb_changes_since_last_save:0" in c.call("INFO", "persistence"), 10, "a save")
        server.kill()
        server.start()
        assert len(server.client().call("KEYS", "r*")) == 20
    finally:
        server.stop()
