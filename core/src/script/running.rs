//! The run of one request: a script, or a transaction that holds one, against an overlay over the machine.

use super::budget::{Stop, CPU_US_MAX, MEMORY_BYTES_MAX};
use super::convert::REPLY_BYTES_MAX;
use super::engine::{CallGuard, CpuMeter};
use super::eval::{self, Eval, Named};
use super::host::{Running, ScriptHost, EFFECTS_BYTES_MAX};
use super::scripts::{sha1, sha_hex, Sha};
use super::vm::{Compiled, ScriptCall, Vm};
use super::{manage, no_script, Scripts, Terms, AS_USER};
use crate::grammar;
use crate::keyspace::args::is;
use crate::keyspace::table::{self, Run};
use crate::keyspace::{errors, Db, Keys, Resp};
use crate::machine::command::{Watched, Words};
use crate::machine::effects::{Recorder, Step};
use crate::machine::overlay::{Looked, Overlay, Taken};
use crate::machine::{Command, Machine};
use crate::reply::{Refusal, Reply};
use crate::types::Member;
use ::bytes::Bytes;

/// What a remembered reply and a cached body take beside their own bytes, with room to spare.
const KEPT_BYTES: u64 = 1024;

/// How a request is answered where its run is given up. `crossed`: the key for which its route did not let it go on.
pub(super) fn refusal(stop: Stop, machine: &Machine, crossed: Option<&[u8]>) -> Refusal {
    let crossed = grammar::errors::shown(crossed.unwrap_or_default());
    let why = match stop {
        Stop::Cpu => format!("it used more than {} ms of CPU time", CPU_US_MAX / 1000),
        Stop::Memory => format!("it needs more than {MEMORY_BYTES_MAX} bytes of memory"),
        Stop::Effects => {
            format!("its writes, the names it read and its reply take more than {EFFECTS_BYTES_MAX} bytes")
        }
        Stop::Reply => format!("its reply has more than {REPLY_BYTES_MAX} bytes"),
        Stop::Full => return grammar::errors::too_many_locks(machine.limits().locks_max),
        Stop::OutOfMemory => return grammar::errors::out_of_memory(),
        Stop::Flush => return errors::MEMBER_FLUSH_TOO_LARGE,
        Stop::CrossTier => {
            return Refusal::new(format!(
                "CROSSTIER the script touches '{crossed}', which belongs to the upstream Redis, and it runs on the correctness tier; nothing was changed; use keys of one tier in a script"
            ))
        }
        Stop::Rerouting => {
            return Refusal::new(format!(
                "UNAVAILABLE the route of '{crossed}' is being changed; nothing was done; retry in a moment"
            ))
        }
        Stop::Hidden => "a key is held under another value".to_owned(),
    };
    Refusal::new(format!("ERR script stopped: {why}; nothing was changed. Do less in one script"))
}

/// A request under way.
pub(super) struct ScriptRun<'v, 'm, 'c> {
    pub(super) vm: &'v mut Vm,
    pub(super) running: Running<'m, 'c>,
    /// The cache as the request has left it.
    scripts: Cache<'m>,
    /// Whether keys that the member has not granted are to be hidden first.
    member: Option<Member>,
    guard: Option<CallGuard>,
}

/// The machine's cache of scripts and what the request has done to it.
struct Cache<'m> {
    kept: &'m Scripts,
    flushed: bool,
    loaded: Vec<(Sha, Bytes)>,
}

impl Cache<'_> {
    fn get(&self, sha: &Sha) -> Option<Bytes> {
        let loaded = self.loaded.iter().find(|(have, _)| have == sha).map(|(_, body)| body);
        loaded.or_else(|| self.kept.get(sha).filter(|_| !self.flushed)).cloned()
    }
}

