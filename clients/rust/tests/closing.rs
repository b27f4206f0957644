//! A client that is closed, or whose runtime ended, in the middle of something: nobody goes on believing, nobody goes on waiting, nothing
//! stays.

mod support;

use futures_util::StreamExt;
use redfence_client::{Cause, Client, Error, State};
use redfence_testserver::{Options, Partition, TestServer};
use std::pin::pin;
use std::time::{Duration, Instant};
use support::steps::{start, stop_when, until, LONG, SECOND};

#[tokio::test]
async fn a_grant_on_its_way_to_a_client_that_is_closed_is_given_back() {
    let (server, harness) = start().await;
    let client = harness.client().await.unwrap();
    let mut granted = pin!(client.lock("a").ttl(600 * SECOND).transferable().acquire());
    stop_when(granted.as_mut(), || server.stats().locks == 1).await;
    client.clone().close().await;
    let outcome = granted.await;
    assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
    until("it is given back", || server.stats().locks == 0).await;
}

#[tokio::test]
async fn a_waiter_is_not_granted_what_close_gives_back() {
    let (server, harness) = start().await;
    let client = harness.client().await.unwrap();
    let held = client.lock("a").ttl(600 * SECOND).transferable().acquire().await.unwrap();
    let mut waiting = pin!(client.lock("a").ttl(600 * SECOND).wait(60 * SECOND).transferable().acquire());
    stop_when(waiting.as_mut(), || server.stats().waiters == 1).await;
    client.clone().close().await;
    let outcome = waiting.await;
    assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
    assert_eq!(held.loss().map(|loss| loss.cause), Some(Cause::Closed));
    until("nobody has it", || server.stats().locks == 0 && server.stats().waiters == 0).await;
}

#[tokio::test]
async fn a_lock_is_not_adopted_by_a_client_that_is_closed() {
    let (server, harness) = start().await;
    let (client, other) = (harness.client().await.unwrap(), harness.client().await.unwrap());
    let lock = client.lock("a").ttl(30 * SECOND).transferable().acquire().await.unwrap();
    let token = lock.hand_over().unwrap();
    let mut adopted = pin!(other.adopt(&token));
    stop_when(adopted.as_mut(), || server.calls("LOCK.RENEW") == 1).await;
    other.clone().close().await;
    match adopted.await {
        Err(error) => assert!(matches!(error, Error::Closed), "{error:?}"),
        Ok(adopted) => {
            harness.advance(31 * SECOND).await;
            let told = tokio::time::timeout(SECOND, adopted.lost()).await;
            panic!("{adopted:?} has nobody who renews it; its loss was told: {told:?}");
        }
    }
}

#[tokio::test]
async fn nothing_connects_again_once_the_client_is_closed() {
    let (server, harness) = start().await;
    let client = harness.client().await.unwrap();
    let (lock, other) =
        (client.lock("a").acquire().await.unwrap(), client.lock("b").acquire().await.unwrap());
    client.clone().close().await;
    assert!(matches!(lock.release().await, Err(Error::Lost(_))));
    assert!(matches!(other.ensure(SECOND).await, Err(Error::Lost(_))));
    assert!(matches!(client.info("a").await, Err(Error::Closed)));
    tokio::time::sleep(Duration::from_millis(100)).await;
    // The harness's.
    assert_eq!(server.stats().connections, 1);
}

#[tokio::test]
async fn watches_and_observers_end_with_the_client() {
    let (server, harness) = start().await;
    let client = harness.client().await.unwrap();
    let mut watch = client.watch("*").await.unwrap();
    let mut observer = client.election("e").observe().await.unwrap();
    assert_eq!(observer.next().await, None);
    let ends = async {
        client.clone().close().await;
        until("they are disconnected", || server.stats().subscriptions == 0).await;
    };
    let all = async { tokio::join!(StreamExt::next(&mut watch), observer.next(), ends) };
    let (event, leader, ()) = tokio::time::timeout(LONG, all).await.expect("they end");
    assert_eq!((event, leader), (None, None));
    assert!(matches!(client.watch("*").await, Err(Error::Closed)));
}

#[tokio::test]
async fn close_takes_five_seconds_at_most() {
    let (server, harness) = start().await;
    let client = harness.client().await.unwrap();
    let _lock = client.lock("a").acquire().await.unwrap();
    server.partition(Partition::Silent);
    let began = Instant::now();
    client.close().await;
    // And what a busy machine takes.
    assert!(began.elapsed() < Duration::from_millis(6500), "{:?}", began.elapsed());
}

#[test]
fn a_lock_that_outlives_its_runtime_is_lost() {
    let options = Options { real_time: true, ..Options::default() };
    let server = TestServer::with_options(options).expect("a free port on loopback");
    let build =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (first, second) = (build(), build());
    let (client, lock) = first.block_on(async {
        let client = Client::connect([server.url()]).await.unwrap();
        let lock = client.lock("a").ttl(5 * SECOND).acquire().await.unwrap();
        (client, lock)
    });
    // At once: by its own clock the lock is held when the work begins.
    first.shutdown_background();
    second.block_on(async {
        let began = Instant::now();
        let worked = tokio::time::timeout(LONG, lock.run(std::future::pending::<()>())).await;
        // Not because the time-out made it look at the clock.
        assert!(began.elapsed() < LONG, "the work went on");
        assert!(matches!(worked.expect("the work is dropped"), Err(Error::Lost(_))));
        assert_eq!(lock.state(), State::Lost);
        assert!(matches!(client.lock("b").acquire().await, Err(Error::Closed)));
    });
    // Outside of any runtime.
    drop((lock, client));
}
