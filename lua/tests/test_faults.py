"""What Redis may lose or refuse: fences never repeat and never step back; errors are Redis's own and clear."""
import subprocess
import sys
import time

from backend import Backend
from servers import LUA, Server, eventually, is_error

FORMS = ["function", "script"]


def backends(server):
    sha = server.load()
    return [Backend(server, form, 2, sha) for form in FORMS]


def grants(t, seen, names, times=20):
    """Takes and gives back each lock; every fence must be above all that went before for its name."""
    for _ in range(times):
        for name in names:
            fence, _ = t.must("LOCK.ACQUIRE", name, 60000, "OWNER", f"o{len(seen[name])}")
            assert fence > max(seen[name], default=0), f"{name}: {fence} after {seen[name][-1]}"
            seen[name].append(fence)
            assert t.must("LOCK.RELEASE", name, fence) == [1, b"ok"]


def test_server_sigkill_with_rdb_only():
    names = ["a", "b"]
    seen = {name: [] for name in names}
    with Server() as server:
        for form in FORMS * 3:
            with Backend(server, form, 2, server.load()) as t:
                grants(t, seen, names)
                t.redis("SAVE")
                grants(t, seen, names)
                fence, _ = t.must("LOCK.ACQUIRE", "a", 60000, "OWNER", "lost")
                seen["a"].append(fence)
            server.kill()
            assert server.start()


def test_server_flushall_and_lost_companions():
    seen = {"a": []}
    with Server() as server:
        for t in backends(server):
            for wreck in [("FLUSHALL",), ("DEL", "__fence__{a}"), ("PEXPIRE", "__fence__{a}", 1), ("DEBUG", "RELOAD"),
                          ("DEL", "a", "__fence__{a}", "__wait__{a}")]:
                grants(t, seen, ["a"], times=3)
                fence, _ = t.must("LOCK.ACQUIRE", "a", 60000, "OWNER", "o")
                seen["a"].append(fence)
                t.redis(*wreck)
                time.sleep(0.002)
                if wreck[0] == "FLUSHALL":
                    assert t.must("LOCK.RELEASE", "a", fence) == [0, b"not_owner"]
                t.redis("DEL", "a")
            t.close()


def test_server_companion_lost_while_held_is_adopted():
    with Server() as server:
        for t in backends(server):
            fence, _ = t.must("LOCK.ACQUIRE", "a", 60000, "OWNER", "me")
            t.redis("DEL", "__fence__{a}")
            assert t.must("LOCK.RELEASE", "a", fence) == [0, b"not_owner"]
            again, _ = t.must("LOCK.ACQUIRE", "a", 1000, "OWNER", "me")
            assert again > fence and t.must("LOCK.RELEASE", "a", again) == [1, b"ok"]
            t.close()


def test_server_flushall_while_waiting():
    with Server() as server:
        for t in backends(server):
            t.redis("DEL", "a")
            t.must("LOCK.ACQUIRE", "a", 60000)
            assert t.must("LOCK.ACQUIRE", "a", 5000, "WAIT", 5000, "OWNER", "w")[0] == b"queued"
            t.redis("FLUSHALL")
            if t.form == "script":
                t.sha = server.load()
            assert t.must("LOCK.ACQUIRE", "a", 5000, "WAIT", 4000, "OWNER", "w")[1] == 5000
            t.close()


def test_server_clock_behind_the_last_fence():
    """A companion from a clock that ran ahead: the counter goes on from it."""
    ahead = int((time.time() + 3600) * 1e6)
    with Server() as server:
        for t in backends(server):
            t.redis("SET", "__fence__{a}", f"{ahead} r 0 0 - ")
            fences = []
            for _ in range(5):
                fence, _ = t.must("LOCK.ACQUIRE", "a", 1000)
                fences.append(fence)
                t.must("LOCK.RELEASE", "a", fence)
            assert fences == [ahead + i for i in range(1, 6)], fences
            t.close()


def follow(replica, master):
    with replica.client() as client:
        client.must("REPLICAOF", "127.0.0.1", master.port)
        eventually(lambda: b"master_link_status:up" in client.must("INFO", "replication"), what="replication")


def test_server_replica_reads_and_refuses_writes():
    with Server("--repl-diskless-sync-delay", "0") as master, Server() as replica:
        follow(replica, master)
        for t in backends(master):
            fence, _ = t.must("LOCK.ACQUIRE", "a", 60000, "OWNER", "me")
            t.must("LOCK.ACQUIRE", "a", 60000, "WAIT", 60000, "OWNER", "w")
            t.must("FENCE.CHECK", "a", 7)
            assert t.redis("WAIT", 1, 5000) == 1
            with Backend(replica, t.form, 2, t.sha) as r:
                if t.form == "script":
                    r.sha = r.redis("SCRIPT", "LOAD", (LUA / "redfence-script.lua").read_bytes())
                info, _ = r.info("a")
                assert (info["fence"], info["owner"], info["waiters"]) == (fence, b"me", 1)
                assert r.must("LOCK.QUEUE", "a")[0][0] == b"w"
                assert r.must("LOCK.SCAN", 0, "COUNT", 1000)[1] == [b"a"]
                assert r.must("FENCE.GET", "a") == 7
                for command, args in [("LOCK.ACQUIRE", ["b", 1000]), ("LOCK.RELEASE", ["a", fence]),
                                      ("LOCK.RENEW", ["a", fence, 1000]), ("FENCE.CHECK", ["a", 9]),
                                      ("LOCK.FORCERELEASE", ["a"])]:
                    assert is_error(r(command, *args), "READONLY"), (command, r(command, *args))
                assert r.redis("PEXPIRETIME", "a") == t.redis("PEXPIRETIME", "a")
            t.must("LOCK.FORCERELEASE", "a")
            t.must("LOCK.FORCERELEASE", "a")
            t.close()


