//! Who must hear that it lost a lock: connections that said `LOCK.NOTIFY ON`, with the grants they were told of and the sessions
//! they named.
//!
//! A grant is noted when its client is told of it, its end comes from this node's own apply ([`super::publish_feed`]). The end may
//! come first, where the grant was told late: so ends that concern nobody are remembered for a while, and a grant that is noted
//! after its end is reported at once. Each grant is reported once, and never before its own reply: while a client waits for the
//! answer to an attempt, the end of that attempt's grant is not told to it, not even as one of its session's.
//!
//! A notice names the user whose grant it was. Whoever passes it on looks whether the client may hear of it
//! ([`crate::acl::User::may_hear_of_loss`]).
//!
//! Where ends may have been missed (the feed was full, a snapshot took the place of log entries), whoever checks the state
//! afterwards ([`LossWatch::take_to_check`]) reports what is gone. What a session held nobody here knows: clients that named one
//! are disconnected, ask again and see what is left.
//!
//! # Limits
//!
//! - Grants noted for one client: [`GRANTS_PER_CLIENT_MAX`]; notices it may leave unread: [`UNREAD_MAX`]. One more closes the connection: it
//!   must know that it does not hear everything.
//! - Ends remembered: [`REMEMBERED_MAX`].

use super::Demand;
use crate::client_memory::Account;
use bytes::Bytes;
use redfence_core::machine::Loss;
use redfence_core::types::{Fence, SessionId, UserTag};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use tokio::sync::mpsc;

const GRANTS_PER_CLIENT_MAX: usize = 65_536;
const SESSIONS_PER_CLIENT_MAX: usize = 64;
const UNREAD_MAX: usize = 4_096;
const REMEMBERED_MAX: usize = 16_384;
/// What a notice takes besides the name.
const NOTICE_BYTES: usize = 96;

/// What is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeKind {
    Lost,
    /// This node cannot know whether the lock is still held.
    Suspect,
}

/// A message to a client about one of its locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LossNotice {
    pub kind: NoticeKind,
    pub resource: Bytes,
    pub fence: Fence,
    pub cause: &'static str,
    pub successor: Option<Fence>,
    /// Whose grant it was.
    pub user: UserTag,
}

/// One grant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GrantKey {
    pub db: u32,
    pub resource: Bytes,
    pub fence: Fence,
}

/// What a client waits for: a grant under this owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    pub db: u32,
    pub resource: Bytes,
    pub owner: Bytes,
}

/// The receiving end of one client.
#[derive(Debug)]
pub struct LossInbox {
    receiver: mpsc::Receiver<LossNotice>,
    overflowed: Arc<AtomicBool>,
    account: Arc<Account>,
}

impl LossInbox {
    /// Whether it missed something.
    #[must_use]
    pub fn overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// `None`: something was missed, and nothing more will come.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<LossNotice>> {
        self.receiver.poll_recv(context).map(|notice| {
            notice.inspect(|notice| self.account.take_message(notice.resource.len() + NOTICE_BYTES))
        })
    }
}

impl Drop for LossInbox {
    fn drop(&mut self) {
        self.receiver.close();
        while let Ok(notice) = self.receiver.try_recv() {
            self.account.take_message(notice.resource.len() + NOTICE_BYTES);
        }
    }
}

#[derive(Debug)]
struct NotifiedClient {
    sender: mpsc::Sender<LossNotice>,
    overflowed: Arc<AtomicBool>,
    account: Arc<Account>,
    grants: FxHashMap<GrantKey, NotedGrant>,
    sessions: SmallVec<[SessionId; 1]>,
    /// Attempts whose answers it has not got yet.
    asking: FxHashSet<Attempt>,
}

#[derive(Clone, Copy, Debug)]
struct NotedGrant {
    ttl_ms: u64,
    user: UserTag,
    /// It was told that nobody knows, since the leader was last reached.
    is_suspect: bool,
}

impl NotifiedClient {
    fn tell(&self, notice: LossNotice) {
        let bytes = notice.resource.len() + NOTICE_BYTES;
        if !self.account.add_message(bytes) {
            self.overflowed.store(true, Ordering::Relaxed);
        } else if self.sender.try_send(notice).is_err() {
            self.account.take_message(bytes);
            self.overflowed.store(true, Ordering::Relaxed);
        }
    }
}

#[derive(Debug, Default)]
struct LossTable {
    clients: FxHashMap<u64, NotifiedClient>,
    /// Whom a grant concerns.
    grants: FxHashMap<GrantKey, SmallVec<[u64; 1]>>,
    sessions: FxHashMap<SessionId, SmallVec<[u64; 1]>>,
    /// Ends of grants that concerned nobody so far, oldest first.
    remembered: VecDeque<GrantKey>,
    ended: FxHashMap<GrantKey, Option<LossNotice>>,
    /// Ends may have been missed.
    to_check: bool,
}

