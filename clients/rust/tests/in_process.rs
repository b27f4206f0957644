//! The client against the real lock machine in this process, on a clock that the test moves.

use redfence_client::testing::{self, Harness, ManualClock};
use redfence_client::{Acquired, Cause, Client, Error, Event, OnUnavailable, Released, State, Tier, Token};
use redfence_testserver::{Fault, Partition, TestServer};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

async fn start() -> (TestServer, Harness) {
    let server = TestServer::start().expect("a free port on loopback");
    let harness = Harness::connect(server.address()).await.expect("it listens");
    (server, harness)
}

/// Waits for something that happens in the background.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waited = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waited).await.unwrap_or_else(|_| panic!("never: {what}"));
}

fn quick() -> redfence_client::ClientBuilder {
    Client::builder().attempt_timeout(Duration::from_millis(400)).operation_timeout(Duration::from_secs(2))
}

#[tokio::test]
async fn a_lock_is_renewed_as_long_as_its_handle_lives() {
    let (server, harness) = start().await;
    let client = harness.client().await.unwrap();
    let lock = client.lock("a").ttl(30 * SECOND).acquire().await.unwrap();
    harness.advance(3000 * SECOND).await;
    assert_eq!(lock.state(), State::Held);
    assert!(lock.remaining() > 19 * SECOND, "{:?}", lock.remaining());
    // A third of 30 s, with a jitter of a tenth.
    let renewals = server.calls("LOCK.RENEW");
    assert!((270..=335).contains(&renewals), "{renewals}");
    assert_eq!(lock.release().await.unwrap(), Released::Now);
    assert_eq!(lock.release().await.unwrap(), Released::Before);
    assert_eq!(lock.state(), State::Released);
}

#[tokio::test]
async fn many_locks_are_renewed_by_one_task_on_one_connection() {
    let (server, harness) = start().await;
    let client = harness.client().await.unwrap();
    let mut locks = Vec::new();
    for n in 0..600 {
        locks.push(client.lock(format!("n{n}")).ttl(30 * SECOND).acquire().await.unwrap());
    }
    harness.advance(120 * SECOND).await;
    assert!(locks.iter().all(|lock| lock.state() == State::Held));
    // This client's, and the harness's.
    assert_eq!(server.stats().connections, 2);
    assert_eq!(server.stats().sessions, 1);
}

#[tokio::test]
async fn a_stopped_client_loses_its_lock_by_its_own_clock() {
    let (_server, harness) = start().await;
    let client = harness.client().await.unwrap();
    let lock = client.lock("a").ttl(30 * SECOND).transferable().acquire().await.unwrap();
    harness.stop_renewals(&client);
    harness.advance(19 * SECOND).await;
    assert_eq!(lock.state(), State::Held);
    harness.advance(2 * SECOND).await;
    assert_eq!(lock.state(), State::Suspect);
    harness.advance(10 * SECOND).await;
    assert_eq!(lock.lost().await.cause, Cause::Deadline);
    assert!(lock.cancellation_token().is_cancelled());
    assert!(matches!(lock.ensure(SECOND).await, Err(Error::Lost(_))));
    assert!(matches!(lock.release().await, Err(Error::Lost(_))));
}

#[tokio::test]
async fn after_a_pause_the_first_look_finds_the_lock_lost() {
    let (server, harness) = start().await;
    let clock = ManualClock::new();
    let client = harness.client_with(Client::builder()).await.unwrap();
    let own = Client::builder().address(format!("redis://{}", server.address())).clock(clock.clone());
    let paused = own.connect().await.unwrap();
    let lock = paused.lock("a").ttl(30 * SECOND).acquire().await.unwrap();
    // Nothing else has run since the clock jumped: neither the renewer nor the server said a word.
    clock.jump(31 * SECOND);
    assert_eq!(lock.state(), State::Lost);
    assert_eq!(lock.remaining(), Duration::ZERO);
    assert!(matches!(lock.run(async {}).await, Err(Error::Lost(_))));
    drop(client);
}

