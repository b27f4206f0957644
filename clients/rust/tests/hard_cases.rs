//! What a hostile reader looks for: beliefs that outlive a lock, things left behind, hangs.

mod support;

use redfence_client::{Cause, Client, Error, State};
use redfence_testserver::{Options, TestServer};
use std::future::Future;
use std::pin::{pin, Pin};
use std::task::Poll;
use std::time::Duration;
use support::relay::{Faults, Relay};
use support::steps::{impatient, lose_unheard, relayed, start, until, LONG, SECOND};

/// Runs a request up to where it waits for its answer, and no further.
async fn send<T>(mut request: Pin<&mut impl Future<Output = T>>) {
    std::future::poll_fn(|context| {
        assert!(request.as_mut().poll(context).is_pending(), "it was not sent");
        Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn a_session_without_its_connection_is_not_sure_of_its_locks() {
    let server = TestServer::start().expect("a free port on loopback");
    let builder = Client::builder().operation_timeout(Duration::from_millis(500));
    let (relay, clock, client) = relayed(&server, builder).await;
    let lock = client.lock("a").ttl(60 * SECOND).acquire().await.unwrap();
    assert_eq!(lock.state(), State::Held);

    relay.crash();
    until("it knows", || lock.state() == State::Suspect).await;
    assert!(lock.remaining() <= Duration::from_millis(500), "{:?}", lock.remaining());
    clock.jump(Duration::from_millis(500));
    assert_eq!(lock.state(), State::Suspect);
    assert_eq!(lock.remaining(), Duration::ZERO);
    for at_least in [Duration::ZERO, Duration::from_millis(100)] {
        let refused = lock.ensure(at_least).await;
        assert!(matches!(refused, Err(Error::TooLittleTime { .. })), "{refused:?}");
    }

    // The server's clock stood still: there the session lives, and says so when it is asked.
    relay.heal();
    let sure = async {
        while lock.ensure(10 * SECOND).await.is_err() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(LONG, sure).await.expect("the server is asked");
    assert_eq!(lock.state(), State::Held);

    relay.crash();
    until("the server knows", || server.stats().connections == 0).await;
    // Not half a second: the connection that opened the session was the first one.
    server.advance(31 * SECOND);
    assert_eq!(server.stats().locks, 0);
    relay.heal();
    let told = async {
        loop {
            if let Err(Error::Lost(loss)) = lock.ensure(Duration::ZERO).await {
                return loss.cause;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let cause = tokio::time::timeout(LONG, told).await.expect("the server is asked");
    assert!(matches!(cause, Cause::SessionEnded | Cause::Expired), "{cause:?}");
}

#[tokio::test]
async fn a_loss_that_is_told_before_the_grant_is_known_is_not_forgotten() {
    let (server, harness) = start().await;
    let client = harness.client().await.unwrap();
    for names in [&["a"][..], &["b", "c"]] {
        // Pushes come in order: once this one is lost, the other loss was heard too.
        let marker = client.lock("marker").ttl(600 * SECOND).acquire().await.unwrap();
        let mut granted = pin!(client.locks(names).ttl(600 * SECOND).acquire());
        send(granted.as_mut()).await;
        until("the grant", || server.stats().locks == names.len() as u64 + 1).await;
        assert!(server.lose(names[0]) && server.lose("marker"));
        until("the pushes", || marker.loss().is_some()).await;
        let lock = granted.await.unwrap();
        assert_eq!(lock.loss().map(|loss| loss.cause), Some(Cause::Forced));
        until("the other half is given back", || server.stats().locks == 0).await;
    }
}

#[tokio::test]
async fn a_refused_session_does_not_end_the_one_that_came_after_it() {
    let (server, harness) = start().await;
    let client = harness.client().await.unwrap();
    client.lock("warm-up").acquire().await.unwrap().release().await.unwrap();
    harness.advance_server(31 * SECOND).await;
    assert_eq!(server.stats().sessions, 0);
    let mut late = pin!(client.lock("late").acquire());
    send(late.as_mut()).await;
    until("it is refused", || server.calls("LOCK.ACQUIRE") == 2).await;
    let lock = client.lock("a").acquire().await.unwrap();
    let late = late.await.unwrap();
    assert_eq!((lock.state(), late.state()), (State::Held, State::Held));
    assert_eq!(server.stats().sessions, 1);
}

#[tokio::test]
async fn a_multi_lock_that_lost_a_name_while_nobody_listened_gives_the_others_back() {
    let server = TestServer::start().expect("a free port on loopback");
    let (relay, clock, client) = relayed(&server, Client::builder().session_ttl(3600 * SECOND)).await;
    let both = client.locks(["a", "b"]).ttl(3600 * SECOND).acquire().await.unwrap();
    lose_unheard(&server, &relay, &clock, || both.loss()).await;
    until("the other half is given back", || server.stats().locks == 0).await;
}

#[tokio::test]
async fn a_lock_that_is_dropped_as_soon_as_its_longest_hold_is_over_does_not_stay() {
    let server = TestServer::start().expect("a free port on loopback");
    let (_relay, clock, client) = relayed(&server, Client::builder().session(false)).await;
    let lock = client.lock("a").ttl(600 * SECOND).max_hold(60 * SECOND).acquire().await.unwrap();
    // Nothing else runs before it is dropped.
    clock.jump(61 * SECOND);
    assert_eq!(lock.loss().map(|loss| loss.cause), Some(Cause::MaxHold));
    drop(lock);
    until("it is given back", || server.stats().locks == 0).await;
}

#[tokio::test]
async fn a_lock_is_renewed_at_the_node_that_answers_beside_two_that_hang() {
    let options = Options { real_time: true, ..Options::default() };
    let server = TestServer::with_options(options).expect("a free port on loopback");
    let mut relays = Vec::new();
    for _ in 0..3 {
        relays.push(Relay::start(server.address(), Faults::default()).await);
    }
    let addresses = relays.iter().map(|relay| format!("redis://{}", relay.address));
    let builder = Client::builder().addresses(addresses).session(false).connect_timeout(3 * SECOND);
    let client = builder.connect().await.unwrap();
    let lock = client.lock("a").ttl(12 * SECOND).acquire().await.unwrap();
    for relay in &relays[..2] {
        relay.cut(true);
        relay.disconnect();
    }
    until("a renewal, or the end", || server.calls("LOCK.RENEW") > 0 || lock.loss().is_some()).await;
    assert_eq!(lock.loss(), None);
}

#[tokio::test]
async fn waiters_at_a_node_that_fell_silent_go_to_another() {
    let server = TestServer::start().expect("a free port on loopback");
    let (relays, client) = impatient(&server).await;
    let other = Client::connect([server.url()]).await.unwrap();
    let held = other.lock("a").acquire().await.unwrap();
    let waiting = client.lock("a").wait(600 * SECOND).acquire();
    let cut = async {
        until("it waits", || server.stats().waiters == 1).await;
        relays[0].cut(true);
        // Finds out that nobody answers there, and asks at the other.
        client.info("a").await.unwrap();
        until("it waits at the other", || relays[1].open() >= 2).await;
        held.release().await.unwrap();
    };
    let both = async { tokio::join!(waiting, cut).0 };
    let lock = tokio::time::timeout(LONG, Box::pin(both)).await.expect("it is granted").unwrap();
    assert_eq!(lock.state(), State::Held);
}

#[tokio::test]
async fn waits_at_a_client_that_is_closed_end() {
    let (server, harness) = start().await;
    let other = harness.client().await.unwrap();
    let held = other.lock("a").acquire().await.unwrap();
    for is_bound in [true, false] {
        let client = harness.client().await.unwrap();
        let request = client.lock("a").wait(600 * SECOND);
        let waiting = if is_bound { request } else { request.transferable() }.acquire();
        let closed = async {
            until("it waits", || server.stats().waiters == 1).await;
            client.clone().close().await;
        };
        let both = async { tokio::join!(waiting, closed).0 };
        let refused = tokio::time::timeout(LONG, Box::pin(both)).await.expect("it ends");
        assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
        until("it left the queue", || server.stats().waiters == 0).await;
    }
    held.release().await.unwrap();
    until("nobody has it", || server.stats().locks == 0).await;
    let client = harness.client().await.unwrap();
    client.clone().close().await;
    assert!(matches!(client.election("e").campaign().await, Err(Error::Closed)));
}

#[tokio::test]
async fn a_handle_that_was_given_back_is_not_held() {
    let (_server, harness) = start().await;
    let client = harness.client().await.unwrap();
    let lock = client.lock("a").transferable().acquire().await.unwrap();
    lock.release().await.unwrap();
    assert!(matches!(lock.ensure(Duration::ZERO).await, Err(Error::Lost(_))));
    assert!(matches!(lock.token(), Err(Error::Lost(_))));
    assert!(matches!(lock.run(async {}).await, Err(Error::Lost(_))));
    assert!(matches!(lock.downgrade().await, Err(Error::Lost(_))));
    assert_eq!(lock.remaining(), Duration::ZERO);
}
