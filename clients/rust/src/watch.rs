//! Events of locks as a stream.

use crate::client::{Client, Handle};
use crate::core::{BACKOFF_BASE, BACKOFF_MAX};
use crate::error::{Error, Failure};
use crate::links::backoff;
use futures_util::stream::{Stream, StreamExt};
use serde::Deserialize;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

const CHANNEL: &[u8] = b"__lock__:";

/// What happened to a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A change.
    Change(Change),
    /// The connection was made anew: whatever happened in between was missed.
    Gap,
    /// The client was closed: nothing more will come. Told by [`Watch::next`] alone; a stream ends.
    Closed,
}

/// One change of one lock.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Change {
    /// `acquired`, `renewed`, `released`, `expired`, `queued`, `abandoned` or `session_ended`; a newer server may know more.
    pub event: String,
    /// The name. Bytes that are not UTF-8 are shown as U+FFFD.
    pub resource: String,
    /// Of this grant; for `queued` and `abandoned` the last that was issued.
    pub fence: i64,
    /// Who.
    #[serde(default)]
    pub owner: String,
    /// `CORRECTNESS` or `EFFICIENCY`.
    #[serde(default)]
    pub tier: String,
    /// Rises from event to event.
    #[serde(default)]
    pub seq: u64,
    /// What the holder stored with the lock.
    #[serde(default)]
    pub value: Option<String>,
    /// Why it ended, where its holder did not end it.
    #[serde(default)]
    pub cause: Option<String>,
}

/// A stream of [`Event`]s. It reconnects by itself, and ends when the client is closed.
#[must_use = "a stream does nothing unless it is polled"]
pub struct Watch {
    events: Pin<Box<dyn Stream<Item = Event> + Send>>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

impl Watch {
    pub(crate) async fn begin(client: &Client, pattern: &[u8]) -> Result<Watch, Error> {
        client.handle.core.admit()?;
        let channel = [CHANNEL, pattern].concat();
        let subscription = client.handle.core.links.subscribe(&channel).await.map_err(Failure::into_error)?;
        let state =
            Watching { handle: Arc::clone(&client.handle), channel, subscription: Some(subscription) };
        Ok(Watch { events: Box::pin(futures_util::stream::unfold(state, Watching::next)) })
    }

    /// The next event, for those who want no stream. [`Event::Closed`] once the client is closed, every time.
    pub async fn next(&mut self) -> Event {
        self.events.next().await.unwrap_or(Event::Closed)
    }
}

impl Stream for Watch {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.as_mut().poll_next(context)
    }
}

struct Watching {
    handle: Arc<Handle>,
    channel: Vec<u8>,
    subscription: Option<redis::aio::PubSub>,
}

impl Watching {
    async fn next(self) -> Option<(Event, Watching)> {
        let closed = self.handle.core.closed().clone();
        tokio::select! {
            biased;
            () = closed.cancelled() => None,
            next = self.listen() => Some(next),
        }
    }

    async fn listen(mut self) -> (Event, Watching) {
        if let Some(subscription) = &mut self.subscription {
            // The messages end where the connection does.
            loop {
                let message = subscription.on_message().next().await;
                let Some(message) = message else { break };
                if let Ok(change) = serde_json::from_slice(message.get_payload_bytes()) {
                    return (Event::Change(change), self);
                }
            }
            self.subscription = None;
        }
        for attempt in 0.. {
            if let Ok(subscription) = self.handle.core.links.subscribe(&self.channel).await {
                self.subscription = Some(subscription);
                break;
            }
            tokio::time::sleep(backoff(attempt, BACKOFF_BASE, BACKOFF_MAX)).await;
        }
        (Event::Gap, self)
    }
}
