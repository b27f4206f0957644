//! Plain Redis commands: to the Redis behind the proxy as they are, or to the Raft keyspace.

use super::{server, unknown_command};
use crate::server::connection::{Connection, Flow};
use crate::server::encode::Protocol;
use crate::server::keys;
use crate::server::pending::{IfAbandoned, Lane, Source};
use crate::server::router::{Door, PlainDestination};
use bytes::Bytes;
use redfence_core::grammar::errors::shown;
use redfence_core::keyspace::{table, Resp};
use redfence_core::machine::Command;
use redfence_core::reply::Refusal;
use redfence_core::types::Member;

impl Connection {
    pub(in crate::server) fn plain_command(&mut self, argv: &[&[u8]], frame: Option<&[u8]>) -> Flow {
        let keys =
            if self.shared.router.has_correctness_routes() { keys::of(argv) } else { Default::default() };
        match self.shared.router.plain(self.client.door, keys) {
            Err(refusal) => self.refuse(refusal),
            Ok(PlainDestination::Redis) => {
                let flow = self.pass_to_redis(argv, frame);
                if flow == Flow::Done {
                    self.follow_transaction(argv[0]);
                }
                flow
            }
            Ok(PlainDestination::Keyspace) => self.keyspace_command(argv),
        }
    }

    /// The Raft keyspace: every key is a lock there, and its value is the owner. Every command goes through the log, reads too.
    fn keyspace_command(&mut self, argv: &[&[u8]]) -> Flow {
        match table::find(argv[0]) {
            Some(row) if row.is(table::BLOCK) || row.is(table::PUBSUB) => self.refuse(not_yet(argv[0])),
            None if server::knows(argv[0]) => self.server_command(argv),
            None if keys::is_redis_command(argv[0]) => self.refuse(not_yet(argv[0])),
            None => self.refuse(unknown_command(argv)),
            Some(_) if self.client.in_transaction => self.refuse(Refusal::new(
                "ERR keys of the correctness tier cannot be part of a transaction with the Redis behind",
            )),
            Some(_) => self.submit_to_keyspace(argv),
        }
    }

    /// Sends a command through the log, whatever it is.
    pub(super) fn submit_to_keyspace(&mut self, argv: &[&[u8]]) -> Flow {
        if !self.lane_is_open(Lane::Tier2) {
            return Flow::Stall;
        }
        let resp = match self.client.protocol {
            Protocol::Resp2 => Resp::Two,
            Protocol::Resp3 => Resp::Three,
        };
        let words = argv.iter().copied().collect();
        let mut blob = Vec::with_capacity(128);
        let member = self.member();
        Command::Redis { db: self.client.db, resp, member, argv: words }.encode(&mut blob);
        let pending = self.shared.tier2.submit_for(self.client.caller(), Bytes::from(blob), 0);
        self.await_call(Lane::Tier2, Source::Tier2(pending), false, IfAbandoned::Nothing);
        Flow::Done
    }

    /// As which Redlock member this node serves the client, if it does.
    fn member(&self) -> Option<Member> {
        match self.client.door {
            Door::Main | Door::Correctness => None,
            Door::Redlock => Some(Member(self.shared.node)),
        }
    }

    /// Remembers what the loss of the Redis behind would take from the client.
    fn follow_transaction(&mut self, name: &[u8]) {
        let is = |word: &str| name.eq_ignore_ascii_case(word.as_bytes());
        if is("MULTI") {
            self.client.in_transaction = true;
        } else if is("WATCH") {
            self.client.watches_keys = true;
        } else if is("EXEC") || is("DISCARD") {
            self.client.in_transaction = false;
            self.client.watches_keys = false;
        } else if is("UNWATCH") {
            self.client.watches_keys = false;
        }
    }

    /// A command too large to hold: all its keys must have been seen, or none can matter.
    pub(in crate::server) fn route_large(
        &self,
        argv: &[&[u8]],
        declared_words: usize,
    ) -> Result<(), Refusal> {
        let router = &self.shared.router;
        if router.has_correctness_routes() && !keys::are_all_seen(argv[0], argv.len()) {
            return Err(Refusal::new(format!(
                "ERR a command of {declared_words} words or this size cannot be checked against the routes of this proxy; split it"
            )));
        }
        match router.plain(self.client.door, keys::of(argv))? {
            PlainDestination::Redis => Ok(()),
            PlainDestination::Keyspace => {
                Err(Refusal::new("ERR keys of the correctness tier hold owners, and no owner is that large"))
            }
        }
    }
}

fn not_yet(name: &[u8]) -> Refusal {
    let name = shown(&name.to_ascii_lowercase());
    Refusal::new(format!("ERR '{name}' on keys of the correctness tier is not supported yet"))
}
