//! `LOCK.NOTIFY ON [SESSION id]`, `OFF`: whether this connection is told of the locks it loses. Answered by the node.

use crate::events::{Attempt, AttemptBy, GrantKey, ToldGrant};
use crate::node_api::OwnedQuery;
use crate::server::client::told_grants::GrantTerms;
use crate::server::client::transaction::{LockInTransaction, LockStep};
use crate::server::context::CommandContext;
use crate::server::net::connection::Progress;
use crate::server::net::in_flight::{AfterReply, IfAbandoned, InFlight, NotifyState, Source};
use bytes::Bytes;
use redfence_core::grammar::convert::ConvertTo;
use redfence_core::grammar::errors;
use redfence_core::grammar::notify::Notify;
use redfence_core::machine::Command;
use redfence_core::reply::{Refusal, Reply};
use redfence_core::types::{Fence, SessionId, UserTag};
use smallvec::{smallvec, SmallVec};
use std::sync::Arc;

impl CommandContext {
    pub(super) fn notify_command(&mut self, request: &Notify<'_>) -> Progress {
        // What was asked before changes, at its answer, what there is to hear of: grants, releases, and `ON SESSION` of a session that
        // turns out to be none.
        if !self.can_join(InFlight::Alone) {
            return Progress::Stalled;
        }
        match request {
            Notify::Off => {
                self.stop_notifying();
                self.reply(&Reply::OK);
                Progress::Done
            }
            Notify::On { session: None } => {
                let before = match self.client.losses.is_some() {
                    true => NotifyState::On,
                    false => NotifyState::Off,
                };
                self.start_notifying();
                // Where nobody was told of losses before, the node collects none: it does in the turn that answers this.
                let query = OwnedQuery::Here(Box::new(OwnedQuery::Contention { count: 0 }));
                self.await_notified(query, AfterReply::Notified { before })
            }
            Notify::On { session: Some(session) } => match SessionId::parse(session) {
                Some(id) => self.notify_session(id),
                None => self.refuse(errors::no_session()),
            },
        }
    }

    /// First it is told of losses, then it gets what the session holds: nothing falls in between.
    fn notify_session(&mut self, id: SessionId) -> Progress {
        let client = self.client.info.id;
        let before = match self.client.losses.is_some() {
            false => NotifyState::Off,
            true if self.server.losses.is_watching_session(client, id) => NotifyState::OnWithSession,
            true => NotifyState::On,
        };
        self.start_notifying();
        if !self.server.losses.watch_session(client, id, self.client.user.tag) {
            return self.refuse(Refusal::new(
                "ERR this connection is notified of 1024 sessions already; LOCK.NOTIFY OFF forgets them",
            ));
        }
        let query = OwnedQuery::SessionLocks { id, sessions: self.client.user.session_scope() };
        self.await_notified(query, AfterReply::SessionLocks { id, before })
    }

    fn await_notified(&mut self, query: OwnedQuery, after_reply: AfterReply) -> Progress {
        let pending = self.server.tier2.query_for(&self.client.account, query);
        self.await_call(InFlight::Reads, Source::Tier2(pending), false, IfAbandoned::Nothing);
        self.then(after_reply);
        self.needs_no_routes();
        Progress::Done
    }

    fn start_notifying(&mut self) {
        // One that has missed something stays: with it the connection ends.
        if self.client.losses.is_some() {
            return;
        }
        if let Some(inbox) = self.server.losses.start(&self.client.account) {
            self.client.losses = Some(Box::new(inbox));
            let (client, now_ms) = (self.client.info.id, self.server.now_ms());
            let told = self.client.told.take(now_ms);
            told.for_each(|(grant, is_over)| self.server.losses.knows(client, grant, is_over));
        }
    }

    pub(in crate::server) fn stop_notifying(&mut self) {
        if self.client.losses.is_some() {
            let Some(told) = self.server.losses.stop(self.client.info.id) else { return };
            self.client.losses = None;
            let now_ms = self.server.now_ms();
            for ToldGrant { key, lease_ms, in_session, user } in told {
                // The shorter of its own time and its session's, which is kept alive: no end of its own.
                let lease_ms = if in_session { 0 } else { lease_ms };
                let terms = GrantTerms { db: key.db, fence: key.fence, lease_ms, in_session, user };
                self.client.told.add(&key.resource, terms, now_ms);
            }
        }
    }

