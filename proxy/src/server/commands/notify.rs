//! `LOCK.NOTIFY ON [SESSION id]`, `OFF`: whether this connection is told of the locks it loses. Answered by the node.

use crate::events::GrantKey;
use crate::node_api::OwnedQuery;
use crate::server::context::CommandContext;
use crate::server::net::connection::Progress;
use crate::server::net::in_flight::{IfAbandoned, InFlight, Source};
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

    /// The client is being told of grants: from now on it hears of their loss.
    pub(in crate::server) fn note_granted(&mut self, db: u32, names: Vec<Bytes>, reply: &Reply) {
        let Some((fences, ttl_ms)) = reply.granted().filter(|_| self.client.losses.is_some()) else { return };
        for (resource, fence) in names.into_iter().zip(fences) {
            let key = GrantKey { db, resource, fence: *fence };
            self.server.losses.granted(self.client.info.id, key, ttl_ms);
        }
    }
}