def test_server_promoted_replica_goes_on_rising():
    seen = {"a": []}
    with Server("--repl-diskless-sync-delay", "0") as master, Server() as replica:
        follow(replica, master)
        for t in backends(master):
            grants(t, seen, ["a"], times=3)
            assert t.redis("WAIT", 1, 5000) == 1
            t.close()
        with replica.client() as client:
            client.must("REPLICAOF", "NO", "ONE")
        for t in backends(master):
            grants(t, seen, ["a"], times=5)
            t.close()
        master.kill()
        for t in backends(replica):
            grants(t, seen, ["a"], times=5)
            t.close()


def test_server_out_of_memory():
    with Server("--maxmemory-policy", "noeviction") as server:
        for t in backends(server):
            fence, _ = t.must("LOCK.ACQUIRE", "a", 60000)
            other, _ = t.must("LOCK.ACQUIRE", "b", 60000)
            t.must("LOCK.ACQUIRE", "b", 5000, "WAIT", 3000, "OWNER", "w")
            t.redis("CONFIG", "SET", "maxmemory", 1)
            assert is_error(t("LOCK.ACQUIRE", "c", 1000), "OOM")
            assert is_error(t("FENCE.CHECK", "c", 1), "OOM")
            assert t.must("LOCK.RELEASE", "a", fence) == [1, b"ok"]
            assert t.must("LOCK.RELEASE", "a", fence) == [0, b"already_released"]
            assert t.must("LOCK.RELEASE", "b", other) == [1, b"ok"]
            assert t.redis("GET", "b") == b"w" and t.info("b")[0]["state"] == b"held"
            assert t.must("LOCK.FORCERELEASE", "b") == 1
            assert t.redis("EXISTS", "a", "b", "c") == 0
            t.redis("CONFIG", "SET", "maxmemory", 0)
            t.close()


def test_server_cluster():
    with Server("--cluster-enabled", "yes") as server:
        with server.client() as client:
            client.must("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            eventually(lambda: b"cluster_state:ok" in client.must("CLUSTER", "INFO"), what="the cluster")
        for t in backends(server):
            for name in ["plain", "{tag}x", "x{tag}y}z", "open{", "a{b{c}"]:
                fence, _ = t.must("LOCK.ACQUIRE", name, 60000, "OWNER", "me")
                assert t.must("LOCK.ACQUIRE", name, 5000, "WAIT", 3000, "OWNER", "w")[0] == b"queued"
                assert t.must("FENCE.CHECK", name, fence) == 1
                assert t.must("LOCK.RELEASE", name, fence) == [1, b"ok"]
                assert t.redis("GET", name) == b"w"
            assert set(t.must("LOCK.SCAN", 0, "COUNT", 1000)[1]) == {b"plain", b"{tag}x", b"x{tag}y}z", b"open{", b"a{b{c}"}
            for name in ["x}", "{}x", "}{"]:
                assert is_error(t("LOCK.ACQUIRE", name, 1000), "CROSSSLOT"), name
            assert is_error(t("LOCK.MACQUIRE", 2, "p", "q", 1000), "CROSSSLOT")
            fences, _ = t.must("LOCK.MACQUIRE", 2, "{t}p", "{t}q", 60000)
            assert t.must("LOCK.MACQUIRE", 2, "{t}q", "{t}p", 5000, "WAIT", 3000, "OWNER", "m")[0] == b"queued"
            t.must("LOCK.MRELEASE", 2, "{t}p", fences[0], "{t}q", fences[1])
            assert t.redis("MGET", "{t}p", "{t}q") == [b"m", b"m"]
            t.redis("FLUSHALL")
            t.close()


def test_server_built_files_are_up_to_date():
    done = subprocess.run([sys.executable, str(LUA / "build"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_server_retentions_set_by_the_build():
    with Server() as server:
        built = subprocess.run([sys.executable, str(LUA / "build"), "--retention-ms", "7000", "--mark-retention-ms",
                                "9000", "--out", server.dir], capture_output=True, text=True)
        assert built.returncode == 0, built.stderr
        with server.client() as client:
            with open(server.dir + "/redfence.lua", "rb") as library:
                client.must("FUNCTION", "LOAD", library.read())
        with Backend(server, "function", 2, None) as t:
            t.must("LOCK.ACQUIRE", "a", 1000)
            assert t.redis("PEXPIRETIME", "__fence__{a}") == t.redis("PEXPIRETIME", "a") + 7000
            assert t.must("FENCE.CHECK", "a", 5) == 1 and 8000 < t.redis("PTTL", "__hwm__{a}") <= 9000
