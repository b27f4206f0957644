//! `LOCK.NOTIFY`, and who is told of a lost lock. As at a node: a grant is noted when its client is told of it, and its loss is told
//! once, behind that reply. In a partition nobody hears of a loss: it is told when the partition ends.

use super::{commands, State};
use crate::Partition;
use redfence_core::event::{loss_to_json, lost_channel};
use redfence_core::grammar::notify::{self, Notify};
use redfence_core::grammar::{self, errors, Request};
use redfence_core::keyspace::Resp;
use redfence_core::machine::{Command, Loss, Query};
use redfence_core::reply::{Refusal, Reply};
use redfence_core::types::{Fence, SessionId, SessionScope};
use std::collections::BTreeMap;

/// Grants noted for one connection; one more closes it. As at a node.
const GRANTS_MAX: usize = 65_536;
/// Sessions named by one connection. As at a node.
const SESSIONS_MAX: usize = 64;

/// A connection that said `LOCK.NOTIFY ON`.
#[derive(Default)]
pub(super) struct Notified {
    grants: BTreeMap<(Vec<u8>, Fence), Noted>,
    sessions: Vec<SessionId>,
}

struct Noted {
    ttl_ms: u64,
    /// It was told that nobody knows, in this partition.
    is_suspect: bool,
}

impl Noted {
    /// When the client must doubt that it still holds the lock. One bound to its session alone has no such time.
    fn suspect_at_ms(&self, partition_since_ms: u64) -> Option<u64> {
        let is_due = self.ttl_ms > 0 && !self.is_suspect;
        is_due.then(|| partition_since_ms.saturating_add(self.ttl_ms / 2))
    }
}

/// The locks that a command may be granted, in the order of the fences in its reply.
pub(super) fn names_asked(command: &Command<'_>) -> Vec<Vec<u8>> {
    if let Command::Acquire { resource, .. }
    | Command::AcquireWith { resource, .. }
    | Command::Convert { resource, .. } = command
    {
        return vec![resource.to_vec()];
    }
    if let Command::MAcquire { resources, .. } | Command::MAcquireShared { resources, .. } = command {
        return resources.iter().map(|resource| resource.to_vec()).collect();
    }
    Vec::new()
}

impl State {
    /// `LOCK.NOTIFY`; `None` for any other command. No `TEST.FAIL` hits it: clients send it on their own, at moments a test does not know.
    pub(super) fn notify_command(&mut self, id: u64, name: &str, words: &[Vec<u8>]) -> Option<Reply> {
        if name != notify::NAME {
            return None;
        }
        let request = match grammar::parse(words)? {
            Err(refusal) => return Some(refusal.into()),
            Ok(request) => request,
        };
        let Request::Notify(request) = request else { return None };
        // Without a session the node answers by itself.
        if self.partition == Partition::NoQuorum && matches!(request, Notify::On { session: Some(_) }) {
            return Some(commands::no_quorum());
        }
        *self.calls.entry(name.to_owned()).or_default() += 1;
        Some(self.notify(id, &request))
    }

    fn notify(&mut self, id: u64, request: &Notify<'_>) -> Reply {
        let Some(peer) = self.peers.get_mut(&id) else { return Reply::Nil };
        match request {
            Notify::Off => {
                peer.notified = None;
                Reply::OK
            }
            Notify::On { session: None } => {
                peer.notified.get_or_insert_default();
                Reply::OK
            }
            Notify::On { session: Some(session) } => {
                peer.notified.get_or_insert_default();
                match SessionId::parse(session) {
                    Some(session) => self.notify_session(id, session),
                    None => errors::no_session().into(),
                }
            }
        }
    }

    /// What the session holds; from now on the connection is told of what it loses.
    fn notify_session(&mut self, id: u64, session: SessionId) -> Reply {
        self.expire();
        let mut reply = self.machine.query(Query::SessionLocks { id: session, sessions: SessionScope::All });
        if let Reply::Array(rows) = &mut reply {
            rows.iter_mut().for_each(hide_db);
        }
        let Some(notified) = self.peers.get_mut(&id).and_then(|peer| peer.notified.as_mut()) else {
            return reply;
        };
        if !matches!(reply, Reply::Array(_)) || notified.sessions.contains(&session) {
            return reply;
        }
        if notified.sessions.len() >= SESSIONS_MAX {
            return Refusal::new("ERR this connection is notified of 64 sessions already").into();
        }
        notified.sessions.push(session);
        reply
    }

