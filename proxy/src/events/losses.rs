//! Who must hear that it lost a lock: connections that said `LOCK.NOTIFY ON`, with the grants they were told of and the sessions
//! they named.
//!
//! A grant is noted when its client is told of it, its end comes from this node's own apply ([`super::publish_feed`]). The end may
//! come first, where the grant is told late: so a client says beforehand what it asks for ([`LossWatch::asks`]), ends of such
//! grants wait beside the attempt, and a grant that has ended by the time it is told is reported at once. Each grant is reported
//! once, and never before its own reply: while a client waits for an answer, the end of what it asked for is not told to it, not
//! even as one of its session's.
//!
//! A notice names the user whose grant it was. Whoever passes it on looks whether the client may hear of it
//! ([`crate::acl::User::may_hear_of_loss`]).
//!
//! Grants of which this table cannot know whether they stand are looked up in the state ([`LossWatch::take_to_look_up`],
//! `server::loss_checks`): all of them where ends may have been missed (the feed was full, a snapshot took the place of log entries), those
//! that were told before the client was watched, and those of a session whose ttl only the state knows. What a session
//! held nobody here knows: where ends were missed, clients that named one are disconnected, ask again and see what is left. What other
//! connections took for it is looked for when the node is cut off ([`LossWatch::session_holds`]).
//!
//! # Limits
//!
//! - Grants noted for one client: [`GRANTS_PER_CLIENT_MAX`], and their bytes count as held for it ([`Account`]); notices it may leave unread: [`UNREAD_MAX`]. One more closes the connection: it
//!   must know that it does not hear everything.
//! - Ends that wait beside one attempt, and beside all of a client: [`ENDS_PER_ATTEMPT_MAX`], [`ENDS_PER_CLIENT_MAX`]; their bytes
//!   count as held for it. One more closes the connection.

mod table;

use super::overflow::OverflowMark;
use super::Demand;
use crate::client_memory::Account;
use bytes::Bytes;
use redfence_core::machine::{GrantState, Loss};
use redfence_core::types::{Fence, LossCause, Reason, SessionId, UserTag};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use table::{LossTable, NotedGrant, NotifiedClient, WatchedSession};
use tokio::sync::mpsc;

const GRANTS_PER_CLIENT_MAX: usize = 65_536;
const SESSIONS_PER_CLIENT_MAX: usize = 1_024;
/// As many as it may hold: all may end at once.
const UNREAD_MAX: usize = GRANTS_PER_CLIENT_MAX;
const ENDS_PER_ATTEMPT_MAX: usize = 1_024;
const ENDS_PER_CLIENT_MAX: usize = GRANTS_PER_CLIENT_MAX;
/// What an attempt takes for each name, its places in two tables.
const ATTEMPT_BYTES: usize = 384;
/// What a notice takes besides the name.
const NOTICE_BYTES: usize = 96;

/// What is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeKind {
    Lost,
    /// This node cannot know whether the lock is still held.
    Suspect,
}

impl NoticeKind {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            NoticeKind::Lost => "lock-lost",
            NoticeKind::Suspect => "lock-suspect",
        }
    }
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

/// What a client waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    pub db: u32,
    pub resource: Bytes,
    pub by: AttemptBy,
}

impl Attempt {
    /// What it takes in memory.
    fn bytes(&self) -> usize {
        let owner = if let AttemptBy::Owner(owner) = &self.by { owner.len() } else { 0 };
        ATTEMPT_BYTES + self.resource.len() + owner
    }

    /// That keeps nothing of the command it comes from.
    fn copied(&self) -> Attempt {
        let by = match &self.by {
            AttemptBy::Owner(owner) => AttemptBy::Owner(Bytes::copy_from_slice(owner)),
            by @ (AttemptBy::Conversion | AttemptBy::Kept(_) | AttemptBy::Transaction) => by.clone(),
        };
        Attempt { db: self.db, resource: Bytes::copy_from_slice(&self.resource), by }
    }
}

