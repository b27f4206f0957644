//! `Reply`: what a command answers, before any front has put it into bytes.
//!
//! A front (the module, the proxy, a test) implements [`Sink`] and calls [`Reply::render`]; no front builds answers of
//! its own for a `LOCK.*` command, so all of them say the same.

use crate::types::{Fence, LockKind, LockMode, Reason, SessionId, Tier};
use bytes::Bytes;
use std::borrow::Cow;

/// What one reply, or one item of a reply, counts for besides its strings.
const NODE_BYTES: usize = 16;

/// An answer. The typed variants at the top are the hot ones: they need no allocation.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// `[fence, ttl]` of `LOCK.ACQUIRE`.
    Granted {
        fence: Fence,
        ttl_ms: u64,
    },
    /// `[[fence, …], ttl]` of `LOCK.MACQUIRE`, fences in the order asked.
    GrantedMany {
        fences: Box<[Fence]>,
        ttl_ms: u64,
    },
    /// `[1, "ok"]` of `LOCK.RELEASE`.
    Released,
    /// `[1, ttl]` of `LOCK.RENEW`.
    Renewed {
        ttl_ms: u64,
    },
    /// `[0, reason]` of `LOCK.RELEASE` and `LOCK.RENEW`.
    Refused(Reason),
    /// Null: `$-1` in RESP2, `_` in RESP3.
    Nil,
    /// The null array `*-1` of RESP2 (`_` in RESP3). Redis's own commands need it, `LOCK.*` never.
    NilArray,
    Int(i64),
    Double(f64),
    Bool(bool),
    Bulk(Bytes),
    /// A bulk string known at compile time.
    Text(&'static str),
    /// A simple string such as `+OK`.
    Status(Cow<'static, str>),
    Error(Refusal),
    Array(Vec<Reply>),
    /// Pairs: a map in RESP3, the same pairs as a flat array in RESP2.
    Map(Vec<(Reply, Reply)>),
    /// A set in RESP3, an array in RESP2.
    Set(Vec<Reply>),
    /// Text with a three-letter format in RESP3 (`=`), a bulk string in RESP2.
    Verbatim(Bytes),
    /// What `LOCK.INFO` shows.
    Info(Box<LockInfo>),
}

/// The fields of `LOCK.INFO`, in the contract's order.
#[derive(Clone, Debug, PartialEq)]
pub struct LockInfo {
    pub resource: Bytes,
    pub tier: Tier,
    pub held: bool,
    /// Last issued, 0 if none.
    pub fence: Fence,
    pub owner: Option<Bytes>,
    pub session: Option<SessionId>,
    /// Milliseconds left; -1 where the lock is bound to its session alone or has no ttl. `None` where it is free.
    pub ttl_ms: Option<i64>,
    pub waiters: u64,
    /// Everybody who holds it, oldest first; empty where it is free. `None` inside a transaction before cluster version 2, where the
    /// reply ends with `waiters`.
    pub holders: Option<Vec<HolderInfo>>,
}

/// One holder of a lock.
#[derive(Clone, Debug, PartialEq)]
pub struct HolderInfo {
    pub owner: Bytes,
    pub fence: Fence,
    pub session: Option<SessionId>,
    /// Milliseconds left; -1 where it is bound to its session alone or has no ttl.
    pub ttl_ms: i64,
    /// `None` where nobody knows: a plain client's key in Tier 1.
    pub held_ms: Option<u64>,
    pub kind: LockKind,
    pub value: Option<Bytes>,
}

impl HolderInfo {
    /// Permits that it holds, and of how many.
    fn permits(&self) -> Option<(u32, u32)> {
        match self.kind {
            LockKind::Permits { count, max } => Some((count, max)),
            LockKind::Exclusive | LockKind::Shared => None,
        }
    }

    pub(crate) fn to_reply(&self) -> Reply {
        let or_nil = |value: Option<Reply>| value.unwrap_or(Reply::Nil);
        Reply::Map(vec![
            (Reply::Text("owner"), Reply::Bulk(self.owner.clone())),
            (Reply::Text("fence"), Reply::Int(self.fence.0 as i64)),
            (Reply::Text("session"), or_nil(self.session.map(|id| Reply::bulk(id.to_string())))),
            (Reply::Text("ttl"), Reply::Int(self.ttl_ms)),
            (Reply::Text("held_ms"), or_nil(self.held_ms.map(|held_ms| Reply::Int(held_ms as i64)))),
            (Reply::Text("permits"), or_nil(self.permits().map(|(count, _)| Reply::Int(i64::from(count))))),
            (Reply::Text("value"), or_nil(self.value.clone().map(Reply::Bulk))),
        ])
    }
}

/// An error reply: code and text as one line, for example `ERR wrong number of arguments …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub Cow<'static, str>);

impl Refusal {
    #[must_use]
    pub fn new(line: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal(line.into())
    }

    /// The first word, by which a client tells errors apart.
    #[must_use]
    pub fn code(&self) -> &str {
        self.0.split(' ').next().unwrap_or("")
    }
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Reply {
        Reply::Error(refusal)
    }
}

/// Where a reply goes. Each method writes one node; `array`, `map` and `set` are followed by their elements.
pub trait Sink {
    fn nil(&mut self);
    fn nil_array(&mut self);
    fn int(&mut self, value: i64);
    fn double(&mut self, value: f64);
    fn boolean(&mut self, value: bool);
    fn bulk(&mut self, value: &[u8]);
    fn status(&mut self, value: &str);
    fn error(&mut self, line: &str);
    fn verbatim(&mut self, value: &[u8]);
    fn array(&mut self, len: usize);
    /// `pairs` keys, each followed by its value.
    fn map(&mut self, pairs: usize);
    fn set(&mut self, len: usize);
}

impl Reply {
    pub const OK: Reply = Reply::Status(Cow::Borrowed("OK"));

    #[must_use]
    pub fn bulk(value: impl AsRef<[u8]>) -> Reply {
        Reply::Bulk(Bytes::copy_from_slice(value.as_ref()))
    }

    #[must_use]
    pub fn is_error(&self) -> bool {
        matches!(self, Reply::Error(_))
    }

    /// Fences and ttl of a grant, of one lock or of several.
    #[must_use]
    pub fn granted(&self) -> Option<(&[Fence], u64)> {
        match self {
            Reply::Granted { fence, ttl_ms } => Some((std::slice::from_ref(fence), *ttl_ms)),
            Reply::GrantedMany { fences, ttl_ms } => Some((fences, *ttl_ms)),
            Reply::Released
            | Reply::Renewed { .. }
            | Reply::Refused(_)
            | Reply::Nil
            | Reply::NilArray
            | Reply::Int(_)
            | Reply::Double(_)
            | Reply::Bool(_)
            | Reply::Bulk(_)
            | Reply::Text(_)
            | Reply::Status(_)
            | Reply::Error(_)
            | Reply::Array(_)
            | Reply::Map(_)
            | Reply::Set(_)
            | Reply::Verbatim(_)
            | Reply::Info(_) => None,
        }
    }

    /// About how many bytes it takes, in memory and on the wire: its strings, and a fixed amount for each node.
    #[must_use]
    #[inline]
    pub fn weight(&self) -> usize {
        if self.is_small() {
            return NODE_BYTES;
        }
        self.weight_of_large()
    }

    /// Whether it has no more bytes than its own place.
    #[inline]
    pub(crate) fn is_small(&self) -> bool {
        matches!(
            self,
            Reply::Granted { .. }
                | Reply::Released
                | Reply::Renewed { .. }
                | Reply::Refused(_)
                | Reply::Nil
                | Reply::NilArray
                | Reply::Int(_)
                | Reply::Double(_)
                | Reply::Bool(_)
        )
    }

    /// Drops it. Small ones own nothing, and are dropped without a look at what they are.
    #[inline]
    pub(crate) fn discard(self) {
        match self.is_small() {
            true => std::mem::forget(self),
            false => drop(self),
        }
    }

    /// Hands a copy on to `put`.
    ///
    /// The most frequent ones are made anew where they are put, field by field. Moved as a whole they would be read in larger pieces than
    /// they were written in a moment ago, and the processor waits until all of that has reached its cache.
    #[inline]
    pub(crate) fn copy_to(&self, put: impl FnOnce(Reply)) {
        if let Reply::Granted { fence, ttl_ms } = *self {
            put(Reply::Granted { fence, ttl_ms });
        } else if let Reply::Released = self {
            put(Reply::Released);
        } else {
            put(self.clone());
        }
    }

    fn weight_of_large(&self) -> usize {
        NODE_BYTES
            + match self {
                Reply::Granted { .. }
                | Reply::Released
                | Reply::Renewed { .. }
                | Reply::Refused(_)
                | Reply::Nil
                | Reply::NilArray
                | Reply::Int(_)
                | Reply::Double(_)
                | Reply::Bool(_) => 0,
                Reply::GrantedMany { fences, .. } => (2 + fences.len()) * NODE_BYTES,
                Reply::Bulk(bytes) | Reply::Verbatim(bytes) => bytes.len(),
                Reply::Text(text) => text.len(),
                Reply::Status(text) => text.len(),
                Reply::Error(refusal) => refusal.0.len(),
                Reply::Array(items) | Reply::Set(items) => items.iter().map(Reply::weight).sum(),
                Reply::Map(pairs) => pairs.iter().map(|(key, value)| key.weight() + value.weight()).sum(),
                Reply::Info(info) => return Reply::Map(info.pairs()).weight(),
            }
    }

    /// The same answer made of nothing but Redis's own types, as scripts know them.
    #[must_use]
    pub fn plain(self) -> Reply {
        match self {
            Reply::Granted { fence, ttl_ms } => {
                Reply::Array(vec![Reply::Int(fence.0 as i64), Reply::Int(ttl_ms as i64)])
            }
            Reply::GrantedMany { fences, ttl_ms } => {
                let fences = fences.iter().map(|fence| Reply::Int(fence.0 as i64)).collect();
                Reply::Array(vec![Reply::Array(fences), Reply::Int(ttl_ms as i64)])
            }
            Reply::Released => Reply::Array(vec![Reply::Int(1), Reply::Text("ok")]),
            Reply::Renewed { ttl_ms } => Reply::Array(vec![Reply::Int(1), Reply::Int(ttl_ms as i64)]),
            Reply::Refused(reason) => Reply::Array(vec![Reply::Int(0), Reply::Text(reason.as_str())]),
            Reply::Info(info) => Reply::Map(info.pairs()),
            Reply::Array(items) => Reply::Array(items.into_iter().map(Reply::plain).collect()),
            Reply::Nil
            | Reply::NilArray
            | Reply::Int(_)
            | Reply::Double(_)
            | Reply::Bool(_)
            | Reply::Bulk(_)
            | Reply::Text(_)
            | Reply::Status(_)
            | Reply::Error(_)
            | Reply::Map(_)
            | Reply::Set(_)
            | Reply::Verbatim(_) => self,
        }
    }

    /// Writes the reply into `sink`, depth first.
    pub fn render(&self, sink: &mut impl Sink) {
        match self {
            Reply::Granted { fence, ttl_ms } => {
                sink.array(2);
                sink.int(fence.0 as i64);
                sink.int(*ttl_ms as i64);
            }
            Reply::GrantedMany { fences, ttl_ms } => {
                sink.array(2);
                sink.array(fences.len());
                fences.iter().for_each(|fence| sink.int(fence.0 as i64));
                sink.int(*ttl_ms as i64);
            }
            Reply::Released => {
                sink.array(2);
                sink.int(1);
                sink.bulk(b"ok");
            }
            Reply::Renewed { ttl_ms } => {
                sink.array(2);
                sink.int(1);
                sink.int(*ttl_ms as i64);
            }
            Reply::Refused(reason) => {
                sink.array(2);
                sink.int(0);
                sink.bulk(reason.as_str().as_bytes());
            }
            Reply::Nil => sink.nil(),
            Reply::NilArray => sink.nil_array(),
            Reply::Int(value) => sink.int(*value),
            Reply::Double(value) => sink.double(*value),
            Reply::Bool(value) => sink.boolean(*value),
            Reply::Bulk(value) => sink.bulk(value),
            Reply::Text(value) => sink.bulk(value.as_bytes()),
            Reply::Status(value) => sink.status(value),
            Reply::Error(refusal) => sink.error(&refusal.0),
            Reply::Verbatim(value) => sink.verbatim(value),
            Reply::Array(items) => {
                sink.array(items.len());
                items.iter().for_each(|item| item.render(sink));
            }
            Reply::Set(items) => {
                sink.set(items.len());
                items.iter().for_each(|item| item.render(sink));
            }
            Reply::Map(pairs) => {
                sink.map(pairs.len());
                for (key, value) in pairs {
                    key.render(sink);
                    value.render(sink);
                }
            }
            Reply::Info(info) => Reply::Map(info.pairs()).render(sink),
        }
    }
}

impl LockInfo {
    /// The one holder of a key that a script has written: who it is, where it is not the grant from before.
    #[cfg(feature = "scripts")]
    pub(crate) fn holders_of_plain_key(&self, is_same_grant: bool) -> Vec<HolderInfo> {
        let before = self.holders.iter().flatten().next().filter(|_| is_same_grant);
        let holder = self.owner.clone().zip(self.ttl_ms).map(|(owner, ttl_ms)| HolderInfo {
            owner,
            fence: self.fence,
            session: self.session,
            ttl_ms,
            held_ms: before.map_or(Some(0), |before| before.held_ms),
            kind: LockKind::Exclusive,
            value: before.and_then(|before| before.value.clone()),
        });
        holder.into_iter().collect()
    }

    pub(crate) fn pairs(&self) -> Vec<(Reply, Reply)> {
        let bulk_or_nil = |value: Option<Reply>| value.unwrap_or(Reply::Nil);
        let mut pairs = vec![
            (Reply::Text("resource"), Reply::Bulk(self.resource.clone())),
            (Reply::Text("tier"), Reply::Text(self.tier.as_str())),
            (Reply::Text("state"), Reply::Text(if self.held { "held" } else { "free" })),
            (Reply::Text("fence"), Reply::Int(self.fence.0 as i64)),
            (Reply::Text("owner"), bulk_or_nil(self.owner.clone().map(Reply::Bulk))),
            (Reply::Text("session"), bulk_or_nil(self.session.map(|id| Reply::bulk(id.to_string())))),
            (Reply::Text("ttl"), bulk_or_nil(self.ttl_ms.map(Reply::Int))),
            (Reply::Text("waiters"), Reply::Int(self.waiters as i64)),
        ];
        let Some(holders) = &self.holders else { return pairs };
        let oldest = holders.first();
        let mode = |holder: &HolderInfo| -> LockMode { holder.kind.mode() };
        let max = oldest.and_then(HolderInfo::permits).map(|(_, max)| Reply::Int(i64::from(max)));
        let value = oldest.and_then(|holder| holder.value.clone()).map(Reply::Bulk);
        let held_ms = oldest.and_then(|holder| holder.held_ms).map(|held_ms| Reply::Int(held_ms as i64));
        pairs.extend([
            (Reply::Text("mode"), bulk_or_nil(oldest.map(|holder| Reply::Text(mode(holder).as_str())))),
            (Reply::Text("held_ms"), bulk_or_nil(held_ms)),
            (Reply::Text("value"), bulk_or_nil(value)),
            (Reply::Text("max"), bulk_or_nil(max)),
            (Reply::Text("holders"), Reply::Array(holders.iter().map(HolderInfo::to_reply).collect())),
        ]);
        pairs
    }
}
