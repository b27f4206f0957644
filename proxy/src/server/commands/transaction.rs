//! `MULTI`, `EXEC`, `DISCARD`, `WATCH`, `UNWATCH`, and every command between the first two.
//!
//! The upstream Redis queues what belongs to it, and answers with its own bytes. What belongs to the Raft keyspace is queued here and
//! becomes one entry of the log at `EXEC`. Which of the two is decided in [`crate::server::routing::transaction_plan`]. Texts and rules are Redis's: a command that could never run is refused when
//! it is queued, and `EXEC` then discards the rest.

use super::client::check_queued;
use super::hello::asked_database;
use super::{unknown_command, wrong_arity, Local};
use crate::node_api::OwnedQuery;
use crate::server::client::transaction::{
    check_watched, LockInTransaction, LockStep, Transaction, TransactionTarget,
};
use crate::server::commands::notify::AskedLocks;
use crate::server::context::CommandContext;
use crate::server::ids;
use crate::server::net::connection::Progress;
use crate::server::net::in_flight::{
    AfterReply, AwaitedReply, IfAbandoned, InFlight, Source, TransactionAsked, UpstreamCall,
};
use crate::server::routing::keys;
use crate::server::routing::router::PlainDestination;
use crate::server::upstream::reply_edit::ReplyEdit;
use bytes::Bytes;
use redfence_core::grammar;
use redfence_core::grammar::errors::shown;
use redfence_core::keyspace::table::{self, Run};
use redfence_core::reply::{Refusal, Reply};
use std::sync::Arc;

/// A command of a transaction that does not go to the log.
#[derive(Debug)]
pub enum AnsweredHere {
    /// Its user may not run it any more.
    Denied(Refusal),
    /// `CLIENT …`
    Client(Vec<Bytes>),
}

impl AnsweredHere {
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            AnsweredHere::Denied(refusal) => refusal.0.len(),
            AnsweredHere::Client(argv) => argv.iter().map(|word| word.len() + size_of::<Bytes>()).sum(),
        }
    }
}

/// Locks that one transaction of a connection may ask for while it is told of losses: each has its place in the node's tables until the
/// answer.
pub const WATCHED_LOCKS_MAX: usize = 16_384;

const DISCARDED: &str = "EXECABORT Transaction discarded because of previous errors.";

impl CommandContext {
    // ---- the frame ----

    pub(in crate::server) fn multi(&mut self, argv: &[&[u8]], frame: Option<&[u8]>) -> Progress {
        if argv.len() != 1 {
            return self.refuse_and_abort(wrong_arity(argv[0]));
        }
        if self.client.transaction.is_some() {
            return self.refuse(Refusal::new("ERR MULTI calls can not be nested"));
        }
        let target = self.target_of_next();
        if target == TransactionTarget::Upstream {
            let flow = self.pass_to_upstream(argv, frame);
            if flow == Progress::Stalled {
                return flow;
            }
        } else {
            self.reply(&Reply::OK);
        }
        let mut transaction = Transaction::new(target);
        transaction.access_generation = self.client.access_generation;
        self.client.transaction = Some(Box::new(transaction));
        Progress::Done
    }

    pub(in crate::server) fn exec(&mut self, argv: &[&[u8]], frame: Option<&[u8]>) -> Progress {
        if argv.len() != 1 {
            let refusal =
                "EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command";
            return self.give_up(Refusal::new(refusal));
        }
        match &self.client.transaction {
            None => self.refuse(Refusal::new("ERR EXEC without MULTI")),
            Some(transaction) if transaction.must_abort => self.give_up(Refusal::new(DISCARDED)),
            Some(transaction) => match transaction.target {
                TransactionTarget::Upstream => match self.check_upstream_transaction() {
                    Ok(()) => self.exec_at_upstream(argv, frame),
                    Err(refusal) => self.give_up(refusal),
                },
                TransactionTarget::Keyspace => self.exec_in_keyspace(),
                TransactionTarget::Undecided => {
                    self.forget_transaction();
                    self.reply(&Reply::Array(Vec::new()));
                    Progress::Done
                }
            },
        }
    }