    /// The client is about to be told of these grants.
    pub(super) fn note_granted(&mut self, id: u64, names: Vec<Vec<u8>>, reply: &Reply) {
        let Some((fences, ttl_ms)) = reply.granted() else { return };
        let Some(notified) = self.peers.get_mut(&id).and_then(|peer| peer.notified.as_mut()) else { return };
        for (name, fence) in names.into_iter().zip(fences) {
            notified.grants.insert((name, *fence), Noted { ttl_ms, is_suspect: false });
        }
        if notified.grants.len() > GRANTS_MAX {
            self.leave(id);
        }
    }

    /// A grant has ended, by its release or without it.
    pub(super) fn tell_ended(&mut self, loss: Loss) {
        if loss.cause.is_some() && self.partition != Partition::Off {
            self.untold.push(loss);
            return;
        }
        let key = (loss.resource.to_vec(), loss.fence);
        let mut concerned = Vec::new();
        for (id, peer) in &mut self.peers {
            let Some(notified) = &mut peer.notified else { continue };
            let is_noted = notified.grants.remove(&key).is_some();
            let is_of_session = loss.session.is_some_and(|session| notified.sessions.contains(&session));
            if (is_noted || is_of_session) && peer.resp == Resp::Three {
                concerned.push(*id);
            }
        }
        let Some(cause) = loss.cause else { return };
        let message = [
            Reply::Text("lock-lost"),
            Reply::bulk(&loss.resource),
            fence_reply(loss.fence),
            Reply::Text(cause.as_str()),
            loss.successor.map_or(Reply::Nil, fence_reply),
        ];
        concerned.into_iter().for_each(|id| self.push(id, &message));
        let json = loss_to_json("lock-lost", &loss.resource, loss.fence, cause.as_str(), loss.successor);
        self.publish(&lost_channel(&loss.resource), json.as_bytes());
    }

    /// The partition has ended: what is lost is told, and the rest is trusted again.
    pub(super) fn tell_untold(&mut self) {
        for loss in std::mem::take(&mut self.untold) {
            self.tell_ended(loss);
        }
        let notified = self.peers.values_mut().filter_map(|peer| peer.notified.as_mut());
        notified.flat_map(|notified| notified.grants.values_mut()).for_each(|noted| noted.is_suspect = false);
    }

    /// When the next client of a node without quorum must doubt one of its locks.
    pub(super) fn next_suspect_ms(&self) -> Option<u64> {
        if self.partition != Partition::NoQuorum {
            return None;
        }
        let notified = self.peers.values().filter_map(|peer| peer.notified.as_ref());
        let noted = notified.flat_map(|notified| notified.grants.values());
        let next_ms = noted.filter_map(|noted| noted.suspect_at_ms(self.partition_since_ms)).min();
        next_ms.map(|next_ms| next_ms.max(self.now_ms()))
    }

    /// A node without quorum does not know whether a lock is still held. A client whose cable is cut is told nothing.
    pub(super) fn tell_suspects(&mut self) {
        if self.partition != Partition::NoQuorum {
            return;
        }
        let (now_ms, since_ms) = (self.now_ms(), self.partition_since_ms);
        let mut suspects = Vec::new();
        for (id, peer) in &mut self.peers {
            let Some(notified) = &mut peer.notified else { continue };
            for ((resource, fence), noted) in &mut notified.grants {
                if noted.suspect_at_ms(since_ms).is_some_and(|at_ms| at_ms <= now_ms) {
                    noted.is_suspect = true;
                    if peer.resp == Resp::Three {
                        suspects.push((*id, resource.clone(), *fence));
                    }
                }
            }
        }
        for (id, resource, fence) in suspects {
            let (kind, cause) = (Reply::Text("lock-suspect"), Reply::Text("no_quorum"));
            self.push(id, &[kind, Reply::bulk(&resource), fence_reply(fence), cause, Reply::Nil]);
        }
    }
}

fn fence_reply(fence: Fence) -> Reply {
    Reply::Int(i64::try_from(fence.0).unwrap_or(i64::MAX))
}

/// Clients are told name and fence of each.
fn hide_db(row: &mut Reply) {
    if let Reply::Array(row) = row {
        row.truncate(2);
    }
}
