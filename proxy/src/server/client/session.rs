//! The state of one client, as Redis users know it: protocol, database, name, authentication, subscriptions, transaction,
//! tracking of keys.
//!
//! Owned by its `connection`; what other connections may see of it (`CLIENT LIST`, `CLIENT KILL`) is in [`crate::server::client::registry`].

use crate::acl::User;
use crate::client_memory::Account;
use crate::events::{InvalidationInbox, LossInbox, SubscriberInbox, SubscriptionKind, TrackingTerms};
use crate::resp::encode::Protocol;
use crate::server::access::AccessControl;
use crate::server::client::registry::ClientInfo;
use crate::server::client::session_keepalive::{ConnectionSessions, SessionKeepalive};
use crate::server::client::told_grants::ToldGrants;
use crate::server::client::transaction::{Transaction, TransactionTarget, WatchedKey};
use crate::server::commands::fence_kind::FenceAnswer;
use crate::server::routing::router::ListenerKind;
use crate::tier2::handle::TrackingCaller;
use bytes::Bytes;
use redfence_core::reply::Reply;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Databases a client may `SELECT`, as Redis ships.
pub const DATABASES: u32 = 16;

/// `CLIENT REPLY`: which answers the client wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyMode {
    #[default]
    On,
    Off,
    /// Off for the command just in flight, then on.
    SkipThis,
    /// Off for the next command, then on.
    SkipNext,
}

#[derive(Debug)]
pub struct Client {
    pub info: Arc<ClientInfo>,
    /// What the node holds for it.
    pub account: Arc<Account>,
    pub listener_kind: ListenerKind,
    pub protocol: Protocol,
    pub db: u32,
    pub authenticated: bool,
    /// The common name of its verified TLS certificate: the ACL user it may be without a password.
    pub certificate_user: Option<Box<str>>,
    /// Who it is, with all rights as they were in this generation of [`crate::server::access`].
    pub user: Arc<User>,
    pub access_generation: u64,
    pub failed_logins: u32,
    /// What it has sent since it was last logged in.
    pub before_login: BeforeLogin,
    pub reply_mode: ReplyMode,
    /// Between `MULTI` and `EXEC`.
    pub transaction: Option<Box<Transaction>>,
    /// Keys of the Raft keyspace, as they were at `WATCH`.
    pub watched: Vec<WatchedKey>,
    /// What they take in the log.
    pub watched_bytes: usize,
    /// Keys are watched at the upstream Redis.
    pub watches_upstream: bool,
    /// Sessions this connection opened: any command here keeps them alive, its end orphans them.
    pub sessions: Option<Arc<ConnectionSessions>>,
    /// Commands in flight that wait.
    pub waits: Waits,
    pub subscriptions: Option<Box<Subscriptions>>,
    /// While `CLIENT TRACKING` is on.
    pub tracking: Option<Box<Tracking>>,
    /// The upstream Redis tracks for it too, by its own connection there.
    pub tracks_upstream: bool,
    /// Its own connection to the upstream Redis is in `MONITOR`.
    pub monitors: bool,
    /// While `LOCK.NOTIFY` is on.
    pub losses: Option<Box<LossInbox>>,
    /// What the cluster says of the fence in the command that is run next.
    pub fence_answer: Option<Box<FenceAnswer>>,
    /// Grants it was told of while it is off.
    pub told: ToldGrants,
    /// The reason an operator gave for what it does now, for the audit log.
    pub reason: Option<Box<str>>,
}

/// Commands in flight that wait. The upstream Redis may have been sent several: the answer to the first is not the end of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits(u32);

impl Waits {
    fn begin(&mut self) {
        self.0 += 1;
    }

    /// Whether it was the last.
    fn end(&mut self) -> bool {
        self.0 = self.0.saturating_sub(1);
        self.0 == 0
    }

    fn are_there(self) -> bool {
        self.0 > 0
    }
}

/// What a client has sent without being logged in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BeforeLogin {
    pub commands: u32,
    pub bytes: usize,
}

