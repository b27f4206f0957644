//! Live events by server-sent events: one feed a node, however many dashboards are open, handed to all of them in batches through
//! a bounded queue: a stream wakes a few times a second, not at every event. A reader that is too slow loses events and is told
//! how many.
//!
//! Everything that waits is bounded in bytes: one event (16 KiB), a batch of them (64 KiB), the batches that wait for the slowest
//! stream, and what a stream has taken for its reader (two pieces of a batch each).
//!
//! # Layout
//!
//! - [`feed`]: the subscription and its batches; [`text`]: one event as it is sent
//! - [`stream`]: what one dashboard takes of them

mod feed;
mod stream;
mod text;

use super::api::{ApiError, Given};
use super::http::{self, Answer, Body};
use super::logins::LoginEnd;
use super::turns::Who;
use super::{Stage, WAITING};
use crate::server::ServerState;
use bytes::Bytes;
use feed::{Batch, Feed};
use hyper::body::Frame;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use redfence_core::types::PATTERN_BYTES_MAX;
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use stream::Stream;
use tokio::sync::{broadcast, mpsc, oneshot};

/// Streams at one time.
pub(super) const STREAMS_MAX: usize = 256;
/// Batches that wait for the slowest stream. Beyond them it loses some.
const WAITING_BATCHES_MAX: usize = 16;
/// Pieces of a stream that wait for its reader; a piece is what a stream takes of one batch.
const PIECES_MAX: usize = 1;

/// All streams of this node.
#[derive(Debug)]
pub(super) struct Live {
    sender: broadcast::Sender<Arc<Batch>>,
    has_feed: Mutex<bool>,
    places: Mutex<Places>,
}

impl Default for Live {
    fn default() -> Live {
        let (sender, _) = broadcast::channel(WAITING_BATCHES_MAX);
        Live { sender, has_feed: Mutex::new(false), places: Mutex::default() }
    }
}

impl Live {
    /// What is published from now on. Starts the feed where there is none.
    fn listen(self: &Arc<Live>, server: &Arc<ServerState>) -> broadcast::Receiver<Arc<Batch>> {
        let mut has_feed = self.has_feed.lock().unwrap_or_else(PoisonError::into_inner);
        let receiver = self.sender.subscribe();
        if !std::mem::replace(&mut *has_feed, true) {
            // Subscribed before the answer is sent: nothing that happens later is missed.
            let feed = Feed::open(Arc::clone(server), Arc::clone(self));
            tokio::spawn(feed.run());
        }
        receiver
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more stream, and what ends it early. `None`: all are taken, and nobody has more of them than who asks.
    fn enter(self: &Arc<Live>, who: Who) -> Option<(Place, oneshot::Receiver<()>)> {
        let (number, ended) = self.places().enter(who, STREAMS_MAX)?;
        Some((Place { live: Arc::clone(self), number }, ended))
    }
}

/// Who has streams open, oldest first.
#[derive(Debug, Default)]
struct Places {
    open: VecDeque<(u64, Who, oneshot::Sender<()>)>,
    last: u64,
}

impl Places {
    /// Where all are taken, room is made at whoever has most of them.
    fn enter(&mut self, who: Who, places_max: usize) -> Option<(u64, oneshot::Receiver<()>)> {
        if self.open.len() >= places_max {
            let mut counts: HashMap<&Who, usize> = HashMap::new();
            for (_, one, _) in &self.open {
                *counts.entry(one).or_default() += 1;
            }
            let own = counts.get(&who).copied().unwrap_or(0);
            let (most, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
            if count <= own + 1 {
                return None;
            }
            let oldest = self.open.iter().position(|(_, one, _)| one == most)?;
            // Dropped with its sender, the stream ends.
            drop(self.open.remove(oldest));
        }
        self.last += 1;
        let (sender, ended) = oneshot::channel();
        self.open.push_back((self.last, who, sender));
        Some((self.last, ended))
    }
}

/// One stream's place, given back when it is dropped.
#[derive(Debug)]
struct Place {
    live: Arc<Live>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.live.places().open.retain(|(number, _, _)| *number != self.number);
    }
}

/// `GET /api/v1/events`.
pub(super) fn answer(given: &Given<'_>) -> Result<Answer, ApiError> {
    let caller = given.caller()?;
    caller.check_command(&[b"SUBSCRIBE", b"__lock__:"])?;
    let pattern = given.words.get("match").map(<[u8]>::to_vec);
    if pattern.as_ref().is_some_and(|pattern| pattern.len() > PATTERN_BYTES_MAX) {
        return Err(ApiError::bad("match has at most 1024 bytes"));
    }
    let live = &given.admin.live;
    let Some((place, pushed_out)) = live.enter(Who::of(given.peer, Some(&caller.user))) else {
        return Err(ApiError::unavailable("256 live streams are open at this node already; close some"));
    };
    let receiver = live.listen(&given.admin.server);
    let (sender, pieces) = mpsc::channel(PIECES_MAX);
    let login = caller.login.clone();
    let stream = Stream::new(caller, pattern, sender);
    tokio::spawn(async move {
        tokio::select! {
            biased;
            () = login_ends(login) => {}
            _ = pushed_out => {}
            () = stream.run(receiver) => {}
        }
    });
    let events = EventStream { pieces, stage: Arc::clone(given.stage), _place: place };
    let mut answer: Response<Body> = Response::new(Body::Events(events));
    *answer.status_mut() = StatusCode::OK;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(http::NO_STORE));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    http::protect(headers);
    Ok(answer)
}

/// Never where nobody logged in.
async fn login_ends(login: Option<LoginEnd>) {
    match login {
        Some(login) => login.wait().await,
        None => std::future::pending().await,
    }
}

/// The body of such an answer.
#[derive(Debug)]
pub(super) struct EventStream {
    pieces: mpsc::Receiver<Bytes>,
    stage: Arc<Stage>,
    _place: Place,
}

impl hyper::body::Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.pieces.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.stage.set(WAITING);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(user: &str) -> Who {
        Who { user: Some(user.as_bytes().to_vec()), address: std::net::Ipv4Addr::LOCALHOST.into() }
    }

    #[test]
    fn room_for_a_stream_is_made_at_whoever_has_most() {
        let mut places = Places::default();
        let mut open = |user: &str| places.enter(who(user), 4).map(|(_, ended)| ended);
        let mut many: Vec<_> = (0..4).map(|_| open("many").unwrap()).collect();
        assert!(open("many").is_none(), "its own are not ended for it");
        let first = open("one").unwrap();
        let second = open("one").unwrap();
        assert!(open("one").is_none() && open("many").is_none(), "both have as many");
        let is_ended = |ended: &mut oneshot::Receiver<()>| {
            matches!(ended.try_recv(), Err(oneshot::error::TryRecvError::Closed))
        };
        let ended: Vec<bool> = many.iter_mut().map(is_ended).collect();
        assert_eq!(ended, [true, true, false, false]);
        drop((first, second));
    }
}