#[tokio::test]
async fn work_is_dropped_when_the_lock_is_lost_and_its_own_error_is_never_masked() {
    let (_server, harness) = start().await;
    let client = harness.client().await.unwrap();
    let lock = client.lock("a").ttl(3 * SECOND).acquire().await.unwrap();
    let failed: Result<Result<(), &str>, Error> = lock.run(async { Err("of its own") }).await;
    assert_eq!(failed.unwrap(), Err("of its own"));
    let (work, ()) = tokio::join!(lock.run(std::future::pending::<()>()), async {
        harness.lose("a").await;
        harness.advance(2 * SECOND).await;
    });
    assert!(matches!(work, Err(Error::Lost(_))), "{work:?}");
}

#[tokio::test]
async fn the_server_tells_of_a_loss_while_every_clock_stands_still() {
    let (server, harness) = start().await;
    let client = harness.client().await.unwrap();
    for is_bound in [true, false] {
        let request = client.lock("a").ttl(600 * SECOND);
        let lock = if is_bound { request } else { request.transferable() }.acquire().await.unwrap();
        assert!(server.lose("a"));
        let loss = tokio::time::timeout(20 * SECOND, lock.lost()).await.expect("a push");
        assert_eq!(loss.cause, Cause::Forced);
        assert_eq!(lock.state(), State::Lost);
    }
    assert_eq!(server.calls("LOCK.RENEW"), 0, "no renewal could have told");
}

#[tokio::test]
async fn a_session_that_ends_takes_its_locks_along_and_the_next_lock_opens_a_new_one() {
    let (server, harness) = start().await;
    let client = harness.client().await.unwrap();
    let lock = client.lock("a").ttl(600 * SECOND).acquire().await.unwrap();
    assert!(matches!(lock.token(), Err(Error::Invalid { .. })));
    harness.advance_server(31 * SECOND).await;
    assert_eq!(server.stats().locks, 0);
    harness.advance_clients(11 * SECOND).await;
    assert_eq!(lock.lost().await.cause, Cause::SessionEnded);
    let next = client.lock("a").acquire().await.unwrap();
    assert!(next.fence() > lock.fence());
    assert_eq!(server.stats().sessions, 1);
}

#[tokio::test]
async fn a_closed_connection_costs_neither_session_nor_locks() {
    let (server, harness) = start().await;
    let client = harness.client_with(quick()).await.unwrap();
    let lock = client.lock("a").ttl(60 * SECOND).acquire().await.unwrap();
    // The harness's own connection is closed as well.
    server.disconnect();
    until("the keep-alive after the connection", || server.calls("LOCK.SESSION") >= 2).await;
    server.advance(Duration::from_secs(5));
    assert_eq!(server.stats().locks, 1);
    until("the keep-alive is answered", || lock.state() == State::Held).await;
    lock.release().await.unwrap();
}

#[tokio::test]
async fn lost_replies_and_unknown_outcomes_are_retried_with_the_same_owner() {
    let (server, harness) = start().await;
    let client = harness.client_with(quick()).await.unwrap();
    client.lock("warm-up").acquire().await.unwrap().release().await.unwrap();
    for fault in [Fault::LostReply, Fault::Indeterminate, Fault::Unavailable] {
        server.fail(fault, 1);
        let lock = client.lock("a").acquire().await.unwrap();
        assert_eq!(server.stats().locks, 1, "{fault:?}");
        server.fail(fault, 1);
        assert_eq!(lock.release().await.unwrap(), Released::Now, "{fault:?}");
        assert_eq!(server.stats().locks, 0, "{fault:?}");
    }
}

#[tokio::test]
async fn a_cancelled_acquisition_leaves_nothing_behind() {
    let (server, harness) = start().await;
    let client = harness.client_with(quick()).await.unwrap();
    let other = harness.client_with(quick()).await.unwrap();
    // Cancelled in the queue.
    let held = client.lock("a").acquire().await.unwrap();
    {
        let request = other.lock("a").wait(60 * SECOND);
        let waiting = request.acquire();
        tokio::select! {
            outcome = waiting => panic!("{outcome:?}"),
            () = until("it waits", || server.stats().waiters == 1) => {}
        }
    }
    until("it left the queue", || server.stats().waiters == 0).await;
    held.release().await.unwrap();
    until("nobody holds it", || server.stats().locks == 0).await;
    // Cancelled after the server acted, and before the client knew.
    server.fail(Fault::Indeterminate, 3);
    {
        let request = other.lock("b").ttl(600 * SECOND).transferable();
        let granted = request.acquire();
        tokio::select! {
            biased;
            () = until("the grant", || server.stats().locks == 1) => {}
            outcome = granted => panic!("{outcome:?}"),
        }
    }
    until("it was given back", || server.stats().locks == 0).await;
}

