//! `LOCK.*` and `FENCE.*` on a Redis without the module: the words of the Lua library's call, and the waiting it leaves to its client.
//!
//! `lua/README.md` is the protocol. Calls that do not wait go over the client's own link and answer by themselves; an acquire with
//! WAIT runs here, on a connection of its own, until it is granted, out of time, or its client is gone; or until the Sentinels name
//! another master: a grant of the old one counts for nothing.

use super::attempts::Standing;
use super::client::UpstreamClient;
use super::stream::within;
use super::upstream::{Tier1Backend, Upstream};
use crate::retries::Retries;
use bytes::Bytes;
use redfence_core::grammar::Request;
use redfence_core::reply::{Refusal, Reply};
use redfence_core::types::Fence;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How long one BLPOP may take beyond what was asked.
const BLPOP_SLACK: Duration = Duration::from_secs(2);
const CALL_WITHIN: Duration = Duration::from_secs(5);
/// What a name takes in memory beside its bytes.
const NAME_OVERHEAD_BYTES: usize = 32;

/// The words that make `backend` run a command: its name, its keys (resources), and the words behind them.
#[must_use]
pub fn call_words<'a>(
    backend: &'a Tier1Backend,
    name: &'a [u8],
    keys: &[&'a [u8]],
    rest: &[&'a [u8]],
) -> Vec<Vec<u8>> {
    let mut words: Vec<Vec<u8>> = Vec::with_capacity(4 + keys.len() + rest.len());
    let count = keys.len().to_string().into_bytes();
    match backend {
        Tier1Backend::Functions => {
            words.push(b"FCALL".to_vec());
            words.push(
                name.iter()
                    .map(|byte| if *byte == b'.' { b'_' } else { byte.to_ascii_lowercase() })
                    .collect(),
            );
            words.push(count);
            words.extend(keys.iter().map(|key| key.to_vec()));
        }
        Tier1Backend::Script { sha1 } => {
            words.push(b"EVALSHA".to_vec());
            words.push(sha1.clone().into_bytes());
            words.push(count);
            words.extend(keys.iter().map(|key| key.to_vec()));
            words.push(name.to_ascii_uppercase());
        }
        Tier1Backend::Module => unreachable!("the module needs no Lua"),
    }
    words.extend(rest.iter().map(|word| word.to_vec()));
    words
}

/// The call for a command that does not wait. `argv` is the client's own.
#[must_use]
pub fn call_for(backend: &Tier1Backend, request: &Request<'_>, argv: &[&[u8]]) -> Vec<Vec<u8>> {
    let name = argv[0];
    match request {
        Request::MAcquire(request) => {
            let behind = 2 + request.resources.len();
            call_words(backend, name, &argv[2..behind], &argv[behind..])
        }
        Request::MRelease(request) => {
            let behind = 2 + 2 * request.pairs.len();
            let names: Vec<&[u8]> = argv[2..behind].iter().step_by(2).copied().collect();
            let mut rest: Vec<&[u8]> = argv[3..behind].iter().step_by(2).copied().collect();
            rest.extend_from_slice(&argv[behind..]);
            call_words(backend, name, &names, &rest)
        }
        Request::Scan(_) => call_words(backend, name, &[], &argv[1..]),
        Request::Acquire(_)
        | Request::Explain(_)
        | Request::Release(_)
        | Request::Renew(_)
        | Request::Info(_)
        | Request::Queue(_)
        | Request::ForceRelease(_)
        | Request::FenceCheck(_)
        | Request::FenceGet(_)
        | Request::FenceCall(_) => call_words(backend, name, &argv[1..2], &argv[2..]),
        Request::Session(_) | Request::Convert(_) | Request::Notify(_) | Request::Cluster(_) => {
            unreachable!("the router sends these elsewhere")
        }
    }
}

/// An acquire that may wait, with bytes of its own.
#[derive(Clone, Debug)]
pub struct LuaWait {
    pub db: u32,
    resources: Vec<Vec<u8>>,
    /// `LOCK.MACQUIRE`: its answer has a list of fences.
    multi: bool,
    ttl_ms: u64,
    wait_ms: u64,
    owner: Vec<u8>,
    value: Option<Vec<u8>>,
    /// The server made the owner up: nobody else can ask for this grant again.
    owner_is_ours: bool,
}

impl LuaWait {
    /// `None` where the command takes no lock.
    #[must_use]
    pub fn of(db: u32, request: &Request<'_>, generated_owner: &[u8]) -> Option<LuaWait> {
        let (resources, ttl_ms, multi): (&[&[u8]], u64, bool) = match request {
            Request::Acquire(request) => (std::slice::from_ref(&request.resource), request.ttl_ms, false),
            Request::MAcquire(request) => (&request.resources, request.ttl_ms, true),
            Request::Release(_)
            | Request::Renew(_)
            | Request::Convert(_)
            | Request::Explain(_)
            | Request::Notify(_)
            | Request::Info(_)
            | Request::MRelease(_)
            | Request::Queue(_)
            | Request::Scan(_)
            | Request::Session(_)
            | Request::ForceRelease(_)
            | Request::Cluster(_)
            | Request::FenceCheck(_)
            | Request::FenceGet(_)
            | Request::FenceCall(_) => return None,
        };
        let options = request.acquire_options()?;
        Some(LuaWait {
            db,
            resources: resources.iter().map(|resource| resource.to_vec()).collect(),
            multi,
            ttl_ms,
            wait_ms: options.wait_ms.unwrap_or(0),
            owner: options.owner.unwrap_or(generated_owner).to_vec(),
            value: options.value.map(<[u8]>::to_vec),
            owner_is_ours: options.owner.is_none(),
        })
    }

    fn ask(&self, backend: &Tier1Backend, wait_ms: u64) -> Vec<Vec<u8>> {
        let name: &[u8] = if self.multi { b"LOCK.MACQUIRE" } else { b"LOCK.ACQUIRE" };
        let (ttl, wait) = (self.ttl_ms.to_string(), wait_ms.to_string());
        let mut rest = vec![ttl.as_bytes(), b"WAIT", wait.as_bytes(), b"OWNER", &self.owner];
        rest.extend(self.value.iter().flat_map(|value| [&b"VALUE"[..], value]));
        call_words(backend, name, &self.keys(), &rest)
    }

    fn cancel(&self, backend: &Tier1Backend) -> Vec<Vec<u8>> {
        let name: &[u8] = if self.multi { b"LOCK.MCANCEL" } else { b"LOCK.CANCEL" };
        call_words(backend, name, &self.keys(), &[&self.owner])
    }

    /// An owner that the server made up is no other attempt's.
    fn stand(&self, upstream: &Upstream) -> Standing {
        let deadline = Instant::now() + Duration::from_millis(self.wait_ms);
        if self.owner_is_ours {
            return Standing::alone(deadline);
        }
        upstream.attempts.stand(self.db, self.multi, &self.keys(), &self.owner, deadline)
    }

    fn keys(&self) -> Vec<&[u8]> {
        self.resources.iter().map(Vec::as_slice).collect()
    }

    /// For what is to be undone after its client has gone. `None`: too much is under way already.
    fn retries(&self) -> Option<Retries> {
        let names = self.resources.iter().map(|name| name.len() + NAME_OVERHEAD_BYTES).sum::<usize>();
        // The names and the owner once more in the words of a call, and once encoded.
        let value = self.value.as_ref().map_or(0, Vec::len);
        Retries::accept(self.ttl_ms, 3 * (names + self.owner.len()) + value)
    }
}

/// Starts the wait. Dropping the receiver is the client going away; what is sent to the other end of the pair ends the wait, and the answer is
/// then nil, or the grant that was quicker.
#[must_use]
pub fn start_waiting(
    upstream: Arc<Upstream>,
    backend: Tier1Backend,
    waiting: LuaWait,
) -> (oneshot::Receiver<Reply>, oneshot::Sender<()>) {
    let (mut sender, receiver) = oneshot::channel();
    let (withdraw, withdrawn) = oneshot::channel();
    let standing = waiting.stand(&upstream);
    tokio::spawn(async move {
        let moves = upstream.moves();
        let outcome = tokio::select! {
            outcome = upstream.unless_moved(moves, wait(&upstream, &backend, &waiting, &standing, withdrawn)) => Some(outcome),
            () = sender.closed() => None,
        };
        let reply = match outcome {
            Some(Ok(reply)) => reply,
            Some(Err(error)) => Reply::Error(lost(&upstream, &error)),
            None => {
                if standing.leave() {
                    leave(&upstream, &backend, &waiting).await;
                }
                return;
            }
        };
        if let Err(reply) = sender.send(reply) {
            // The client went away at the last moment: a grant nobody can ask for again is given back.
            give_back(&upstream, moves, &backend, &waiting, reply).await;
        }
    });
    (receiver, withdraw)
}

fn lost(upstream: &Upstream, error: &io::Error) -> Refusal {
    super::own_connection::refusal(&format!("upstream Redis at {}: {error}", upstream.place), true)
}

async fn wait(
    upstream: &Upstream,
    backend: &Tier1Backend,
    waiting: &LuaWait,
    standing: &Standing,
    mut withdrawn: oneshot::Receiver<()>,
) -> io::Result<Reply> {
    let deadline = standing.deadline();
    let mut client = match take_client(upstream, waiting.db).await {
        Ok(client) => client,
        Err(error) => {
            let reason = format!("upstream Redis at {}: {error}", upstream.place);
            return Ok(Reply::Error(super::own_connection::refusal(&reason, false)));
        }
    };
    let mut has_asked = false;
    loop {
        let left_ms = millis(deadline.saturating_duration_since(Instant::now()));
        // A free lock is taken however short the wait: it gives up only after it has asked.
        if left_ms == 0 && has_asked {
            let answer = match standing.leave() {
                true => call(&mut client, &waiting.cancel(backend)).await?,
                false => Reply::Nil,
            };
            upstream.return_client(client);
            return Ok(answer);
        }
        // Its place in the queue is kept for the longest of those who wait for it.
        let place_ms = millis(standing.last_deadline().saturating_duration_since(Instant::now()));
        let answer = call(&mut client, &waiting.ask(backend, place_ms.max(1))).await?;
        has_asked = true;
        let Some((wake_key, poll_ms)) = queued(&answer) else {
            if answer.is_error() {
                notice_missing_library(upstream, &answer);
            }
            upstream.return_client(client);
            return Ok(answer);
        };
        let left_ms = millis(deadline.saturating_duration_since(Instant::now()));
        let nap = Duration::from_millis(poll_ms.min(left_ms).max(1));
        let seconds = format!("{:.3}", nap.as_secs_f64());
        let listen: [&[u8]; 3] = [b"BLPOP", &wake_key, seconds.as_bytes()];
        // Nothing else is cut off half-way: an acquire that is under way must be over before it is cancelled.
        let heard = tokio::select! {
            biased;
            Ok(()) = &mut withdrawn => None,
            answer = within(nap + BLPOP_SLACK, "BLPOP", client.call(&listen)) => Some(answer?),
        };
        let Some(answer) = heard else {
            // What the old connection may still hear is in the answer to the cancelling, too.
            drop(client);
            if !standing.leave() {
                return Ok(Reply::Nil);
            }
            let mut client = take_client(upstream, waiting.db).await?;
            let answer = call(&mut client, &waiting.cancel(backend)).await?;
            upstream.return_client(client);
            return Ok(answer);
        };
        if let Reply::Array(items) = &answer {
            if let Some(reply) = items.get(1).and_then(|item| granted(item, waiting.multi)) {
                upstream.return_client(client);
                return Ok(reply);
            }
        } else if answer.is_error() {
            return Ok(answer);
        }
    }
}

async fn call(client: &mut UpstreamClient, words: &[Vec<u8>]) -> io::Result<Reply> {
    within(CALL_WITHIN, "a call of the Lua library", client.call(words)).await
}

async fn take_client(upstream: &Upstream, db: u32) -> io::Result<UpstreamClient> {
    let mut client = upstream.take_client().await?;
    within(CALL_WITHIN, "SELECT", client.select(db)).await?;
    Ok(client)
}

fn milliseconds(reply: &Reply) -> Option<u64> {
    if let Reply::Int(value) = reply {
        return u64::try_from(*value).ok();
    }
    let Reply::Bulk(text) = reply else { return None };
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// `["queued", owner, wake_key, poll_ms]`
fn queued(answer: &Reply) -> Option<(Bytes, u64)> {
    let Reply::Array(items) = answer else { return None };
    match items.as_slice() {
        [Reply::Bulk(word), _, Reply::Bulk(wake_key), poll_ms] if word.as_ref() == b"queued" => {
            Some((wake_key.clone(), milliseconds(poll_ms)?))
        }
        _ => None,
    }
}

/// `<ttl> <fence> …` from the wake key. `None` for `again`.
fn granted(message: &Reply, multi: bool) -> Option<Reply> {
    let Reply::Bulk(text) = message else { return None };
    let numbers: Option<Vec<u64>> =
        std::str::from_utf8(text).ok()?.split(' ').map(|word| word.parse().ok()).collect();
    let numbers = numbers?;
    let (ttl_ms, fences) = numbers.split_first()?;
    if multi {
        let fences = fences.iter().copied().map(Fence).collect();
        return Some(Reply::GrantedMany { fences, ttl_ms: *ttl_ms });
    }
    Some(Reply::Granted { fence: Fence(*fences.first()?), ttl_ms: *ttl_ms })
}

/// The client is gone while it waited. Cancelling answers the grant, if that was quicker; tried again like the release of it.
async fn leave(upstream: &Upstream, backend: &Tier1Backend, waiting: &LuaWait) {
    let mut retries = waiting.retries().filter(|_| waiting.owner_is_ours);
    let (moves, answer) = loop {
        // The owner is known to nobody else: any master may be asked.
        let moves = upstream.moves();
        let error = match call_once(upstream, moves, waiting.db, &waiting.cancel(backend)).await {
            Ok(answer) => break (moves, answer),
            Err(error) => error,
        };
        if !pause(&mut retries).await {
            // The place in the queue lapses by itself within seconds.
            tracing::debug!(%error, "cancelling a Lua wait failed");
            return;
        }
    };
    release_all(upstream, moves, backend, waiting, answer, retries).await;
}

/// Releases what was granted under an owner nobody but us knows.
async fn give_back(
    upstream: &Upstream,
    moves: u64,
    backend: &Tier1Backend,
    waiting: &LuaWait,
    answer: Reply,
) {
    release_all(upstream, moves, backend, waiting, answer, waiting.retries()).await;
}

/// A release names the fence: repeating it is safe, but at no other master, where the same fence may be somebody else's.
async fn release_all(
    upstream: &Upstream,
    moves: u64,
    backend: &Tier1Backend,
    waiting: &LuaWait,
    answer: Reply,
    mut retries: Option<Retries>,
) {
    if !waiting.owner_is_ours {
        return;
    }
    for (resource, fence) in waiting.resources.iter().zip(fences_of(&answer)) {
        let fence = fence.to_string();
        let words = call_words(backend, b"LOCK.RELEASE", &[resource], &[fence.as_bytes()]);
        while let Err(error) = call_once(upstream, moves, waiting.db, &words).await {
            if upstream.moves() != moves || !pause(&mut retries).await {
                tracing::debug!(%error, "giving up the release of a disconnected client's grant: it ends with its ttl");
                return;
            }
        }
    }
}

async fn pause(retries: &mut Option<Retries>) -> bool {
    match retries {
        Some(retries) => retries.pause().await,
        None => false,
    }
}

/// At the master of so many moves. An error reply (`LOADING`, `BUSY`, a library that is gone) is a failed call: nothing was cancelled
/// or released.
async fn call_once(upstream: &Upstream, moves: u64, db: u32, words: &[Vec<u8>]) -> io::Result<Reply> {
    let asked = async {
        let mut client = take_client(upstream, db).await?;
        let answer = call(&mut client, words).await?;
        upstream.return_client(client);
        Ok(answer)
    };
    let answer = upstream.unless_moved(moves, asked).await?;
    if let Reply::Error(refusal) = &answer {
        notice_missing_library(upstream, &answer);
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it answered '{}'", refusal.0)));
    }
    Ok(answer)
}

fn fences_of(answer: &Reply) -> Vec<i64> {
    if let Some((fences, _)) = answer.granted() {
        return fences.iter().map(|fence| fence.0 as i64).collect();
    }
    let Reply::Array(items) = answer else { return Vec::new() };
    match items.first() {
        Some(Reply::Int(fence)) => vec![*fence],
        Some(Reply::Array(fences)) => fences
            .iter()
            .filter_map(|fence| if let Reply::Int(fence) = fence { Some(*fence) } else { None })
            .collect(),
        Some(_) | None => Vec::new(),
    }
}

/// Whether an error says that the library is not there any more.
pub fn notice_missing_library(upstream: &Upstream, answer: &Reply) {
    if let Reply::Error(refusal) = answer {
        if says_library_is_gone(refusal.0.as_bytes()) {
            upstream.library_is_gone();
        }
    }
}

#[must_use]
pub fn says_library_is_gone(line: &[u8]) -> bool {
    let line = line.strip_prefix(b"-").unwrap_or(line);
    line.starts_with(b"NOSCRIPT") || line.starts_with(b"ERR Function not found")
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis_place::RedisPlace;
    use redfence_core::grammar;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn shown(line: &str, backend: &Tier1Backend) -> String {
        let argv: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let request = grammar::parse(&argv).unwrap().unwrap();
        let words = call_for(backend, &request, &argv);
        words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn calls_follow_the_library() {
        for (line, expected) in [
            ("lock.acquire r 10 OWNER o", "FCALL lock_acquire 1 r 10 OWNER o"),
            ("LOCK.MACQUIRE 2 a b 10 TIER EFFICIENCY", "FCALL lock_macquire 2 a b 10 TIER EFFICIENCY"),
            ("LOCK.MRELEASE 2 a 1 b 2 TIER EFFICIENCY", "FCALL lock_mrelease 2 a b 1 2 TIER EFFICIENCY"),
            ("LOCK.SCAN 0 MATCH x*", "FCALL lock_scan 0 0 MATCH x*"),
            ("FENCE.CALL r 5 SET k v", "FCALL fence_call 1 r 5 SET k v"),
        ] {
            assert_eq!(shown(line, &Tier1Backend::Functions), expected);
        }
        let script = Tier1Backend::Script { sha1: "abc".into() };
        assert_eq!(shown("lock.release r 7", &script), "EVALSHA abc 1 r LOCK.RELEASE 7");
    }

    #[test]
    fn wake_messages_are_read() {
        let text = |text: &str| Reply::bulk(text);
        assert_eq!(granted(&text("30 7"), false), Some(Reply::Granted { fence: Fence(7), ttl_ms: 30 }));
        let multi = Reply::GrantedMany { fences: [Fence(7), Fence(8)].into(), ttl_ms: 30 };
        assert_eq!(granted(&text("30 7 8"), true), Some(multi.clone()));
        assert_eq!(fences_of(&multi), [7, 8]);
        assert_eq!(granted(&text("again"), false), None);
    }

    /// A Redis that answers `-LOADING` to the first calls of a function, then `reply`; counts the calls.
    async fn loading_redis(call: &'static str, reply: &'static str) -> (Arc<Upstream>, Arc<AtomicUsize>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let counted = Arc::clone(&counted);
                tokio::spawn(async move {
                    let mut buffer = [0; 4096];
                    while let Ok(len @ 1..) = stream.read(&mut buffer).await {
                        let is_call = String::from_utf8_lossy(&buffer[..len]).contains(call);
                        let answer = match is_call && counted.fetch_add(1, Ordering::Relaxed) >= 2 {
                            true => reply,
                            false => "-LOADING Redis is loading the dataset in memory\r\n",
                        };
                        stream.write_all(answer.as_bytes()).await.unwrap();
                    }
                });
            }
        });
        (Upstream::start(RedisPlace::Fixed(address), None, None, None, 100), calls)
    }

    fn waiting() -> LuaWait {
        let argv: [&[u8]; 5] = [b"LOCK.ACQUIRE", b"r", b"60000", b"WAIT", b"60000"];
        let request = grammar::parse(&argv).unwrap().unwrap();
        LuaWait::of(0, &request, b"made-up").unwrap()
    }

    #[tokio::test]
    async fn an_error_reply_is_no_release() {
        let (upstream, calls) = loading_redis("lock_release", "*2\r\n:1\r\n$2\r\nok\r\n").await;
        let granted = Reply::Granted { fence: Fence(7), ttl_ms: 60_000 };
        give_back(&upstream, upstream.moves(), &Tier1Backend::Functions, &waiting(), granted).await;
        assert_eq!(calls.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn an_error_reply_is_no_cancellation() {
        let (upstream, calls) = loading_redis("lock_cancel", "$-1\r\n").await;
        leave(&upstream, &Tier1Backend::Functions, &waiting()).await;
        assert_eq!(calls.load(Ordering::Relaxed), 3);
    }
}