/// What the client listens to.
#[derive(Debug)]
pub struct Subscriptions {
    pub inbox: SubscriberInbox,
    pub channels: BTreeSet<Bytes>,
    pub patterns: BTreeSet<Bytes>,
    pub shards: BTreeSet<Bytes>,
    /// Of all, as counted last.
    pub held_bytes: usize,
}

/// What one subscription weighs: its name, and its place in the tables.
#[must_use]
pub fn name_bytes(name: &[u8]) -> usize {
    name.len() + 64
}

impl Subscriptions {
    #[must_use]
    pub fn count(&self) -> usize {
        self.channels.len() + self.patterns.len() + self.shards.len()
    }

    /// Bytes of channels' names and of patterns.
    #[must_use]
    pub fn bytes(&self) -> (usize, usize) {
        let sum = |names: &BTreeSet<Bytes>| names.iter().map(|name| name_bytes(name)).sum();
        (sum(&self.channels) + sum(&self.shards), sum(&self.patterns))
    }

    /// As its client is told: shard channels are counted apart.
    #[must_use]
    pub fn count_of(&self, kind: SubscriptionKind) -> usize {
        match kind {
            SubscriptionKind::Channel | SubscriptionKind::Pattern => {
                self.channels.len() + self.patterns.len()
            }
            SubscriptionKind::Shard => self.shards.len(),
        }
    }

    pub fn names(&mut self, kind: SubscriptionKind) -> &mut BTreeSet<Bytes> {
        match kind {
            SubscriptionKind::Channel => &mut self.channels,
            SubscriptionKind::Pattern => &mut self.patterns,
            SubscriptionKind::Shard => &mut self.shards,
        }
    }
}

/// How the client tracks keys.
#[derive(Debug)]
pub struct Tracking {
    pub mailbox: InvalidationInbox,
    pub mode: TrackingMode,
    pub terms: TrackingTerms,
    /// `CLIENT CACHING` was said: it holds for the next command.
    pub caching: bool,
    pub redirect_broken: bool,
    pub prefix_bytes: usize,
}

/// Which of the keys it reads the client keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrackingMode {
    All,
    /// Only behind `CLIENT CACHING YES`.
    OptIn,
    /// All but behind `CLIENT CACHING NO`.
    OptOut,
    /// None: it hears of all keys under its prefixes.
    Broadcast,
}

impl Client {
    #[must_use]
    pub fn new(
        info: Arc<ClientInfo>,
        account: Arc<Account>,
        listener_kind: ListenerKind,
        access: &AccessControl,
    ) -> Client {
        // In this order: a change in between is seen at the first command.
        let access_generation = access.generation();
        let (user, authenticated) = (access.default_user(), !access.needs_login());
        Client {
            info,
            account,
            listener_kind,
            protocol: Protocol::Resp2,
            db: 0,
            authenticated,
            certificate_user: None,
            user,
            access_generation,
            failed_logins: 0,
            before_login: BeforeLogin::default(),
            reply_mode: ReplyMode::On,
            transaction: None,
            watched: Vec::new(),
            watched_bytes: 0,
            watches_upstream: false,
            sessions: None,
            waits: Waits::default(),
            subscriptions: None,
            tracking: None,
            tracks_upstream: false,
            monitors: false,
            losses: None,
            fence_answer: None,
            told: ToldGrants::default(),
            reason: None,
        }
    }

    /// A verified certificate names a user: it needs no password.
    pub fn log_in_by_certificate(&mut self, access: &AccessControl) {
        let Some(name) = &self.certificate_user else { return };
        let generation = access.generation();
        let Some(user) = access.user(name.as_bytes()).filter(|user| user.is_on) else { return };
        self.info.texts().user = name.to_string();
        self.info.logged_in.store(true, Ordering::Release);
        self.user = user;
        self.access_generation = generation;
        self.authenticated = true;
    }

    /// On whose behalf Tier 2 is asked, where that matters: its own changes, and what it keeps of what it reads.
    #[must_use]
    pub fn caller(&self) -> Option<TrackingCaller> {
        let tracking = self.tracking.as_ref()?;
        let keeps_reads = match tracking.mode {
            TrackingMode::All => true,
            TrackingMode::OptIn => tracking.caching,
            TrackingMode::OptOut => !tracking.caching,
            TrackingMode::Broadcast => false,
        };
        Some(TrackingCaller { client: self.info.id, keeps_reads })
    }

