"""The driver of clients/scenarios.toml: every scenario, with threads and with asyncio, against every backend."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import os
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import pytest

import redfence
from backends import BACKENDS, Backend, poll
from conftest import start
from relay import DROP, Relay

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE = tomllib.loads((Path(__file__).resolve().parents[2] / "scenarios.toml").read_text())["scenario"]
BY_NAME = {scenario["name"]: scenario for scenario in TABLE}
POLL_SECONDS = 20.0
#: Scenarios at a time on one backend. They mostly sleep.
AT_ONCE = int(os.environ.get("REDFENCE_SDK_AT_ONCE", "8"))
SHORT = os.environ.get("REDFENCE_SDK") == "short"

OUTCOMES = {
    redfence.Busy: "busy",
    redfence.CircuitOpen: "unavailable",
    redfence.Deadlock: "deadlock",
    redfence.InsufficientLease: "lost",
    redfence.InvalidRequest: "invalid",
    redfence.Lost: "lost",
    redfence.TierRefused: "tier_refused",
    redfence.Unavailable: "unavailable",
    redfence.UnsupportedByServer: "unsupported",
}
OPTIONS: Dict[str, Any] = {"timeout": 20.0, "request_timeout": 3.0, "session_ttl": 6.0}


class DaemonPool:
    """Threads that do not keep the process alive: a failed run must end."""

    def __init__(self, size: int) -> None:
        self.slots = threading.Semaphore(size)

    def submit(self, call: Callable[[], Any]) -> "concurrent.futures.Future[Any]":
        future: "concurrent.futures.Future[Any]" = concurrent.futures.Future()

        def work() -> None:
            with self.slots:
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return future


class Threads:
    """The threaded client."""

    name = "threads"
    can_cancel = False

    def __init__(self) -> None:
        self.pool = DaemonPool(1000)

    def client(self, urls: List[str]) -> Any:
        return redfence.Client(urls, **OPTIONS)

    def spawn(self, call: Callable[[], Any]) -> "concurrent.futures.Future[Any]":
        return self.pool.submit(call)


class Asyncio:
    """The asyncio client, in a loop of its own."""

    name = "asyncio"
    can_cancel = True

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def client(self, urls: List[str]) -> Any:
        return redfence.AsyncClient(urls, **OPTIONS)

    def spawn(self, call: Callable[[], Any]) -> "concurrent.futures.Future[Any]":
        async def run() -> Any:
            value = call()
            return await value if asyncio.iscoroutine(value) else value

        return asyncio.run_coroutine_threadsafe(run(), self.loop)


class Mismatch(AssertionError):
    pass


class Run:
    """One scenario under way."""

    def __init__(self, scenario: Dict[str, Any], backend: Backend, flavour: Any) -> None:
        self.scenario, self.backend, self.flavour = scenario, backend, flavour
        self.prefix = f"{scenario['name']}-{uuid.uuid4().hex[:8]}:"
        self.clients: Dict[str, Any] = {}
        self.relays: Dict[str, List[Relay]] = {}
        self.locks: Dict[str, Any] = {}
        self.background: Dict[str, Tuple[Dict[str, Any], Any]] = {}
        self.fences: Dict[str, int] = {}

    def __call__(self) -> None:
        try:
            for number, step in enumerate(self.scenario["steps"], 1):
                try:
                    self.step(step)
                except Exception as error:
                    raise Mismatch(f"{self.scenario['name']}, step {number} {step}: {type(error).__name__}: {error}") from error
        finally:
            self.end()

    def end(self) -> None:
        for relays in self.relays.values():
            for relay in relays:
                relay.heal()
        for _, future in self.background.values():
            future.cancel()
        for client in self.clients.values():
            self.wait(client.close, 60)
        for relays in self.relays.values():
            for relay in relays:
                relay.close()

    # -- helpers

    def wait(self, call: Callable[[], Any], timeout: float = 90.0) -> Any:
        return self.flavour.spawn(call).result(timeout)

    def client(self, step: Dict[str, Any], name: Optional[str] = None) -> Any:
        name = name or step.get("client", "a")
        if name not in self.clients:
            self.relays[name] = [Relay(address) for address in self.backend.addresses()]
            self.clients[name] = self.flavour.client([relay.url for relay in self.relays[name]])
        return self.clients[name]

    def relays_of(self, step: Dict[str, Any]) -> List[Relay]:
        self.client(step)
        return self.relays[step.get("client", "a")]

    def resource(self, step: Dict[str, Any]) -> str:
        name = step.get("name", "r")
        return self.prefix + name if name else ""

    def lock(self, step: Dict[str, Any], name: Optional[str] = None) -> Any:
        return self.locks[name or step.get("lock", "l")]

    def keep(self, step: Dict[str, Any], lock: Any, name: Optional[str] = None) -> None:
        name = name or step.get("lock", "l")
        self.locks[name] = lock
        self.fences[name] = max(lock.fences().values())

    def outcome(self, call: Callable[[], Any]) -> str:
        try:
            value = self.wait(call)
        except redfence.RedfenceError as error:
            return OUTCOMES[type(error)]
        return value if isinstance(value, str) else "ok"

    def check(self, step: Dict[str, Any], got: str, default: str = "ok") -> None:
        expected = step.get("expect", default)
        if got not in (expected if isinstance(expected, list) else [expected]):
            raise Mismatch(f"expected {expected}, got {got}")

    # -- steps

    def step(self, step: Dict[str, Any]) -> None:
        act = getattr(self, "do_" + step["do"])
        if step.get("background"):
            self.background[step.get("lock", "l")] = (step, self.start_background(step))
        else:
            act(step)

    def start_background(self, step: Dict[str, Any]) -> Any:
        if step["do"] == "acquire":
            return self.flavour.spawn(self.pending(step).acquire)
        if step["do"] == "campaign":
            return self.flavour.spawn(self.campaigning(step))
        assert step["do"] == "convert"
        lock = self.lock(step)
        return self.flavour.spawn(lambda: lock.convert(step["to"], wait=step.get("wait_ms", 0) / 1000))

    def pending(self, step: Dict[str, Any]) -> Any:
        client = self.client(step)
        options: Dict[str, Any] = {"ttl": step.get("ttl_ms", 5000) / 1000, "wait": step.get("wait_ms", 0) / 1000}
        options["transferable"] = step.get("transferable", False)
        if "max_hold_ms" in step:
            options["max_hold"] = step["max_hold_ms"] / 1000
        if "tier" in step:
            options["tier"] = step["tier"]
        if "names" in step:
            return client.multi([self.prefix + name for name in step["names"]], **options)
        kind = step.get("kind", "exclusive")
        if kind == "shared":
            return client.shared(self.resource(step), **options)
        if kind == "permits":
            return client.permits(self.resource(step), step["permits"], of=step["of"], **options)
        return client.lock(self.resource(step), value=step.get("value"), **options)

    def do_acquire(self, step: Dict[str, Any]) -> None:
        def call() -> Any:
            return self.pending(step).acquire()

        try:
            lock = self.wait(call)
        except redfence.RedfenceError as error:
            self.check(step, OUTCOMES[type(error)])
            return
        self.keep(step, lock)
        self.check(step, "ok")

    def do_join(self, step: Dict[str, Any]) -> None:
        began, future = self.background.pop(step.get("lock", "l"))
        try:
            lock = future.result(90)
        except redfence.RedfenceError as error:
            self.check(began, OUTCOMES[type(error)])
            return
        if lock is None:  # a conversion: the handle is the same, its fence may be new
            lock = self.lock(step)
        self.keep(step, lock)
        self.check(began, "ok")

    def do_cancel(self, step: Dict[str, Any]) -> None:
        _, future = self.background.pop(step.get("lock", "l"))
        future.cancel()

    def do_release(self, step: Dict[str, Any]) -> None:
        lock = self.lock(step)
        released = self.wait(lock.release)
        self.check(step, str(released))

    do_resign = do_release

    def do_ensure(self, step: Dict[str, Any]) -> None:
        lock = self.lock(step)
        self.check(step, self.outcome(lambda: lock.ensure(step["at_least_ms"] / 1000)))

    def do_state(self, step: Dict[str, Any]) -> None:
        lock = self.lock(step)
        poll(lambda: str(lock.state) == step["expect"], POLL_SECONDS, f"state {step['expect']}, it is {lock!r}")

    def do_lost(self, step: Dict[str, Any]) -> None:
        lock = self.lock(step)
        if not self.wait(lambda: lock.lost.wait(POLL_SECONDS)):
            raise Mismatch("not lost")
        causes = step["cause"] if isinstance(step["cause"], list) else [step["cause"]]
        if lock.loss.cause not in causes:
            raise Mismatch(f"lost by {lock.loss}")

    def do_convert(self, step: Dict[str, Any]) -> None:
        lock = self.lock(step)
        got = self.outcome(lambda: lock.convert(step["to"], wait=step.get("wait_ms", 0) / 1000))
        if got == "ok":
            self.keep(step, lock)
        self.check(step, got)

    def do_hand_over(self, step: Dict[str, Any]) -> None:
        lock = self.lock(step)
        token = self.wait(lock.token)
        client = self.client(step, step["to"])
        self.keep(step, self.wait(lambda: client.adopt(token)), step["as"])

    def do_newer(self, step: Dict[str, Any]) -> None:
        if not self.fences[step.get("lock", "l")] > self.fences[step["than"]]:
            raise Mismatch(f"fences {self.fences}")

    def do_same_fence(self, step: Dict[str, Any]) -> None:
        if self.fences[step.get("lock", "l")] != self.fences[step["as"]]:
            raise Mismatch(f"fences {self.fences}")

    def do_holder(self, step: Dict[str, Any]) -> None:
        info = self.backend.info(self.resource(step))
        held = len(info["holders"]) if info.get("holders") else int(info["state"] == b"held")
        if held != step.get("count", 1):
            raise Mismatch(f"{held} holders: {info}")

    def do_waiters(self, step: Dict[str, Any]) -> None:
        name = self.resource(step)
        poll(lambda: self.backend.info(name)["waiters"] == step["count"], POLL_SECONDS, f"{step['count']} waiters")

    def do_raw(self, step: Dict[str, Any]) -> None:
        words = []
        for word in step["command"]:
            if word == "$r":
                word = self.resource(step)
            elif word.startswith("$fence:"):
                word = self.fences[word[7:]]
            words.append(word)
        reply = self.backend.execute(*words)
        if "reply" in step and reply != step["reply"]:
            raise Mismatch(f"reply {reply!r}")

    def do_sleep(self, step: Dict[str, Any]) -> None:
        time.sleep(step["ms"] / 1000)

    def campaigning(self, step: Dict[str, Any]) -> Callable[[], Any]:
        election = self.client(step).election(self.resource(step), ttl=step.get("ttl_ms", 5000) / 1000)
        return lambda: election.campaign(step["value"])

    def do_campaign(self, step: Dict[str, Any]) -> None:
        self.keep(step, self.wait(self.campaigning(step)))

    def do_observe(self, step: Dict[str, Any]) -> None:
        election = self.client(step).election(self.resource(step))

        def seen() -> bool:
            leader = self.wait(election.leader)
            return leader is not None and leader.value == step["value"].encode()

        poll(seen, POLL_SECONDS, f"leader {step['value']}")

    # -- faults

    def do_stop_renewals(self, step: Dict[str, Any]) -> None:
        self.client(step)._stop_renewals()

    def do_drop_reply(self, step: Dict[str, Any]) -> None:
        self.rule(step, DROP)

    def do_refuse(self, step: Dict[str, Any]) -> None:
        self.rule(step, step["with"])

    def rule(self, step: Dict[str, Any], action: str) -> None:
        # A client may talk to any of its nodes: the first one is made to be it.
        for relay in self.relays_of(step):
            relay.rule(step["command"], action, step.get("count", 1))

    def do_cut(self, step: Dict[str, Any]) -> None:
        for relay in self.relays_of(step):
            relay.cut()

    def do_heal(self, step: Dict[str, Any]) -> None:
        for relay in self.relays_of(step):
            relay.heal()

    def do_disconnect(self, step: Dict[str, Any]) -> None:
        for relay in self.relays_of(step):
            relay.disconnect()

    def do_crash_client(self, step: Dict[str, Any]) -> None:
        for relay in self.relays_of(step):
            relay.crash()

    def do_close_client(self, step: Dict[str, Any]) -> None:
        self.wait(self.client(step).close)

    def do_kill_leader(self, step: Dict[str, Any]) -> None:
        leader = poll(self.backend.leader, what="a leader")  # type: ignore[attr-defined]
        leader.kill()

    def do_kill_own_node(self, step: Dict[str, Any]) -> None:
        index = self.client(step)._transport.addresses.current
        self.backend.servers[index].kill()


FLAVOURS = {"threads": Threads, "asyncio": Asyncio}
_PENDING: Dict[Tuple[str, str], Dict[str, "concurrent.futures.Future[None]"]] = {}
_RUNNING: Dict[str, Any] = {}


def missing(scenario: Dict[str, Any], backend: Backend, flavour: Any) -> Optional[str]:
    lacks = [feature for feature in scenario.get("needs", []) if feature not in backend.features]
    if lacks:
        return f"backend {backend.name} has no {', '.join(lacks)}"
    if not flavour.can_cancel and any(step["do"] == "cancel" for step in scenario["steps"]):
        return "a blocked thread cannot be cancelled; test_threads.py interrupts one by a signal"
    return None


def kills(scenario: Dict[str, Any]) -> bool:
    return any(step["do"].startswith("kill") for step in scenario["steps"])


def slow(scenario: Dict[str, Any]) -> bool:
    return sum(step.get("ms", 0) for step in scenario["steps"] if step["do"] == "sleep") > 2000


def started(backend: Backend, flavour: Any) -> Dict[str, "concurrent.futures.Future[None]"]:
    """All scenarios of one backend that may run beside each other, under way."""
    key = (backend.name, flavour.name)
    if key not in _PENDING:
        pool = DaemonPool(AT_ONCE)
        _PENDING[key] = {
            scenario["name"]: pool.submit(Run(scenario, backend, flavour))
            for scenario in TABLE
            if not kills(scenario) and missing(scenario, backend, flavour) is None and not (SHORT and slow(scenario))
        }
    return _PENDING[key]


@pytest.mark.parametrize(
    ("backend_name", "flavour_name", "scenario_name"),
    [
        pytest.param(backend, flavour, name, id=f"{backend}-{flavour}-{name}")
        for backend, flavour, name in itertools.product(BACKENDS, FLAVOURS, BY_NAME)
    ],
)
def test_scenario(backend_name: str, flavour_name: str, scenario_name: str) -> None:
    scenario = BY_NAME[scenario_name]
    if SHORT and slow(scenario):
        pytest.skip("takes long: runs in `make sdk`")
    backend = start(backend_name)
    flavour = _RUNNING.setdefault(flavour_name, FLAVOURS[flavour_name]())
    lacks = missing(scenario, backend, flavour)
    if lacks is not None:
        pytest.skip(lacks)
    if kills(scenario):
        for future in started(backend, flavour).values():
            concurrent.futures.wait([future], 240)
        try:
            Run(scenario, backend, flavour)()
        finally:
            backend.restore()
    else:
        started(backend, flavour)[scenario_name].result(240)


def test_every_scenario_has_a_reason_and_known_steps() -> None:
    for scenario in TABLE:
        assert scenario["why"]
        for step in scenario["steps"]:
            assert hasattr(Run, "do_" + step["do"]), step
