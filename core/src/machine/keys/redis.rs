//! Redis's commands, scripts and transactions, applied to the lock table; and reads, which need no entry.

use crate::grammar;
use crate::keyspace::args::is;
use crate::keyspace::table::{self, Row};
use crate::keyspace::{self, errors, execute, Context, Keys, ReplyRoom, Resp, WouldBlock};
use crate::limits::REMEMBERED_REPLY_BYTES_MAX;
use crate::machine::keys::adapter::{Clash, MachineKeys, ReadKeys};
use crate::machine::log::bytes::Hash64;
use crate::machine::log::command::{Db, Watched, Words};
use crate::machine::log::effects::Write;
use crate::machine::version::{self, ClusterVersion};
use crate::machine::work::{Work, WORK_PER_COMMAND_MAX};
use crate::machine::{Applied, Machine};
use crate::reply::Reply;
use crate::script::{self, Scripts};
use crate::types::{Member, RequestId};

/// Whose command it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallContext {
    pub(crate) db: Db,
    pub(crate) resp: Resp,
    pub(crate) member: Option<Member>,
}

/// What a run of one command came to.
pub(crate) struct RunOutcome {
    pub(crate) reply: Reply,
    pub(crate) would_block: Option<WouldBlock>,
    /// The client's database afterwards.
    db: Db,
    clash: Clash,
}

/// Whether a reply is too large to be remembered. At version 1 an answer of `LOCK.INFO` counts for nothing.
#[inline]
pub(crate) fn is_large(reply: &Reply, version: ClusterVersion) -> bool {
    fn weigh(reply: &Reply, version: ClusterVersion, left: &mut usize) -> bool {
        let own = match reply {
            Reply::Bulk(bytes) | Reply::Verbatim(bytes) => bytes.len(),
            Reply::Error(refusal) => refusal.0.len(),
            Reply::Array(items) | Reply::Set(items) => {
                return items.iter().any(|item| weigh(item, version, left));
            }
            Reply::Map(pairs) => {
                return pairs
                    .iter()
                    .any(|(key, value)| weigh(key, version, left) || weigh(value, version, left));
            }
            Reply::Granted { .. }
            | Reply::GrantedMany { .. }
            | Reply::Released
            | Reply::Renewed { .. }
            | Reply::Refused(_)
            | Reply::Nil
            | Reply::NilArray
            | Reply::Int(_)
            | Reply::Double(_)
            | Reply::Bool(_)
            | Reply::Text(_)
            | Reply::Status(_) => 0,
            Reply::Info(_) if version < version::SECOND => 0,
            Reply::Info(info) => info.pairs().iter().map(|(_, value)| value.weight()).sum(),
        };
        match left.checked_sub(own + 8) {
            Some(rest) => *left = rest,
            None => return true,
        }
        false
    }
    !reply.is_small() && weigh(reply, version, &mut REMEMBERED_REPLY_BYTES_MAX.clone())
}

/// Whether [`Machine::read`] answers this command: it changes nothing, and runs no script.
#[must_use]
pub fn is_read(row: &Row) -> bool {
    !row.is(table::W) && !row.is(table::SCRIPT) && !row.is(table::PUBSUB)
}

impl Machine {
    /// The script cache.
    #[must_use]
    pub fn scripts(&self) -> &Scripts {
        &self.scripts
    }

    /// Answers a command that only reads ([`is_read`]). Any other is refused.
    #[must_use]
    pub fn read(&self, db: Db, resp: Resp, argv: &[&[u8]]) -> Reply {
        self.read_as(None, db, resp, argv)
    }

    /// The same through a Redlock listener.
    #[must_use]
    pub fn read_as(&self, member: Option<Member>, db: Db, resp: Resp, argv: &[&[u8]]) -> Reply {
        self.read_later(member, db, resp, argv, 0)
    }

