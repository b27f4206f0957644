"""What needs no server: deadlines, retries, words, options."""

from __future__ import annotations

import math

import pytest

import redfence
from redfence import _flows, _wire
from redfence._handle import parse_token
from redfence._lease import Keeper, Lease, SessionLease, State
from redfence._options import lock_options, name_formatter
from redfence._retry import Addresses, Backoff, CircuitBreaker
from redfence._wire import FUNCTIONS, SERVER, Grant, LockRequest, LossNotice, Refusal
from redfence.errors import Loss
from redfence.testing import ManualClock


def request(ttl_ms: int = 30_000, names: "tuple[str, ...]" = ("r",), **more: object) -> LockRequest:
    return LockRequest(names=names, multi=len(names) > 1, ttl_ms=ttl_ms, wait_ms=0, owner="o", **more)  # type: ignore[arg-type]


def lease(clock: ManualClock, ttl_ms: int = 30_000, session: "SessionLease | None" = None, hold: float = math.inf) -> Lease:
    return Lease(request(ttl_ms), Grant((7,), ttl_ms, clock()), session, clock() + hold, clock)


def test_deadline_counts_from_when_the_renewal_was_sent() -> None:
    clock = ManualClock()
    held = lease(clock)
    clock.advance(10)
    sent = clock()
    clock.advance(5)  # the reply took five seconds
    held.renewed(sent, 30_000)
    assert held.remaining() == pytest.approx(25)


def test_reply_that_was_overtaken_changes_nothing() -> None:
    clock = ManualClock()
    held = lease(clock)
    first = clock()
    clock.advance(9)
    held.renewed(clock(), 30_000)
    held.renewed(first, 30_000)
    assert held.remaining() == pytest.approx(30)


def test_states_go_from_held_to_suspect_to_lost() -> None:
    clock = ManualClock()
    held = lease(clock)
    told = []
    held.tell_loss_to(told.append)
    assert held.state() is State.HELD
    clock.advance(20)
    assert held.state() is State.SUSPECT
    clock.advance(10)
    assert held.state() is State.LOST
    assert told == [Loss("deadline")]
    assert held.remaining() == 0


def test_lock_ends_with_its_session_by_the_own_clock() -> None:
    clock = ManualClock()
    session = SessionLease("s", 5.0, clock())
    held = lease(clock, session=session)
    assert held.remaining() == pytest.approx(5)
    clock.advance(5)
    assert held.state() is State.LOST


def test_max_hold_shortens_the_last_renewal() -> None:
    clock = ManualClock()
    held = lease(clock, hold=40)
    assert held.renewal_ttl_ms(clock()) == 30_000
    clock.advance(29)
    held.renewed(clock(), 30_000)
    assert held.renewal_ttl_ms(clock()) == pytest.approx(11_000, abs=60)
    clock.advance(11)
    held.check()
    assert held.loss == Loss("max_hold")


def test_release_after_loss_and_loss_after_release_change_nothing() -> None:
    clock = ManualClock()
    lost = lease(clock)
    assert lost.lose(Loss("forced"))
    assert not lost.lose(Loss("expired"))
    assert not lost.finish()
    assert lost.loss == Loss("forced")
    released = lease(clock)
    assert released.finish()
    assert not released.lose(Loss("forced"))
    assert released.state() is State.RELEASED


def test_renewals_that_are_nearly_due_go_in_one_batch_with_the_session() -> None:
    clock = ManualClock()
    keeper = Keeper(clock)
    keeper.session = SessionLease("s", 30.0, clock())
    for _ in range(100):
        keeper.add(lease(clock, session=keeper.session))
    assert keeper.batch(SERVER) is None
    clock.advance(10)
    batch = keeper.batch(SERVER)
    assert batch is not None
    assert len(batch) == 101
    keeper.settle(batch, [30_000] + [[1, 30_000]] * 100)
    assert keeper.batch(SERVER) is None
    assert all(each.remaining() == pytest.approx(30) for each in keeper.leases())


def test_batch_is_bounded_and_the_rest_goes_next() -> None:
    clock = ManualClock()
    keeper = Keeper(clock)
    for _ in range(Keeper.BATCH_MAX + 10):
        keeper.add(lease(clock))
    clock.advance(11)
    batch = keeper.batch(SERVER)
    assert batch is not None and len(batch) == Keeper.BATCH_MAX
    keeper.settle(batch, [[1, 30_000]] * len(batch))
    rest = keeper.batch(SERVER)
    assert rest is not None and len(rest) == 10


