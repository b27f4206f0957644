"""The threaded client against a real node: what the shared table cannot say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
import warnings
from pathlib import Path
from typing import Any, List

import pytest

import redfence
from backends import Backend, poll

SHORT = os.environ.get("REDFENCE_SDK") == "short"
SRC = str(Path(redfence.__file__).resolve().parents[1])


def name() -> str:
    return f"t-{uuid.uuid4().hex}"


def mine() -> List[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("redfence-")]


@pytest.fixture
def no_threads() -> Any:
    poll(lambda: not mine(), what="threads of earlier tests are gone")


def test_body_error_is_not_masked_by_a_lost_lock(any_backend: Backend) -> None:
    resource = name()
    with redfence.Client(any_backend.urls()) as rf:
        with pytest.raises(ZeroDivisionError):
            with rf.lock(resource, ttl=2):
                any_backend.execute("LOCK.FORCERELEASE", resource)
                1 / 0


def test_clean_end_of_a_body_whose_lock_was_lost_raises_lost(any_backend: Backend) -> None:
    resource = name()
    with redfence.Client(any_backend.urls()) as rf:
        with pytest.raises(redfence.Lost):
            with rf.lock(resource, ttl=60):
                any_backend.execute("LOCK.FORCERELEASE", resource)


def test_fence_call_refuses_the_late_write(any_backend: Backend) -> None:
    resource, key = "{f}" + name(), "{f}" + name()
    with redfence.Client(any_backend.urls()) as rf:
        first = rf.lock(resource, transferable=True).acquire()
        assert first.fence_call("SET", key, "1") in (b"OK", "OK")
        first.release()
        with rf.lock(resource) as second:
            second.fence_call("SET", key, "2")
            with pytest.raises(redfence.StaleFence):
                first.fence_call("SET", key, "1")
            assert rf.fence_get(resource) == second.fence()
            assert not rf.fence_check(resource, first.fence())


def test_questions(any_backend: Backend) -> None:
    resource = name()
    with redfence.Client(any_backend.urls()) as rf:
        assert not rf.info(resource).held
        with rf.lock(resource, ttl=20) as lock:
            info = rf.info(resource)
            assert info.held and info.owner == lock.owner and info.fence == lock.fence()
            assert resource in list(rf.scan("t-*"))
            assert rf.queue(resource) == []
            with pytest.raises(redfence.Busy) as busy:
                rf.lock(resource, explain=True).acquire()
            assert busy.value.holder == lock.owner and busy.value.position == 1
            assert rf.lock(resource).try_acquire() is None
        assert rf.force_release(resource) is False


def test_decorator_holds_the_lock_while_the_function_runs(single: Backend) -> None:
    prefix = name()
    with redfence.Client(single.urls()) as rf:

        @rf.locked(prefix + ":{invoice}", ttl=5, lock_argument="lock")
        def pay(invoice: int, lock: Any = None) -> int:
            assert rf.info(f"{prefix}:{invoice}").owner == lock.owner
            return invoice + 1

        assert pay(7) == 8
        assert pay.__name__ == "pay"
        assert not rf.info(f"{prefix}:7").held


def test_a_handle_is_not_bound_to_its_thread(single: Backend) -> None:
    with redfence.Client(single.urls()) as rf:
        lock = rf.lock(name()).acquire()
        results: List[Any] = []
        thread = threading.Thread(target=lambda: results.append(lock.release()))
        thread.start()
        thread.join()
        assert str(results[0]) == "ok"


def test_hundreds_of_locks_are_renewed_by_one_renewer_and_nothing_leaks(single: Backend, no_threads: Any) -> None:
    prefix = name()

    def sockets() -> int:
        return sum(1 for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}"))

    before = sockets()
    rf = redfence.Client(single.urls())
    locks = [rf.lock(f"{prefix}:{i}", ttl=6).acquire() for i in range(300)]
    assert len(mine()) <= 3
    time.sleep(0.5 if SHORT else 7)  # past the ttl
    assert all(lock.state is redfence.State.HELD for lock in locks)
    assert sockets() - before < 16
    for lock in locks:
        lock.release()
    assert len(rf._context.keeper) == 0
    rf.close()
    poll(lambda: not mine(), what="no thread is left")
    poll(lambda: sockets() <= before, what="no socket is left")


def test_a_dropped_handle_is_released_with_a_warning(single: Backend) -> None:
    resource = name()
    with redfence.Client(single.urls()) as rf:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            rf.lock(resource, ttl=600).acquire()
        assert any(issubclass(each.category, ResourceWarning) for each in caught)
        poll(lambda: not rf.info(resource).held, what="released in the background")


def test_session_bound_lock_cannot_be_handed_over(single: Backend) -> None:
    with redfence.Client(single.urls()) as rf, rf.lock(name()) as lock:
        with pytest.raises(redfence.NotTransferable):
            lock.token()


def test_token_of_an_ended_lock_is_lost(single: Backend) -> None:
    resource = name()
    with redfence.Client(single.urls()) as rf:
        token = rf.lock(resource, transferable=True).acquire().token()
        rf.force_release(resource)
        with pytest.raises(redfence.Lost):
            rf.adopt(token)


def test_lock_is_handed_to_another_process(single: Backend) -> None:
    resource = name()
    with redfence.Client(single.urls()) as rf:
        lock = rf.lock(resource, ttl=20, transferable=True).acquire()
        fence = lock.fence()
        program = textwrap.dedent(
            """
            import sys, redfence
            with redfence.Client(sys.argv[1]) as rf:
                lock = rf.adopt(sys.argv[2])
                print(lock.fence(), lock.release())
            """
        )
        done = run_python(program, single.urls()[0], lock.token())
        assert done == f"{fence} ok"
        assert not rf.info(resource).held


def run_python(program: str, *args: str) -> str:
    env = {**os.environ, "PYTHONPATH": SRC}
    done = subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True, timeout=90, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_interrupted_acquire_leaves_nothing_behind(any_backend: Backend) -> None:
    """A signal in the middle of a wait: the place in the queue is given up."""
    resource = name()
    program = textwrap.dedent(
        """
        import signal, sys, redfence
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests in the background ignores it
        rf = redfence.Client(sys.argv[1])
        try:
            print("waiting", flush=True)
            rf.lock(sys.argv[2], ttl=600, wait=600).acquire()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        sys.stdin.read()
        rf.close()
        """
    )
    with redfence.Client(any_backend.urls()) as rf:
        lock = rf.lock(resource, ttl=60).acquire()
        env = {**os.environ, "PYTHONPATH": SRC}
        child = subprocess.Popen(
            [sys.executable, "-c", program, any_backend.urls()[0], resource], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
        )
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"waiting\n"
            poll(lambda: rf.info(resource).waiters == 1, what="it waits")
            child.send_signal(signal.SIGINT)
            assert child.stdout.readline() == b"interrupted\n"
            poll(lambda: rf.info(resource).waiters == 0, what="it left the queue")
            lock.release()
            rf.lock(resource, wait=10).acquire().release()
        finally:
            child.communicate(b"", timeout=30)


def test_a_fork_loses_the_locks_in_the_child_and_nothing_in_the_parent(single: Backend) -> None:
    program = textwrap.dedent(
        """
        import os, sys, time, redfence
        rf = redfence.Client(sys.argv[1])
        lock = rf.lock(sys.argv[2], ttl=3).acquire()
        pid = os.fork()
        if pid == 0:
            try:
                assert lock.lost.is_set(), "not lost in the child"
                assert lock.loss.cause == "fork", lock.loss
                assert str(lock.release()) == "lost"
                with rf.lock(sys.argv[2] + "-child", ttl=3) as own:   # the client works on in the child, with a session of its own
                    assert own.state == "held"
                rf.close()
                os._exit(0)
            except BaseException as error:
                print("child:", repr(error), flush=True)
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        time.sleep(4)
        assert lock.state == "held", lock
        print(lock.release())
        rf.close()
        """
    )
    assert run_python(program, single.urls()[0], name()) == "ok"


def test_a_program_paused_past_its_ttl_finds_its_lock_lost(any_backend: Backend) -> None:
    resource = name()
    program = textwrap.dedent(
        """
        import sys, time, redfence
        rf = redfence.Client(sys.argv[1], session_ttl=2)
        lock = rf.lock(sys.argv[2], ttl=2).acquire()
        print(lock.fence(), flush=True)
        sys.stdin.readline()                       # stopped here, and continued
        print(lock.lost.is_set(), lock.remaining(), str(lock.release()), flush=True)
        rf.close()
        """
    )
    env = {**os.environ, "PYTHONPATH": SRC}
    child = subprocess.Popen(
        [sys.executable, "-c", program, any_backend.urls()[0], resource],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env,
    )  # fmt: skip
    try:
        assert child.stdin is not None and child.stdout is not None
        fence = int(child.stdout.readline())
        child.send_signal(signal.SIGSTOP)
        with redfence.Client(any_backend.urls()) as rf:
            with rf.lock(resource, ttl=20, wait=60) as successor:
                assert successor.fence() > fence
                child.stdin.write(b"\n")
                child.stdin.flush()
                child.send_signal(signal.SIGCONT)
                assert child.stdout.readline() == b"True 0.0 lost\n"
                assert successor.state is redfence.State.HELD
    finally:
        child.kill()
        child.wait()


def test_watch_tells_what_happens(any_backend: Backend) -> None:
    resource = name()
    with redfence.Client(any_backend.urls()) as rf:
        with rf.watch(resource[:10] + "*") as events:
            with rf.lock(resource) as lock:
                acquired = events.next(20)
            assert acquired is not None
            assert (acquired.event, acquired.resource, acquired.fence) == ("acquired", resource, lock.fence())
            released = events.next(20)
            while released is not None and released.event == "renewed":  # once, when the client begins to listen for losses
                released = events.next(20)
            assert released is not None and released.event == "released"


def test_a_watch_can_be_closed_by_another_thread(single: Backend) -> None:
    with redfence.Client(single.urls()) as rf:
        events = rf.watch(name() + "*")
        seen: List[Any] = []
        reading = threading.Event()

        def read() -> None:
            with events:
                reading.set()
                seen.extend(events)

        thread = threading.Thread(target=read)
        thread.start()
        assert reading.wait(30)
        events.close()
        thread.join(30)
        assert not thread.is_alive() and seen == []
        assert events.next(1) is None


def test_election_without_values_works_everywhere(any_backend: Backend) -> None:
    resource = name()
    with redfence.Client(any_backend.urls()) as one, redfence.Client(any_backend.urls()) as two:
        election = one.election(resource, ttl=5)
        leadership = election.campaign()
        leader = two.election(resource).leader()
        assert leader is not None and leader.fence == leadership.fence()
        with pytest.raises(redfence.Busy):
            two.election(resource).campaign(wait=0.1)
        terms = two.election(resource).observe(timeout=30)
        first = next(terms)
        assert first is not None and first.fence == leadership.fence()
        election.resign(leadership)
        assert next(terms) is None
        terms.close()


def test_closed_client_refuses(single: Backend) -> None:
    rf = redfence.Client(single.urls())
    rf.close()
    rf.close()
    with pytest.raises(redfence.InvalidRequest, match="closed"):
        rf.lock(name()).acquire()


def test_a_lock_of_a_closed_client_is_lost(single: Backend) -> None:
    rf = redfence.Client(single.urls())
    lock = rf.lock(name()).acquire()
    rf.close()
    assert lock.loss is not None and lock.loss.cause == "closed"


def test_wrong_password_is_an_error_not_a_wait(single: Backend) -> None:
    url = single.urls()[0].replace("redis://", "redis://nobody:wrong@")
    with redfence.Client(url, timeout=5) as rf:
        began = time.monotonic()
        with pytest.raises(redfence.ServerError):
            rf.info("r")
        assert time.monotonic() - began < 4
