//! `LOCK.NOTIFY ON [SESSION id]`, `OFF`: whether this connection is told of the locks it loses. Answered by the node.

use crate::events::{Attempt, GrantKey};
use crate::node_api::OwnedQuery;
use crate::server::context::CommandContext;
use crate::server::net::connection::Progress;
use crate::server::net::in_flight::{AfterReply, AwaitedReply, IfAbandoned, InFlight, Source};
use bytes::Bytes;
use redfence_core::grammar::errors;
use redfence_core::grammar::notify::Notify;
use redfence_core::reply::{Refusal, Reply};
use redfence_core::types::SessionId;

impl CommandContext {
    pub(super) fn notify_command(&mut self, request: &Notify<'_>) -> Progress {
        match request {
            Notify::Off => {
                self.stop_notifying();
                self.reply(&Reply::OK);
                Progress::Done
            }
            Notify::On { session: None } => {
                self.start_notifying();
                self.reply(&Reply::OK);
                Progress::Done
            }
            Notify::On { session: Some(session) } => match SessionId::parse(session) {
                Some(id) => self.notify_session(id),
                None => self.refuse(errors::no_session()),
            },
        }
    }

    /// First it is told of losses, then it gets what the session holds: nothing falls in between.
    fn notify_session(&mut self, id: SessionId) -> Progress {
        if !self.can_join(InFlight::Reads) {
            return Progress::Stalled;
        }
        self.start_notifying();
        if !self.server.losses.watch_session(self.client.info.id, id) {
            return self.refuse(Refusal::new("ERR this connection is notified of 64 sessions already"));
        }
        let query = OwnedQuery::SessionLocks { id, sessions: self.client.user.session_scope() };
        let pending = self.server.tier2.query_for(&self.client.account, query);
        self.await_call(InFlight::Reads, Source::Tier2(pending), false, IfAbandoned::Nothing);
        if let Some(AwaitedReply::Call(call)) = self.replies.awaited.back_mut() {
            call.after_reply = AfterReply::SessionLocks(id);
        }
        self.needs_no_routes();
        Progress::Done
    }

    fn start_notifying(&mut self) {
        if let Some(inbox) = self.server.losses.start(&self.client.account) {
            self.client.losses = Some(Box::new(inbox));
        }
    }

    pub(in crate::server) fn stop_notifying(&mut self) {
        if self.client.losses.take().is_some() {
            self.server.losses.stop(self.client.info.id);
        }
    }

    /// The client asks for locks: of their loss it hears behind the answer.
    pub(super) fn note_asked(&self, db: u32, names: &[Bytes], owner: Option<&Bytes>) {
        for attempt in attempts(db, names, owner) {
            self.server.losses.asks(self.client.info.id, attempt);
        }
    }

    /// The client is being told of grants: from now on it hears of their loss.
    pub(in crate::server) fn note_granted(
        &mut self,
        db: u32,
        names: &[Bytes],
        owner: Option<&Bytes>,
        reply: &Reply,
    ) {
        if self.client.losses.is_none() {
            return;
        }
        let (client, user) = (self.client.info.id, self.client.user.tag);
        if let Some((fences, ttl_ms)) = reply.granted() {
            for (resource, fence) in names.iter().zip(fences) {
                let key = GrantKey { db, resource: resource.clone(), fence: *fence };
                self.server.losses.granted(client, key, ttl_ms, user);
            }
        }
        attempts(db, names, owner).for_each(|attempt| self.server.losses.answered(client, &attempt));
    }

    /// What a session holds, as far as its user may still hear of it. One that is not the client's is not watched.
    pub(in crate::server) fn session_locks(&mut self, id: SessionId, reply: Reply) -> Reply {
        let user = &self.client.user;
        let may_hear = |row: &Reply| {
            let Reply::Array(row) = row else { return false };
            matches!(row.first(), Some(Reply::Bulk(name)) if user.may_hear_of_loss(name))
        };
        let Reply::Array(rows) = reply else {
            self.server.losses.unwatch_session(self.client.info.id, id);
            return reply;
        };
        Reply::Array(rows.into_iter().filter(may_hear).collect())
    }
}

fn attempts<'a>(db: u32, names: &'a [Bytes], owner: Option<&'a Bytes>) -> impl Iterator<Item = Attempt> + 'a {
    let of_owner = move |owner: &'a Bytes| {
        names.iter().map(move |name| Attempt { db, resource: name.clone(), owner: owner.clone() })
    };
    owner.into_iter().flat_map(of_owner)
}