    fn exec_in_keyspace(&mut self) -> Progress {
        let Some(transaction) = &self.client.transaction else { unreachable!("asked before") };
        if transaction.is_empty() && self.client.watched.is_empty() {
            self.forget_transaction();
            self.reply(&Reply::Array(Vec::new()));
            return Progress::Done;
        }
        let selects = transaction.selects();
        // What is pipelined behind a change of the database, or of the client, must see it.
        let changes_client = !selects.is_empty() || !transaction.about_the_client().is_empty();
        let in_flight = if changes_client { InFlight::Alone } else { InFlight::Tier2 };
        if !self.can_join(in_flight) || !self.replies.has_room_for_large_reply() {
            return Progress::Stalled;
        }
        let answered_here = self.answered_here();
        if let Some(transaction) = &mut self.client.transaction {
            transaction.remove(answered_here.iter().map(|(at, _)| *at));
            if transaction.is_empty() && self.client.watched.is_empty() {
                self.forget_transaction();
                let replies = answered_here.into_iter().map(|(_, answer)| self.answer_here(answer)).collect();
                self.reply(&Reply::Array(replies));
                return Progress::Done;
            }
        }
        let Some(transaction) = &self.client.transaction else { unreachable!("asked before") };
        let has_script = transaction.has_script();
        // Only scripts take the rights of their user along.
        let rights = match has_script.then(|| self.script_rights(&[b"EVAL"])).transpose() {
            Ok(rights) => rights.flatten(),
            Err(refusal) => return self.give_up(refusal),
        };
        let admin_acts = self.new_admin_acts(has_script);
        if let Some(Err(refusal)) =
            rights.as_ref().map(|rights| transaction.check_rights(rights, self.client.watched_bytes))
        {
            return self.give_up(refusal);
        }
        let (db, resp) = (self.client.db, self.client.protocol.into());
        let user = self.client.user.tag;
        let locks = transaction.locks(db);
        let asked_for = locks.iter().filter(|lock| matches!(lock.step, LockStep::Grants { .. }));
        let asked_for: usize = asked_for.map(|lock| lock.names.len()).sum();
        if self.client.losses.is_some() && asked_for > WATCHED_LOCKS_MAX {
            return self.give_up(Refusal::new(format!(
                "ERR with LOCK.NOTIFY ON a transaction asks for {WATCHED_LOCKS_MAX} locks at most"
            )));
        }
        let is_nameless =
            |lock: &&LockInTransaction| matches!(lock.step, LockStep::Grants { is_nameless: true, .. });
        let nameless: Vec<LockInTransaction> = locks.iter().filter(is_nameless).cloned().collect();
        let if_abandoned = match nameless.is_empty() {
            true => IfAbandoned::Nothing,
            false => IfAbandoned::ReleaseGrantsOf(nameless),
        };
        let grants = locks.iter().filter(|lock| matches!(lock.step, LockStep::Grants { .. }));
        let attempts_bytes = grants.map(|lock| self.note_asked(&AskedLocks::in_transaction(lock))).sum();
        let blob = transaction.encode(user, db, resp, self.member(), &self.client.watched, rights.as_deref());
        let pending = self.server.tier2.submit_for(
            self.client.info.id,
            self.client.caller(),
            Some(Arc::clone(&self.client.account)),
            admin_acts.clone(),
            blob,
            0,
        );
        self.await_call(in_flight, Source::Tier2(pending), false, if_abandoned);
        self.replies.large_calls += 1;
        let asked = TransactionAsked { selects, answered_here, locks, attempts_bytes, user };
        self.then(AfterReply::Transaction(Box::new(asked)));
        if let Some(AwaitedReply::Call(call)) = self.replies.awaited.back_mut() {
            call.admin_acts = admin_acts;
        }
        self.forget_transaction();
        Progress::Done
    }

