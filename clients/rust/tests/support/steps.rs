//! Steps that tests of races are made of: a server, waiting for the background, a request stopped half-way.

use super::relay::{Faults, Relay};
use redfence_client::testing::{Harness, ManualClock};
use redfence_client::{Cause, Client, ClientBuilder, Loss};
use redfence_testserver::TestServer;
use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const LONG: Duration = Duration::from_secs(20);

pub(crate) async fn start() -> (TestServer, Harness) {
    let server = TestServer::start().expect("a free port on loopback");
    let harness = Harness::connect(server.address()).await.expect("it listens");
    (server, harness)
}

/// A client behind a relay, on a clock of its own.
pub(crate) async fn relayed(server: &TestServer, builder: ClientBuilder) -> (Relay, ManualClock, Client) {
    let relay = Relay::start(server.address(), Faults::default()).await;
    let clock = ManualClock::new();
    let client = builder.address(format!("redis://{}", relay.address)).clock(clock.clone());
    (relay, clock, client.connect().await.expect("it listens"))
}

/// A client without a session that soon gives up on a node that says nothing, and the relays to its two nodes, the first in use.
pub(crate) async fn impatient(server: &TestServer) -> ([Relay; 2], Client) {
    let relay = || Relay::start(server.address(), Faults::default());
    let relays = [relay().await, relay().await];
    let addresses = relays.iter().map(|relay| format!("redis://{}", relay.address));
    let builder = Client::builder().addresses(addresses).session(false);
    let client = builder.attempt_timeout(Duration::from_millis(400)).connect().await.expect("it listens");
    (relays, client)
}

/// The lock `a` is lost while the client has no connection; returns once the client knows.
pub(crate) async fn lose_unheard(
    server: &TestServer,
    relay: &Relay,
    clock: &ManualClock,
    loss: impl Fn() -> Option<Loss>,
) {
    relay.crash();
    until("nobody listens", || server.stats().connections == 0).await;
    assert!(server.lose("a"));
    relay.heal();
    until("it is told", || {
        clock.jump(Duration::from_millis(10));
        loss().is_some()
    })
    .await;
    assert_eq!(loss().map(|loss| loss.cause), Some(Cause::Expired));
}

/// Waits for something that happens in the background.
pub(crate) async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waited = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(LONG, waited).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Runs a request until something happened at the server, and no further: its answer is there and nobody has looked at it.
pub(crate) async fn stop_when<T>(mut request: Pin<&mut impl Future<Output = T>>, is_so: impl Fn() -> bool) {
    let sent = async {
        while !is_so() {
            std::future::poll_fn(|context| {
                assert!(request.as_mut().poll(context).is_pending(), "it was not stopped");
                Poll::Ready(())
            })
            .await;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(LONG, sent).await.expect("it is sent");
}