/// All clients of this node that are told of the locks they lose.
#[derive(Debug)]
pub struct LossWatch {
    table: Mutex<LossTable>,
    demand: Arc<Demand>,
}

impl LossWatch {
    #[must_use]
    pub fn new(demand: Arc<Demand>) -> LossWatch {
        LossWatch { table: Mutex::default(), demand }
    }

    fn table(&self) -> MutexGuard<'_, LossTable> {
        self.table.lock().expect("mutex poisoned")
    }

    /// From its return on, ends of grants count. `None`: the client is told already.
    pub fn start(&self, account: &Arc<Account>) -> Option<LossInbox> {
        let mut table = self.table();
        if table.clients.contains_key(&account.client) {
            return None;
        }
        let (sender, receiver) = mpsc::channel(UNREAD_MAX);
        let overflowed = Arc::new(AtomicBool::new(false));
        let inbox = LossInbox { receiver, overflowed: Arc::clone(&overflowed), account: Arc::clone(account) };
        let client = NotifiedClient {
            sender,
            overflowed,
            account: Arc::clone(account),
            grants: FxHashMap::default(),
            sessions: SmallVec::new(),
            asking: FxHashSet::default(),
        };
        table.clients.insert(account.client, client);
        self.demand.loss_watchers.fetch_add(1, Ordering::SeqCst);
        Some(inbox)
    }

    pub fn stop(&self, client: u64) {
        self.remove(&mut self.table(), client);
    }

    fn remove(&self, table: &mut LossTable, client: u64) {
        let Some(record) = table.clients.remove(&client) else { return };
        for key in record.grants.keys() {
            forget(&mut table.grants, key, client);
        }
        for session in &record.sessions {
            forget(&mut table.sessions, session, client);
        }
        self.demand.loss_watchers.fetch_sub(1, Ordering::SeqCst);
    }

    /// The client is told of all locks of this session too. False where it named too many sessions.
    pub fn watch_session(&self, client: u64, session: SessionId) -> bool {
        let mut table = self.table();
        let Some(record) = table.clients.get_mut(&client) else { return false };
        if record.sessions.contains(&session) {
            return true;
        }
        if record.sessions.len() >= SESSIONS_PER_CLIENT_MAX {
            return false;
        }
        record.sessions.push(session);
        table.sessions.entry(session).or_default().push(client);
        true
    }

    /// There is no such session, or it is not the client's.
    pub fn unwatch_session(&self, client: u64, session: SessionId) {
        let mut table = self.table();
        if let Some(record) = table.clients.get_mut(&client) {
            record.sessions.retain(|other| *other != session);
        }
        forget(&mut table.sessions, &session, client);
    }

    /// The client asks for a lock: it hears of the loss of that grant only behind the answer.
    pub fn asks(&self, client: u64, attempt: Attempt) {
        if let Some(record) = self.table().clients.get_mut(&client) {
            record.asking.insert(attempt);
        }
    }

    /// The answer is there. Call after [`LossWatch::granted`].
    pub fn answered(&self, client: u64, attempt: &Attempt) {
        if let Some(record) = self.table().clients.get_mut(&client) {
            record.asking.remove(attempt);
        }
    }

    /// A client was told of a grant. Where it has ended by now, it is told that next.
    pub fn granted(&self, client: u64, key: GrantKey, ttl_ms: u64, user: UserTag) {
        let mut table = self.table();
        let ended = table.ended.get(&key).cloned();
        let Some(record) = table.clients.get_mut(&client) else { return };
        match ended {
            Some(Some(notice)) => record.tell(notice),
            Some(None) => {}
            None if record.grants.len() >= GRANTS_PER_CLIENT_MAX => {
                record.overflowed.store(true, Ordering::Relaxed);
            }
            None => {
                let grant = NotedGrant { ttl_ms, user, is_suspect: false };
                if record.grants.insert(key.clone(), grant).is_none() {
                    table.grants.entry(key).or_default().push(client);
                }
            }
        }
    }

    /// A grant has ended, lost or released.
    pub fn ended(&self, loss: &Loss) {
        let key = GrantKey { db: loss.db, resource: loss.resource.clone(), fence: loss.fence };
        let notice = loss.cause.map(|cause| LossNotice {
            kind: NoticeKind::Lost,
            resource: loss.resource.clone(),
            fence: loss.fence,
            cause: cause.as_str(),
            successor: loss.successor,
            user: loss.user,
        });
        let mut table = self.table();
        let watchers = loss.session.and_then(|session| table.sessions.get(&session));
        let watchers: SmallVec<[u64; 1]> = watchers.cloned().unwrap_or_default();
        let attempt = Attempt { db: loss.db, resource: loss.resource.clone(), owner: loss.owner.clone() };
        table.end(key, notice, &watchers, Some(&attempt));
    }

    /// Ends of grants were lost on the way here.
    pub fn missed(&self) {
        let mut table = self.table();
        let of_sessions = table.clients.iter().filter(|(_, client)| !client.sessions.is_empty());
        for client in of_sessions.map(|(client, _)| *client).collect::<Vec<_>>() {
            if let Some(record) = table.clients.get(&client) {
                record.overflowed.store(true, Ordering::Relaxed);
            }
            self.remove(&mut table, client);
        }
        table.to_check = !table.grants.is_empty();
    }

    /// The grants to look up in the state, after ends were missed.
    #[must_use]
    pub fn take_to_check(&self) -> Vec<GrantKey> {
        let mut table = self.table();
        match std::mem::take(&mut table.to_check) {
            true => table.grants.keys().cloned().collect(),
            false => Vec::new(),
        }
    }

    /// The state does not have this grant any more; why was missed.
    pub fn gone(&self, key: GrantKey, successor: Option<Fence>) {
        let mut table = self.table();
        let Some(concerned) = table.grants.get(&key) else { return };
        let noted = concerned.first().and_then(|client| table.clients.get(client)?.grants.get(&key));
        let Some(NotedGrant { user, .. }) = noted.copied() else { return };
        let (kind, cause) = (NoticeKind::Lost, "expired");
        let (resource, fence) = (key.resource.clone(), key.fence);
        let notice = LossNotice { kind, resource, fence, cause, successor, user };
        table.end(key, Some(notice), &[], None);
    }

    /// Whether anybody has to be told anything.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.table().grants.is_empty()
    }

    /// The leader was not reached for so long: whoever holds a lock of less than twice that must doubt it.
    pub fn suspect(&self, out_of_reach_ms: u64) {
        let mut table = self.table();
        for client in table.clients.values_mut() {
            let mut doubtful = Vec::new();
            for (key, grant) in &mut client.grants {
                let is_due = grant.ttl_ms > 0 && out_of_reach_ms >= grant.ttl_ms / 2;
                if is_due && !grant.is_suspect {
                    grant.is_suspect = true;
                    doubtful.push((key.clone(), grant.user));
                }
            }
            for (GrantKey { resource, fence, .. }, user) in doubtful {
                let (kind, cause) = (NoticeKind::Suspect, "no_quorum");
                client.tell(LossNotice { kind, resource, fence, cause, successor: None, user });
            }
        }
    }

    /// The leader was reached again: what may be doubted next time is told again.
    pub fn trust(&self) {
        let mut table = self.table();
        let grants = table.clients.values_mut().flat_map(|client| client.grants.values_mut());
        grants.for_each(|grant| grant.is_suspect = false);
    }
}

