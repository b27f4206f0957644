//! The script engine of a leader: decides what of a request enters the log, and runs what must be run.
//!
//! It lives beside the machine, on the node's thread, and only ever reads it. Nothing of it is state: another leader's
//! engine starts empty and decides the same.

use super::eval::{self, Eval, Named};
use super::native::{NativeForm, COMMANDS_OF_FORMS};
use super::running::{encoded, refusal, ScriptRun};
use super::scripts::{sha1, sha_hex, Sha};
use super::vm::Vm;
use super::{Terms, AS_USER};
use crate::keyspace::args::is;
use crate::keyspace::{Db, Resp};
use crate::machine::conditional::Script;
use crate::machine::effects::{Recorder, Step};
use crate::machine::log::script_use::{script_use, ScriptUse};
use crate::machine::overlay::{Overlay, Taken};
use crate::machine::{Command, Machine};
use crate::reply::{Refusal, Reply};
use crate::types::{Member, Stamp};
use ::bytes::Bytes;

/// Thread CPU time since a run began. Injected: the node asks a clock, the simulator counts calls.
pub trait CpuMeter {
    fn elapsed_us(&mut self) -> u64;
}

/// Whether a user with these rights may run a command: injected, because rights are no part of the machine.
pub type CallGuard = fn(rights: &[u8], argv: &[&[u8]]) -> Result<(), Refusal>;

/// What becomes of a request before it is logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preparation {
    /// It goes into the log as it is.
    AsIs,
    /// These bytes go into the log in its place.
    Native(Bytes),
    /// It must be run, and only while everything in the log is applied.
    Run,
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct ScriptResult {
    /// What goes into the log: an encoded [`Command::Effects`].
    pub blob: Bytes,
    pub touched: Touched,
    /// It wrote to a key that somebody waits for: the entry must close behind it.
    pub serves_waiters: bool,
    /// What it takes of the limits on the whole state.
    pub taken: Taken,
    /// It is refused because it found too little of them left.
    pub found_no_room: bool,
}

/// Which keys a run depended on, and which it may have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// It looked at all keys, or changed all of them: `KEYS`, `SCAN`, `DBSIZE`, `RANDOMKEY`, `FLUSHALL`.
    pub everything: bool,
    pub read: Vec<(Db, Bytes)>,
    pub written: Vec<(Db, Bytes)>,
    /// Flushed, not swept yet, and waited for: these must go to who waits for them before the script runs.
    pub unswept: Vec<(Db, Bytes)>,
}

/// Scripts of which it is remembered whether they are recognised. All are forgotten when there are more.
const FORMS_MAX: usize = 16_384;

type HashMap<K, V> = hashbrown::HashMap<K, V, rustc_hash::FxBuildHasher>;

/// Owns the VM and what is known of scripts.
#[derive(Default)]
pub struct Engine {
    vm: Option<Vm>,
    /// `None`: it has to be run.
    forms: HashMap<Sha, Option<NativeForm>>,
    /// Without one no script of a user with limited rights runs.
    guard: Option<CallGuard>,
}

impl Engine {
    #[must_use]
    pub fn new() -> Engine {
        Engine::default()
    }

    /// One that runs the scripts of users with limited rights too.
    #[must_use]
    pub fn with_guard(guard: CallGuard) -> Engine {
        Engine { guard: Some(guard), ..Engine::default() }
    }

    /// What becomes of an encoded request. Cheap where it holds no script.
    pub fn prepare(&mut self, machine: &Machine, blob: &[u8]) -> Preparation {
        match script_use(blob) {
            ScriptUse::Plain => Preparation::AsIs,
            ScriptUse::TransactionWithScript => Preparation::Run,
            ScriptUse::Script => match Command::decode(blob) {
                Some(command) => self.prepare_script(machine, &command),
                // What cannot be read is not logged: its client gets an error.
                None => Preparation::Run,
            },
        }
    }

    /// A request is never logged as it came: whatever no other rule knows is run, which answers what is wrong with it.
    fn prepare_script(&mut self, machine: &Machine, command: &Command<'_>) -> Preparation {
        let Command::Redis { db, member, argv, .. } = command else { return Preparation::Run };
        match self.prepare_command(machine, *db, *member, argv) {
            Preparation::AsIs if command.is_request() => Preparation::Run,
            prepared @ (Preparation::AsIs | Preparation::Native(_) | Preparation::Run) => prepared,
        }
    }