#[tokio::test]
async fn dropping_a_handle_releases_in_the_background_and_closing_releases_all() {
    let (server, harness) = start().await;
    let client = harness.client().await.unwrap();
    drop(client.lock("a").acquire().await.unwrap());
    until("it is released", || server.stats().locks == 0).await;
    let kept = client.lock("b").acquire().await.unwrap();
    client.clone().close().await;
    assert_eq!(server.stats().locks, 0);
    assert_eq!(server.stats().sessions, 0);
    assert_eq!(kept.loss().map(|loss| loss.cause), Some(Cause::Closed));
    assert!(matches!(client.lock("c").acquire().await, Err(Error::Closed)));
}

#[tokio::test]
async fn nothing_leaks() {
    let (server, harness) = start().await;
    let metrics = tokio::runtime::Handle::current().metrics();
    let before = metrics.num_alive_tasks();
    for round in 0..5 {
        let name = format!("a{round}");
        let client = harness.client_with(quick()).await.unwrap();
        let first = client.lock(&name).acquire().await.unwrap();
        let waits = (0..20).map(|_| client.lock(&name).wait(60 * SECOND).transferable().acquire());
        let cancelled =
            tokio::time::timeout(Duration::from_millis(100), futures_util::future::join_all(waits)).await;
        assert!(cancelled.is_err());
        assert!(testing::open_connections(&client) <= 5);
        drop(first);
        drop(client);
    }
    until("tasks end", || metrics.num_alive_tasks() <= before).await;
    // The harness's.
    until("connections close", || server.stats().connections == 1).await;
    until("locks are free", || server.stats().locks == 0 && server.stats().waiters == 0).await;
    assert_eq!(server.stats().sessions, 0);
}

#[tokio::test]
async fn the_longest_hold_ends_a_forgotten_lock() {
    let (server, harness) = start().await;
    let client = harness.client().await.unwrap();
    let lock = client.lock("a").ttl(10 * SECOND).max_hold(60 * SECOND).acquire().await.unwrap();
    harness.advance(59 * SECOND).await;
    assert_eq!(lock.state(), State::Held);
    harness.advance(2 * SECOND).await;
    assert_eq!(lock.lost().await.cause, Cause::MaxHold);
    until("it is free at once", || server.stats().locks == 0).await;
}

#[tokio::test]
async fn ensure_renews_first_and_says_when_that_is_not_enough() {
    let (server, harness) = start().await;
    let client = harness.client().await.unwrap();
    let lock = client.lock("a").ttl(30 * SECOND).acquire().await.unwrap();
    harness.stop_renewals(&client);
    harness.advance(15 * SECOND).await;
    lock.ensure(10 * SECOND).await.unwrap();
    assert_eq!(server.calls("LOCK.RENEW"), 0);
    lock.ensure(25 * SECOND).await.unwrap();
    assert_eq!(server.calls("LOCK.RENEW"), 1);
    assert!(matches!(lock.ensure(60 * SECOND).await, Err(Error::TooLittleTime { .. })));
    assert_eq!(lock.state(), State::Held);
}

#[tokio::test]
async fn a_lock_is_handed_to_another_client() {
    let (server, harness) = start().await;
    let (client, other) = (harness.client().await.unwrap(), harness.client().await.unwrap());
    let lock = client.lock("a").ttl(10 * SECOND).transferable().acquire().await.unwrap();
    let fence = lock.fence();
    let text = lock.hand_over().unwrap().to_string();
    client.close().await;
    let adopted = other.adopt(&text.parse::<Token>().unwrap()).await.unwrap();
    assert_eq!(adopted.fence(), fence);
    harness.advance(60 * SECOND).await;
    assert_eq!(adopted.state(), State::Held);
    let token = adopted.token().unwrap();
    adopted.release().await.unwrap();
    assert!(matches!(other.adopt(&token).await, Err(Error::Lost(_))));
    assert_eq!(server.stats().locks, 0);
}

