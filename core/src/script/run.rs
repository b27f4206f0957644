//! One script from start to end: compile, run, run again in a VM of its own if need be, undo if it runs over.

use super::budget::Stop;
use super::host::ScriptHost;
use super::vm::{Compiled, Outcome, Vm, HOST};
use super::{Call, Sha};
use crate::keyspace::{Context, Db, Keys, Resp};
use crate::reply::{Refusal, Reply};
use std::cell::RefCell;

thread_local! {
    /// A cache, not state: what a script answers does not depend on which VM runs it.
    static SHARED: RefCell<Option<Vm>> = const { RefCell::new(None) };
}

fn with_shared<R>(work: impl FnOnce(&mut Vm) -> R) -> R {
    SHARED.with(|shared| work(shared.borrow_mut().get_or_insert_with(Vm::new)))
}

/// Whether the script compiles.
pub fn check(sha: &Sha, body: &[u8]) -> Result<(), Refusal> {
    with_shared(|vm| vm.compile(sha, body).map(|_| ()))
}

/// Runs a script against `keys`. A script speaks RESP2 until it asks for RESP3, whatever its client speaks.
pub fn run(keys: &mut dyn Keys, db: Db, call: &Call<'_>) -> Reply {
    with_shared(|vm| {
        let script = match vm.compile(&call.sha, call.body) {
            Ok(script) => script,
            Err(refusal) => return refusal.into(),
        };
        // What the shared VM has room for depends on what ran before; what a fresh one has does not.
        let reply = attempt(keys, db, call, &script, vm, false).or_else(|_| {
            let mut own = Vm::new();
            match own.compile(&call.sha, call.body) {
                Ok(script) => attempt(keys, db, call, &script, &own, true),
                Err(refusal) => Ok(refusal.into()),
            }
        });
        vm.tidy();
        reply.unwrap_or_else(|stop| over(stop).into())
    })
}

fn over(stop: Stop) -> Refusal {
    Refusal::new(match stop {
        Stop::Budget => "ERR script stopped: it ran over its budget of steps; its writes were undone",
        Stop::Memory => "ERR script stopped: it ran over its memory limit; its writes were undone",
    })
}

fn attempt(
    keys: &mut dyn Keys,
    db: Db,
    call: &Call<'_>,
    script: &Compiled,
    vm: &Vm,
    own: bool,
) -> Result<Reply, Stop> {
    keys.begin();
    let read_only = call.read_only || script.flags.no_writes;
    let mut host = ScriptHost { cx: Context::new(keys, db, Resp::Two), read_only };
    let outcome = HOST.set(&mut host, || vm.run(call, script, own));
    match outcome {
        Outcome::Done(reply) => {
            keys.commit();
            Ok(reply)
        }
        Outcome::Stopped(stop) => {
            keys.rollback();
            Err(stop)
        }
    }
}