def test_refused_renewal_is_a_loss_with_its_reason_and_an_error_is_tried_again_soon() -> None:
    clock = ManualClock()
    keeper = Keeper(clock)
    refused, failed = lease(clock), lease(clock)
    keeper.add(refused)
    keeper.add(failed)
    clock.advance(10)
    batch = keeper.batch(SERVER)
    assert batch is not None
    replies = {refused: [0, b"expired"], failed: Refusal("UNAVAILABLE no leader")}
    keeper.settle(batch, [replies[target] for target in batch.targets if target is not None])
    assert refused.loss == Loss("expired")
    assert failed.loss is None
    assert failed.renew_at - clock() < 1


def test_multi_lock_is_renewed_only_with_all_its_names() -> None:
    clock = ManualClock()
    keeper = Keeper(clock)
    both = Lease(request(names=("x", "y")), Grant((7, 8), 30_000, clock()), None, math.inf, clock)
    keeper.add(both)
    clock.advance(10)
    batch = keeper.batch(SERVER)
    assert batch is not None and len(batch) == 2
    keeper.settle(batch, [[1, 30_000], Refusal("UNAVAILABLE no leader")])
    assert both.remaining() == pytest.approx(20)


def test_ended_session_loses_its_locks_and_no_others() -> None:
    clock = ManualClock()
    keeper = Keeper(clock)
    keeper.session = SessionLease("s", 30.0, clock())
    bound, free = lease(clock, session=keeper.session), lease(clock)
    keeper.add(bound)
    keeper.add(free)
    clock.advance(10)
    batch = keeper.batch(SERVER)
    assert batch is not None
    keeper.settle(batch, [Refusal("NOSESSION it has ended") if target is None else [1, 30_000] for target in batch.targets])
    assert bound.loss == Loss("session_ended")
    assert free.loss is None
    assert keeper.session is None


def test_push_finds_its_lock_by_name_and_fence() -> None:
    clock = ManualClock()
    keeper = Keeper(clock)
    held = lease(clock, session=SessionLease("s", 30.0, clock()))
    keeper.add(held)
    keeper.notice(LossNotice(False, b"r", 6, "forced", None))
    assert held.loss is None
    keeper.notice(LossNotice(True, b"r", 7, "no_quorum", None))
    assert held.state() is State.SUSPECT
    keeper.notice(LossNotice(False, b"r", 7, "wounded", 9))
    assert held.loss == Loss("wounded", 9)


def test_backoff_grows_with_jitter_up_to_its_limit() -> None:
    backoff = Backoff(0.1, 1.0)
    pauses = [backoff.next() for _ in range(8)]
    assert 0.05 <= pauses[0] <= 0.1
    assert 0.5 <= pauses[-1] <= 1.0


def test_breaker_opens_after_five_failures_and_probes_with_one_request() -> None:
    clock = ManualClock()
    breaker = CircuitBreaker(clock)
    for _ in range(4):
        breaker.failed()
    breaker.admit()
    breaker.failed()
    with pytest.raises(redfence.CircuitOpen):
        breaker.admit()
    clock.advance(1.0)
    breaker.admit()  # the probe
    with pytest.raises(redfence.CircuitOpen):
        breaker.admit()
    breaker.succeeded()
    breaker.admit()


def test_breaker_forgets_failures_that_are_ten_seconds_apart() -> None:
    clock = ManualClock()
    breaker = CircuitBreaker(clock)
    for _ in range(20):
        breaker.failed()
        clock.advance(3)
    assert not breaker.is_open


def test_addresses_move_on_once_for_many_failures() -> None:
    addresses = Addresses(3, shuffle=False)
    addresses.move_on(0)
    addresses.move_on(0)
    assert addresses.current == 1
    assert addresses.round() == [1, 2, 0]


def test_words_of_both_dialects() -> None:
    ask = request(wait_ms=0) if False else request(tier="CORRECTNESS")
    assert SERVER.acquire(ask, 500, "s1") == (
        "LOCK.ACQUIRE", "r", 30_000, "OWNER", "o", "WAIT", 500, "SESSION", "s1", "TIER", "CORRECTNESS",
    )  # fmt: skip
    assert FUNCTIONS.acquire(request(names=("x", "y")), 0, None) == (
        "FCALL", "lock_macquire", 2, "x", "y", 30_000, "OWNER", "o",
    )  # fmt: skip
    assert SERVER.mrelease(("x", "y"), (1, 2), None) == ("LOCK.MRELEASE", 2, "x", 1, "y", 2)
    assert FUNCTIONS.mrelease(("x", "y"), (1, 2), None) == ("FCALL", "lock_mrelease", 2, "x", "y", 1, 2)
    assert FUNCTIONS.plain("FENCE.CALL", "r", 5, "SET", "k", "v") == ("FCALL", "fence_call", 1, "r", 5, "SET", "k", "v")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("TIER not here", redfence.TierRefused),
        ("DEADLOCK a waits for b", redfence.Deadlock),
        ("MODE held in mode shared", redfence.WrongMode),
        ("STALE fence 1 is behind 2", redfence.StaleFence),
        ("ERR unknown command 'LOCK.NOTIFY'", redfence.UnsupportedByServer),
        ("ERR syntax error: unknown option 'SHARED'", redfence.UnsupportedByServer),
        ("ERR SHARED needs cluster version 2", redfence.UnsupportedByServer),
        ("NOPERM no", redfence.ServerError),
    ],
)
def test_error_replies_become_types(text: str, error: type) -> None:
    assert type(Refusal(text).public()) is error


