//! `MULTI`, `EXEC`, `DISCARD`, `WATCH`, `UNWATCH`, and every command between the first two.
//!
//! The Redis behind queues what belongs to it, and answers with its own bytes. What belongs to the Raft keyspace is queued here and
//! becomes one entry of the log at `EXEC`. Texts and rules are Redis's: a command that could never run is refused when
//! it is queued, and `EXEC` then discards the rest.

use super::{unknown_command, wrong_arity, Local};
use crate::node_api::OwnedQuery;
use crate::server::client::transaction::{check_watched, Home, Transaction};
use crate::server::net::connection::{Connection, Flow};
use crate::server::net::pending::{IfAbandoned, Lane, Pending, RedisCall, Source, Then};
use crate::server::routing::keys;
use crate::server::routing::router::{Destination, PlainDestination};
use bytes::Bytes;
use redfence_core::grammar;
use redfence_core::grammar::errors::shown;
use redfence_core::keyspace::table::{self, Run};
use redfence_core::machine::check_in_transaction;
use redfence_core::reply::{Refusal, Reply};
use std::sync::Arc;

const DISCARDED: &str = "EXECABORT Transaction discarded because of previous errors.";

impl Connection {
    // ---- the frame ----

    pub(in crate::server) fn multi(&mut self, argv: &[&[u8]], frame: Option<&[u8]>) -> Flow {
        if argv.len() != 1 {
            return self.spoil(wrong_arity(argv[0]));
        }
        if self.client.transaction.is_some() {
            return self.refuse(Refusal::new("ERR MULTI calls can not be nested"));
        }
        let home = self.home_of_next();
        if home == Home::Redis {
            let flow = self.pass_to_redis(argv, frame);
            if flow == Flow::Stall {
                return flow;
            }
        } else {
            self.reply(&Reply::OK);
        }
        self.client.transaction = Some(Box::new(Transaction::new(home)));
        Flow::Done
    }

    /// Whether plain keys of both tiers may come from this client.
    fn has_both_homes(&self) -> bool {
        let router = &self.router;
        router.has_redis_at(self.client.door) && router.has_correctness_routes()
    }

    /// Where a transaction that begins now is at home.
    fn home_of_next(&self) -> Home {
        if !self.router.has_redis_at(self.client.door) {
            Home::Keyspace
        } else if !self.has_both_homes() || self.client.watches_redis {
            Home::Redis
        } else if self.client.watched.is_empty() {
            Home::Undecided
        } else {
            Home::Keyspace
        }
    }

    pub(in crate::server) fn exec(&mut self, argv: &[&[u8]], frame: Option<&[u8]>) -> Flow {
        if argv.len() != 1 {
            let refusal =
                "EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command";
            return self.give_up(Refusal::new(refusal));
        }
        match &self.client.transaction {
            None => self.refuse(Refusal::new("ERR EXEC without MULTI")),
            Some(transaction) if transaction.spoilt => self.give_up(Refusal::new(DISCARDED)),
            Some(transaction) => match transaction.home {
                Home::Redis => self.leave_by_redis(argv, frame),
                Home::Keyspace => self.exec_in_keyspace(),
                Home::Undecided => {
                    self.forget_transaction();
                    self.reply(&Reply::Array(Vec::new()));
                    Flow::Done
                }
            },
        }
    }

    fn exec_in_keyspace(&mut self) -> Flow {
        let Some(transaction) = &self.client.transaction else { unreachable!("asked before") };
        if transaction.is_empty() && self.client.watched.is_empty() {
            self.forget_transaction();
            self.reply(&Reply::Array(Vec::new()));
            return Flow::Done;
        }
        let selects = transaction.selects();
        // What is pipelined behind a change of the database must see it.
        let lane = if selects.is_empty() { Lane::Tier2 } else { Lane::Alone };
        if !self.lane_is_open(lane) || !self.has_room_for_large_reply() {
            return Flow::Stall;
        }
        let (db, resp) = (self.client.db, self.client.protocol.into());
        let blob = transaction.encode(db, resp, self.member(), &self.client.watched);
        let pending = self.shared.tier2.submit_for(
            self.client.card.id,
            self.client.caller(),
            Some(Arc::clone(&self.client.account)),
            blob,
            0,
        );
        self.await_call(lane, Source::Tier2(pending), false, IfAbandoned::Nothing);
        self.large_calls += 1;
        self.then(Then::Select(selects));
        self.forget_transaction();
        Flow::Done
    }

    pub(in crate::server) fn discard(&mut self, argv: &[&[u8]], frame: Option<&[u8]>) -> Flow {
        if argv.len() != 1 {
            return self.spoil(wrong_arity(argv[0]));
        }
        match self.client.transaction.as_ref().map(|transaction| transaction.home) {
            None => self.refuse(Refusal::new("ERR DISCARD without MULTI")),
            Some(Home::Redis) => self.leave_by_redis(argv, frame),
            Some(Home::Undecided | Home::Keyspace) => {
                self.forget_transaction();
                self.reply(&Reply::OK);
                Flow::Done
            }
        }
    }

