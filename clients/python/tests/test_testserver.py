"""The pytest plugin and the server for tests, used as an application would use them."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import shutil
import time
from pathlib import Path
from typing import Any, Iterator

import pytest

import redfence
from redfence import State
from redfence.testing import TestServer, TestServerMissing


@pytest.fixture(scope="module")
def process() -> Iterator[TestServer]:
    program = os.environ.get("REDFENCE_TESTSERVER_BIN") or os.environ.get("REDFENCE_BIN") or shutil.which("redfence")
    if program is None:
        from backends import Missing, redfence_bin

        try:
            program = str(redfence_bin())
        except Missing as missing:
            pytest.skip(f"no redfence testserver: {missing}")
    try:
        server = TestServer(program)
    except TestServerMissing as missing:
        pytest.skip(f"no redfence testserver: {missing}")
    with server:
        yield server


@pytest.fixture
def server(process: TestServer) -> Iterator[TestServer]:
    process.reset()
    yield process
    process.reset()


def test_a_lock_is_renewed_while_time_passes(server: TestServer) -> None:
    rf = server.client()
    lock = rf.lock("wallet:7", ttl=30).acquire()
    server.advance(310)
    assert lock.state is State.HELD
    assert server.calls("LOCK.RENEW") >= 30
    assert rf.info("wallet:7").owner == lock.owner
    assert str(lock.release()) == "ok"


def test_a_paused_program_loses_its_lock(server: TestServer) -> None:
    rf = server.client()
    lock = rf.lock("wallet:7", ttl=30).acquire()
    server.stop_renewals()
    server.advance(25)
    assert lock.state is State.SUSPECT
    server.advance(6)
    assert lock.lost.is_set()
    assert lock.loss is not None and lock.loss.cause == "deadline"
    assert not rf.info("wallet:7").held


def test_own_clock_alone_notices(server: TestServer) -> None:
    rf = server.client()
    lock = rf.lock("wallet:7", ttl=30).acquire()
    server.stop_renewals()
    server.advance_clients(30)
    assert lock.lost.wait(10)


def test_a_lock_taken_away_is_noticed_at_the_next_renewal_at_the_latest(server: TestServer) -> None:
    rf = server.client()
    lock = rf.lock("wallet:7", ttl=30).acquire()
    assert server.lose("wallet:7")
    server.advance(10.5)
    assert lock.lost.wait(10)
    assert lock.loss is not None and lock.loss.cause in ("forced", "expired")


def test_a_lock_taken_away_is_pushed_while_every_clock_stands_still(server: TestServer) -> None:
    rf = server.client()
    lock = rf.lock("wallet:7", ttl=600).acquire()
    give_up_at = time.monotonic() + 20
    while server.calls("LOCK.NOTIFY") == 0 and time.monotonic() < give_up_at:
        time.sleep(0.01)  # the client asks for pushes beside its work
    assert server.lose("wallet:7")
    assert lock.lost.wait(20)
    assert lock.loss is not None and lock.loss.cause == "forced"


def test_a_partition_shorter_than_the_ttl_is_survived_and_a_longer_one_is_not(server: TestServer) -> None:
    rf = server.client()
    lock = rf.lock("wallet:7", ttl=30).acquire()
    with server.partition():
        server.advance(15)
        assert lock.state is not State.LOST
    server.advance(10)
    assert lock.state is State.HELD
    with server.partition():
        server.advance(31)
        assert lock.lost.is_set()


def test_a_reply_lost_on_the_way_is_the_same_grant(server: TestServer) -> None:
    rf = server.client()
    rf.lock("other").acquire().release()  # the session is open: the next command is the acquire
    for kind in ("LOSTREPLY", "INDETERMINATE", "UNAVAILABLE"):
        server.fail(kind)
        lock = rf.lock("wallet:7", ttl=30).acquire()
        assert rf.info("wallet:7").fence == lock.fence()
        assert str(lock.release()) == "ok"


def test_max_hold_in_no_time(server: TestServer) -> None:
    rf = server.client()
    lock = rf.lock("wallet:7", ttl=30, max_hold=600).acquire()
    server.advance(599)
    assert lock.state is State.HELD
    server.advance(2)
    assert lock.loss is not None and lock.loss.cause == "max_hold"


def test_nothing_is_left_when_a_client_is_closed(server: TestServer) -> None:
    rf = server.client()
    locks = [rf.lock(f"wallet:{i}").acquire() for i in range(20)]
    assert server.stats()["locks"] == 20 and server.stats()["sessions"] == 1
    rf.close()
    assert server.stats()["locks"] == 0 and server.stats()["sessions"] == 0
    assert all(lock.state is State.LOST for lock in locks)


def test_asyncio_client_on_the_same_clock(server: TestServer) -> None:
    async def work() -> None:
        async with server.async_client() as rf:
            lock = await rf.lock("wallet:7", ttl=30).acquire()
            await asyncio.get_running_loop().run_in_executor(None, server.advance, 100)
            assert lock.state is State.HELD
            server.stop_renewals()
            await asyncio.get_running_loop().run_in_executor(None, server.advance, 31)
            assert await lock.lost.wait(10)

    asyncio.run(work())


def pytest_entry_points() -> Any:
    found: Any = importlib.metadata.entry_points()
    return found.select(group="pytest11") if hasattr(found, "select") else found.get("pytest11", [])


def test_the_plugin_s_fixtures(pytester: Any, process: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDFENCE_BIN", str(process._process.args[0]))  # type: ignore[index]
    pytester.makepyfile(
        """
        def test_application(redfence_server, redfence_client):
            lock = redfence_client.lock("wallet:7", ttl=30).acquire()
            redfence_server.advance(31)
            assert lock.state == "held"
            redfence_server.lose("wallet:7")
            redfence_server.advance(11)
            assert lock.lost.wait(10)
        """
    )
    installed = any(point.value == "redfence.pytest_plugin" for point in pytest_entry_points())
    monkeypatch.setenv("PYTHONPATH", str(Path(redfence.__file__).resolve().parents[1]))
    done = pytester.runpytest_subprocess(*([] if installed else ["-p", "redfence.pytest_plugin"]))
    done.assert_outcomes(passed=1)


def test_a_missing_program_says_so() -> None:
    with pytest.raises(TestServerMissing):
        TestServer("/bin/true")
    assert redfence.__version__