OPTIONS = dict(ttl=30, wait=0, tier=None, max_hold=None, transferable=False, on_unavailable="fail", explain=False)


@pytest.mark.parametrize(
    "change",
    [
        {"ttl": 0}, {"ttl": -1}, {"ttl": float("nan")}, {"ttl": float("inf")}, {"ttl": "30"}, {"wait": 3601}, {"wait": -1}, {"tier": "best"},
        {"max_hold": 0}, {"value": b"x" * 1025}, {"on_unavailable": "maybe"}, {"on_unavailable": "proceed"},
        {"on_unavailable": "local", "tier": "correctness"}, {"kind": "permits", "permits": 3, "permits_of": 2},
    ],
)  # fmt: skip
def test_options_outside_their_limits_are_refused(change: "dict[str, object]") -> None:
    with pytest.raises(redfence.InvalidRequest):
        lock_options(["r"], **{**OPTIONS, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize("names", [[""], ["x" * 513], [b""], [7], ["x", "x"]])
def test_names_outside_their_limits_are_refused(names: "list[object]") -> None:
    with pytest.raises(redfence.InvalidRequest):
        lock_options(names, multi=True, **OPTIONS)  # type: ignore[arg-type]


def test_owner_is_new_for_each_acquisition() -> None:
    options = lock_options(["r"], **OPTIONS)  # type: ignore[arg-type]
    assert options.request().owner != options.request().owner


def test_decorator_names_use_arguments_and_defaults() -> None:
    def pay(invoice: int, *, currency: str = "EUR") -> None: ...

    name = name_formatter("invoice:{invoice}:{currency}", pay)
    assert name(7) == "invoice:7:EUR"
    assert name(invoice=8, currency="CHF") == "invoice:8:CHF"


@pytest.mark.parametrize("token", ["", "x", "e30", "!!!!", "bm8"])
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(redfence.InvalidRequest):
        parse_token(token)


def test_fallback_is_for_efficiency_alone_and_addresses_are_checked() -> None:
    with redfence.Client("127.0.0.1:1") as rf:
        with pytest.raises(redfence.InvalidRequest, match="efficiency"):
            rf.lock("r", on_unavailable="proceed")
    for bad in ("http://x", []):
        with pytest.raises(redfence.InvalidRequest):
            redfence.Client(bad)


def test_fallback_without_a_server_is_never_silent(caplog: pytest.LogCaptureFixture) -> None:
    with redfence.Client("127.0.0.1:1", timeout=0.2, connect_timeout=0.1) as rf:
        with pytest.raises(redfence.Unavailable):
            rf.lock("r", tier="efficiency").acquire()
        with rf.lock("r", tier="efficiency", on_unavailable="proceed") as lock:
            assert lock.degraded == "proceed"
            with pytest.raises(redfence.NotFenced):
                lock.fence()
            lock.ensure(1000)
        with rf.lock("r", tier="efficiency", on_unavailable="local"):
            with pytest.raises(redfence.Busy):
                rf.lock("r", tier="efficiency", on_unavailable="local").acquire()
        rf.lock("r", tier="efficiency", on_unavailable="local").acquire().release()
    assert "goes on with on_unavailable='proceed'" in caplog.text


def test_breaker_fails_new_requests_at_once() -> None:
    with redfence.Client("127.0.0.1:1", timeout=2.0, connect_timeout=0.1, sessions=False) as rf:
        with pytest.raises(redfence.Unavailable):
            rf.lock("r").acquire()
        rf._context.breaker._probe_at = math.inf
        with pytest.raises(redfence.CircuitOpen):
            rf.lock("r").acquire()


def test_events_that_are_not_ours_are_ignored() -> None:
    assert _wire.parse_event(b"hello") is None
    assert _wire.parse_event(b'{"event":"acquired"}') is None
    assert _wire.parse_push([b"invalidate", None]) is None


def test_repeated_release_of_a_lost_reply_is_ok() -> None:
    context = _flows.Context(ManualClock(), 5.0)
    flow = _flows.release(context, request(), (7,), 5.0)
    next(flow)
    flow.throw(_flows.ReplyLost("gone"))
    with pytest.raises(StopIteration) as stop:
        flow.send([0, b"already_released"])
    assert stop.value.value == "ok"