impl<'v, 'm, 'c> ScriptRun<'v, 'm, 'c> {
    pub(super) fn new(
        vm: &'v mut Vm,
        overlay: Overlay<'m>,
        member: Option<Member>,
        cpu: &'c mut dyn CpuMeter,
    ) -> ScriptRun<'v, 'm, 'c> {
        let scripts = Cache { kept: overlay.machine().scripts(), flushed: false, loaded: Vec::new() };
        let recorder = Recorder::default();
        let running = Running {
            overlay,
            recorder,
            member,
            cpu,
            compiling_us: 0,
            rights: None,
            is_routed: false,
            crossed: None,
        };
        ScriptRun { vm, running, scripts, member, guard: None }
    }

    /// Checks the calls of scripts that come with their user's rights.
    pub(super) fn guarded_by(self, guard: Option<CallGuard>) -> Self {
        ScriptRun { guard, ..self }
    }

    /// A request that is no transaction.
    pub(super) fn alone(&mut self, mut db: Db, resp: Resp, argv: &[&[u8]]) -> Result<Reply, Stop> {
        self.command(&mut db, resp, argv)
    }

    /// One command of a request: a script, `SCRIPT …`, or any other where it is part of a transaction.
    fn command(&mut self, db: &mut Db, resp: Resp, argv: &[&[u8]]) -> Result<Reply, Stop> {
        if let [AS_USER, rights, words @ ..] = argv {
            return self.eval_as(*db, rights, words);
        }
        if let Some(eval) = eval::parse(argv) {
            return match eval {
                Ok(eval) => self.eval(*db, &eval),
                Err(refusal) => Ok(refusal.into()),
            };
        }
        match argv {
            [name, words @ ..] if is(name, "SCRIPT") => Ok(self.manage(words)),
            [name, ..] if grammar::is_ours(name) => {
                Ok(self.running.overlay.lock(*db, argv).unwrap_or(Reply::Nil))
            }
            _ => self.plain(db, resp, argv),
        }
    }

    /// A script of a user with limited rights, or of a client that has keys in both tiers.
    fn eval_as(&mut self, db: Db, terms: &[u8], words: &[&[u8]]) -> Result<Reply, Stop> {
        let Terms { is_routed, rights } = Terms::read(terms);
        let rights = match (rights, self.guard) {
            (None, _) => None,
            (Some(rights), Some(guard)) => Some((guard, rights.into())),
            (Some(_), None) => return Ok(Refusal::new("NOPERM this node checks no rights of scripts").into()),
        };
        let eval = match eval::parse(words) {
            Some(Ok(eval)) => eval,
            Some(Err(refusal)) => return Ok(refusal.into()),
            None => return Ok(errors::unknown_command(words).into()),
        };
        if rights.is_some() {
            self.running.overlay.hide_sessions();
        }
        (self.running.rights, self.running.is_routed) = (rights, is_routed);
        let outcome = self.eval(db, &eval);
        (self.running.rights, self.running.is_routed) = (None, false);
        outcome
    }

    pub(super) fn eval(&mut self, db: Db, eval: &Eval<'_>) -> Result<Reply, Stop> {
        let (sha, body) = match eval.script {
            Named::Body(body) => (sha1(body), Bytes::copy_from_slice(body)),
            Named::Sha(sha) => match self.scripts.get(&sha) {
                Some(body) => (sha, body),
                None => return Ok(no_script().into()),
            },
        };
        let script = match self.compile(&sha, &body) {
            Ok(script) => script,
            Err(refusal) => return Ok(refusal.into()),
        };
        // Without room for it the script runs and is not kept, as if another had pushed it out: releases are scripts.
        let _ = self.load(sha, body);
        let call = ScriptCall { sha, keys: eval.keys, args: eval.args };
        let read_only = eval.read_only || script.flags.no_writes;
        if self.member.is_none() {
            return self.script(db, &call, &script, read_only, false);
        }
        // What a member has not granted is hidden from it, unless it then meets it.
        let (changes, mark) = (self.running.overlay.changes(), self.running.recorder.mark());
        match self.script(db, &call, &script, read_only, true) {
            Err(Stop::Hidden) => {
                self.running.overlay.restore(changes);
                self.running.recorder.rewind(mark);
                self.script(db, &call, &script, read_only, false)
            }
            done => done,
        }
    }

    fn script(
        &mut self,
        db: Db,
        call: &ScriptCall<'_>,
        script: &Compiled,
        read_only: bool,
        hiding: bool,
    ) -> Result<Reply, Stop> {
        // A script speaks RESP2 until it asks for RESP3, whatever its client speaks.
        let mut host = ScriptHost { running: &mut self.running, db, resp: Resp::Two, hiding, read_only };
        self.vm.run(call, script, &mut host)
    }

    fn compile(&mut self, sha: &Sha, body: &[u8]) -> Result<Compiled, Refusal> {
        let before_us = self.running.cpu.elapsed_us();
        let compiled = self.vm.compile(sha, body);
        // Not part of the script's own time: whether it is compiled already is not its business.
        self.running.compiling_us += self.running.cpu.elapsed_us().saturating_sub(before_us);
        compiled
    }

    /// Keeps a body that is not cached yet.
    fn load(&mut self, sha: Sha, body: Bytes) -> Result<(), Refusal> {
        if self.scripts.get(&sha).is_none() {
            let bytes: usize = self.scripts.loaded.iter().map(|(_, body)| body.len()).sum();
            let (count, bytes) = (self.scripts.loaded.len() + 1, bytes + body.len());
            self.running.overlay.machine().room_for_scripts(count, bytes)?;
            self.running.recorder.push(&Step::Load { body: &body });
            self.scripts.loaded.push((sha, body));
        }
        Ok(())
    }

    fn manage(&mut self, words: &[&[u8]]) -> Reply {
        match words {
            [word, body] if is(word, "LOAD") => {
                let sha = sha1(body);
                let compiled = eval::check_length(body).and_then(|()| self.compile(&sha, body));
                let loaded = compiled.and_then(|_| self.load(sha, Bytes::copy_from_slice(body)));
                match loaded {
                    Ok(()) => Reply::bulk(sha_hex(&sha)),
                    Err(refusal) => refusal.into(),
                }
            }
            _ => {
                let mut scripts = Scripts::default();
                for (sha, body) in &self.scripts.loaded {
                    scripts.insert(*sha, body);
                }
                let known = |sha: &&[u8]| {
                    let sha = super::scripts::parse_sha(sha);
                    i64::from(sha.is_some_and(|sha| self.scripts.get(&sha).is_some()))
                };
                let reply = match words {
                    [word, shas @ ..] if is(word, "EXISTS") && !shas.is_empty() => {
                        Reply::Array(shas.iter().map(|sha| Reply::Int(known(sha))).collect())
                    }
                    _ => manage::command(&mut scripts, words),
                };
                if words.first().is_some_and(|word| is(word, "FLUSH")) && !reply.is_error() {
                    self.running.recorder.push(&Step::FlushScripts);
                    self.running.overlay.depend_on_everything();
                    self.scripts.flushed = true;
                    self.scripts.loaded.clear();
                }
                reply
            }
        }
    }

    /// Any other command of a transaction.
    fn plain(&mut self, db: &mut Db, resp: Resp, argv: &[&[u8]]) -> Result<Reply, Stop> {
        let Some(row) = argv.first().and_then(|name| table::find(name)) else {
            return Ok(errors::unknown_command(argv).into());
        };
        if !row.takes(argv.len()) {
            return Ok(errors::wrong_arity(row.name).into());
        }
        match row.run {
            Run::Here(_) => {}
            Run::Elsewhere => return Ok(errors::unknown_command(argv).into()),
        }
        self.running.charge(*db, argv)?;
        let hiding = self.member.is_some();
        match self.running.execute(db, resp, hiding, row, argv) {
            Err(Stop::Hidden) => self.running.execute(db, resp, false, row, argv),
            done => done,
        }
    }

    /// All commands in one step, or none where a watched key is not as it was.
    pub(super) fn transaction(
        &mut self,
        mut db: Db,
        resp: Resp,
        watched: &[Watched<'_>],
        commands: &[Words<'_>],
    ) -> Result<Reply, Stop> {
        let machine = self.running.overlay.machine();
        watched.iter().for_each(|key| self.running.overlay.depend_on(key.db, key.key));
        if watched.iter().any(|key| machine.watch_token(key.db, key.key) != key.token) {
            return Ok(Reply::NilArray);
        }
        if let Some(name) = commands.iter().filter_map(|argv| argv.first()).find(|name| writes_locks(name)) {
            let name = String::from_utf8_lossy(name).to_ascii_uppercase();
            let text = format!("ERR {name} and a script cannot be in one transaction; send them in two");
            return Ok(Refusal::new(text).into());
        }
        // Only a script without rights shows that its user's are not limited.
        let is_unlimited = |argv: &Words<'_>| match &argv[..] {
            [AS_USER, terms, ..] => Terms::read(terms).rights.is_none(),
            argv => eval::parse(argv).is_some(),
        };
        if !commands.iter().any(is_unlimited) {
            self.running.overlay.hide_sessions();
        }
        let mut replies = Vec::with_capacity(commands.len());
        let mut bytes = 0;
        for argv in commands {
            let reply = self.command(&mut db, resp, argv)?;
            bytes += crate::machine::log::reply_codec::reply_bytes(&reply);
            if bytes > REPLY_BYTES_MAX {
                return Err(Stop::Reply);
            }
            replies.push(reply);
        }
        Ok(Reply::Array(replies))
    }

    /// What goes into the log, and what it depended on.
    pub(super) fn finish(self, outcome: Result<Reply, Stop>) -> super::ScriptResult {
        let ScriptRun { running, member, .. } = self;
        let Running { overlay, recorder, crossed, .. } = running;
        let machine = overlay.machine();
        let fits = |reply: &Reply| match crate::machine::log::reply_codec::reply_bytes(reply) {
            bytes if bytes > REPLY_BYTES_MAX => Err(Stop::Reply),
            bytes if bytes + recorder.len() > EFFECTS_BYTES_MAX => Err(Stop::Effects),
            _ => Ok(()),
        };
        match outcome.and_then(|reply| fits(&reply).map(|()| reply)) {
            Ok(reply) => {
                let blob = encoded(recorder, member, &reply);
                let serves_waiters = overlay.serves_waiters();
                let Looked { everything, read, written, unswept, mut taken } = overlay.touched();
                // The body and the reply are kept too.
                taken.bytes += blob.len() as u64 + KEPT_BYTES;
                let touched = super::Touched { everything, read, written, unswept };
                super::ScriptResult { blob, touched, serves_waiters, taken, found_no_room: false }
            }
            Err(stop) => {
                let blob =
                    encoded(Recorder::default(), member, &refusal(stop, machine, crossed.as_deref()).into());
                let Looked { everything, mut read, written, unswept, .. } = overlay.touched();
                // It wrote nothing, but what it would have written it depended on.
                read.extend(written);
                let touched = super::Touched { everything, read, written: Vec::new(), unswept };
                let taken = Taken { bytes: blob.len() as u64 + KEPT_BYTES, ..Taken::default() };
                let found_no_room = matches!(stop, Stop::Full | Stop::OutOfMemory | Stop::Flush);
                super::ScriptResult { blob, touched, serves_waiters: false, taken, found_no_room }
            }
        }
    }
}

fn writes_locks(name: &[u8]) -> bool {
    grammar::table::find(name).is_some_and(|row| row.write)
}

/// A logged reply with what was done.
pub(super) fn encoded(recorder: Recorder, member: Option<Member>, reply: &Reply) -> Bytes {
    let mut blob = Vec::with_capacity(recorder.len() + 64);
    Command::put_recorded(recorder, member, reply, &mut blob);
    blob.into()
}