    /// Whether what it reads now is remembered for it.
    #[must_use]
    pub fn keeps_reads(&self) -> bool {
        self.caller().is_some_and(|caller| caller.keeps_reads)
    }

    #[must_use]
    pub fn subscription_count(&self) -> usize {
        self.subscriptions.as_ref().map_or(0, |subscriptions| subscriptions.count())
    }

    /// A RESP2 client that listens may do little else.
    #[must_use]
    pub fn is_listening_only(&self) -> bool {
        self.protocol == Protocol::Resp2 && self.subscription_count() > 0
    }

    /// Whether the reply to the command in flight is unwanted.
    #[must_use]
    pub fn is_muted(&self) -> bool {
        matches!(self.reply_mode, ReplyMode::Off | ReplyMode::SkipThis)
    }

    /// Being blocked in a WAIT keeps the connection's sessions alive.
    pub fn begin_wait(&mut self) {
        self.waits.begin();
        self.info.blocked.store(true, Ordering::Relaxed);
        self.keep_alive_while_blocked(true);
    }

    /// One of those that were begun is over.
    pub fn end_wait(&mut self) {
        if self.waits.end() {
            self.end_all_waits();
        }
    }

    pub fn end_all_waits(&mut self) {
        self.waits = Waits::default();
        self.info.blocked.store(false, Ordering::Relaxed);
        self.info.unblock.end();
        self.keep_alive_while_blocked(true);
    }

    /// A client that may be gone, or would not learn that its wait is over, is not blocked.
    pub fn keep_alive_while_blocked(&self, is_there: bool) {
        if let Some(sessions) = &self.sessions {
            sessions.set_waiting(self.waits.are_there() && is_there);
        }
    }

    /// The connection ends: its sessions have the grace time to be taken over.
    pub fn leave_sessions(&mut self, session_keepalive: &SessionKeepalive) {
        if let Some(sessions) = self.sessions.take() {
            session_keepalive.unregister(&sessions);
        }
    }

    /// Whether the loss of the upstream Redis takes something with it that the client relies on.
    #[must_use]
    pub fn depends_on_upstream(&self) -> bool {
        let transaction = self.transaction.as_ref();
        self.watches_upstream
            || self.tracks_upstream
            || self.monitors
            || transaction.is_some_and(|transaction| transaction.target == TransactionTarget::Upstream)
    }

    /// Remembers keys as they were. One that is watched already stays as it was then.
    pub fn watch(&mut self, db: u32, keys: Vec<Bytes>, tokens: &[Reply]) {
        for (key, token) in keys.into_iter().zip(tokens) {
            let Reply::Int(token) = *token else { continue };
            if !self.watched.iter().any(|known| known.db == db && known.key == key) {
                let watched = WatchedKey { db, key, token: token as u64 };
                self.watched_bytes += watched.logged_bytes();
                self.watched.push(watched);
            }
        }
    }

    pub fn unwatch(&mut self) {
        self.watched = Vec::new();
        self.watched_bytes = 0;
    }

    /// Bytes held for its state: queued commands, names that it watches, listens to or tracks, and locks it was told of.
    #[must_use]
    pub fn state_bytes(&self) -> usize {
        let transaction = self.transaction.as_ref().map_or(0, |transaction| transaction.held_bytes());
        let names = self.subscriptions.as_ref().map_or(0, |subscriptions| subscriptions.held_bytes);
        let prefixes = self.tracking.as_ref().map_or(0, |tracking| tracking.prefix_bytes);
        transaction + self.watched_bytes + names + prefixes + self.told.held_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_one_wait_is_not_the_end_of_the_next() {
        let mut waits = Waits::default();
        waits.begin();
        waits.begin();
        assert!(!waits.end() && waits.are_there());
        assert!(waits.end() && !waits.are_there() && waits.end());
    }
}
