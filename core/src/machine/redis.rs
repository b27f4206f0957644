//! Redis's commands, scripts and transactions, applied to the lock table; and reads, which need no entry.

use super::bytes::Hash64;
use super::command::{Db, Watched, Words};
use super::effects::Write;
use super::keyspace::{Clash, MachineKeys, ReadKeys};
use super::{Applied, Machine};
use crate::grammar;
use crate::keyspace::args::is;
use crate::keyspace::table::{self, Row};
use crate::keyspace::{codec, errors, execute, Context, Keys, Resp, WouldBlock};
use crate::reply::Reply;
use crate::script::{self, Scripts};
use crate::types::{Member, RequestId};

/// Whose command it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) db: Db,
    pub(crate) resp: Resp,
    pub(crate) member: Option<Member>,
}

/// What a run of one command came to.
pub(crate) struct Ran {
    pub(crate) reply: Reply,
    pub(crate) would_block: Option<WouldBlock>,
    /// The client's database afterwards.
    db: Db,
    clash: Clash,
}

/// Replies larger than this are not kept for retries.
const REMEMBERED_BYTES_MAX: usize = 16 * 1024;

/// Whether a reply is too large to be remembered.
pub(crate) fn is_large(reply: &Reply) -> bool {
    fn weigh(reply: &Reply, left: &mut usize) -> bool {
        let own = match reply {
            Reply::Bulk(bytes) | Reply::Verbatim(bytes) => bytes.len(),
            Reply::Error(refusal) => refusal.0.len(),
            Reply::Array(items) | Reply::Set(items) => {
                return items.iter().any(|item| weigh(item, left));
            }
            Reply::Map(pairs) => {
                return pairs.iter().any(|(key, value)| weigh(key, left) || weigh(value, left));
            }
            _ => 0,
        };
        match left.checked_sub(own + 8) {
            Some(rest) => *left = rest,
            None => return true,
        }
        false
    }
    weigh(reply, &mut REMEMBERED_BYTES_MAX.clone())
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
        let mut keys = ReadKeys { machine: self, member, late_ms };
        match argv.first().and_then(|name| table::find(name)) {
            Some(row) if !is_read(row) => errors::unknown_command(argv).into(),
            Some(_) | None => execute(&mut Context::new(&mut keys, db, resp), argv),
        }
    }

    /// A number that changes whenever the key does, for `WATCH`: over its last fence, its deadline and what it holds.
    #[must_use]
    pub fn watch_token(&self, db: Db, key: &[u8]) -> u64 {
        let mut hash = Hash64::new(u64::from(db));
        let mut bytes = Vec::new();
        if let Some(slot) = self.names.find(&self.locks, db, key) {
            let fence = self.locks[slot].fence;
            bytes.extend_from_slice(&fence.0.to_le_bytes());
            if let Some(grants) = self.grants.get(&slot) {
                grants.write(&mut bytes);
            }
        }
        let keys = ReadKeys { machine: self, member: None, late_ms: 0 };
        if let Some(value) = keys.value(db, key) {
            bytes.push(1);
            bytes.extend_from_slice(&keys.deadline_ms(db, key).unwrap_or(u64::MAX).to_le_bytes());
            codec::write(&value.to_value(), &mut bytes);
        }
        hash.write(&bytes);
        hash.finish()
    }

    /// `None`: the command waits, its answer comes later.
    pub(crate) fn redis(
        &mut self,
        id: Option<RequestId>,
        caller: Caller,
        argv: &[&[u8]],
        out: &mut Applied,
    ) -> Option<Reply> {
        self.end_all_due(out);
        let Ran { reply, would_block, .. } = self.run_redis(caller, argv, out);
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
    pub(crate) fn run_redis(&mut self, caller: Caller, argv: &[&[u8]], out: &mut Applied) -> Ran {
        let ran = self.try_redis(caller, caller.member.is_some(), argv, out);
        match ran.clash {
            Clash::Hidden => self.try_redis(caller, false, argv, out),
            Clash::None | Clash::Refused => ran,
        }
    }

    fn try_redis(&mut self, caller: Caller, hiding: bool, argv: &[&[u8]], out: &mut Applied) -> Ran {
        if let [name, words @ ..] = argv {
            if is(name, "SCRIPT") {
                let reply = script::manage::command(&mut self.scripts, words);
                return Ran { reply, would_block: None, db: caller.db, clash: Clash::None };
            }
        }
        let mut keys = MachineKeys::new(self, out).of_member(caller.member, hiding);
        if caller.member.is_some() {
            keys.begin();
        }
        let mut cx = Context::new(&mut keys, caller.db, caller.resp);
        let reply = execute(&mut cx, argv);
        let (would_block, db) = (cx.would_block, cx.db);
        if keys.clash() != Clash::None {
            keys.rollback();
        }
        Ran { reply, would_block, db, clash: keys.clash() }
    }

    /// One command out of a script's effects. It never waits, and what it reads was noted when the script ran.
    pub(crate) fn run_write(
        &mut self,
        member: Option<Member>,
        write: &Write<'_>,
        out: &mut Applied,
    ) -> Reply {
        let mut keys = MachineKeys::new(self, out).of_member(member, write.hiding);
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
        mut caller: Caller,
        watched: &[Watched<'_>],
        commands: &[Words<'_>],
        out: &mut Applied,
    ) -> Reply {
        self.end_all_due(out);
        if watched.iter().any(|key| self.watch_token(key.db, key.key) != key.token) {
            return Reply::NilArray;
        }
        let mut replies = Vec::with_capacity(commands.len());
        for argv in commands {
            if argv.first().is_some_and(|name| grammar::is_ours(name)) {
                replies.push(self.lock_at_once(caller.db, argv, out));
                continue;
            }
            let ran = self.run_redis(caller, argv, out);
            replies.push(ran.reply);
            // `SELECT` inside a transaction holds for the rest of it.
            caller.db = ran.db;
        }
        Reply::Array(replies)
    }

    /// Commands look at keys without asking each whether it is due, so nothing may be left due.
    pub(super) fn end_all_due(&mut self, out: &mut Applied) {
        while self.deadlines.next().is_some_and(|(at_ms, _, _)| at_ms <= self.clock.logical_ms) {
            self.end_due(out);
        }
    }
}
