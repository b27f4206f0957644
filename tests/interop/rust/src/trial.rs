//! One library on trial: its clients, names of its own, the control port, and what the server says about a lock.

use crate::locker::{require, Fault, Library, Locker, Outcome};
use redis::aio::MultiplexedConnection;
use std::collections::HashMap;
use std::future::Future;
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

pub(crate) const LONG_TTL: Duration = Duration::from_secs(20);
pub(crate) const SHORT_TTL: Duration = Duration::from_millis(800);

#[derive(Clone)]
pub(crate) struct Trial(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) library: Library,
    pub(crate) nodes: Vec<String>,
    masters: Vec<String>,
    control: String,
    /// The node that is asked about locks.
    asked: Mutex<String>,
}

impl Deref for Trial {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

#[derive(Debug)]
pub(crate) struct Info {
    pub(crate) held: bool,
    pub(crate) fence: i64,
}

impl Trial {
    pub(crate) fn new(library: Library) -> Trial {
        let nodes = addresses("INTEROP_NODES");
        let asked = Mutex::new(nodes.first().cloned().unwrap_or_default());
        let control = std::env::var("INTEROP_CONTROL").unwrap_or_default();
        Trial(Arc::new(Inner { library, nodes, masters: addresses("INTEROP_REDLOCK"), control, asked }))
    }

    /// The n-th client: each at a node of its own in turn, or at all masters.
    pub(crate) async fn open(&self, n: usize, ttl: Duration) -> Outcome<Box<dyn Locker>> {
        self.open_at(&self.nodes[n % self.nodes.len()], ttl).await
    }

    pub(crate) async fn open_at(&self, node: &str, ttl: Duration) -> Outcome<Box<dyn Locker>> {
        let addresses = if self.library.masters { self.masters.clone() } else { vec![node.to_string()] };
        (self.library.open)(addresses, ttl).await
    }

    pub(crate) fn name(&self, what: &str) -> String {
        format!("{}:{what}", self.library.id)
    }

    /// Questions about locks go to this node from now on.
    pub(crate) fn ask_at(&self, node: &str) {
        *self.asked.lock().expect("nobody panics while holding it") = node.to_string();
    }

    async fn connection(&self) -> Outcome<MultiplexedConnection> {
        let address = self.asked.lock().expect("nobody panics while holding it").clone();
        let mut connection =
            redis::Client::open(format!("redis://{address}"))?.get_multiplexed_async_connection().await?;
        connection.set_response_timeout(Duration::from_secs(10));
        Ok(connection)
    }

    pub(crate) async fn info(&self, key: &str) -> Outcome<Info> {
        let mut connection = self.connection().await?;
        let mut fields: HashMap<String, redis::Value> =
            redis::cmd("LOCK.INFO").arg(key).query_async(&mut connection).await?;
        let state = fields.remove("state").unwrap_or(redis::Value::Nil);
        let fence = fields.remove("fence").unwrap_or(redis::Value::Nil);
        let state: String = redis::from_redis_value(state)?;
        Ok(Info { held: state == "held", fence: redis::from_redis_value(fence)? })
    }

    /// The fence, or `None` where the lock is taken.
    pub(crate) async fn lock_acquire(
        &self,
        key: &str,
        ttl: Duration,
        wait: Duration,
    ) -> Outcome<Option<i64>> {
        let mut connection = self.connection().await?;
        let mut command = redis::cmd("LOCK.ACQUIRE");
        command.arg(key).arg(ttl.as_millis() as u64).arg("WAIT").arg(wait.as_millis() as u64);
        let reply: Option<(i64, i64)> = command.query_async(&mut connection).await?;
        Ok(reply.map(|(fence, _)| fence))
    }

    pub(crate) async fn lock_release(&self, key: &str, fence: i64) -> Outcome<()> {
        let mut connection = self.connection().await?;
        let (done, reason): (i64, String) =
            redis::cmd("LOCK.RELEASE").arg(key).arg(fence).query_async(&mut connection).await?;
        require!(done == 1, "LOCK.RELEASE said {reason}");
        Ok(())
    }

    /// One order to the driver's control port, see `../README.md`.
    pub(crate) async fn order(&self, line: &str) -> Outcome<Vec<String>> {
        let mut stream = TcpStream::connect(&self.control).await?;
        stream.write_all(format!("{line}\n").as_bytes()).await?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).await?;
        let mut words = answer.split_whitespace().map(str::to_string);
        match words.next().as_deref() {
            Some("ok") => Ok(words.collect()),
            _ => Err(Fault::Other(format!("{line}: {answer}"))),
        }
    }

    pub(crate) async fn until_free(&self, key: &str, limit: Duration) -> Outcome<()> {
        eventually(limit, "the lock is free", || async { Ok(!self.info(key).await?.held) }).await
    }
}

fn addresses(variable: &str) -> Vec<String> {
    let value = std::env::var(variable).unwrap_or_default();
    value.split(',').filter(|address| !address.is_empty()).map(str::to_string).collect()
}

pub(crate) async fn eventually<F, R>(limit: Duration, what: &str, holds: F) -> Outcome<()>
where
    F: Fn() -> R,
    R: Future<Output = Outcome<bool>>,
{
    let deadline = Instant::now() + limit;
    while !holds().await? {
        require!(Instant::now() < deadline, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
