//! After something went wrong: nothing is left behind, nothing is believed for longer than need be, and the way back is found.

mod support;

use redfence_client::testing;
use redfence_client::{Client, Error, State};
use redfence_testserver::{Fault, Options, TestServer};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::relay::{Fault as RelayFault, Faults, Relay};
use support::steps::{lose_unheard, relayed, start, stop_when, until, SECOND};

#[tokio::test]
async fn no_time_is_too_long() {
    let server = TestServer::start().expect("a free port on loopback");
    let builder = Client::builder().address(server.url());
    let endless = builder.connect_timeout(Duration::MAX).attempt_timeout(Duration::MAX);
    let client = endless.operation_timeout(Duration::MAX).max_hold(Duration::MAX).connect().await.unwrap();
    let lock = client.lock("a").max_hold(Duration::MAX).acquire().await.unwrap();
    assert!(matches!(lock.ensure(Duration::MAX).await, Err(Error::TooLittleTime { .. })));
    lock.downgrade().await.unwrap();
    lock.release().await.unwrap();
    drop(client.lock("b").acquire().await.unwrap());
    until("it is given back", || server.stats().locks == 0).await;
    // The background task is alive.
    assert_eq!(client.lock("c").acquire().await.unwrap().state(), State::Held);
    client.info("c").await.unwrap();
    client.close().await;
    until("its connections are closed", || server.stats().connections == 0).await;
}

#[tokio::test]
async fn acquisitions_cancelled_while_the_session_is_opened_leave_no_sessions() {
    let (server, harness) = start().await;
    let client = harness.client().await.unwrap();
    for round in 1..=5 {
        let mut cancelled = pin!(client.lock("a").acquire());
        let opened = || server.calls("LOCK.SESSION") >= round || server.calls("LOCK.ACQUIRE") > 0;
        stop_when(cancelled.as_mut(), opened).await;
    }
    let lock = client.lock("b").acquire().await.unwrap();
    harness.advance(120 * SECOND).await;
    assert_eq!(lock.state(), State::Held);
    assert_eq!(server.stats().sessions, 1);
}

#[tokio::test]
async fn the_circuit_opens_for_ordinary_locks_and_each_probe_is_answered() {
    let server = TestServer::start().expect("a free port on loopback");
    let relay = Relay::start(server.address(), Faults::default()).await;
    let builder = Client::builder().address(format!("redis://{}", relay.address));
    let client = builder.operation_timeout(Duration::from_millis(300)).connect().await.unwrap();
    relay.crash();
    until("it knows", || testing::open_connections(&client) == 0).await;
    let mut opened = false;
    for _ in 0..8 {
        let refused = client.lock("a").acquire().await;
        opened |= matches!(refused, Err(Error::Unavailable { circuit_open: true, .. }));
    }
    assert!(opened);
    // A probe that fails.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert!(client.lock("a").acquire().await.is_err());
    relay.heal();
    let began = Instant::now();
    while client.lock("a").acquire().await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(began.elapsed() < 4 * SECOND, "{:?}", began.elapsed());
}

#[tokio::test]
async fn what_may_have_happened_is_not_called_unavailable() {
    let (server, harness) = start().await;
    let client = harness.client_with(Client::builder().session(false)).await.unwrap();
    server.fail(Fault::LostReply, 1);
    server.fail(Fault::Unavailable, 20);
    let refused = client.lock("a").ttl(600 * SECOND).acquire().await;
    assert!(matches!(refused, Err(Error::Indeterminate { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_loss_while_there_was_no_connection_is_told_without_a_session_too() {
    let server = TestServer::start().expect("a free port on loopback");
    let (relay, clock, client) = relayed(&server, Client::builder().session(false)).await;
    let lock = client.lock("a").ttl(3600 * SECOND).acquire().await.unwrap();
    lose_unheard(&server, &relay, &clock, || lock.loss()).await;
}

#[tokio::test]
async fn a_lock_taken_after_a_pause_is_held() {
    let (_server, harness) = start().await;
    let client = harness.client().await.unwrap();
    let old = client.lock("a").ttl(600 * SECOND).acquire().await.unwrap();
    // Nothing else has run since the clock jumped, and the server was quicker to grant than to end the session.
    harness.stop_renewals(&client);
    harness.advance_clients(31 * SECOND).await;
    assert_eq!(old.state(), State::Lost);
    let lock = client.lock("b").ttl(600 * SECOND).acquire().await.unwrap();
    assert_eq!(lock.loss(), None);
}

#[tokio::test]
async fn work_ends_when_another_task_gives_the_lock_back() {
    let (_server, harness) = start().await;
    let client = harness.client().await.unwrap();
    let lock = Arc::new(client.lock("a").acquire().await.unwrap());
    let own = Arc::clone(&lock);
    let work = tokio::spawn(async move { own.run(std::future::pending::<()>()).await });
    tokio::task::yield_now().await;
    lock.release().await.unwrap();
    let ended = tokio::time::timeout(SECOND, work).await.expect("it ends").unwrap();
    assert!(matches!(ended, Err(Error::Lost(_))), "{ended:?}");
}

#[tokio::test]
async fn a_session_is_kept_alive_at_another_node_than_one_without_quorum() {
    let options = Options { real_time: true, ..Options::default() };
    let server = TestServer::with_options(options).expect("a free port on loopback");
    let faults = Faults::default();
    let first = Relay::start(server.address(), faults.clone()).await;
    let second = Relay::start(server.address(), Faults::default()).await;
    let addresses = [&first, &second].map(|relay| format!("redis://{}", relay.address));
    let client = Client::builder().addresses(addresses).session_ttl(2 * SECOND).connect().await.unwrap();
    let lock = client.lock("a").ttl(600 * SECOND).acquire().await.unwrap();
    faults.add("LOCK.SESSION", RelayFault::Unavailable, 1_000_000);
    tokio::time::sleep(4 * SECOND).await;
    assert_eq!(lock.state(), State::Held, "{:?}", lock.loss());
}
