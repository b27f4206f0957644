//! Who must hear that it lost a lock: connections that said `LOCK.NOTIFY ON`, with the grants they were told of and the sessions
//! they named.
//!
//! A grant is noted when its client is told of it, its end comes from this node's own apply ([`super::publish_feed`]). The end may
//! come first, where the grant was told late: so ends that concern nobody are remembered for a while, and a grant that is noted
//! after its end is reported at once. Each grant is reported once, and never before its own reply.
//!
//! Where ends may have been missed (the feed was full, a snapshot took the place of log entries), whoever checks the state
//! afterwards ([`LossWatch::take_to_check`]) reports what is gone.
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
use redfence_core::types::{Fence, SessionId};
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
}

/// One grant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GrantKey {
    pub db: u32,
    pub resource: Bytes,
    pub fence: Fence,
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

    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<LossNotice> {
        match self.receiver.poll_recv(context) {
            Poll::Ready(Some(notice)) => {
                self.account.take_message(notice.resource.len() + NOTICE_BYTES);
                Poll::Ready(notice)
            }
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
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
}

#[derive(Clone, Copy, Debug)]
struct NotedGrant {
    ttl_ms: u64,
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
        };
        table.clients.insert(account.client, client);
        self.demand.loss_watchers.fetch_add(1, Ordering::SeqCst);
        Some(inbox)
    }

    pub fn stop(&self, client: u64) {
        let mut table = self.table();
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

    /// A client was told of a grant. Where it has ended by now, it is told that next.
    pub fn granted(&self, client: u64, key: GrantKey, ttl_ms: u64) {
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
                let grant = NotedGrant { ttl_ms, is_suspect: false };
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
        });
        self.end(key, notice, loss.session);
    }

    fn end(&self, key: GrantKey, notice: Option<LossNotice>, session: Option<SessionId>) {
        let mut table = self.table();
        let table = &mut *table;
        let mut concerned: FxHashSet<u64> = table.grants.remove(&key).into_iter().flatten().collect();
        for client in &concerned {
            if let Some(record) = table.clients.get_mut(client) {
                record.grants.remove(&key);
            }
        }
        if concerned.is_empty() {
            table.remember(key, notice.clone());
        }
        concerned.extend(session.and_then(|session| table.sessions.get(&session)).into_iter().flatten());
        if let Some(notice) = notice {
            for client in concerned {
                table.clients.get(&client).into_iter().for_each(|record| record.tell(notice.clone()));
            }
        }
    }

    /// Ends of grants were lost on the way here.
    pub fn missed(&self) {
        let mut table = self.table();
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
        if !self.table().grants.contains_key(&key) {
            return;
        }
        let (kind, cause) = (NoticeKind::Lost, "expired");
        let notice = LossNotice { kind, resource: key.resource.clone(), fence: key.fence, cause, successor };
        self.end(key, Some(notice), None);
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
                    doubtful.push(key.clone());
                }
            }
            for GrantKey { resource, fence, .. } in doubtful {
                let (kind, cause) = (NoticeKind::Suspect, "no_quorum");
                client.tell(LossNotice { kind, resource, fence, cause, successor: None });
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
mod tests {
    use super::*;
    use crate::client_memory::ClientMemory;
    use crate::clock::Clock;
    use redfence_core::types::LossCause;
    use std::task::Waker;

    fn key(fence: u64) -> GrantKey {
        GrantKey { db: 0, resource: Bytes::from_static(b"r"), fence: Fence(fence) }
    }

    fn loss(fence: u64, cause: Option<LossCause>, session: Option<u64>) -> Loss {
        let resource = Bytes::from_static(b"r");
        let session = session.map(SessionId);
        Loss { db: 0, resource, fence: Fence(fence), cause, session, successor: Some(Fence(fence + 1)) }
    }

    fn notices(inbox: &mut LossInbox) -> Vec<(NoticeKind, u64, &'static str)> {
        let mut context = Context::from_waker(Waker::noop());
        let next = || match inbox.poll(&mut context) {
            Poll::Ready(notice) => Some((notice.kind, notice.fence.0, notice.cause)),
            Poll::Pending => None,
        };
        std::iter::from_fn(next).collect()
    }

    fn watch() -> (LossWatch, LossInbox, Arc<ClientMemory>) {
        let memory = ClientMemory::new(Clock::start());
        let watch = LossWatch::new(Arc::default());
        let inbox = watch.start(&memory.open(1)).expect("the first time");
        (watch, inbox, memory)
    }

    #[test]
    fn a_loss_is_told_once_and_a_release_never() {
        let (watch, mut inbox, memory) = watch();
        watch.granted(1, key(5), 100);
        watch.granted(1, key(6), 100);
        watch.ended(&loss(5, Some(LossCause::Expired), None));
        watch.ended(&loss(5, Some(LossCause::Expired), None));
        watch.ended(&loss(6, None, None));
        assert_eq!(notices(&mut inbox), [(NoticeKind::Lost, 5, "expired")]);
        assert!(watch.is_idle());
        assert_eq!(memory.total_bytes(), 0);
    }

    #[test]
    fn a_grant_that_is_told_after_its_end_is_reported_at_once() {
        let (watch, mut inbox, _memory) = watch();
        watch.ended(&loss(5, Some(LossCause::Wounded), None));
        watch.ended(&loss(6, None, None));
        assert_eq!(notices(&mut inbox), [], "nobody was told of it yet");
        watch.granted(1, key(5), 100);
        watch.granted(1, key(6), 100);
        assert_eq!(notices(&mut inbox), [(NoticeKind::Lost, 5, "wounded")]);
        assert!(watch.is_idle());
    }

    #[test]
    fn a_session_is_told_of_locks_of_other_connections() {
        let (watch, mut inbox, _memory) = watch();
        assert!(watch.watch_session(1, SessionId(9)));
        watch.granted(1, key(5), 100);
        watch.ended(&loss(5, Some(LossCause::SessionEnded), Some(9)));
        watch.ended(&loss(6, Some(LossCause::Forced), Some(9)));
        watch.ended(&loss(7, Some(LossCause::Forced), Some(8)));
        let told = notices(&mut inbox);
        assert_eq!(told, [(NoticeKind::Lost, 5, "session_ended"), (NoticeKind::Lost, 6, "forced")]);
        watch.stop(1);
        watch.ended(&loss(8, Some(LossCause::Forced), Some(9)));
        assert_eq!(notices(&mut inbox), []);
    }

    #[test]
    fn doubt_is_told_once_an_outage_at_half_of_the_ttl() {
        let (watch, mut inbox, _memory) = watch();
        watch.granted(1, key(5), 100);
        watch.granted(1, key(6), 0);
        watch.suspect(49);
        assert_eq!(notices(&mut inbox), []);
        watch.suspect(50);
        watch.suspect(70);
        assert_eq!(notices(&mut inbox), [(NoticeKind::Suspect, 5, "no_quorum")]);
        watch.trust();
        watch.suspect(50);
        assert_eq!(notices(&mut inbox), [(NoticeKind::Suspect, 5, "no_quorum")]);
    }

    #[test]
    fn what_was_missed_is_looked_up() {
        let (watch, mut inbox, _memory) = watch();
        watch.missed();
        assert!(watch.take_to_check().is_empty(), "nothing to look for");
        watch.granted(1, key(5), 100);
        watch.missed();
        assert_eq!(watch.take_to_check(), [key(5)]);
        assert!(watch.take_to_check().is_empty());
        watch.gone(key(5), Some(Fence(6)));
        watch.gone(key(5), Some(Fence(6)));
        assert_eq!(notices(&mut inbox), [(NoticeKind::Lost, 5, "expired")]);
    }

    #[test]
    fn a_client_that_does_not_read_is_marked() {
        let (watch, inbox, _memory) = watch();
        for fence in 1..=UNREAD_MAX as u64 + 1 {
            assert!(!inbox.overflowed());
            watch.granted(1, key(fence), 100);
            watch.ended(&loss(fence, Some(LossCause::Expired), None));
        }
        assert!(inbox.overflowed());
    }
}
