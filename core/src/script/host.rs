//! What a running script may do to the world: `redis.call`, against an overlay, with what it does written down.

use super::budget::{Stop, CPU_US_MAX};
use super::engine::{CallGuard, CpuMeter};
use crate::grammar::{self, Request};
use crate::keyspace::args::int;
use crate::keyspace::table::{self, Row, Run};
use crate::keyspace::{self, Context, Db, Keys, Resp, View};
use crate::machine::effects::{result_hash, Recorder, Step, Write};
use crate::machine::overlay::Overlay;
use crate::machine::Clash;
use crate::reply::{Refusal, Reply};
use crate::routes::Routing;
use crate::types::{Member, Tier};

const READ_ONLY: &str = "ERR Write commands are not allowed from read-only scripts.";

/// Bytes of writes, names read and reply that one request may put into the log.
pub(super) const EFFECTS_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bytes of all arguments of one command.
const ARGUMENT_BYTES_MAX: usize = EFFECTS_BYTES_MAX;

/// Estimates of what commands cost.
const CALL_NS: u64 = 500;
const KEY_NS: u64 = 600;
const RECORD_NS: u64 = 60;
const ELEMENT_NS: u64 = 60;
/// A look at a lock may show a thousand holders: the meter is read before each.
const LOOK_NS: u64 = super::budget::UNCHECKED_NS_MAX;

/// The keys a script works on, seen from inside the VM.
pub(super) trait Host {
    /// About how long a command will take, or that it may not run at all.
    fn cost_ns(&self, argv: &[&[u8]]) -> Result<u64, Stop>;
    /// Runs one command; the reply is in the shape of the script's protocol.
    fn call(&mut self, argv: &[&[u8]]) -> Result<Reply, Stop>;
    fn resp(&self) -> Resp;
    fn set_resp(&mut self, resp: Resp);
    fn elapsed_us(&mut self) -> u64;
}

/// One request's run: what it changed, what is to be logged of it, and its meter.
pub(super) struct Running<'m, 'c> {
    pub(super) overlay: Overlay<'m>,
    pub(super) recorder: Recorder,
    pub(super) member: Option<Member>,
    pub(super) cpu: &'c mut dyn CpuMeter,
    /// Time that was spent compiling, which is not the script's own.
    pub(super) compiling_us: u64,
    /// Rights of the script's user, where they are limited, and who knows what they allow.
    pub(super) rights: Option<(CallGuard, Box<[u8]>)>,
    /// The script may touch keys of Tier 2 alone.
    pub(super) is_routed: bool,
    /// The key for which its route did not let the script go on.
    pub(super) crossed: Option<Box<[u8]>>,
}

impl Running<'_, '_> {
    /// Runs one command of the keyspace and writes it down if it may write. A member's is taken back where the value is
    /// not its own to change.
    pub(super) fn execute(
        &mut self,
        db: &mut Db,
        resp: Resp,
        hiding: bool,
        row: &'static Row,
        argv: &[&[u8]],
    ) -> Result<Reply, Stop> {
        let Run::Here(handler) = row.run else {
            return Ok(Reply::Error(crate::keyspace::errors::unknown_command(argv)));
        };
        let writes = row.is(table::W) || row.is(table::PUBSUB);
        if writes
            && self.recorder.len() + argv.iter().map(|word| word.len() + 8).sum::<usize>() > EFFECTS_BYTES_MAX
        {
            return Err(Stop::Effects);
        }
        self.overlay.set_member(self.member, hiding);
        self.overlay.begin();
        let home = *db;
        let mut cx = Context::new(&mut self.overlay, home, resp);
        // The limits on words hold as they do when it is applied.
        let reply = match keyspace::check_words(argv) {
            Ok(()) => keyspace::run(&mut cx, row, handler, argv),
            Err(refusal) => refusal.into(),
        };
        *db = cx.db;
        if let Some(why) = self.overlay.given_up() {
            return Err(Stop::from(why));
        }
        match self.overlay.clash() {
            Clash::None => self.overlay.commit(),
            Clash::Refused => self.overlay.rollback(),
            Clash::Hidden => {
                self.overlay.rollback();
                return Err(Stop::Hidden);
            }
        }
        if writes {
            let write = Write { db: home, resp, hiding, argv: argv.into(), result: result_hash(&reply) };
            self.recorder.push(&Step::Write(write));
        } else if row.is(table::R) {
            row.keys_of(argv).iter().for_each(|key| self.recorder.read(key));
            if self.recorder.len() > EFFECTS_BYTES_MAX {
                return Err(Stop::Effects);
            }
        }
        Ok(reply)
    }