    /// `EXEC` or `DISCARD` for the Redis behind to carry out.
    fn leave_by_redis(&mut self, argv: &[&[u8]], frame: Option<&[u8]>) -> Flow {
        let flow = self.pass_to_redis(argv, frame);
        if flow != Flow::Stall {
            self.forget_transaction();
        }
        flow
    }

    /// Nothing of it is carried out.
    fn give_up(&mut self, refusal: Refusal) -> Flow {
        if self.transaction_home() == Some(Home::Redis) {
            let flow = self.tell_redis("DISCARD");
            if flow == Flow::Stall {
                return flow;
            }
        }
        self.forget_transaction();
        self.refuse(refusal)
    }

    /// A word of our own to the Redis behind; the client does not see its reply.
    fn tell_redis(&mut self, word: &str) -> Flow {
        self.send_to_redis(&[word.as_bytes()], None, RedisCall { muted: true, ..RedisCall::default() })
    }

    pub(in crate::server) fn forget_transaction(&mut self) {
        self.client.transaction = None;
        self.client.watches_redis = false;
        self.client.unwatch();
    }

    pub(super) fn transaction_home(&self) -> Option<Home> {
        self.client.transaction.as_ref().map(|transaction| transaction.home)
    }

    /// Refuses a command; inside a transaction that is the end of all of it.
    pub(in crate::server) fn spoil(&mut self, refusal: Refusal) -> Flow {
        if let Some(transaction) = &mut self.client.transaction {
            transaction.spoilt = true;
        }
        self.refuse(refusal)
    }

    // ---- the commands in it ----

    pub(in crate::server) fn command_in_transaction(
        &mut self,
        local: Option<Local>,
        argv: &[&[u8]],
        frame: Option<&[u8]>,
    ) -> Flow {
        if local.is_some_and(Local::is_about_the_connection) {
            return self.spoil(not_in_transaction(argv[0]));
        }
        let home = match self.home_of_command(argv) {
            Ok(home) => home,
            Err(refusal) => return self.spoil(refusal),
        };
        if self.transaction_home() == Some(Home::Keyspace) {
            return match self.queue(argv) {
                Ok(()) => {
                    self.reply(&Reply::Status("QUEUED".into()));
                    Flow::Done
                }
                Err(refusal) => self.spoil(refusal),
            };
        }
        debug_assert_eq!(home, Home::Redis);
        if local == Some(Local::Select) {
            // The keyspace and CLIENT LIST would have to follow what only that Redis knows the outcome of.
            return self.spoil(not_in_transaction(argv[0]));
        }
        match self.begin_at_redis() {
            Flow::Stall => Flow::Stall,
            _ if grammar::is_ours(argv[0]) => self.lock_command(argv, frame),
            _ => self.pass_to_redis(argv, frame),
        }
    }

    /// The `MULTI` that was held back until it was clear whom it concerns.
    pub(in crate::server) fn begin_at_redis(&mut self) -> Flow {
        if !self.lane_is_open(Lane::Redis) {
            return Flow::Stall;
        }
        if self.transaction_home() == Some(Home::Undecided) {
            self.tell_redis("MULTI");
            self.settle(Home::Redis);
        }
        Flow::Done
    }

    fn settle(&mut self, home: Home) {
        if let Some(transaction) = &mut self.client.transaction {
            transaction.home = home;
        }
    }

    /// Whose command it is; settles a transaction of the keyspace that had no home. Refused where its home is another.
    fn home_of_command(&mut self, argv: &[&[u8]]) -> Result<Home, Refusal> {
        let (wanted, name) = self.wanted_home(argv)?;
        let home = self.transaction_home().unwrap_or(Home::Undecided);
        match (home, wanted) {
            (Home::Undecided, Home::Keyspace) => self.settle(Home::Keyspace),
            (Home::Undecided, Home::Redis | Home::Undecided) => return Ok(Home::Redis),
            (Home::Redis, Home::Keyspace) | (Home::Keyspace, Home::Redis) => {
                return Err(crosses_tiers(&name));
            }
            (Home::Redis, Home::Redis | Home::Undecided)
            | (Home::Keyspace, Home::Keyspace | Home::Undecided) => {}
        }
        Ok(self.transaction_home().unwrap_or(Home::Undecided))
    }