    /// The client is about to ask for locks: of their loss it hears behind the answer. How many bytes are kept of that until then.
    pub(super) fn note_asked(&self, asked: &AskedLocks) -> usize {
        if self.client.losses.is_none() {
            return 0;
        }
        let client = self.client.info.id;
        asked.attempts().map(|attempt| self.server.losses.asks(client, &attempt)).sum()
    }

    /// The answer to a command that may be granted locks. `granted`: what the client gets to see of it.
    pub(in crate::server) fn note_answered(
        &mut self,
        blob: &Bytes,
        user: UserTag,
        granted: Option<(&[Fence], u64)>,
    ) {
        if self.client.losses.is_some() {
            AskedLocks::read(blob).iter().for_each(|asked| self.note_granted(asked, user, granted));
        } else if let (Some((fences, lease_ms)), Some(parts)) = (granted, AskedParts::read(blob)) {
            let granted = parts.names.iter().copied().zip(fences);
            self.remember_granted(parts.db, granted, lease_ms, parts.may_have_session(), user);
        }
    }

    /// The answer to a release of these.
    pub(in crate::server) fn note_released(&mut self, keys: &[GrantKey], reply: &Reply) {
        let replies =
            if let Reply::Array(replies) = reply { &replies[..] } else { std::slice::from_ref(reply) };
        for (key, _) in keys.iter().zip(replies).filter(|(_, reply)| **reply == Reply::Released) {
            self.forget_grant(key);
        }
    }

    /// It has ended by the client's will.
    fn forget_grant(&mut self, key: &GrantKey) {
        self.client.told.forget(key.db, &key.resource, key.fence);
        if self.client.losses.is_some() {
            self.server.losses.released(key);
        }
    }

    /// The same for one lock that was asked for while nobody listened.
    pub(in crate::server) fn note_answered_one(
        &mut self,
        db: u32,
        in_session: bool,
        converts: Option<Fence>,
        user: UserTag,
        granted: Option<(&[Fence], u64)>,
    ) {
        let told = &mut self.client.told;
        let now_ms = self.server.now_ms();
        self.replies.asked_names.take_first(|name| {
            if let Some((&[fence], lease_ms)) = granted {
                converts.into_iter().for_each(|before| told.forget(db, name, before));
                told.add(name, GrantTerms { db, fence, lease_ms, in_session, user }, now_ms);
            }
        });
    }

    /// The client is being told of grants: from now on it hears of their loss.
    fn note_granted(&mut self, asked: &AskedLocks, user: UserTag, granted: Option<(&[Fence], u64)>) {
        let client = self.client.info.id;
        let (fences, lease_ms) = granted.unwrap_or_default();
        if let (Some(before), [name], [fence]) = (asked.converts, &asked.names[..], fences) {
            if before != *fence {
                self.forget_grant(&GrantKey { db: asked.db, resource: name.clone(), fence: before });
            }
        }
        if self.client.losses.is_none() {
            let granted = asked.names.iter().map(Bytes::as_ref).zip(fences);
            return self.remember_granted(asked.db, granted, lease_ms, asked.may_have_session(), user);
        }
        let (lease_ms, in_session) = (self.lease_with_session(asked, lease_ms), asked.may_have_session());
        for (attempt, fence) in asked.attempts().zip(fences) {
            // A copy: the command may be far larger than the name, and the grant may stand for long.
            let resource = Bytes::copy_from_slice(&attempt.resource);
            let key = GrantKey { db: asked.db, resource, fence: *fence };
            self.server.losses.granted(client, &attempt, ToldGrant { key, lease_ms, in_session, user });
        }
        asked.attempts().for_each(|attempt| self.server.losses.answered(client, &attempt));
    }

