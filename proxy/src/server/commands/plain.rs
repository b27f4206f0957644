//! Plain Redis commands: to the Redis behind the proxy as they are, or to the Raft keyspace.

use super::unknown_command;
use crate::server::connection::{Connection, Flow};
use crate::server::keys;
use crate::server::router::PlainDestination;
use redfence_core::grammar::errors::shown;
use redfence_core::reply::Refusal;

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

    /// The Raft keyspace's place: every key is a lock there, and its value is the owner. Not built yet.
    fn keyspace_command(&mut self, argv: &[&[u8]]) -> Flow {
        let name = argv[0];
        if !keys::is_redis_command(name) {
            return self.refuse(unknown_command(argv));
        }
        let name = shown(&name.to_ascii_lowercase());
        self.refuse(Refusal::new(format!(
            "ERR '{name}' on keys of the correctness tier is not supported yet; use LOCK.* commands, or start the proxy with \
             --redis and route these keys there"
        )))
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