    /// Where a command would go outside, and the name that says so. `Undecided`: it has no key, and goes wherever the others go.
    fn wanted_home(&self, argv: &[&[u8]]) -> Result<(Home, Vec<u8>), Refusal> {
        if let Some(request) = grammar::parse(argv) {
            let request = request?;
            let name = argv.get(1).map(|word| word.to_vec()).unwrap_or_default();
            return match self.route_lock(&request)? {
                Destination::Tier1 => Ok((Home::Redis, name)),
                Destination::Tier2 => check_in_transaction(&request).map(|()| (Home::Keyspace, name)),
                Destination::Node => Err(not_in_transaction(argv[0])),
            };
        }
        let keys = if self.has_both_homes() { keys::of(argv) } else { Default::default() };
        let Some(first) = keys.first().map(|key| key.to_vec()) else {
            return Ok((Home::Undecided, Vec::new()));
        };
        Ok(match self.route_plain(keys)? {
            PlainDestination::Redis => (Home::Redis, first),
            PlainDestination::Keyspace => (Home::Keyspace, first),
        })
    }

    fn queue(&mut self, argv: &[&[u8]]) -> Result<(), Refusal> {
        if !grammar::is_ours(argv[0]) {
            check_command(argv)?;
        }
        let watched = self.client.watched_bytes;
        let Some(transaction) = &mut self.client.transaction else { unreachable!("asked before") };
        transaction.queue(argv, watched)
    }

    // ---- watching ----

    pub(in crate::server) fn watch(&mut self, argv: &[&[u8]], frame: Option<&[u8]>) -> Flow {
        if argv.len() < 2 {
            return self.spoil(wrong_arity(argv[0]));
        }
        if self.client.transaction.is_some() {
            return self.refuse(Refusal::new("ERR WATCH inside MULTI is not allowed"));
        }
        let destination = match self.route_plain(argv[1..].iter().copied()) {
            Ok(destination) => destination,
            Err(refusal) => return self.refuse(refusal),
        };
        let elsewhere = match destination {
            PlainDestination::Redis => !self.client.watched.is_empty(),
            PlainDestination::Keyspace => self.client.watches_redis,
        };
        if elsewhere {
            return self.refuse(Refusal::new(format!(
                "CROSSTIER '{}' belongs to another tier than the keys watched so far; UNWATCH first",
                shown(argv[1])
            )));
        }
        match destination {
            PlainDestination::Redis => {
                let flow = self.pass_to_redis(argv, frame);
                self.client.watches_redis |= flow == Flow::Done;
                flow
            }
            PlainDestination::Keyspace => self.watch_keyspace(&argv[1..]),
        }
    }

    fn watch_keyspace(&mut self, keys: &[&[u8]]) -> Flow {
        if !self.lane_is_open(Lane::Alone) {
            return Flow::Stall;
        }
        if let Err(refusal) = check_watched(&self.client.watched, keys) {
            return self.refuse(refusal);
        }
        let db = self.client.db;
        let keys: Vec<Bytes> = keys.iter().map(|key| Bytes::copy_from_slice(key)).collect();
        let pending = self.shared.tier2.query(OwnedQuery::Tokens { db, keys: keys.clone() });
        self.await_call(Lane::Alone, Source::Tier2(pending), false, IfAbandoned::Nothing);
        self.then(Then::Watch { db, keys });
        Flow::Done
    }

    pub(in crate::server) fn unwatch(&mut self, argv: &[&[u8]], frame: Option<&[u8]>) -> Flow {
        if argv.len() != 1 {
            return self.refuse(wrong_arity(argv[0]));
        }
        if self.home_of_next() == Home::Redis {
            let flow = self.pass_to_redis(argv, frame);
            self.client.watches_redis &= flow == Flow::Stall;
            return flow;
        }
        self.client.unwatch();
        self.reply(&Reply::OK);
        Flow::Done
    }

    fn then(&mut self, then: Then) {
        match self.pending.back_mut() {
            Some(Pending::Call(call)) => call.then = then,
            _ => unreachable!("the call was just begun"),
        }
    }
}

/// What can be said of a command before it runs, in Redis's words.
fn check_command(argv: &[&[u8]]) -> Result<(), Refusal> {
    match table::find(argv[0]) {
        Some(row) if !row.takes(argv.len()) => Err(wrong_arity(argv[0])),
        Some(row) => match row.run {
            Run::Here(_) => Ok(()),
            Run::Elsewhere if row.is(table::SCRIPT) => Ok(()),
            Run::Elsewhere => Err(not_in_transaction(argv[0])),
        },
        None if Local::find(argv[0]).is_some() || keys::is_redis_command(argv[0]) => {
            Err(not_in_transaction(argv[0]))
        }
        None => Err(unknown_command(argv)),
    }
}

pub(super) fn crosses_tiers(name: &[u8]) -> Refusal {
    let name = shown(name);
    Refusal::new(format!("CROSSTIER '{name}' belongs to another tier than this transaction; split it"))
}

fn not_in_transaction(name: &[u8]) -> Refusal {
    let name = shown(&name.to_ascii_lowercase());
    Refusal::new(format!("ERR '{name}' cannot be part of a transaction here"))
}