    /// The same, asked `late_ms` after the newest stamp: see [`Machine::query_later`].
    #[must_use]
    pub fn read_later(
        &self,
        member: Option<Member>,
        db: Db,
        resp: Resp,
        argv: &[&[u8]],
        late_ms: u64,
    ) -> Reply {
        let mut keys = ReadKeys { machine: self, member, late_ms, work: Work::of_read() };
        match argv.first().and_then(|name| table::find(name)) {
            Some(row) if !is_read(row) => errors::unknown_command(argv).into(),
            Some(_) | None => execute(&mut Context::new(&mut keys, db, resp), argv),
        }
    }

    /// A number that changes whenever the key does, for `WATCH`: over its last fence, its deadline, who has granted it, and the number of its
    /// last change in place. It costs the same whatever the key holds.
    #[must_use]
    pub fn watch_token(&self, db: Db, key: &[u8]) -> u64 {
        let mut hash = Hash64::new(u64::from(db));
        let mut bytes = Vec::new();
        if let Some(slot) = self.names.find(&self.locks, db, key) {
            let lock = &self.locks[slot];
            bytes.extend_from_slice(&lock.fence.0.to_le_bytes());
            if self.is_held_now(slot) {
                let version = self.versions.get(&slot).copied().unwrap_or_default();
                bytes.push(1);
                bytes.extend_from_slice(&self.key_end_ms(slot).to_le_bytes());
                if let Some(oldest) = self.holders_of(slot).next() {
                    bytes.extend_from_slice(&self.holders[oldest].fence.0.to_le_bytes());
                }
                bytes.extend_from_slice(&version.to_le_bytes());
                if let Some(grants) = self.grants.get(&slot) {
                    grants.write(&mut bytes);
                }
            }
        }
        hash.write(&bytes);
        hash.finish()
    }

    /// `None`: the command waits, its answer comes later.
    pub(crate) fn redis(
        &mut self,
        id: Option<RequestId>,
        caller: CallContext,
        argv: &[&[u8]],
        out: &mut Applied,
    ) -> Option<Reply> {
        self.refresh(caller.db, argv, out);
        let RunOutcome { reply, would_block, .. } = self.run_redis(caller, argv, out);
        match (would_block, id) {
            (Some(block), Some(id)) => match self.block(id, caller, argv, block) {
                Ok(()) => None,
                Err(refusal) => Some(refusal.into()),
            },
            // Nobody could be told later.
            (Some(_), None) | (None, _) => Some(reply),
        }
    }

    /// One command or script. A member's runs once more where it met a key that was hidden from it.
    pub(crate) fn run_redis(&mut self, caller: CallContext, argv: &[&[u8]], out: &mut Applied) -> RunOutcome {
        let ran = self.try_redis(caller, caller.member.is_some(), argv, out);
        match ran.clash {
            Clash::Hidden => self.try_redis(caller, false, argv, out),
            Clash::None | Clash::Refused => ran,
        }
    }

    fn try_redis(
        &mut self,
        caller: CallContext,
        hiding: bool,
        argv: &[&[u8]],
        out: &mut Applied,
    ) -> RunOutcome {
        if let [name, words @ ..] = argv {
            if is(name, "SCRIPT") {
                let reply = script::manage::command(&mut self.scripts, words);
                return RunOutcome { reply, would_block: None, db: caller.db, clash: Clash::None };
            }
        }
        let replies = self.reply_room();
        let mut keys = MachineKeys::new(self, out).of_member(caller.member, hiding);
        if caller.member.is_some() {
            keys.begin();
        }
        let mut cx = Context::new(&mut keys, caller.db, caller.resp).with_replies(replies);
        let reply = execute(&mut cx, argv);
        let (would_block, db) = (cx.would_block, cx.db);
        // A member's write that was refused midway is taken back as well.
        if keys.clash() != Clash::None || reply.is_error() {
            keys.rollback();
        }
        let clash = keys.clash();
        self.take_reply_room(&reply);
        RunOutcome { reply, would_block, db, clash }
    }

    /// Room for the reply of the next command: what its transaction and its entry leave of it.
    fn reply_room(&self) -> ReplyRoom {
        let (command, entry) = (self.reply_room.command, self.reply_room.entry);
        match command <= entry {
            true => ReplyRoom { left: command, refusal: errors::LOGGED_REPLY_TOO_LARGE },
            false => ReplyRoom { left: entry, refusal: errors::ENTRY_REPLIES_TOO_LARGE },
        }
    }

