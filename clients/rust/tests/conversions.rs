//! Upgrades and downgrades beside renewals, beside `close`, dropped half-way, and with a lost answer.

mod support;

use redfence_client::{Client, Error, Kind, State};
use redfence_testserver::TestServer;
use std::pin::pin;
use std::time::Duration;
use support::relay::{Fault, Faults, Relay};
use support::steps::{impatient, start, stop_when, until, LONG, SECOND};

#[tokio::test]
async fn a_renewal_of_the_old_fence_beside_an_upgrade_is_no_loss() {
    let (server, harness) = start().await;
    for is_bound in [false, true] {
        let client = harness.client().await.unwrap();
        let request = client.lock("a").ttl(30 * SECOND).shared();
        let lock = if is_bound { request } else { request.transferable() }.acquire().await.unwrap();
        let (old, before) = (lock.fence(), server.calls("LOCK.CONVERT"));
        let mut upgrade = pin!(lock.upgrade(Duration::ZERO));
        stop_when(upgrade.as_mut(), || server.calls("LOCK.CONVERT") > before).await;
        // Renewed by the fence that the server has replaced already.
        harness.advance(11 * SECOND).await;
        assert_eq!(lock.loss(), None);
        upgrade.await.unwrap();
        harness.advance(60 * SECOND).await;
        assert_eq!((lock.state(), lock.kind()), (State::Held, Kind::Exclusive));
        assert!(lock.fence() > old);
        lock.release().await.unwrap();
        assert_eq!(server.stats().locks, 0);
        client.close().await;
    }
}

#[tokio::test]
async fn an_upgrade_that_was_dropped_after_the_server_acted_is_found_out() {
    let (server, harness) = start().await;
    let client = harness.client().await.unwrap();
    let lock = client.lock("a").ttl(30 * SECOND).shared().transferable().acquire().await.unwrap();
    let old = lock.fence();
    {
        let mut upgrade = pin!(lock.upgrade(Duration::ZERO));
        stop_when(upgrade.as_mut(), || server.calls("LOCK.CONVERT") == 1).await;
    }
    harness.advance(60 * SECOND).await;
    assert_eq!((lock.state(), lock.kind()), (State::Held, Kind::Exclusive));
    assert!(lock.fence() > old);
    lock.release().await.unwrap();
    assert_eq!(server.stats().locks, 0);
}

#[tokio::test]
async fn a_handle_dropped_beside_its_upgrade_leaves_nothing() {
    let (server, harness) = start().await;
    let client = harness.client().await.unwrap();
    let lock = client.lock("a").ttl(600 * SECOND).shared().transferable().acquire().await.unwrap();
    {
        let mut upgrade = pin!(lock.upgrade(Duration::ZERO));
        stop_when(upgrade.as_mut(), || server.calls("LOCK.CONVERT") == 1).await;
    }
    drop(lock);
    until("it is given back", || server.stats().locks == 0).await;
}

#[tokio::test]
async fn an_upgrade_beside_close_leaves_nothing() {
    let (server, harness) = start().await;
    let client = harness.client().await.unwrap();
    let lock = client.lock("a").ttl(600 * SECOND).shared().transferable().acquire().await.unwrap();
    let mut upgrade = pin!(lock.upgrade(Duration::ZERO));
    stop_when(upgrade.as_mut(), || server.calls("LOCK.CONVERT") == 1).await;
    client.clone().close().await;
    assert!(upgrade.await.is_err());
    assert_eq!(lock.state(), State::Lost);
    until("it is given back", || server.stats().locks == 0).await;
}

#[tokio::test]
async fn a_downgrade_whose_answer_is_lost_is_no_exclusive_lock_any_more() {
    let server = TestServer::start().expect("a free port on loopback");
    let faults = Faults::default();
    let relay = Relay::start(server.address(), faults.clone()).await;
    let client = Client::connect([format!("redis://{}", relay.address)]).await.unwrap();
    let other = Client::connect([server.url()]).await.unwrap();
    for fault in [Fault::DropReply, Fault::Indeterminate] {
        let lock = client.lock("a").transferable().acquire().await.unwrap();
        faults.add("LOCK.CONVERT", fault, 1);
        let outcome = lock.downgrade().await;
        let reader = other.lock("a").shared().transferable().acquire().await.unwrap();
        assert_eq!((lock.state(), lock.kind()), (State::Held, Kind::Shared), "{fault:?} {outcome:?}");
        outcome.unwrap();
        reader.release().await.unwrap();
        lock.release().await.unwrap();
    }
}

#[tokio::test]
async fn an_upgrade_at_a_node_that_fell_silent_ends() {
    let server = TestServer::start().expect("a free port on loopback");
    let (relays, client) = impatient(&server).await;
    let other = Client::connect([server.url()]).await.unwrap();
    let _reader = other.lock("a").shared().acquire().await.unwrap();
    let lock = client.lock("a").shared().acquire().await.unwrap();
    let cut = async {
        until("it waits", || server.calls("LOCK.CONVERT") == 1).await;
        relays[0].cut(true);
        // Finds out that nobody answers there, and asks at the other.
        client.info("a").await.unwrap();
    };
    let both = async { tokio::join!(lock.upgrade(600 * SECOND), cut).0 };
    let outcome = tokio::time::timeout(LONG, Box::pin(both)).await.expect("it ends");
    assert!(matches!(outcome, Err(Error::Indeterminate { .. })), "{outcome:?}");
    assert_eq!((lock.state(), lock.kind()), (State::Held, Kind::Shared));
}