#[tokio::test]
async fn busy_tells_who_holds_the_lock_where_asked_for() {
    let (_server, harness) = start().await;
    let client = harness.client().await.unwrap();
    let lock = client.lock("a").acquire().await.unwrap();
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    let Err(Error::Busy(busy)) = client.lock("a").describe_busy().acquire().await else {
        panic!("it is taken")
    };
    assert_eq!(busy.holder.as_deref(), Some(lock.owner().as_bytes()));
    assert_eq!((busy.fence, busy.waiting), (Some(lock.fence()), Some(0)));
    let info = client.info("a").await.unwrap();
    assert!(info.is_held && info.tier == Some(Tier::Correctness));
}

#[tokio::test]
async fn several_locks_are_taken_all_or_nothing_and_lost_together() {
    let (server, harness) = start().await;
    let client = harness.client().await.unwrap();
    let one = client.lock("b").acquire().await.unwrap();
    assert!(matches!(client.locks(["a", "b"]).acquire().await, Err(Error::Busy(_))));
    one.release().await.unwrap();
    let both = client.locks(["a", "b"]).ttl(9 * SECOND).acquire().await.unwrap();
    assert_eq!(both.fences().len(), 2);
    harness.advance(60 * SECOND).await;
    assert_eq!(both.state(), State::Held);
    harness.lose("b").await;
    harness.advance(4 * SECOND).await;
    assert!(both.loss().is_some());
    until("the other half is given back", || server.stats().locks == 0).await;
}

#[tokio::test]
async fn five_refusals_open_the_circuit_and_a_probe_closes_it() {
    let (server, harness) = start().await;
    let client = harness.client_with(quick().session(false)).await.unwrap();
    server.partition(Partition::NoQuorum);
    let mut opened = false;
    for _ in 0..4 {
        if let Err(Error::Unavailable { circuit_open, .. }) = client.lock("a").acquire().await {
            opened |= circuit_open;
        }
    }
    assert!(opened);
    server.partition(Partition::Off);
    let recovered = async {
        while client.lock("a").acquire().await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), recovered).await.expect("it closes");
}

#[tokio::test]
async fn a_fallback_is_for_efficiency_only_and_shows() {
    let (server, harness) = start().await;
    let client = harness.client_with(quick().operation_timeout(Duration::from_millis(50))).await.unwrap();
    let refused = client.lock("a").acquire_or(OnUnavailable::ProceedWithout).await;
    assert!(matches!(refused, Err(Error::Invalid { .. })));
    server.partition(Partition::NoQuorum);
    let ask = |on_unavailable| client.lock("a").tier(Tier::Efficiency).acquire_or(on_unavailable);
    assert!(matches!(ask(OnUnavailable::Fail).await, Err(Error::Unavailable { .. })));
    assert!(matches!(ask(OnUnavailable::ProceedWithout).await, Ok(Acquired::Without(_))));
    let local = ask(OnUnavailable::LocalLock).await;
    assert!(matches!(local, Ok(Acquired::Local(_))), "{local:?}");
    assert!(matches!(ask(OnUnavailable::LocalLock).await, Err(Error::Busy(_))));
    drop(local);
    assert!(matches!(ask(OnUnavailable::LocalLock).await, Ok(Acquired::Local(_))));
}

#[tokio::test]
async fn a_circle_of_sessions_is_refused() {
    let (server, harness) = start().await;
    let (one, two) = (harness.client().await.unwrap(), harness.client().await.unwrap());
    let _x = one.lock("x").acquire().await.unwrap();
    let y = two.lock("y").acquire().await.unwrap();
    let waiting = one.lock("y").wait(60 * SECOND).acquire();
    let refused = async {
        until("one waits", || server.stats().waiters == 1).await;
        let refused = two.lock("x").wait(60 * SECOND).acquire().await;
        y.release().await.unwrap();
        refused
    };
    let (granted, refused) = tokio::join!(waiting, refused);
    assert!(matches!(refused, Err(Error::Deadlock { .. })), "{refused:?}");
    assert!(granted.is_ok());
}