    fn take_reply_room(&mut self, reply: &Reply) {
        let weight = reply.weight();
        self.reply_room.command = self.reply_room.command.saturating_sub(weight);
        self.reply_room.entry = self.reply_room.entry.saturating_sub(weight);
    }

    /// One command out of a script's effects. It never waits, and what it reads was noted when the script ran.
    pub(crate) fn run_write(
        &mut self,
        member: Option<Member>,
        write: &Write<'_>,
        out: &mut Applied,
    ) -> Reply {
        let mut keys = MachineKeys::new(self, out).of_member(member, write.hiding).with_room();
        if member.is_some() {
            keys.begin();
        }
        let reply = execute(&mut Context::new(&mut keys, write.db, write.resp), &write.argv);
        if keys.clash() != Clash::None {
            keys.rollback();
        }
        reply
    }

    /// All commands in one step, or none where a watched key is not as it was.
    pub(crate) fn transaction(
        &mut self,
        mut caller: CallContext,
        watched: &[Watched<'_>],
        commands: &[Words<'_>],
        out: &mut Applied,
    ) -> Reply {
        // All of it is refused before any of it happens, as far as its words tell.
        let work: usize = commands.iter().map(|argv| keyspace::words_work(argv)).sum();
        if work as u64 > WORK_PER_COMMAND_MAX {
            return errors::too_much_work(WORK_PER_COMMAND_MAX).into();
        }
        for key in watched {
            self.find_fresh(key.db, key.key, out);
        }
        let mut db = caller.db;
        for argv in commands {
            db = self.refresh(db, argv, out);
        }
        if watched.iter().any(|key| self.watch_token(key.db, key.key) != key.token) {
            return Reply::NilArray;
        }
        let mut replies = Vec::with_capacity(commands.len());
        for argv in commands {
            if argv.first().is_some_and(|name| grammar::is_ours(name)) {
                let reply = self.lock_at_once(caller.db, argv, out);
                replies.push(self.fit_lock_reply(argv, reply));
                continue;
            }
            let ran = self.run_redis(caller, argv, out);
            replies.push(ran.reply);
            // `SELECT` inside a transaction holds for the rest of it.
            caller.db = ran.db;
        }
        Reply::Array(replies)
    }

    /// Of our own commands only those that look can answer much, and a look that does not fit is not shown.
    fn fit_lock_reply(&mut self, argv: &[&[u8]], reply: Reply) -> Reply {
        let room = self.reply_room();
        if room.check(reply.weight()).is_err() && Machine::names_changed(argv).is_empty() {
            return room.refusal.into();
        }
        self.take_reply_room(&reply);
        reply
    }

    /// Ends what is over of the keys a command names, and serves who waits for them, before anything else happens: while a
    /// command or transaction runs, nobody is served. Keys it does not name are seen as absent where they are over, and end when
    /// they are written. Answers the database of the command after this one.
    fn refresh(&mut self, db: Db, argv: &[&[u8]], out: &mut Applied) -> Db {
        let is_due = self.next_end_ms().is_some_and(|at_ms| at_ms <= self.clock.logical_ms);
        match is_due || !self.sweep.is_over() {
            true => for_each_name(db, argv, |db, name| _ = self.find_fresh(db, name, out)),
            false => db,
        }
    }
}

/// Visits the keys that a Redis command names, or the locks that one of ours does in a transaction. Answers the database of the command
/// after this one.
pub(crate) fn for_each_name(db: Db, argv: &[&[u8]], mut visit: impl FnMut(Db, &[u8])) -> Db {
    let Some(name) = argv.first() else { return db };
    if grammar::is_ours(name) {
        Machine::names_changed(argv).iter().for_each(|name| visit(db, name));
        return db;
    }
    let Some(row) = table::find(name) else { return db };
    for key in row.keys_of(argv) {
        visit(db, key);
    }
    match argv {
        [_, number] if row.name == "select" => keyspace::database(number).unwrap_or(db),
        _ => db,
    }
}