    /// A lock ends with its session, whatever its own time. 0 where the session was not opened here: only the state knows.
    fn lease_with_session(&self, asked: &AskedLocks, lease_ms: u64) -> u64 {
        if !asked.may_have_session() {
            return lease_ms;
        }
        let session_ttl_ms = || self.client.sessions.as_ref()?.ttl_ms(asked.session?);
        match (session_ttl_ms(), lease_ms) {
            (None, _) => 0,
            (Some(session_ms), 0) => session_ms,
            (Some(session_ms), lease_ms) => lease_ms.min(session_ms),
        }
    }

    /// For `LOCK.NOTIFY ON`.
    fn remember_granted<'a>(
        &mut self,
        db: u32,
        granted: impl Iterator<Item = (&'a [u8], &'a Fence)>,
        lease_ms: u64,
        in_session: bool,
        user: UserTag,
    ) {
        let now_ms = self.server.now_ms();
        for (name, fence) in granted {
            let terms = GrantTerms { db, fence: *fence, lease_ms, in_session, user };
            self.client.told.add(name, terms, now_ms);
        }
    }

    /// A grant has another time to run.
    pub(in crate::server) fn note_renewed(&mut self, key: &GrantKey, reply: &Reply) {
        if let Reply::Renewed { ttl_ms } = reply {
            let now_ms = self.server.now_ms();
            self.client.told.renewed(key.db, &key.resource, key.fence, *ttl_ms, now_ms);
            self.server.losses.renewed(key, *ttl_ms);
        }
    }

    /// What the commands of a transaction did with locks.
    pub(in crate::server) fn note_transaction(
        &mut self,
        locks: &[LockInTransaction],
        user: UserTag,
        replies: &[Reply],
        is_told: bool,
    ) {
        for lock in locks {
            let reply = replies.get(lock.at);
            match &lock.step {
                LockStep::Grants { .. } => {
                    let granted = reply.and_then(|reply| lock.granted(reply));
                    let granted = granted.as_ref().map(|(fences, ttl_ms)| (&fences[..], *ttl_ms));
                    let granted = granted.filter(|_| is_told);
                    self.note_granted(&AskedLocks::in_transaction(lock), user, granted);
                }
                LockStep::Renews(fence) => {
                    let resource = lock.names[0].clone();
                    if let Some(reply) = reply {
                        self.note_renewed(&GrantKey { db: lock.db, resource, fence: *fence }, reply);
                    }
                }
                // One that was not carried out has ended nothing.
                LockStep::Releases(fences) => {
                    let key = |(name, fence): (&Bytes, &Fence)| GrantKey {
                        db: lock.db,
                        resource: name.clone(),
                        fence: *fence,
                    };
                    let keys: SmallVec<[GrantKey; 1]> = lock.names.iter().zip(fences).map(key).collect();
                    reply.into_iter().for_each(|reply| self.note_released(&keys, reply));
                }
            }
        }
    }

    /// An error says that the node may not collect losses yet: then nothing has changed.
    pub(in crate::server) fn notified(&mut self, before: NotifyState, reply: Reply) -> Reply {
        match (reply, before) {
            (error @ Reply::Error(_), NotifyState::Off) => {
                self.stop_notifying();
                error
            }
            (_, NotifyState::Off | NotifyState::On | NotifyState::OnWithSession) => Reply::OK,
        }
    }

    /// What a session holds, as far as its user may still hear of it. One that is not the client's is not watched.
    pub(in crate::server) fn session_locks(
        &mut self,
        id: SessionId,
        before: NotifyState,
        reply: Reply,
    ) -> Reply {
        let Reply::Array(mut rows) = reply else {
            let is_gone = matches!(&reply, Reply::Error(refusal) if refusal.code() == "NOSESSION");
            match before {
                NotifyState::Off => self.stop_notifying(),
                NotifyState::OnWithSession if !is_gone => {}
                NotifyState::On | NotifyState::OnWithSession => {
                    self.server.losses.unwatch_session(self.client.info.id, id);
                }
            }
            return reply;
        };
        self.server.losses.owns_session(self.client.info.id, id);
        let user = Arc::clone(&self.client.user);
        rows.retain(|row| held(row).is_some_and(|(_, name, _)| user.may_hear_of_loss(name)));
        for (db, name, fence) in rows.iter().filter_map(held) {
            // Of its loss it hears as of any of the session's; here it is noted so that it can be doubted.
            let key = GrantKey { db, resource: name.clone(), fence };
            let grant = ToldGrant { key, lease_ms: 0, in_session: true, user: user.tag };
            self.server.losses.knows(self.client.info.id, grant, false);
        }
        rows.iter_mut().for_each(hide_db);
        Reply::Array(rows)
    }
}