    /// Whether all that a call names belongs to Tier 2: plain keys by their routes, names of locks by their tier.
    fn check_routes(&mut self, argv: &[&[u8]]) -> Result<(), Stop> {
        let settings = self.overlay.machine().settings();
        let pending = settings.pending.as_ref().map(|pending| &pending.routing);
        let row = argv.first().and_then(|name| table::find(name));
        let keys = match row {
            Some(row) => row.keys_of(argv),
            None => looked_at(argv).into_iter().collect(),
        };
        let is_ours = |routing: &Routing, key: &[u8]| match row {
            Some(_) => routing.route_of(key) == Some(Tier::Correctness),
            None => routing.tier_of(key) == Tier::Correctness,
        };
        for key in keys {
            let decided = is_ours(&settings.routing, key);
            let stop = match pending {
                Some(pending) if is_ours(pending, key) != decided => Stop::Rerouting,
                Some(_) | None if decided => continue,
                Some(_) | None => Stop::CrossTier,
            };
            self.crossed = Some(key.into());
            return Err(stop);
        }
        Ok(())
    }

    /// The request's own time so far.
    pub(super) fn elapsed_us(&mut self) -> u64 {
        self.cpu.elapsed_us().saturating_sub(self.compiling_us)
    }

    /// Before a command that no script calls.
    pub(super) fn charge(&mut self, db: Db, argv: &[&[u8]]) -> Result<(), Stop> {
        let cost_us = self.cost_ns(db, argv)? / 1000;
        if self.elapsed_us().saturating_add(cost_us) >= CPU_US_MAX {
            return Err(Stop::Cpu);
        }
        Ok(())
    }

    /// About how long a command will take. Refused where its reply could not be held.
    pub(super) fn cost_ns(&self, db: Db, argv: &[&[u8]]) -> Result<u64, Stop> {
        let bytes: usize = argv.iter().map(|word| word.len()).sum();
        if bytes > ARGUMENT_BYTES_MAX {
            return Err(Stop::Effects);
        }
        let mut ns = CALL_NS + bytes as u64;
        let Some(row) = argv.first().and_then(|name| table::find(name)) else { return Ok(ns + LOOK_NS) };
        match row.name {
            "keys" | "dbsize" | "randomkey" => ns += self.overlay.records() as u64 * RECORD_NS,
            "scan" => {
                let count = argv.windows(2).find(|pair| pair[0].eq_ignore_ascii_case(b"COUNT"));
                let count = count.and_then(|pair| int(pair[1]).ok()).unwrap_or(10).max(0) as u64;
                ns += count.min(self.overlay.records() as u64) * RECORD_NS;
            }
            "flushall" | "flushdb" if self.member.is_some() => {
                ns += self.overlay.records() as u64 * RECORD_NS * 10
            }
            _ => {}
        }
        let mut reply_bytes = 0;
        for key in row.keys_of(argv) {
            ns += KEY_NS;
            let Some(value) = self.overlay.value(db, key) else { continue };
            reply_bytes += reply_bytes_of(value, row, argv);
            ns += match value {
                View::Str(text) => text.len() as u64 / 4,
                View::Hash(fields) if !row.is(table::FAST) => fields.len() as u64 * ELEMENT_NS,
                View::Set(members) if !row.is(table::FAST) => members.len() as u64 * ELEMENT_NS,
                View::List(items) if !row.is(table::FAST) => items.len() as u64 * ELEMENT_NS,
                View::ZSet(members) if !row.is(table::FAST) => members.len() as u64 * ELEMENT_NS,
                View::Hash(_) | View::Set(_) | View::List(_) | View::ZSet(_) => 0,
            };
        }
        if reply_bytes > super::budget::MEMORY_BYTES_MAX {
            return Err(Stop::Memory);
        }
        Ok(ns + reply_bytes as u64 / 4)
    }
}