/// How the grant will be known that answers an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AttemptBy {
    /// It has this owner.
    Owner(Bytes),
    /// A conversion to exclusive: nobody else holds the lock exclusively while the client holds it shared.
    Conversion,
    /// A conversion to shared, which goes on under the fence that it has.
    Kept(Fence),
    /// A transaction, in which owners are made up by the machine.
    Transaction,
}

/// A grant that a client was told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToldGrant {
    pub key: GrantKey,
    /// How long it lasts without a renewal, of the lock or of its session; 0 where that is not known.
    pub lease_ms: u64,
    /// It may end with a session, whatever time of its own it has.
    pub in_session: bool,
    pub user: UserTag,
}

/// The receiving end of one client.
#[derive(Debug)]
pub struct LossInbox {
    receiver: mpsc::Receiver<LossNotice>,
    overflowed: OverflowMark,
    account: Arc<Account>,
}

impl LossInbox {
    /// Whether it missed something.
    #[must_use]
    pub fn overflowed(&self) -> bool {
        self.overflowed.is_set()
    }

    /// Instead of [`LossInbox::poll`], where its client has no room for more: wakes when something is missed.
    pub fn poll_overflow(&self, context: &Context<'_>) {
        self.overflowed.wake_when_set(context);
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

/// All clients of this node that are told of the locks they lose.
#[derive(Debug)]
pub struct LossWatch {
    table: Mutex<LossTable>,
    demand: Arc<Demand>,
    /// How many they are.
    clients: AtomicUsize,
}

impl LossWatch {
    #[must_use]
    pub fn new(demand: Arc<Demand>) -> LossWatch {
        LossWatch { table: Mutex::default(), demand, clients: AtomicUsize::new(0) }
    }

    fn table(&self) -> MutexGuard<'_, LossTable> {
        self.table.lock().expect("mutex poisoned")
    }

    /// Whether anybody is told anything.
    #[must_use]
    pub fn has_clients(&self) -> bool {
        self.clients.load(Ordering::Relaxed) > 0
    }

    /// From its return on, ends of grants count. `None`: the client is told already.
    pub fn start(&self, account: &Arc<Account>) -> Option<LossInbox> {
        let mut table = self.table();
        if table.clients.contains_key(&account.client) {
            return None;
        }
        let (sender, receiver) = mpsc::channel(UNREAD_MAX);
        let overflowed = OverflowMark::default();
        let inbox = LossInbox { receiver, overflowed: overflowed.clone(), account: Arc::clone(account) };
        table.clients.insert(account.client, NotifiedClient::new(sender, overflowed, Arc::clone(account)));
        self.clients.fetch_add(1, Ordering::Relaxed);
        self.demand.loss_watchers.fetch_add(1, Ordering::SeqCst);
        Some(inbox)
    }

    /// Answers the grants that the client was told of and that have not ended, as far as is known. Oldest first: fences rise with time.
    /// `None`: it has missed something, and its connection must end.
    pub fn stop(&self, client: u64) -> Option<Vec<ToldGrant>> {
        let record = self.table().remove(client)?;
        self.left(1);
        let told = |(key, grant): (GrantKey, NotedGrant)| ToldGrant {
            key,
            lease_ms: grant.lease_ms,
            in_session: grant.in_session,
            user: grant.user,
        };
        let mut grants: Vec<_> =
            record.grants.into_iter().filter(|(_, grant)| !grant.is_gone).map(told).collect();
        grants.sort_unstable_by_key(|grant| grant.key.fence);
        Some(grants)
    }

    fn left(&self, clients: usize) {
        self.clients.fetch_sub(clients, Ordering::Relaxed);
        self.demand.loss_watchers.fetch_sub(clients, Ordering::SeqCst);
    }

    /// Who does not read what it is told hears no more, and knows it: its connection ends.
    /// What was kept of it is dropped when nobody waits for the table any more.
    fn drop_overflowed(&self, mut table: MutexGuard<'_, LossTable>) {
        let gone = self.take_overflowed(&mut table);
        drop(table);
        drop(gone);
    }

    fn take_overflowed(&self, table: &mut LossTable) -> Vec<NotifiedClient> {
        let overflowed = std::mem::take(&mut table.overflowed);
        let gone: Vec<_> = overflowed.into_iter().filter_map(|client| table.remove(client)).collect();
        self.left(gone.len());
        gone
    }

    /// The client is told of all locks of this session too, as this user. False where it named too many sessions.
    pub fn watch_session(&self, client: u64, session: SessionId, user: UserTag) -> bool {
        let mut table = self.table();
        let Some(record) = table.clients.get_mut(&client) else { return false };
        if record.watches(session) {
            return true;
        }
        if record.sessions.len() >= SESSIONS_PER_CLIENT_MAX {
            return false;
        }
        record.sessions.push(WatchedSession { id: session, user, is_own: false });
        table.sessions.entry(session).or_default().push(client);
        true
    }

    #[must_use]
    pub fn is_watching_session(&self, client: u64, session: SessionId) -> bool {
        self.table().clients.get(&client).is_some_and(|record| record.watches(session))
    }

    /// The session is one of which the client may hear.
    pub fn owns_session(&self, client: u64, session: SessionId) {
        let mut table = self.table();
        let Some(record) = table.clients.get_mut(&client) else { return };
        record.sessions.iter_mut().filter(|own| own.id == session).for_each(|own| own.is_own = true);
    }

    /// There is no such session, or it is not the client's.
    pub fn unwatch_session(&self, client: u64, session: SessionId) {
        let mut table = self.table();
        if let Some(record) = table.clients.get_mut(&client) {
            record.sessions.retain(|watched| watched.id != session);
        }
        table::forget(&mut table.sessions, &session, client);
    }

    /// The client is about to ask for a lock: it hears of the loss of that grant behind the answer. Call before the command is sent.
    /// How many bytes are kept until then.
    pub fn asks(&self, client: u64, attempt: &Attempt) -> usize {
        self.table().ask(client, attempt)
    }

    /// A client is being told of a grant. Where it has ended by now, the client is told that next.
    pub fn granted(&self, client: u64, attempt: &Attempt, grant: ToldGrant) {
        let mut table = self.table();
        table.granted(client, attempt, grant);
        self.drop_overflowed(table);
    }

    /// The answer is there. Call behind [`LossWatch::granted`].
    pub fn answered(&self, client: u64, attempt: &Attempt) {
        let mut table = self.table();
        table.answered(client, attempt);
        self.drop_overflowed(table);
    }

    /// A grant of which the client knows, and nobody here whether it stands: it was told before the client was watched, or to
    /// another client of its session. If it has ended, that is not told. `is_over`: its time has passed, unless it was renewed elsewhere.
    pub fn knows(&self, client: u64, grant: ToldGrant, is_over: bool) {
        let mut table = self.table();
        if table.grants.get(&grant.key).is_some_and(|clients| clients.contains(&client)) {
            return;
        }
        let noted = NotedGrant { stood: false, is_over, ..NotedGrant::of(&grant) };
        if table.note(client, grant.key.clone(), noted) {
            table.to_look_up.insert(grant.key);
        }
        self.drop_overflowed(table);
    }

    #[must_use]
    pub fn watched_sessions(&self) -> Vec<SessionId> {
        self.table().sessions.keys().copied().collect()
    }

    /// A lock that a session holds, as this node's state has it while nobody else can be asked: whoever watches the session may have to
    /// doubt it.
    pub fn session_holds(&self, session: SessionId, key: &GrantKey, lease_ms: u64) {
        let mut table = self.table();
        for client in table.sessions.get(&session).cloned().into_iter().flatten() {
            let Some(record) = table.clients.get(&client) else { continue };
            let watched = record.sessions.iter().find(|watched| watched.id == session && watched.is_own);
            let user = watched.map(|watched| watched.user);
            if let Some(user) = user.filter(|_| !record.grants.contains_key(key)) {
                table.note(client, key.clone(), NotedGrant::new(lease_ms, true, user));
            }
        }
        self.drop_overflowed(table);
    }

    /// A lock was renewed through this node.
    pub fn renewed(&self, key: &GrantKey, lease_ms: u64) {
        self.table().renewed(key, lease_ms);
    }

    /// A client has released a grant, or converted it under another fence. The feed says so too, perhaps later, or never where events
    /// are missed.
    pub fn released(&self, key: &GrantKey) {
        self.table().end(key);
    }

    /// A grant has ended, lost or released.
    pub fn ended(&self, loss: &Loss) {
        let mut table = self.table();
        table.ended(loss);
        self.drop_overflowed(table);
    }

    /// Ends of grants were lost on the way here.
    pub fn missed(&self) {
        let mut table = self.table();
        let of_sessions = table.clients.iter().filter(|(_, client)| !client.sessions.is_empty());
        let of_sessions = of_sessions.map(|(client, _)| *client).collect::<Vec<_>>();
        of_sessions.into_iter().for_each(|client| table.overflow(client));
        let gone = self.take_overflowed(&mut table);
        table.missed();
        drop(table);
        drop(gone);
    }

    /// The grants to look up in the state. Each is answered by [`LossWatch::found`] or [`LossWatch::not_found`].
    #[must_use]
    pub fn take_to_look_up(&self) -> Vec<GrantKey> {
        std::mem::take(&mut self.table().to_look_up).into_iter().collect()
    }

    /// Read before the state is asked: an answer says nothing of what was missed after the question.
    #[must_use]
    pub fn misses(&self) -> u64 {
        self.table().misses
    }

    /// The state could not be read: the grant is to be looked up again.
    pub fn not_found(&self, key: GrantKey) {
        let mut table = self.table();
        if table.grants.contains_key(&key) {
            table.to_look_up.insert(key);
        }
    }

    /// What the state says of a grant. `misses`: [`LossWatch::misses`] when it was asked.
    pub fn found(&self, key: GrantKey, state: GrantState, misses: u64) {
        let mut table = self.table();
        if table.misses != misses {
            // All of them are to be looked up again.
            return;
        }
        match state {
            GrantState::Held { lease_ms, .. } => table.change_each(&key, |grant| {
                grant.lease_ms = lease_ms;
                (grant.stood, grant.is_doubtful, grant.is_over) = (true, false, false);
            }),
            GrantState::Ended { reason: Reason::AlreadyReleased, .. } => table.end(&key),
            // How it ended was missed, if it was not in the past of which nobody is told.
            GrantState::Ended { reason: Reason::NotOwner | Reason::Expired, successor } => {
                table.gone(&key, LossCause::Expired, successor);
            }
            GrantState::Deleted { successor } => table.gone(&key, LossCause::Deleted, successor),
        }
        self.drop_overflowed(table);
    }

    /// Whether there is no grant that anybody would have to doubt.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.table().grants.is_empty()
    }

    /// The leader was not reached for so long: whoever holds a lock of less than twice that must doubt it. Answers whom it told
    /// what, each grant once.
    pub fn suspect(&self, out_of_reach_ms: u64) -> Vec<LossNotice> {
        let mut table = self.table();
        let told = table.suspect(out_of_reach_ms);
        self.drop_overflowed(table);
        told
    }

    /// The leader was reached again: what may be doubted next time is told again.
    pub fn trust(&self) {
        let mut table = self.table();
        table.trusted_for_ms = 0;
        let grants = table.clients.values_mut().flat_map(|client| client.grants.values_mut());
        grants.for_each(|grant| grant.is_suspect = false);
    }
}

#[cfg(test)]
mod tests;