#[tokio::test]
async fn fenced_writes_are_refused_once_somebody_newer_was_there() {
    let (_server, harness) = start().await;
    let client = harness.client().await.unwrap();
    let old = client.lock("acc").acquire().await.unwrap();
    old.fenced().call::<()>(redis::cmd("SET").arg("balance").arg(1)).await.unwrap();
    old.release().await.unwrap();
    let new = client.lock("acc").acquire().await.unwrap();
    assert!(new.fenced().check().await.unwrap());
    let late = old.fenced().call::<()>(redis::cmd("SET").arg("balance").arg(2)).await;
    assert!(matches!(late, Err(Error::Stale { .. })), "{late:?}");
    assert!(!old.fenced().check().await.unwrap());
    assert_eq!(new.fenced().mark().await.unwrap(), new.fence());
}

#[tokio::test]
async fn events_are_a_stream_that_tells_of_its_gaps() {
    let (server, harness) = start().await;
    let client = harness.client_with(quick()).await.unwrap();
    let mut watch = client.watch("a*").await.unwrap();
    let lock = client.lock("ab").acquire().await.unwrap();
    let Event::Change(change) = watch.next().await else { panic!("a gap") };
    assert_eq!(
        (change.event.as_str(), change.resource.as_str(), change.fence),
        ("acquired", "ab", lock.fence())
    );
    server.disconnect();
    assert_eq!(watch.next().await, Event::Gap);
    drop(lock);
    let Event::Change(change) = watch.next().await else { panic!("a second gap") };
    assert_eq!(change.event, "released");
}

#[tokio::test]
async fn an_election_has_one_leader_and_observers_see_it() {
    let (_server, harness) = start().await;
    let (one, two, other) =
        (harness.client().await.unwrap(), harness.client().await.unwrap(), harness.client().await.unwrap());
    let (election, second) = (one.election("e"), two.election("e"));
    let observing = other.election("e");
    assert_eq!(observing.leader().await.unwrap(), None);
    let leadership = election.campaign().await.unwrap();
    let mut observer = observing.observe().await.unwrap();
    assert_eq!(observer.next().await.map(|leader| leader.fence), Some(leadership.fence()));
    let (next, ()) = tokio::join!(second.campaign(), async {
        leadership.resign().await.unwrap();
    });
    let next = next.unwrap();
    assert!(next.fence() > leadership.fence());
    while observer.next().await.map(|leader| leader.fence) != Some(next.fence()) {}
}

#[tokio::test]
async fn what_the_server_does_not_know_is_a_typed_error() {
    let (_server, harness) = start().await;
    let client = harness.client().await.unwrap();
    let exclusive = client.lock("b").acquire().await.unwrap();
    for refused in [
        // Names of their own: a dropped handle gives its lock back a moment later.
        client.lock("shared").shared().acquire().await.err(),
        client.lock("permits").permits(1, 3).acquire().await.err(),
        client.lock("value").value("host:1").acquire().await.err(),
        exclusive.downgrade().await.err(),
    ] {
        // A server of cluster version 2 serves them.
        assert!(matches!(refused, None | Some(Error::Unsupported { .. })), "{refused:?}");
    }
}

#[tokio::test]
async fn a_silent_server_is_an_error_in_time() {
    let (server, harness) = start().await;
    let client = harness.client_with(quick()).await.unwrap();
    let lock = client.lock("a").ttl(30 * SECOND).acquire().await.unwrap();
    server.partition(Partition::Silent);
    let refused = client.lock("b").acquire().await;
    assert!(matches!(refused, Err(Error::Unavailable { .. } | Error::Indeterminate { .. })), "{refused:?}");
    assert_eq!(lock.state(), State::Suspect);
    server.partition(Partition::Off);
    let back = async {
        while lock.ensure(25 * SECOND).await.is_err() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(20 * SECOND, back).await.expect("the client is back");
    assert_eq!(lock.state(), State::Held);
}

#[tokio::test]
async fn a_server_that_is_no_redfence_is_told_apart() {
    assert!(matches!(Client::connect(Vec::<String>::new()).await, Err(Error::Invalid { .. })));
    assert!(matches!(Client::connect(["nonsense"]).await, Err(Error::Invalid { .. })));
    let refused = Client::connect(["redis://127.0.0.1:1"]).await;
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
}