    /// Its commands that do not go to the log, by place in rising order.
    fn answered_here(&self) -> Vec<(usize, AnsweredHere)> {
        let Some(transaction) = &self.client.transaction else { return Vec::new() };
        let denied = self.denied_in_transaction();
        let is_denied = |at: usize| denied.iter().any(|(place, _)| *place == at);
        let about_client = transaction.about_the_client().into_iter().filter(|(at, _)| !is_denied(*at));
        let mut all: Vec<_> = about_client.map(|(at, argv)| (at, AnsweredHere::Client(argv))).collect();
        all.extend(denied.iter().map(|(at, refusal)| (*at, AnsweredHere::Denied(refusal.clone()))));
        all.sort_by_key(|(at, _)| *at);
        all
    }

    /// The transaction was carried out.
    pub(in crate::server) fn answer_here(&mut self, answer: AnsweredHere) -> Reply {
        match answer {
            AnsweredHere::Denied(refusal) => Reply::Error(refusal),
            AnsweredHere::Client(argv) => self.queued_client_command(&argv),
        }
    }

    pub(in crate::server) fn discard(&mut self, argv: &[&[u8]], frame: Option<&[u8]>) -> Progress {
        if argv.len() != 1 {
            return self.refuse_and_abort(wrong_arity(argv[0]));
        }
        match self.client.transaction.as_ref().map(|transaction| transaction.target) {
            None => self.refuse(Refusal::new("ERR DISCARD without MULTI")),
            Some(TransactionTarget::Upstream) => self.leave_by_upstream(argv, frame),
            Some(TransactionTarget::Undecided | TransactionTarget::Keyspace) => {
                self.forget_transaction();
                self.reply(&Reply::OK);
                Progress::Done
            }
        }
    }

    /// `EXEC` or `DISCARD` for the upstream Redis to carry out.
    fn leave_by_upstream(&mut self, argv: &[&[u8]], frame: Option<&[u8]>) -> Progress {
        let flow = self.pass_to_upstream(argv, frame);
        if flow != Progress::Stalled {
            self.forget_transaction();
        }
        flow
    }

    fn exec_at_upstream(&mut self, argv: &[&[u8]], frame: Option<&[u8]>) -> Progress {
        let Some(transaction) = &mut self.client.transaction else { unreachable!("asked before") };
        let changes_client = transaction.echoed.is_some() || transaction.upstream_db.is_some();
        if !changes_client {
            return self.leave_by_upstream(argv, frame);
        }
        if !self.can_join(InFlight::OwnUpstream) {
            return Progress::Stalled;
        }
        let Some(transaction) = &mut self.client.transaction else { unreachable!("asked before") };
        let echoed = transaction.echoed.unwrap_or_default();
        let edit = ReplyEdit::exec(&echoed, transaction.take_commands(), transaction.upstream_db);
        let muted = self.client.is_muted();
        let call = UpstreamCall { muted, edit: Some(Box::new(edit)), ..UpstreamCall::default() };
        let flow = self.send_to_upstream(argv, frame, call);
        // What is pipelined behind it must see what it changes.
        self.replies.in_flight = InFlight::Alone;
        self.forget_transaction();
        flow
    }

    /// Nothing of it is carried out.
    fn give_up(&mut self, refusal: Refusal) -> Progress {
        if self.transaction_target() == Some(TransactionTarget::Upstream) {
            let flow = self.tell_redis("DISCARD");
            if flow == Progress::Stalled {
                return flow;
            }
        }
        self.forget_transaction();
        self.refuse(refusal)
    }

    /// A word of our own to the upstream Redis; the client does not see its reply.
    fn tell_redis(&mut self, word: &str) -> Progress {
        self.send_to_upstream(
            &[word.as_bytes()],
            None,
            UpstreamCall { muted: true, ..UpstreamCall::default() },
        )
    }

    pub(in crate::server) fn forget_transaction(&mut self) {
        self.client.transaction = None;
        self.client.watches_upstream = false;
        self.client.unwatch();
    }

    pub(in crate::server) fn transaction_target(&self) -> Option<TransactionTarget> {
        self.client.transaction.as_ref().map(|transaction| transaction.target)
    }

