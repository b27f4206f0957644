//! The feed from apply to the listeners of this node: lock events, published messages, and reads and changes of keys, in order.
//! `events` distributes them.
//!
//! The raft thread never waits for listeners. The queue is bounded in bytes; what does not fit is dropped, and the next item to
//! come out is [`FeedItem::Missed`], so that a gap is never silent.

use bytes::Bytes;
use redfence_core::event::Event;
use redfence_core::machine::Loss;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Bytes of items that may wait. More are dropped.
const WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Overhead accounted per item, besides its payload.
const ITEM_BYTES: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeedItem {
    Event(Event),
    /// A grant has ended.
    Ended(Loss),
    Published {
        channel: Bytes,
        message: Bytes,
    },
    /// A client with tracking enabled has read a key.
    Read {
        client: u64,
        key: Bytes,
    },
    /// `by`: the client that changed it, if it tracks keys itself.
    Changed {
        by: Option<u64>,
        key: Bytes,
    },
    /// Every key of a database, or of all.
    Flushed,
    /// Items before this one were lost: the queue was full, or a snapshot replaced log entries.
    Missed,
}

impl FeedItem {
    fn bytes(&self) -> usize {
        let texts = match self {
            FeedItem::Event(event) => event.resource.len() + event.owner.len() + event.value.len(),
            FeedItem::Ended(loss) => loss.resource.len(),
            FeedItem::Published { channel, message } => channel.len() + message.len(),
            FeedItem::Read { key, .. } | FeedItem::Changed { key, .. } => key.len(),
            FeedItem::Flushed | FeedItem::Missed => 0,
        };
        ITEM_BYTES + texts
    }
}

#[derive(Debug)]
struct FeedBatch {
    news: Vec<FeedItem>,
    bytes: usize,
}

#[derive(Debug)]
pub struct FeedSender {
    // Not bounded by itself: `waiting_bytes` bounds it.
    sender: mpsc::UnboundedSender<FeedBatch>,
    waiting_bytes: Arc<AtomicUsize>,
    missed: bool,
}

#[derive(Debug)]
pub struct FeedReceiver {
    receiver: mpsc::UnboundedReceiver<FeedBatch>,
    waiting_bytes: Arc<AtomicUsize>,
}

#[must_use]
pub fn channel() -> (FeedSender, FeedReceiver) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let waiting_bytes = Arc::new(AtomicUsize::new(0));
    let news = FeedSender { sender, waiting_bytes: Arc::clone(&waiting_bytes), missed: false };
    (news, FeedReceiver { receiver, waiting_bytes })
}

impl FeedSender {
    /// Never waits. Call at every turn, also with nothing to send: a `Missed` may still be owed.
    pub fn tell(&mut self, mut news: Vec<FeedItem>) {
        if self.missed {
            news.insert(0, FeedItem::Missed);
        }
        if news.is_empty() {
            return;
        }
        let bytes = news.iter().map(FeedItem::bytes).sum();
        if self.waiting_bytes.load(Ordering::Relaxed).saturating_add(bytes) > WAITING_BYTES_MAX {
            self.missed = true;
            return;
        }
        self.missed = false;
        self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        // The receiver is gone: the process is about to exit.
        let _ = self.sender.send(FeedBatch { news, bytes });
    }

    /// Items were lost, and the receiver does not know it yet.
    #[must_use]
    pub fn owes_missed(&self) -> bool {
        self.missed
    }
}

impl FeedReceiver {
    /// `None`: the node has stopped.
    pub async fn next(&mut self) -> Option<Vec<FeedItem>> {
        let batch = self.receiver.recv().await?;
        Some(self.taken(batch))
    }

    /// What is there.
    pub fn try_next(&mut self) -> Option<Vec<FeedItem>> {
        let batch = self.receiver.try_recv().ok()?;
        Some(self.taken(batch))
    }

    fn taken(&self, batch: FeedBatch) -> Vec<FeedItem> {
        self.waiting_bytes.fetch_sub(batch.bytes, Ordering::Relaxed);
        batch.news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(bytes: usize) -> FeedItem {
        FeedItem::Published { channel: Bytes::from_static(b"c"), message: Bytes::from(vec![b'x'; bytes]) }
    }

    #[tokio::test]
    async fn what_does_not_fit_is_lost_and_said_so() {
        let (mut sender, mut receiver) = channel();
        let half = message(WAITING_BYTES_MAX / 2);
        sender.tell(vec![half.clone()]);
        sender.tell(vec![half.clone()]);
        sender.tell(vec![message(1)]);
        sender.tell(vec![half.clone()]);
        sender.tell(vec![]);
        assert_eq!(receiver.next().await, Some(vec![half.clone()]));
        assert_eq!(receiver.next().await, Some(vec![FeedItem::Missed, message(1)]));
        assert_eq!(receiver.next().await, Some(vec![FeedItem::Missed]));
        sender.tell(vec![half.clone()]);
        assert_eq!(receiver.next().await, Some(vec![half]));
    }
}
