//! Distributed locks with fencing tokens: a lock in three lines, and the fence in the write.
//!
//! Speaks to a [Redfence](https://example.invalid/redfence) cluster, or to a Redis with the module or the Lua library of Redfence, over
//! [redis-rs](https://docs.rs/redis) and Tokio.
//!
//! ```
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
//! # let server = redfence_testserver::TestServer::start().unwrap();
//! # let address = server.url();
//! # runtime.block_on(async {
//! use redfence_client::Client;
//! use std::time::Duration;
//!
//! // In production: all nodes of the cluster, redis://n1:6380, redis://n2:6380, …
//! let client = Client::connect([address]).await?;
//! let lock = client.lock("wallet:7").ttl(Duration::from_secs(30)).wait(Duration::from_secs(5)).acquire().await?;
//!
//! // Each write carries the fence; the resource refuses one that is lower than the highest it has seen:
//! // UPDATE wallet SET balance = $1, fence = $2 WHERE id = 7 AND fence <= $2
//! println!("{}", lock.fence());
//!
//! // Dropped as soon as the lock is lost:
//! let total = lock.run(async { 40 + 2 }).await?;
//! assert_eq!(total, 42);
//!
//! lock.release().await?; // dropping the handle releases in the background
//! # client.close().await;
//! # Ok::<(), redfence_client::Error>(())
//! # }).unwrap();
//! ```
//!
//! # What a holder may rely on
//!
//! - **The fence is the proof, the lock is a hint.** A paused process does not know that it lost its lock. The resource that checks the fence
//!   refuses its late write. See [`Lock::fence`], [`Lock::fenced`], [`postgres`], `tower`.
//! - **Deadlines are counted from when the last good renewal was sent**, on a clock that goes on while the machine sleeps. [`Lock::state`],
//!   [`Lock::remaining`] and [`Lock::ensure`] look at it; [`Lock::lost`] and [`Lock::cancellation_token`] tell, by the server's word or by that
//!   clock, whichever is first.
//! - **A retry is the same acquisition.** The owner is fixed before the first byte is sent. Dropping the future of an acquisition leaves nothing
//!   behind.
//! - **One background task, one session and one shared connection per client**, however many locks it holds. Renewals go out in batches at a third
//!   of the ttl, with jitter.
//!
//! # Features
//!
//! | feature | what |
//! | --- | --- |
//! | `tls` | `rediss://` by rustls |
//! | `tokio-postgres` | `postgres::bind`: the fence for the trigger of `redfence fence-sql` |
//! | `tower` | a layer that answers 412 to requests with a stale fence |
//! | `opentelemetry` | span `lock.acquire`, histograms of waits and holds |
//! | `testing` | a clock for tests, a controller of `redfence testserver` |

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod alarm;
mod breaker;
mod client;
mod clock;
mod core;
mod election;
mod error;
mod fallback;
mod fenced;
mod lease;
mod links;
mod lock;
mod options;
pub mod postgres;
mod protocol;
mod renewer;
mod routes;
mod session;
mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
mod token;
#[cfg(feature = "tower")]
pub mod tower;
mod watch;

pub use acquire::LockRequest;
pub use client::Client;
pub use election::{Election, Leader, Leadership, Observer};
pub use error::{Busy, Cause, Error, Loss};
pub use fallback::{Acquired, LocalLock, OnUnavailable};
pub use fenced::Fenced;
pub use lease::State;
pub use lock::{Lock, Released, Token};
pub use options::ClientBuilder;
pub use protocol::{Holder, Kind, LockInfo, Tier, Waiter};
pub use watch::{Change, Event, Watch};

/// The HTTP header that carries a fence.
pub const FENCE_HEADER: &str = "redfence-fence";

/// The examples of the README are compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
