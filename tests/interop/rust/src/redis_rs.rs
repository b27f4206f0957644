//! redis-rs with the lock its users write: `SET NX PX`, and scripts that compare before they touch.

use crate::locker::{check, require, Fault, Held, Library, Locker, Outcome};
use crate::trial::{Trial, LONG_TTL};
use async_trait::async_trait;
use futures_util::StreamExt;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{AsyncCommands, Script};
use std::time::Duration;

pub(crate) const DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
pub(crate) const EXPIRE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";

pub(crate) fn library(id: &'static str) -> Library {
    let resp3 = id.ends_with('3');
    Library {
        id,
        name: "redis",
        variant: if resp3 { "RESP3" } else { "RESP2" },
        masters: false,
        open: if resp3 {
            |addresses, ttl| Box::pin(open(addresses, "?protocol=resp3", ttl))
        } else {
            |addresses, ttl| Box::pin(open(addresses, "", ttl))
        },
        own: vec![
            check!("pipeline", pipeline),
            check!("multi/exec with watch", transaction),
            check!("pub/sub", pub_sub),
        ],
    }
}

struct RedisLocker {
    connection: ConnectionManager,
    ttl: Duration,
}

struct RedisHeld {
    connection: ConnectionManager,
    key: String,
    token: String,
    ttl: Duration,
}

async fn open(addresses: Vec<String>, options: &str, ttl: Duration) -> Outcome<Box<dyn Locker>> {
    let connection = manager(&addresses[0], options).await?;
    Ok(Box::new(RedisLocker { connection, ttl }))
}

async fn manager(address: &str, options: &str) -> Outcome<ConnectionManager> {
    let config = ConnectionManagerConfig::new().set_response_timeout(Some(Duration::from_secs(6)));
    let client = redis::Client::open(format!("redis://{address}/{options}"))?;
    Ok(client.get_connection_manager_with_config(config).await?)
}

pub(crate) fn token() -> String {
    format!("{:032x}", rand::random::<u128>())
}

#[async_trait]
impl Locker for RedisLocker {
    async fn try_lock(&self, name: &str) -> Outcome<Option<Box<dyn Held>>> {
        let mut connection = self.connection.clone();
        let token = token();
        let mut command = redis::cmd("SET");
        command.arg(name).arg(&token).arg("NX").arg("PX").arg(self.ttl.as_millis() as u64);
        let reply: Option<String> = command.query_async(&mut connection).await?;
        let held = RedisHeld { connection, key: name.to_string(), token, ttl: self.ttl };
        Ok(reply.map(|_| Box::new(held) as Box<dyn Held>))
    }
}

#[async_trait]
impl Held for RedisHeld {
    async fn extend(&self) -> Outcome<()> {
        let mut connection = self.connection.clone();
        let script = Script::new(EXPIRE);
        let mut call = script.key(&self.key);
        call.arg(&self.token).arg(self.ttl.as_millis() as u64);
        one(call.invoke_async(&mut connection).await?)
    }

    async fn release(&self) -> Outcome<()> {
        let mut connection = self.connection.clone();
        let script = Script::new(DELETE);
        let mut call = script.key(&self.key);
        call.arg(&self.token);
        one(call.invoke_async(&mut connection).await?)
    }
}

pub(crate) fn one(count: i64) -> Outcome<()> {
    if count == 1 {
        Ok(())
    } else {
        Err(Fault::NotHeld)
    }
}

/// The URL options of the variant on trial.
fn options(t: &Trial) -> &'static str {
    if t.library.variant == "RESP3" {
        "?protocol=resp3"
    } else {
        ""
    }
}

async fn pipeline(t: Trial) -> Outcome<()> {
    let mut connection = manager(&t.nodes[0], options(&t)).await?;
    let name = t.name("pipeline");
    let mut pipe = redis::pipe();
    pipe.cmd("SET").arg(&name).arg("me").arg("NX").arg("PX").arg(10_000).get(&name).del(&name).exists(&name);
    let replies: (String, String, i64, bool) = pipe.query_async(&mut connection).await?;
    require!(replies == ("OK".into(), "me".into(), 1, false), "replies {replies:?}");
    Ok(())
}

/// Releases by WATCH, MULTI, DEL, EXEC; refused when another client wrote in between.
async fn transaction(t: Trial) -> Outcome<()> {
    let name = t.name("watch");
    // WATCH belongs to a connection: one that nobody else uses.
    let client = redis::Client::open(format!("redis://{}/{}", t.nodes[0], options(&t)))?;
    let mut mine = client.get_multiplexed_async_connection().await?;
    let mut other = manager(&t.nodes[1], options(&t)).await?;
    let mut delete = redis::pipe();
    delete.atomic().del(&name);

    let _: () = mine.pset_ex(&name, "me", LONG_TTL.as_millis() as u64).await?;
    let _: () = redis::cmd("WATCH").arg(&name).query_async(&mut mine).await?;
    let _: () = other.pset_ex(&name, "thief", LONG_TTL.as_millis() as u64).await?;
    let stolen: Option<(i64,)> = delete.query_async(&mut mine).await?;
    require!(stolen.is_none(), "EXEC after another client's write gave {stolen:?}");
    let owner: String = other.get(&name).await?;
    require!(owner == "thief", "after the refused EXEC the key is {owner}");

    let _: () = redis::cmd("WATCH").arg(&name).query_async(&mut mine).await?;
    let released: Option<(i64,)> = delete.query_async(&mut mine).await?;
    require!(released == Some((1,)), "EXEC with nothing changed gave {released:?}");
    Ok(())
}

/// Subscribes at one node, publishes at another.
async fn pub_sub(t: Trial) -> Outcome<()> {
    let channel = t.name("channel");
    let mut here =
        redis::Client::open(format!("redis://{}/{}", t.nodes[0], options(&t)))?.get_async_pubsub().await?;
    here.subscribe(&channel).await?;
    let mut there = manager(&t.nodes[1], options(&t)).await?;
    let _: () = there.publish(&channel, "released").await?;
    let mut messages = here.on_message();
    let message = tokio::time::timeout(Duration::from_secs(5), messages.next()).await?;
    let payload: String = message.ok_or(Fault::Other("the subscription ended".into()))?.get_payload()?;
    require!(payload == "released", "received {payload}");
    Ok(())
}
