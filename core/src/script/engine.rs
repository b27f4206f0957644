//! The script engine of a leader: decides what of a request enters the log, and runs what must be run.
//!
//! It lives beside the machine, on the node's thread, and only ever reads it. Nothing of it is state: another leader's
//! engine starts empty and decides the same.

use crate::keyspace::{Db, Resp};
use crate::machine::effects::Effects;
use crate::machine::{Command, Machine};
use crate::reply::{Refusal, Reply};
use crate::types::{Member, Stamp};
use ::bytes::Bytes;

/// Thread CPU time since a run began. Injected: the node asks a clock, the simulator counts calls.
pub trait CpuMeter {
    fn elapsed_us(&mut self) -> u64;
}

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
pub struct Ran {
    /// What goes into the log: an encoded [`Command::Effects`].
    pub blob: Bytes,
    pub touched: Touched,
    /// It wrote to a key that somebody waits for: the entry must close behind it.
    pub serves_waiters: bool,
}

/// Which keys a run depended on, and which it may have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// It looked at all keys, or changed all of them: `KEYS`, `SCAN`, `DBSIZE`, `RANDOMKEY`, `FLUSHALL`.
    pub everything: bool,
    pub read: Vec<(Db, Bytes)>,
    pub written: Vec<(Db, Bytes)>,
}

/// Owns the VM and what is known of scripts.
#[derive(Default)]
pub struct Engine {}

impl Engine {
    #[must_use]
    pub fn new() -> Engine {
        Engine::default()
    }

    /// What becomes of an encoded request. Cheap where it holds no script.
    pub fn prepare(&mut self, _machine: &Machine, _blob: &[u8]) -> Preparation {
        Preparation::AsIs
    }

    /// Runs a request against an overlay over the machine, which must have applied everything in the log. Always answers
    /// a command for the log: a failure is a logged reply without writes.
    pub fn run(&mut self, _machine: &Machine, _stamp: Stamp, _blob: &[u8], _cpu: &mut dyn CpuMeter) -> Ran {
        let reply = Reply::Error(Refusal::new("ERR scripts cannot be run yet"));
        let mut blob = Vec::new();
        Command::Effects(Effects { member: None, steps: Vec::new(), reply }).encode(&mut blob);
        Ran { blob: blob.into(), touched: Touched::default(), serves_waiters: false }
    }

    /// `EVAL_RO`, `EVALSHA_RO` and scripts flagged `no-writes`, on the node's own applied state, `late_ms` after its newest
    /// stamp.
    #[allow(clippy::too_many_arguments)]
    pub fn run_read(
        &mut self,
        _machine: &Machine,
        _late_ms: u64,
        _member: Option<Member>,
        _db: Db,
        _resp: Resp,
        _argv: &[&[u8]],
        _cpu: &mut dyn CpuMeter,
    ) -> Reply {
        Reply::Error(Refusal::new("ERR scripts cannot be run yet"))
    }
}
