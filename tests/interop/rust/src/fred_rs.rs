//! fred with the lock its users write: `SET NX PX`, and scripts that compare before they touch.

use crate::locker::{check, require, Held, Library, Locker, Outcome};
use crate::redis_rs::{one, token, DELETE, EXPIRE};
use crate::trial::Trial;
use async_trait::async_trait;
use fred::clients::Client;
use fred::interfaces::{ClientLike, EventInterface, KeysInterface, PubsubInterface, TransactionInterface};
use fred::types::config::{Config, ReconnectPolicy};
use fred::types::scripts::Script;
use fred::types::{Builder, Expiration, SetOptions};
use std::time::Duration;

pub(crate) fn library() -> Library {
    Library {
        id: "fred",
        name: "fred",
        variant: "",
        masters: false,
        open: |addresses, ttl| Box::pin(open(addresses, ttl)),
        own: vec![check!("multi/exec", transaction), check!("pub/sub", pub_sub)],
    }
}

struct FredLocker {
    client: Client,
    ttl: Duration,
}

struct FredHeld {
    client: Client,
    key: String,
    token: String,
    ttl: Duration,
}

async fn open(addresses: Vec<String>, ttl: Duration) -> Outcome<Box<dyn Locker>> {
    Ok(Box::new(FredLocker { client: connect(&addresses[0]).await?, ttl }))
}

async fn connect(address: &str) -> Outcome<Client> {
    let mut builder = Builder::from_config(Config::from_url(&format!("redis://{address}"))?);
    builder.set_policy(ReconnectPolicy::new_constant(0, 100));
    builder.with_performance_config(|config| config.default_command_timeout = Duration::from_secs(6));
    let client = builder.build()?;
    client.init().await?;
    Ok(client)
}

#[async_trait]
impl Locker for FredLocker {
    async fn try_lock(&self, name: &str) -> Outcome<Option<Box<dyn Held>>> {
        let token = token();
        let ttl = Expiration::PX(self.ttl.as_millis() as i64);
        let reply: Option<String> =
            self.client.set(name, &token, Some(ttl), Some(SetOptions::NX), false).await?;
        let held = FredHeld { client: self.client.clone(), key: name.to_string(), token, ttl: self.ttl };
        Ok(reply.map(|_| Box::new(held) as Box<dyn Held>))
    }
}

#[async_trait]
impl Held for FredHeld {
    async fn extend(&self) -> Outcome<()> {
        let arguments = vec![self.token.clone(), self.ttl.as_millis().to_string()];
        one(Script::from_lua(EXPIRE).evalsha_with_reload(&self.client, self.key.as_str(), arguments).await?)
    }

    async fn release(&self) -> Outcome<()> {
        one(Script::from_lua(DELETE)
            .evalsha_with_reload(&self.client, self.key.as_str(), self.token.as_str())
            .await?)
    }
}

async fn transaction(t: Trial) -> Outcome<()> {
    let client = connect(&t.nodes[0]).await?;
    let name = t.name("multi");
    let transaction = client.multi();
    let _: () =
        transaction.set(&name, "me", Some(Expiration::PX(10_000)), Some(SetOptions::NX), false).await?;
    let _: () = transaction.get(&name).await?;
    let _: () = transaction.del(&name).await?;
    let replies: (String, String, i64) = transaction.exec(true).await?;
    require!(replies == ("OK".into(), "me".into(), 1), "replies {replies:?}");
    Ok(())
}

/// Subscribes at one node, publishes at another.
async fn pub_sub(t: Trial) -> Outcome<()> {
    let (here, there) = (connect(&t.nodes[0]).await?, connect(&t.nodes[1]).await?);
    let channel = t.name("channel");
    let mut messages = here.message_rx();
    here.subscribe(channel.as_str()).await?;
    let _: () = there.publish(channel.as_str(), "released").await?;
    let message = tokio::time::timeout(Duration::from_secs(5), messages.recv()).await??;
    let payload: String = message.value.convert()?;
    require!(payload == "released", "received {payload}");
    Ok(())
}
