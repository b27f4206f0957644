//! Records what clients see: histories in epochs, and counts for each tenth of a second.
//!
//! An epoch has lock names of its own. Clients finish their round in it and move on to the next; when the last has left,
//! its history is complete and goes to the checker. So memory stays bounded however long a run is.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::mpsc::SyncSender;
use std::sync::Arc;

use super::run_state::RunState;
use super::settings::Sabotage;
use crate::checker::history::SeenQueued;
use crate::checker::kinds::{Belief, Beliefs};
use crate::checker::{Answer, Call, History, Operation, Outcome};

pub const BUCKET_MS: u64 = 100;

/// A tenth of a second as clients saw it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bucket {
    pub operations: u32,
    pub grants: u32,
    /// Lost connections, UNAVAILABLE, INDETERMINATE.
    pub errors: u32,
}

/// A finished epoch on its way to the checker.
pub struct FinishedEpoch {
    pub number: u32,
    pub history: History,
    /// Multi-locks were taken in it.
    pub multi: bool,
}

pub struct Epoch {
    pub number: u32,
    pub multi: bool,
    history: RefCell<History>,
}

impl Epoch {
    pub fn name(&self, resource: u32) -> String {
        format!("e{}:{resource}", self.number)
    }

    pub fn saw_queued(&self, seen: SeenQueued) {
        self.history.borrow_mut().queued.push(seen);
    }
}

pub struct Recorder {
    pub run_state: Arc<RunState>,
    current: RefCell<Rc<Epoch>>,
    closing: RefCell<Vec<Rc<Epoch>>>,
    checker: SyncSender<FinishedEpoch>,
    numbers: Cell<u64>,
    buckets: RefCell<Vec<Bucket>>,
    sabotage: Cell<Option<Sabotage>>,
    forged: Cell<u32>,
    multi: bool,
    /// What clients believe to hold, by the number of the name.
    beliefs: RefCell<BTreeMap<u64, Beliefs>>,
}

/// An epoch ends when it has this many operations.
const EPOCH_OPERATIONS: usize = 60_000;
/// A reply is forged only after this many operations, under full load.
const SABOTAGE_AFTER: u64 = 3_000;
const FORGED_MAX: u32 = 20;

impl Recorder {
    pub fn new(
        run_state: Arc<RunState>,
        checker: SyncSender<FinishedEpoch>,
        multi: bool,
        sabotage: Option<Sabotage>,
    ) -> Recorder {
        let first = Rc::new(Epoch { number: 0, multi: false, history: RefCell::default() });
        Recorder {
            run_state,
            current: RefCell::new(first),
            closing: RefCell::default(),
            checker,
            numbers: Cell::new(0),
            buckets: RefCell::default(),
            sabotage: Cell::new(sabotage),
            forged: Cell::new(0),
            multi,
            beliefs: RefCell::default(),
        }
    }

    /// A unique number for a process, an owner or a group.
    pub fn number(&self) -> u64 {
        self.numbers.set(self.numbers.get() + 1);
        self.numbers.get()
    }

    /// A client was told that it holds a name in one of the kinds.
    pub fn believe(&self, name: u64, now_us: u64, belief: Belief) -> Result<(), String> {
        self.beliefs.borrow_mut().entry(name).or_default().begin(now_us, belief)
    }

    pub fn end_belief(&self, name: u64, fence: u64) {
        self.beliefs.borrow_mut().entry(name).or_default().end(fence);
    }

    pub fn share_belief(&self, name: u64, fence: u64) {
        self.beliefs.borrow_mut().entry(name).or_default().share(fence);
    }

    /// The epoch to work in. Kept for one round of work, then asked for again.
    pub fn epoch(&self) -> Rc<Epoch> {
        let full = self.current.borrow().history.borrow().operations.len() >= EPOCH_OPERATIONS;
        if full {
            let number = self.current.borrow().number + 1;
            let multi = self.multi && number % 2 == 1;
            let next = Rc::new(Epoch { number, multi, history: RefCell::default() });
            let ended = self.current.replace(next);
            self.closing.borrow_mut().push(ended);
        }
        self.send_finished_epochs();
        Rc::clone(&self.current.borrow())
    }

    /// Sends every epoch that the last client has left. Blocks, and the load with it, if the checker is behind.
    fn send_finished_epochs(&self) {
        let mut closing = self.closing.borrow_mut();
        while let Some(at) = closing.iter().position(|epoch| Rc::strong_count(epoch) == 1) {
            let epoch = closing.swap_remove(at);
            let finished =
                FinishedEpoch { number: epoch.number, multi: epoch.multi, history: epoch.history.take() };
            // The checker ends only after the load.
            let _ = self.checker.send(finished);
        }
    }

    /// After the last client is gone.
    pub fn close(self) -> Vec<Bucket> {
        let nothing = Epoch { number: u32::MAX, multi: false, history: RefCell::default() };
        let last = self.current.replace(Rc::new(nothing));
        self.closing.borrow_mut().push(last);
        self.send_finished_epochs();
        self.buckets.take()
    }

    pub fn record(&self, epoch: &Epoch, op: Operation) {
        let mut history = epoch.history.borrow_mut();
        history.operations.push(op);
        self.count(&op);
        if self.sabotage.get().is_some() && self.numbers.get() > SABOTAGE_AFTER {
            self.forge(&mut history, op);
        }
    }

    fn count(&self, op: &Operation) {
        let now_ns = self.run_state.now_ns();
        let mut buckets = self.buckets.borrow_mut();
        let at = (now_ns / (BUCKET_MS * 1_000_000)) as usize;
        if buckets.len() <= at {
            buckets.resize(at + 1, Bucket::default());
        }
        let bucket = &mut buckets[at];
        bucket.operations += 1;
        match op.outcome {
            Outcome::Answered(Answer::Granted { .. } | Answer::Taken) => bucket.grants += 1,
            Outcome::Answered(_) => {}
            Outcome::Failed | Outcome::Unknown => bucket.errors += 1,
        }
    }

    /// Records replies of a broken server. The checker must find it: not each of them, since a grant that took longer than its ttl, and a
    /// release whose outcome nobody knows, explain two holders.
    fn forge(&self, history: &mut History, op: Operation) {
        let Call::Acquire { ttl_ms, wait_ms, session: 0, .. } = op.call else { return };
        let Outcome::Answered(Answer::Granted { fence, .. }) = op.outcome else { return };
        let Some(sabotage) = self.sabotage.get() else { return };
        if (op.complete_ns - op.invoke_ns) / 1_000_000 >= ttl_ms {
            return;
        }
        self.forged.set(self.forged.get() + 1);
        if self.forged.get() == FORGED_MAX {
            self.sabotage.set(None);
        }
        let call = Call::Acquire { owner: self.number(), ttl_ms, wait_ms, session: 0 };
        let answer = match sabotage {
            Sabotage::SameFence => Answer::Granted { fence, ttl_ms },
            Sabotage::TwoHolders => Answer::Granted { fence: fence + 1, ttl_ms },
            Sabotage::PlainTwice => Answer::Taken,
        };
        let (process, outcome) = (self.number(), Outcome::Answered(answer));
        history.operations.push(Operation { process, call, outcome, group: 0, ..op });
    }
}
