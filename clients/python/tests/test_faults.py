"""Faults with the SDK's own clients: what the *application* believed is what is checked.

A cluster of three processes; client processes with threads, with asyncio and of the Rust SDK (REDFENCE_FAULT_WORKER) on few names; `kill -9` of the leader and
of other nodes, `SIGSTOP` of clients past their ttl. Every client writes down when it acquired, believed, lost and released, on one clock. DURATION=300 makes it
long (`make sdk`: 60 s).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest

import redfence
from backends import Cluster, Missing, poll
from fault_worker import TTL, now
from redfence import postgres

try:
    from test_postgres import dsn
except pytest.skip.Exception:

    @pytest.fixture
    def dsn() -> str:
        pytest.skip("psycopg is not installed: runs in `make sdk`")


SHORT = os.environ.get("REDFENCE_SDK") == "short"
DURATION = float(os.environ.get("DURATION", "8" if SHORT else "60"))
SRC = str(Path(redfence.__file__).resolve().parents[1])
#: `clients/rust/examples/fault_worker.rs`, where `scripts/sdk-python` has built it.
RUST_WORKER = os.environ.get("REDFENCE_FAULT_WORKER")
#: A node that is killed takes the connections of its sessions with it, and the server counts its grace time from then.
EXCUSE = 3.0


class Client:
    """One client process and when it was paused."""

    def __init__(self, kind: str, log: Path, names: List[str], urls: List[str], env: Dict[str, str]) -> None:
        self.kind, self.log = kind, log
        self.paused: List[Tuple[float, float]] = []
        python = [sys.executable, str(Path(__file__).with_name("fault_worker.py")), kind]
        worker = [RUST_WORKER] if kind == "rust" and RUST_WORKER else python
        command = [*worker, str(log), ",".join(names), *urls]
        with log.with_suffix(".err").open("wb") as errors:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=errors, env=env)

    def pause(self, seconds: float) -> None:
        began = now()
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.process.send_signal(signal.SIGCONT)
        self.paused.append((began, now()))

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def events(self) -> List[Dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.endswith("}")]


class Hold:
    """What one client believed about one grant."""

    def __init__(self, client: Client, name: str, fence: int, began: float) -> None:
        self.client, self.name, self.fence, self.began = client, name, fence, began
        #: The last moment at which it looked and held the lock to be its own.
        self.believed = began
        self.ended: Optional[float] = None

    def __repr__(self) -> str:
        return f"{self.name} fence {self.fence} [{self.began:.3f}, {self.believed:.3f}] of {self.client.kind} {self.client.log.name}"


def holds_of(clients: List[Client]) -> List[Hold]:
    holds: List[Hold] = []
    for client in clients:
        known: Dict[Tuple[str, int], Hold] = {}
        for event in client.events():
            key = (event["name"], event["fence"])
            if event["what"] == "acquired":
                assert key not in known, f"acquired twice: {event}"
                known[key] = Hold(client, *key, event["at"])
                holds.append(known[key])
            elif event["what"] == "believes":
                known[key].believed = max(known[key].believed, event["at"])
            elif event["what"] in ("lost", "released"):
                known[key].ended = event["at"]
    return holds


def violations(clients: List[Client], kills: List[float]) -> Tuple[List[str], int]:
    """What must not be, and how many beliefs of paused clients overlapped with a newer grant, which the fences tell apart."""
    wrong: List[str] = []
    excused = 0
    by_name: Dict[str, List[Hold]] = defaultdict(list)
    for hold in holds_of(clients):
        by_name[hold.name].append(hold)
    for holds in by_name.values():
        holds.sort(key=lambda hold: hold.fence)
        for old, new in zip(holds, holds[1:]):
            if old.fence == new.fence:
                wrong.append(f"one fence for two: {old} and {new}")
            if new.began < old.began:
                # The reply to the older one came late; it must have been over before it was handed out, or the client was stopped in between.
                if not excuse(old, kills):
                    wrong.append(f"handed out after a newer grant: {old} after {new}")
        for index, old in enumerate(holds):
            newer = min((other.began for other in holds[index + 1 :]), default=float("inf"))
            if old.believed > newer:
                if excuse(old, kills):
                    excused += 1
                else:
                    wrong.append(f"believed at {old.believed:.3f}, a newer grant was there at {newer:.3f}: {old}")
    wrong += stale_writes(clients)
    return wrong, excused


def excuse(hold: Hold, kills: List[float]) -> bool:
    """A client that is stopped believes until it is told; and a session whose node is killed may end before its ttl."""
    until = hold.believed
    return any(began <= until and hold.began <= ended + TTL for began, ended in hold.client.paused) or any(
        hold.began - EXCUSE <= at <= until for at in kills
    )


def stale_writes(clients: List[Client]) -> List[str]:
    """No exception here: what a resource accepted once under a newer fence, it refuses under an older one from then on."""
    wrong: List[str] = []
    writes: Dict[str, List[Dict[str, Any]]] = defaultdict(list)
    for client in clients:
        for event in client.events():
            if event["what"] == "wrote" and event["result"] == "ok":
                writes[event["name"]].append(event)
    for name, accepted in writes.items():
        answered = sorted(accepted, key=lambda event: float(event["until"]))
        newest, index = 0, 0
        for event in sorted(accepted, key=lambda event: float(event["at"])):
            while index < len(answered) and answered[index]["until"] < event["at"]:
                newest = max(newest, answered[index]["fence"])
                index += 1
            if event["fence"] < newest:
                wrong.append(f"{name}: a write of fence {event['fence']} was accepted after one of {newest}: {event}")
    return wrong


def count(clients: List[Client]) -> Dict[str, int]:
    counted: Dict[str, int] = defaultdict(int)
    for client in clients:
        for event in client.events():
            counted[event["what"] if event["what"] != "wrote" else f"wrote_{event['result']}"] += 1
    return counted


def run(tmp_path: Path, names: List[str], extra: Dict[str, str]) -> Dict[str, int]:
    try:
        cluster = Cluster()
    except Missing as missing:
        pytest.skip(f"missing is {missing}")
    seed = int(os.environ.get("SEED", random.randrange(2**32)))
    print(f"SEED={seed} DURATION={DURATION:g}")
    dice = random.Random(seed)
    env = {**os.environ, **extra, "PYTHONPATH": os.pathsep.join([SRC, os.environ.get("PYTHONPATH", "")])}
    kinds = ["threads", "asyncio"] if SHORT else ["threads", "threads", "asyncio", "asyncio"]
    if RUST_WORKER:
        kinds += ["rust"] * (len(kinds) // 2)
    clients = [Client(kind, tmp_path / f"{i}-{kind}.log", names, cluster.urls(), env) for i, kind in enumerate(kinds)]
    kills: List[float] = []
    try:
        poll(lambda: all(any(e["what"] == "acquired" for e in c.events()) for c in clients if c.log.exists()) and all(
            c.log.exists() for c in clients), 60, "every client had a lock")  # fmt: skip
        give_up_at = time.monotonic() + DURATION
        faults = ["leader", "pause", "node", "pause_node"]
        at = 0
        while time.monotonic() < give_up_at:
            fault = faults[at % len(faults)] if at < len(faults) else dice.choice(faults)
            at += 1
            if "pause" in fault:
                victim = dice.choice(clients)
                if fault == "pause_node":
                    node = dice.choice(cluster.servers)
                    kills.append(now())
                    node.kill()
                victim.pause(TTL + dice.uniform(0.2, 1.0))
            else:
                node = poll(cluster.leader, what="a leader") if fault == "leader" else dice.choice(cluster.servers)
                kills.append(now())
                node.kill()
                time.sleep(dice.uniform(0.5, 1.5))
            cluster.restore()
            time.sleep(dice.uniform(0.2, 1.0))
        for client in clients:
            client.end()
        for client in clients:
            client.process.wait(90)
            errors = client.log.with_suffix(".err").read_text()
            assert client.process.returncode == 0, errors
            assert "Traceback" not in errors and "panicked" not in errors, errors
        wrong, excused = violations(clients, kills)
        counted = count(clients)
        print(f"{dict(counted)}, {len(kills)} kills, {excused} beliefs of stopped clients overlapped; the fences tell them apart")
        assert not wrong, "\n".join(wrong[:20])
        poll(lambda: all(cluster.info(name)["state"] == b"free" for name in names), what="every lock is free: nothing was left behind")
        return counted
    finally:
        for client in clients:
            if client.process.poll() is None:
                client.process.kill()
                client.process.wait()
        cluster.stop()


def test_no_two_applications_believe_in_one_lock_while_nodes_die_and_clients_stop(tmp_path: Path) -> None:
    counted = run(tmp_path, [f"f-{uuid.uuid4().hex[:8]}" for _ in range(2)], {})
    assert counted["acquired"] >= 10 and counted["wrote_ok"] >= 10, counted


@pytest.mark.skipif(SHORT, reason="takes long: runs in `make sdk`")
def test_postgres_refuses_every_stale_holder_while_nodes_die_and_clients_stop(tmp_path: Path, dsn: str) -> None:
    import psycopg

    names = [f"f-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS faults (name text PRIMARY KEY, writes int NOT NULL DEFAULT 0)")
        connection.execute(postgres.trigger_sql("faults"))
        for each in names:
            connection.execute("INSERT INTO faults (name) VALUES (%s)", (each,))
    counted = run(tmp_path, names, {"REDFENCE_FAULTS_DSN": dsn})
    assert counted["acquired"] >= 10 and counted["wrote_ok"] >= 10, counted


# ------------------------------------------------------------ the checker finds what it must


def diary(tmp_path: Path, *clients: List[Tuple[Any, ...]]) -> List[Client]:
    made: List[Client] = []
    for number, events in enumerate(clients):
        client = Client.__new__(Client)
        client.kind, client.log, client.paused = "made-up", tmp_path / f"{number}.log", []
        with client.log.open("w") as log:
            for what, fence, at, *more in events:
                line = {"what": what, "name": "r", "fence": fence, "at": at}
                if more:
                    line.update(until=more[0], result=more[1])
                log.write(json.dumps(line) + "\n")
        made.append(client)
    return made


def test_the_checker_finds_two_that_believe(tmp_path: Path) -> None:
    clients = diary(tmp_path, [("acquired", 1, 10.0), ("believes", 1, 12.0)], [("acquired", 2, 11.0), ("released", 2, 13.0)])
    assert violations(clients, [])[0]
    clients[0].paused.append((10.5, 11.9))
    assert violations(clients, []) == ([], 1)


def test_the_checker_finds_a_stale_write_and_a_fence_for_two(tmp_path: Path) -> None:
    writes = [("acquired", 1, 1.0), ("wrote", 1, 5.0, 5.1, "ok")], [("acquired", 2, 3.0), ("wrote", 2, 4.0, 4.1, "ok")]
    clients = diary(tmp_path, *writes)
    clients[0].paused.append((1.0, 5.0))  # no excuse for a write
    assert any("write" in each for each in violations(clients, [])[0])
    twice = diary(tmp_path, [("acquired", 1, 1.0), ("released", 1, 2.0)], [("acquired", 1, 3.0)])
    assert any("one fence" in each for each in violations(twice, [])[0])


def test_the_checker_accepts_one_after_the_other(tmp_path: Path) -> None:
    clients = diary(
        tmp_path,
        [("acquired", 1, 1.0), ("wrote", 1, 1.1, 1.2, "ok"), ("believes", 1, 1.5), ("released", 1, 2.0), ("wrote", 1, 4.0, 4.1, "stale")],
        [("acquired", 2, 2.1), ("wrote", 2, 2.2, 2.3, "ok"), ("released", 2, 3.0)],
    )
    assert violations(clients, []) == ([], 0)