    fn prepare_command(
        &mut self,
        machine: &Machine,
        db: Db,
        member: Option<Member>,
        argv: &[&[u8]],
    ) -> Preparation {
        if let [AS_USER, rights, words @ ..] = argv {
            return match eval::parse(words) {
                Some(Ok(eval)) if self.may_be_native(Terms::read(rights).rights, &eval) => {
                    self.prepare_eval(machine, db, member, &eval)
                }
                Some(Err(refusal)) => answered(refusal.into()),
                Some(Ok(_)) | None => Preparation::Run,
            };
        }
        match (eval::parse(argv), argv) {
            (Some(Ok(eval)), _) => self.prepare_eval(machine, db, member, &eval),
            (Some(Err(refusal)), _) => answered(refusal.into()),
            (None, [_, word, body]) if is(word, "LOAD") => self.prepare_load(machine, body),
            (None, _) => Preparation::AsIs,
        }
    }

    /// Whether these rights allow whatever a recognised script may do to its keys. Else it is run, and each of its calls checked.
    fn may_be_native(&self, rights: Option<&[u8]>, eval: &Eval<'_>) -> bool {
        let Some(rights) = rights else { return true };
        let Some(guard) = self.guard else { return false };
        let may = |key: &&[u8]| {
            COMMANDS_OF_FORMS.iter().all(|name| {
                let argv: [&[u8]; 3] = [name.as_bytes(), key, b""];
                guard(rights, &argv).is_ok()
            })
        };
        eval.keys.iter().all(may)
    }

    fn prepare_eval(
        &mut self,
        machine: &Machine,
        db: Db,
        member: Option<Member>,
        eval: &Eval<'_>,
    ) -> Preparation {
        let (sha, script) = match eval.script {
            Named::Sha(sha) => (sha, Script::BySha),
            Named::Body(body) => {
                let sha = sha1(body);
                let known = machine.scripts().get(&sha).is_some();
                // Without room for it, it is not kept.
                let is_kept = !known && machine.room_for_scripts(1, body.len()).is_ok();
                (sha, if is_kept { Script::Body(body) } else { Script::Known })
            }
        };
        let body = match eval.script {
            Named::Body(body) => Some(body),
            Named::Sha(sha) => machine.scripts().get(&sha).map(|body| &body[..]),
        };
        let form = match self.form(&sha, body) {
            Some(form) if !eval.read_only => form,
            Some(_) | None => return Preparation::Run,
        };
        match form.bind(db, member, sha, script, eval.keys, eval.args) {
            Some(command) => {
                let mut blob = Vec::with_capacity(128);
                command.encode(&mut blob);
                Preparation::Native(blob.into())
            }
            None => Preparation::Run,
        }
    }

    /// What is known of a script. One whose body is not at hand, and was not seen before, is not known.
    fn form(&mut self, sha: &Sha, body: Option<&[u8]>) -> Option<&NativeForm> {
        if !self.forms.contains_key(sha) {
            let form = NativeForm::of(body?);
            if self.forms.len() >= FORMS_MAX {
                self.forms.clear();
            }
            self.forms.insert(*sha, form);
        }
        self.forms.get(sha)?.as_ref()
    }

    /// `SCRIPT LOAD`: what compiles is kept, and nothing else is said about it in the log.
    fn prepare_load(&mut self, machine: &Machine, body: &[u8]) -> Preparation {
        let sha = sha1(body);
        let checked = eval::check_length(body).and_then(|()| match self.form(&sha, Some(body)) {
            Some(_) => Ok(()),
            None => self.vm(machine.stamp()).compile(&sha, body).map(|_| ()),
        });
        let has_room = || match machine.scripts().get(&sha) {
            Some(_) => Ok(()),
            None => machine.room_for_scripts(1, body.len()),
        };
        if let Err(refusal) = checked.and_then(|()| has_room()) {
            return answered(refusal.into());
        }
        let mut recorder = Recorder::default();
        recorder.push(&Step::Load { body });
        Preparation::Native(encoded(recorder, None, &Reply::bulk(sha_hex(&sha))))
    }

