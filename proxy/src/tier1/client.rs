//! A small Redis client for the proxy's own errands: finding out what that Redis can do, loading the Lua library, waiting in Lua.
//!
//! One call at a time, RESP2, replies into core's `Reply`. Clients' commands never go this way: they have their own `link`. A Redis that
//! stands still accepts connections all the same (its kernel does), so whoever asks sets a time limit.

use super::stream::{within, UpstreamStream};
use super::upstream::Upstream;
use crate::resp::encode;
use crate::resp::replies::{ReplyScanner, ScannedReply};
use bytes::Bytes;
use redfence_core::reply::{Refusal, Reply};
use redis_protocol::resp2::decode;
use redis_protocol::resp2::types::OwnedFrame;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::OwnedSemaphorePermit;

/// From the first byte of a connection to the answer to `AUTH`.
const OPEN_WITHIN: Duration = Duration::from_secs(5);
const READ_BYTES: usize = 4096;
/// Replies of our own errands are small.
const REPLY_BYTES_MAX: usize = 4 * 1024 * 1024;

#[derive(Debug)]
pub struct UpstreamClient {
    stream: UpstreamStream,
    received: Vec<u8>,
    db: u32,
    /// See [`Upstream::moves`].
    moves: u64,
    /// See [`Upstream::take_place`].
    _place: Option<OwnedSemaphorePermit>,
}

impl UpstreamClient {
    pub async fn open(upstream: &Upstream) -> io::Result<UpstreamClient> {
        let moves = upstream.moves();
        let open = async { UpstreamClient::log_in(upstream.connect().await?, upstream).await };
        let client = within(OPEN_WITHIN, "a login", open).await?;
        Ok(UpstreamClient { moves, ..client })
    }

    /// On a connection that nobody has used.
    pub(super) fn over(stream: UpstreamStream) -> UpstreamClient {
        UpstreamClient { stream, received: Vec::new(), db: 0, moves: 0, _place: None }
    }

    /// The same with this place, or with none.
    pub(super) fn at(self, place: Option<OwnedSemaphorePermit>) -> UpstreamClient {
        UpstreamClient { _place: place, ..self }
    }

    /// How often the master had moved when this was opened.
    #[must_use]
    pub(super) fn moves(&self) -> u64 {
        self.moves
    }

    pub(super) async fn log_in(stream: UpstreamStream, upstream: &Upstream) -> io::Result<UpstreamClient> {
        let mut client = UpstreamClient::over(stream);
        if let Some(auth) = upstream.auth_words() {
            client.call_ok(&auth).await?;
        }
        Ok(client)
    }

    pub async fn select(&mut self, db: u32) -> io::Result<()> {
        if self.db != db {
            self.call_ok(&["SELECT", &db.to_string()]).await?;
            self.db = db;
        }
        Ok(())
    }

    /// One command and its reply. Not safe to drop half-way: the client must then be thrown away.
    pub async fn call(&mut self, words: &[impl AsRef<[u8]>]) -> io::Result<Reply> {
        let mut command = Vec::new();
        encode::command(&mut command, words);
        self.stream.write_all(&command).await?;
        let mut scanner = ReplyScanner::default();
        let mut scanned = 0;
        loop {
            let (taken, outcome) =
                scanner.scan(&self.received[scanned..]).map_err(|_| invalid("it does not speak RESP"))?;
            scanned += taken;
            match outcome {
                Some(ScannedReply::Reply { .. }) => break,
                Some(ScannedReply::Push) => return Err(invalid("an unexpected push")),
                None => {}
            }
            if scanned > REPLY_BYTES_MAX {
                return Err(invalid("a reply larger than any of ours"));
            }
            self.received.reserve(READ_BYTES);
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection"));
            }
        }
        let frame = decode::decode(&self.received[..scanned]).ok().flatten().map(|(frame, _)| frame);
        self.received.drain(..scanned);
        frame.map(to_reply).ok_or_else(|| invalid("a reply that cannot be read"))
    }

    /// A command that must succeed.
    pub async fn call_ok(&mut self, words: &[impl AsRef<[u8]>]) -> io::Result<Reply> {
        let reply = self.call(words).await?;
        if let Reply::Error(Refusal(text)) = &reply {
            return Err(invalid(&format!("it answered '{text}'")));
        }
        Ok(reply)
    }
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn to_reply(frame: OwnedFrame) -> Reply {
    match frame {
        OwnedFrame::SimpleString(text) => Reply::Status(String::from_utf8_lossy(&text).into_owned().into()),
        OwnedFrame::Error(text) => Reply::Error(Refusal::new(text)),
        OwnedFrame::Integer(value) => Reply::Int(value),
        OwnedFrame::BulkString(value) => Reply::Bulk(Bytes::from(value)),
        OwnedFrame::Array(items) => Reply::Array(items.into_iter().map(to_reply).collect()),
        OwnedFrame::Null => Reply::Nil,
    }
}