    /// Refuses a command; inside a transaction that is the end of all of it.
    pub(in crate::server) fn refuse_and_abort(&mut self, refusal: Refusal) -> Progress {
        if let Some(transaction) = &mut self.client.transaction {
            transaction.must_abort = true;
        }
        self.refuse(refusal)
    }

    // ---- the commands in it ----

    pub(in crate::server) fn command_in_transaction(
        &mut self,
        local: Option<Local>,
        argv: &[&[u8]],
        frame: Option<&[u8]>,
    ) -> Progress {
        if local == Some(Local::Client) {
            if let Err(refusal) = check_queued(argv) {
                return self.refuse_and_abort(refusal);
            }
        } else if local.is_some_and(Local::is_about_the_connection) {
            return self.refuse_and_abort(not_in_transaction(argv[0]));
        }
        let target = match self.home_of_command(argv) {
            Ok(target) => target,
            Err(refusal) => return self.refuse_and_abort(refusal),
        };
        if self.transaction_target() == Some(TransactionTarget::Keyspace) {
            return match self.queue(argv) {
                Ok(()) => {
                    self.reply(&Reply::Status("QUEUED".into()));
                    Progress::Done
                }
                Err(refusal) => self.refuse_and_abort(refusal),
            };
        }
        debug_assert_eq!(target, TransactionTarget::Upstream);
        if self.begin_at_upstream() == Progress::Stalled {
            return Progress::Stalled;
        }
        match local {
            Some(Local::Select) => return self.select_at_upstream(argv),
            Some(Local::Client) => return self.queue_beside_upstream(argv),
            Some(_) | None => {}
        }
        match self.plan_lock(argv) {
            Some(Ok(plan)) => self.lock_command(plan, argv, frame),
            Some(Err(refusal)) => self.refuse(refusal),
            None => self.pass_to_upstream(argv, frame),
        }
    }

    /// `SELECT` in a transaction of the upstream Redis, which carries it out there. It holds for the client once that is done.
    fn select_at_upstream(&mut self, argv: &[&[u8]]) -> Progress {
        let [name, number] = argv else { return self.refuse_and_abort(wrong_arity(argv[0])) };
        match asked_database(number) {
            // Its own answer is ours.
            None => self.pass_to_upstream(argv, None),
            Some(None) => self.pass_to_upstream(&[name, b"-1"], None),
            Some(Some(db)) => {
                let flow = self.pass_to_upstream(&[name, db.to_string().as_bytes()], None);
                if let (Progress::Done, Some(transaction)) = (flow, &mut self.client.transaction) {
                    transaction.upstream_db = Some(db);
                }
                flow
            }
        }
    }

    /// A command about the client, which that Redis knows nothing of: it keeps a place for it.
    fn queue_beside_upstream(&mut self, argv: &[&[u8]]) -> Progress {
        if !self.can_join(InFlight::OwnUpstream) {
            return Progress::Stalled;
        }
        let Some(transaction) = &mut self.client.transaction else { unreachable!("asked before") };
        if let Err(refusal) = transaction.queue(argv, 0) {
            return self.refuse_and_abort(refusal);
        }
        let echoed = *transaction.echoed.get_or_insert_with(ids::owner);
        self.pass_to_upstream(&[b"ECHO", &echoed], None)
    }

    /// The `MULTI` that was held back until it was clear whom it concerns.
    pub(in crate::server) fn begin_at_upstream(&mut self) -> Progress {
        if !self.can_join(InFlight::OwnUpstream) {
            return Progress::Stalled;
        }
        if self.transaction_target() == Some(TransactionTarget::Undecided) {
            self.tell_redis("MULTI");
            self.settle(TransactionTarget::Upstream);
        }
        Progress::Done
    }

    fn settle(&mut self, target: TransactionTarget) {
        if let Some(transaction) = &mut self.client.transaction {
            transaction.target = target;
        }
    }

