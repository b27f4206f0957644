//! Plain Redis commands on the Raft keyspace, once [`crate::server::routing::plan`] has decided that it answers them.

use super::scripts;
use crate::acl::check::runs_script;
use crate::node_api::{OwnedQuery, WAIT_FOREVER};
use crate::server::context::CommandContext;
use crate::server::net::connection::Progress;
use crate::server::net::in_flight::{AwaitedReply, IfAbandoned, InFlight, Source};
use crate::server::routing::router::ListenerKind;
use bytes::Bytes;
use redfence_core::keyspace::{table, wait_of, Wait};
use redfence_core::machine::{put_user, Command};
use redfence_core::script::{routed_rights, AS_USER};
use redfence_core::types::Member;
use std::sync::Arc;

impl CommandContext {
    pub(in crate::server) fn script_on_both(&mut self, argv: &[&[u8]]) -> Progress {
        if !self.can_join(InFlight::Alone) {
            return Progress::Stalled;
        }
        let Some(upstream) = self.server.upstream.clone() else { unreachable!("the router saw a Redis") };
        let mut blob = Vec::new();
        let words = argv.iter().copied().collect();
        let resp = self.client.protocol.into();
        Command::Redis { db: self.client.db, resp, member: None, argv: words }.encode(&mut blob);
        let keyspace = self.server.tier2.submit(Bytes::from(blob), 0);
        let receiver = scripts::start(upstream, owned(argv), keyspace);
        self.await_call(InFlight::Alone, Source::Channel(receiver), false, IfAbandoned::Nothing);
        Progress::Done
    }

    /// From the state, without an entry in the log.
    pub(in crate::server) fn keyspace_read(&mut self, argv: &[&[u8]]) -> Progress {
        if !self.can_join(InFlight::Reads) {
            return Progress::Stalled;
        }
        let query = OwnedQuery::Redis {
            db: self.client.db,
            resp: self.client.protocol.into(),
            member: self.member(),
            argv: owned(argv),
        };
        let pending = self.server.tier2.query_for(&self.client.account, query);
        self.await_call(InFlight::Reads, Source::Tier2(pending), false, IfAbandoned::Nothing);
        Progress::Done
    }

    /// A script that only reads runs on this node's own state, behind the client's earlier writes.
    pub(in crate::server) fn keyspace_script(&mut self, argv: &[&[u8]]) -> Progress {
        if !self.can_join(InFlight::Reads) {
            return Progress::Stalled;
        }
        let query = OwnedQuery::Script {
            db: self.client.db,
            resp: self.client.protocol.into(),
            member: self.member(),
            argv: match self.has_keys_in_both_tiers() {
                true => owned(&[&[AS_USER, &routed_rights(None)], argv].concat()),
                false => owned(argv),
            },
        };
        let pending = self.server.tier2.query_for(&self.client.account, query);
        self.await_call(InFlight::Reads, Source::Tier2(pending), false, IfAbandoned::Nothing);
        Progress::Done
    }

    /// Through the log, whatever it is. `is_routed`: see [`AwaitedCall::is_routed`].
    ///
    /// [`AwaitedCall::is_routed`]: crate::server::net::in_flight::AwaitedCall::is_routed
    pub(in crate::server) fn submit_to_keyspace(&mut self, argv: &[&[u8]], is_routed: bool) -> Progress {
        let wait = wait_of(argv);
        let in_flight = if wait.is_some() { InFlight::Alone } else { InFlight::Tier2 };
        let is_large = may_show_much(argv);
        if !self.can_join(in_flight) || (is_large && !self.replies.has_room_for_large_reply()) {
            return Progress::Stalled;
        }
        let wait_ms = match wait {
            None => 0,
            Some(Wait::Ms(ms)) => ms,
            Some(Wait::Forever) => WAIT_FOREVER,
        };
        let resp = self.client.protocol.into();
        let rights = match self.script_rights(argv) {
            Ok(rights) => rights,
            Err(refusal) => return self.refuse(refusal),
        };
        let before = rights.iter().flat_map(|rights| [AS_USER, rights]);
        let words = before.chain(argv.iter().copied()).collect();
        let mut blob = Vec::with_capacity(128);
        let member = self.member();
        if table::find(argv[0]).is_some_and(|row| !row.is(table::SCRIPT)) {
            put_user(&mut blob, self.client.user.tag);
        }
        Command::Redis { db: self.client.db, resp, member, argv: words }.encode(&mut blob);
        let admin_acts = self.new_admin_acts(runs_script(argv));
        let pending = self.server.tier2.submit_for(
            self.client.info.id,
            self.client.caller(),
            is_large.then(|| Arc::clone(&self.client.account)),
            admin_acts.clone(),
            Bytes::from(blob),
            wait_ms,
        );
        let if_abandoned = match wait {
            None => IfAbandoned::Nothing,
            Some(_) => IfAbandoned::RestoreItems { db: self.client.db, argv: owned(argv) },
        };
        self.await_call(in_flight, Source::Tier2(pending), wait.is_some(), if_abandoned);
        if let Some(AwaitedReply::Call(call)) = self.replies.awaited.back_mut() {
            call.is_routed = is_routed;
            call.admin_acts = admin_acts;
        }
        self.replies.large_calls += usize::from(is_large);
        Progress::Done
    }

    /// As which Redlock member this node serves the client, if it does.
    pub(super) fn member(&self) -> Option<Member> {
        match self.client.listener_kind {
            ListenerKind::Main | ListenerKind::Correctness => None,
            ListenerKind::Redlock => Some(Member(self.server.node)),
        }
    }
}

/// Whether the reply of a logged command may be more than a few bytes. What is not listed may.
fn may_show_much(argv: &[&[u8]]) -> bool {
    let shows_old = |argv: &[&[u8]]| argv.iter().skip(3).any(|word| word.eq_ignore_ascii_case(b"GET"));
    match table::find(argv[0]).map(|row| row.name) {
        Some("set") => shows_old(argv),
        Some(
            "setnx" | "setex" | "psetex" | "mset" | "msetnx" | "append" | "setrange" | "strlen" | "del"
            | "unlink" | "exists" | "type" | "ttl" | "pttl" | "expire" | "pexpire" | "expireat" | "pexpireat"
            | "persist" | "incr" | "decr" | "incrby" | "decrby" | "lpush" | "rpush" | "lpushx" | "rpushx"
            | "llen" | "lrem" | "ltrim" | "lset" | "hset" | "hmset" | "hsetnx" | "hdel" | "hlen" | "hexists"
            | "hincrby" | "sadd" | "srem" | "scard" | "sismember" | "zadd" | "zrem" | "zcard" | "zscore"
            | "zrank" | "publish",
        ) => false,
        Some(_) | None => true,
    }
}

fn owned(argv: &[&[u8]]) -> Vec<Bytes> {
    argv.iter().map(|word| Bytes::copy_from_slice(word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_that_may_be_large_are_known_by_their_command() {
        let large = |words: &str| may_show_much(&words.split(' ').map(str::as_bytes).collect::<Vec<_>>());
        for words in ["GET k", "EVAL x 0", "SET k v NX GET", "getset k v", "LRANGE k 0 -1", "unknown"] {
            assert!(large(words), "{words}");
        }
        for words in ["SET k GET", "SET k v NX PX 100", "rpush k a", "DEL k", "PEXPIRE k 1"] {
            assert!(!large(words), "{words}");
        }
    }
}