/// A row of what a session holds, as the machine tells it: name, fence, database.
pub(in crate::server) fn held(row: &Reply) -> Option<(u32, &Bytes, Fence)> {
    let Reply::Array(row) = row else { return None };
    match &row[..] {
        [Reply::Bulk(name), Reply::Int(fence), Reply::Int(db)] => {
            Some((u32::try_from(*db).ok()?, name, Fence(*fence as u64)))
        }
        _ => None,
    }
}

/// Clients are told name and fence.
fn hide_db(row: &mut Reply) {
    if let Reply::Array(row) = row {
        row.truncate(2);
    }
}

/// The locks that a command may be granted, in the order of the fences in its reply.
#[derive(Debug)]
pub(in crate::server) struct AskedLocks {
    db: u32,
    names: SmallVec<[Bytes; 1]>,
    by: AttemptBy,
    session: Option<SessionId>,
    /// The fence of the hold that it takes the place of, whose session it goes on with and does not name.
    converts: Option<Fence>,
}

/// The same, within the command as it is logged.
struct AskedParts<'a> {
    db: u32,
    names: SmallVec<[&'a [u8]; 4]>,
    by: AskedBy<'a>,
    session: Option<SessionId>,
}

enum AskedBy<'a> {
    Owner(&'a [u8]),
    Conversion(ConvertTo, Fence),
}

impl<'a> AskedParts<'a> {
    fn read(blob: &'a [u8]) -> Option<AskedParts<'a>> {
        let command = Command::decode(blob)?.without_user();
        if let Command::Acquire { db, resource, owner, session, .. }
        | Command::AcquireWith { db, resource, owner, session, .. } = command
        {
            return Some(AskedParts { db, names: smallvec![resource], by: AskedBy::Owner(owner), session });
        }
        if let Command::Convert { db, resource, fence, to, .. } = command {
            let by = AskedBy::Conversion(to, fence);
            return Some(AskedParts { db, names: smallvec![resource], by, session: None });
        }
        if let Command::MAcquire { db, resources, owner, session, .. }
        | Command::MAcquireShared { db, resources, owner, session, .. } = command
        {
            return Some(AskedParts { db, names: resources, by: AskedBy::Owner(owner), session });
        }
        None
    }

    fn may_have_session(&self) -> bool {
        self.session.is_some() || matches!(self.by, AskedBy::Conversion(..))
    }
}

impl AskedLocks {
    pub(in crate::server) fn read(blob: &Bytes) -> Option<AskedLocks> {
        let AskedParts { db, names, by, session } = AskedParts::read(blob)?;
        let part = |name: &[u8]| blob.slice_ref(name);
        let (by, converts) = match by {
            AskedBy::Owner(owner) => (AttemptBy::Owner(part(owner)), None),
            AskedBy::Conversion(ConvertTo::Exclusive, fence) => (AttemptBy::Conversion, Some(fence)),
            AskedBy::Conversion(ConvertTo::Shared, fence) => (AttemptBy::Kept(fence), Some(fence)),
        };
        Some(AskedLocks { db, names: names.into_iter().map(part).collect(), by, session, converts })
    }

    pub(super) fn in_transaction(lock: &LockInTransaction) -> AskedLocks {
        let names = lock.names.iter().cloned().collect();
        let converts = match lock.step {
            LockStep::Grants { converts, .. } => converts,
            LockStep::Renews(_) | LockStep::Releases(_) => None,
        };
        AskedLocks { db: lock.db, names, by: AttemptBy::Transaction, session: lock.session, converts }
    }

    fn may_have_session(&self) -> bool {
        self.converts.is_some() || self.session.is_some()
    }

    fn attempts(&self) -> impl Iterator<Item = Attempt> + '_ {
        let attempt = |name: &Bytes| Attempt { db: self.db, resource: name.clone(), by: self.by.clone() };
        self.names.iter().map(attempt)
    }
}