impl LossTable {
    /// `watchers`: clients that named the session of the grant.
    fn end(
        &mut self,
        key: GrantKey,
        notice: Option<LossNotice>,
        watchers: &[u64],
        attempt: Option<&Attempt>,
    ) {
        let mut concerned: FxHashSet<u64> = self.grants.remove(&key).into_iter().flatten().collect();
        for client in &concerned {
            if let Some(record) = self.clients.get_mut(client) {
                record.grants.remove(&key);
            }
        }
        let mut remembers = concerned.is_empty();
        for watcher in watchers {
            let asks =
                |record: &NotifiedClient| attempt.is_some_and(|attempt| record.asking.contains(attempt));
            match self.clients.get(watcher).is_some_and(asks) {
                true => remembers = true,
                false => _ = concerned.insert(*watcher),
            }
        }
        if remembers {
            self.remember(key, notice.clone());
        }
        if let Some(notice) = notice {
            for client in concerned {
                self.clients.get(&client).into_iter().for_each(|record| record.tell(notice.clone()));
            }
        }
    }

    fn remember(&mut self, key: GrantKey, notice: Option<LossNotice>) {
        if self.clients.is_empty() {
            return;
        }
        if self.ended.insert(key.clone(), notice).is_none() {
            self.remembered.push_back(key);
        }
        while self.remembered.len() > REMEMBERED_MAX {
            if let Some(oldest) = self.remembered.pop_front() {
                self.ended.remove(&oldest);
            }
        }
    }
}

fn forget<K: std::hash::Hash + Eq>(map: &mut FxHashMap<K, SmallVec<[u64; 1]>>, key: &K, client: u64) {
    let Some(clients) = map.get_mut(key) else { return };
    clients.retain(|other| *other != client);
    if clients.is_empty() {
        map.remove(key);
    }
}

#[cfg(test)]
mod tests;