    fn vm(&mut self, stamp: Stamp) -> &mut Vm {
        // Redis begins with the same random numbers at every start; two leaders had better not.
        let seed = (stamp.wall_us ^ stamp.logical_ms.rotate_left(16) ^ stamp.term) as u32;
        self.vm.get_or_insert_with(|| Vm::new(seed))
    }

    /// Runs a request against an overlay over the machine, which must have applied everything in the log. Always answers
    /// a command for the log: a failure is a logged reply without writes.
    pub fn run(
        &mut self,
        machine: &Machine,
        stamp: Stamp,
        blob: &[u8],
        cpu: &mut dyn CpuMeter,
    ) -> ScriptResult {
        self.run_behind(Taken::default(), machine, stamp, blob, cpu)
    }

    /// The same behind scripts of the same entry that have taken so much: see [`SharedEntry`](super::SharedEntry).
    pub fn run_behind(
        &mut self,
        taken: Taken,
        machine: &Machine,
        stamp: Stamp,
        blob: &[u8],
        cpu: &mut dyn CpuMeter,
    ) -> ScriptResult {
        let overlay = Overlay::new(machine, stamp).behind(taken);
        let guard = self.guard;
        let vm = self.vm(stamp);
        let ran = match Command::decode(blob) {
            Some(Command::Redis { db, resp, member, argv }) => {
                let mut request = ScriptRun::new(vm, overlay, member, cpu).guarded_by(guard);
                let outcome = request.alone(db, resp, &argv);
                request.finish(outcome)
            }
            Some(Command::Transaction { db, resp, member, watched, commands }) => {
                let mut request = ScriptRun::new(vm, overlay, member, cpu).guarded_by(guard);
                let outcome = request.transaction(db, resp, &watched, &commands);
                request.finish(outcome)
            }
            _ => {
                let request = ScriptRun::new(vm, overlay, None, cpu);
                request.finish(Ok(Refusal::new("ERR this is no request with a script").into()))
            }
        };
        self.tidy();
        ran
    }

    /// `EVAL_RO`, `EVALSHA_RO` and scripts flagged `no-writes`, on the node's own applied state, `late_ms` after its newest
    /// stamp.
    #[allow(clippy::too_many_arguments)]
    pub fn run_read(
        &mut self,
        machine: &Machine,
        late_ms: u64,
        member: Option<Member>,
        db: Db,
        _resp: Resp,
        argv: &[&[u8]],
        cpu: &mut dyn CpuMeter,
    ) -> Reply {
        let (terms, argv) = match argv {
            [AS_USER, terms, words @ ..] => (Terms::read(terms), words),
            _ => (Terms::default(), argv),
        };
        if terms.rights.is_some() {
            return Refusal::new("NOPERM rights of scripts are checked by the leader").into();
        }
        let eval = match eval::parse(argv) {
            Some(Ok(eval)) => Eval { read_only: true, ..eval },
            Some(Err(refusal)) => return refusal.into(),
            None => return crate::keyspace::errors::unknown_command(argv).into(),
        };
        let overlay = Overlay::for_read(machine, late_ms);
        let mut request = ScriptRun::new(self.vm(machine.stamp()), overlay, member, cpu);
        request.running.is_routed = terms.is_routed;
        let outcome = request.eval(db, &eval);
        let crossed = request.running.crossed.take();
        let reply = outcome.unwrap_or_else(|stop| refusal(stop, machine, crossed.as_deref()).into());
        self.tidy();
        reply
    }

    /// Whether a call may be answered by [`Engine::run_read`] though its name does not say so: the script is flagged
    /// `no-writes`.
    #[must_use]
    pub fn is_read(&self, machine: &Machine, argv: &[&[u8]]) -> bool {
        match eval::parse(argv) {
            Some(Ok(Eval { read_only: true, .. })) => true,
            Some(Ok(Eval { script: Named::Body(body), .. })) => super::source::is_flagged_no_writes(body),
            Some(Ok(Eval { script: Named::Sha(sha), .. })) => {
                machine.scripts().get(&sha).is_some_and(|body| super::source::is_flagged_no_writes(body))
            }
            Some(Err(_)) | None => false,
        }
    }

    fn tidy(&mut self) {
        if let Some(vm) = &mut self.vm {
            vm.tidy();
        }
    }
}

/// A reply that does not depend on the state.
fn answered(reply: Reply) -> Preparation {
    Preparation::Native(encoded(Recorder::default(), None, &reply))
}