/// The name that a `LOCK.*` command looks at without a word about its tier. Others are not for scripts.
fn looked_at<'a>(argv: &'a [&'a [u8]]) -> Option<&'a [u8]> {
    let request = grammar::parse(argv)?.ok()?;
    let name = if let Request::Info(info) = &request {
        info.resource
    } else if let Request::Queue(queue) = &request {
        queue.resource
    } else if let Request::Explain(explain) = &request {
        explain.resource
    } else {
        return None;
    };
    request.tier().is_none().then_some(name)
}

/// Bytes of a reply that can be larger than what a key holds, because it may show the same thing many times.
fn reply_bytes_of(value: View<'_>, row: &Row, argv: &[&[u8]]) -> usize {
    let times =
        |at: usize| argv.get(at).and_then(|count| int(count).ok()).map_or(1, i64::unsigned_abs) as usize;
    match (value, row.name) {
        (View::Str(text), "mget") => text.len(),
        (View::Hash(fields), "hmget") => {
            argv.iter().skip(2).filter_map(|name| fields.get(name)).map(|value| value.len() + 32).sum()
        }
        (View::Hash(fields), "hrandfield") => {
            let longest = fields.iter().map(|(name, value)| name.len() + value.len()).max().unwrap_or(0);
            times(2).saturating_mul(longest + 64)
        }
        (View::Set(members), "srandmember") => {
            let longest = members.iter().map(|(name, ())| name.len()).max().unwrap_or(0);
            times(2).saturating_mul(longest + 64)
        }
        _ => 0,
    }
}

pub(super) struct ScriptHost<'r, 'm, 'c> {
    pub(super) running: &'r mut Running<'m, 'c>,
    pub(super) db: Db,
    pub(super) resp: Resp,
    pub(super) hiding: bool,
    pub(super) read_only: bool,
}

impl ScriptHost<'_, '_, '_> {
    /// A `LOCK.*` command.
    fn lock(&mut self, argv: &[&[u8]]) -> Reply {
        match argv.first().and_then(|name| grammar::table::find(name)) {
            Some(row) if self.read_only && row.write => Refusal::new(READ_ONLY).into(),
            Some(_) => self.running.overlay.lock(self.db, argv).map_or(Reply::Nil, Reply::plain),
            None => Refusal::new("ERR Unknown Redis command called from script").into(),
        }
    }
}

impl Host for ScriptHost<'_, '_, '_> {
    fn cost_ns(&self, argv: &[&[u8]]) -> Result<u64, Stop> {
        self.running.cost_ns(self.db, argv)
    }

    fn call(&mut self, argv: &[&[u8]]) -> Result<Reply, Stop> {
        let refuse = |text: &'static str| Ok(Reply::Error(Refusal::new(text)));
        if let Some((guard, rights)) = &self.running.rights {
            if let Err(refusal) = guard(rights, argv) {
                return Ok(refusal.into());
            }
        }
        if self.running.is_routed {
            self.running.check_routes(argv)?;
        }
        let Some(row) = argv.first().and_then(|name| table::find(name)) else { return Ok(self.lock(argv)) };
        if !row.takes(argv.len()) {
            return refuse("ERR Wrong number of args calling Redis command from script");
        }
        match row.run {
            Run::Here(_) if !row.is(table::NOSCRIPT) => {}
            Run::Here(_) | Run::Elsewhere => {
                return refuse("ERR This Redis command is not allowed from script")
            }
        }
        if self.read_only && (row.is(table::W) || row.is(table::PUBSUB)) {
            return refuse(READ_ONLY);
        }
        self.running.execute(&mut self.db, self.resp, self.hiding, row, argv)
    }

    fn resp(&self) -> Resp {
        self.resp
    }

    fn set_resp(&mut self, resp: Resp) {
        self.resp = resp;
    }

    fn elapsed_us(&mut self) -> u64 {
        self.running.elapsed_us()
    }
}