    /// Whose command it is; settles a transaction of the keyspace that had no home. Refused where its home is another.
    fn home_of_command(&mut self, argv: &[&[u8]]) -> Result<TransactionTarget, Refusal> {
        let (wanted, name) = self.wanted_target(argv)?;
        let target = self.transaction_target().unwrap_or(TransactionTarget::Undecided);
        match (target, wanted) {
            (TransactionTarget::Undecided, TransactionTarget::Keyspace) => {
                self.settle(TransactionTarget::Keyspace)
            }
            (TransactionTarget::Undecided, TransactionTarget::Upstream | TransactionTarget::Undecided) => {
                return Ok(TransactionTarget::Upstream)
            }
            (TransactionTarget::Upstream, TransactionTarget::Keyspace)
            | (TransactionTarget::Keyspace, TransactionTarget::Upstream) => {
                return Err(crosses_tiers(&name));
            }
            (TransactionTarget::Upstream, TransactionTarget::Upstream | TransactionTarget::Undecided)
            | (TransactionTarget::Keyspace, TransactionTarget::Keyspace | TransactionTarget::Undecided) => {}
        }
        Ok(self.transaction_target().unwrap_or(TransactionTarget::Undecided))
    }

    fn queue(&mut self, argv: &[&[u8]]) -> Result<(), Refusal> {
        let is_checked = grammar::is_ours(argv[0]) || Local::find(argv[0]) == Some(Local::Client);
        if !is_checked {
            check_command(argv)?;
        }
        let watched = self.client.watched_bytes;
        let Some(transaction) = &mut self.client.transaction else { unreachable!("asked before") };
        transaction.queue(argv, watched)
    }

    // ---- watching ----

    pub(in crate::server) fn watch(&mut self, argv: &[&[u8]], frame: Option<&[u8]>) -> Progress {
        if argv.len() < 2 {
            return self.refuse_and_abort(wrong_arity(argv[0]));
        }
        if self.client.transaction.is_some() {
            return self.refuse(Refusal::new("ERR WATCH inside MULTI is not allowed"));
        }
        match self.plan_watch(&argv[1..]) {
            Ok(PlainDestination::Upstream) => {
                let flow = self.pass_to_upstream(argv, frame);
                self.client.watches_upstream |= flow == Progress::Done;
                flow
            }
            Ok(PlainDestination::Keyspace) => self.watch_keyspace(&argv[1..]),
            Err(refusal) => self.refuse(refusal),
        }
    }

    fn watch_keyspace(&mut self, keys: &[&[u8]]) -> Progress {
        if !self.can_join(InFlight::Alone) {
            return Progress::Stalled;
        }
        if let Err(refusal) = check_watched(&self.client.watched, keys) {
            return self.refuse(refusal);
        }
        let db = self.client.db;
        let keys: Vec<Bytes> = keys.iter().map(|key| Bytes::copy_from_slice(key)).collect();
        let pending = self.server.tier2.query(OwnedQuery::Tokens { db, keys: keys.clone() });
        self.await_call(InFlight::Alone, Source::Tier2(pending), false, IfAbandoned::Nothing);
        self.then(AfterReply::Watch { db, keys });
        Progress::Done
    }

    pub(in crate::server) fn unwatch(&mut self, argv: &[&[u8]], frame: Option<&[u8]>) -> Progress {
        if argv.len() != 1 {
            return self.refuse(wrong_arity(argv[0]));
        }
        if self.target_of_next() == TransactionTarget::Upstream {
            let flow = self.pass_to_upstream(argv, frame);
            self.client.watches_upstream &= flow == Progress::Stalled;
            return flow;
        }
        self.client.unwatch();
        self.reply(&Reply::OK);
        Progress::Done
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

pub(in crate::server) fn crosses_tiers(name: &[u8]) -> Refusal {
    let name = shown(name);
    Refusal::new(format!("CROSSTIER '{name}' belongs to another tier than this transaction; split it"))
}

pub(in crate::server) fn not_in_transaction(name: &[u8]) -> Refusal {
    let name = shown(&name.to_ascii_lowercase());
    Refusal::new(format!("ERR '{name}' cannot be part of a transaction here"))
}
