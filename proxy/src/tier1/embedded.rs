//! Tier 1 in the proxy itself, when no Redis is behind it: the very machine of Tier 2, not replicated and not stored.
//!
//! A command takes the mutex for about a microsecond and answers at once; one that must wait leaves a sender in the table. One task
//! ends what is due. A client that goes away leaves its queue; a grant that nobody is left to take, because its owner was made up
//! here, is given back.

use crate::clock::Clock;
use crate::events::{EventQueue, Hub};
use redfence_core::machine::request::Work;
use redfence_core::machine::{Applied, Command, Machine, Stats};
use redfence_core::reply::Reply;
use redfence_core::types::{Fence, Origin, RequestId, Stamp, Tier};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{oneshot, Notify};

/// Nobody but this process ever sees its requests.
const ORIGIN: Origin = Origin { node: 0, incarnation: 0 };

/// What became of a command.
#[derive(Debug)]
pub enum Answer {
    Now(Reply),
    /// It waits. Hand the ticket to [`Embedded::abandon`] if its client goes away.
    Later(oneshot::Receiver<Reply>, Ticket),
}

/// Names a waiting command, and what to release if nobody is left to take its grant.
#[derive(Clone, Debug)]
pub struct Ticket {
    seq: u64,
    undo: Undo,
}

/// Keyspace and names.
type Undo = Option<Arc<(u32, Vec<Box<[u8]>>)>>;

struct Waiting {
    sender: oneshot::Sender<Reply>,
    undo: Undo,
}

struct Inner {
    machine: Machine,
    waiting: FxHashMap<u64, Waiting>,
    applied: Applied,
    next_seq: u64,
    /// When the task wakes up next.
    armed_ms: u64,
    event_seq: u64,
}

pub struct Embedded {
    inner: Mutex<Inner>,
    clock: Clock,
    idle_ms: u64,
    rearm: Notify,
    hub: Arc<Hub>,
    events: EventQueue,
}

impl std::fmt::Debug for Embedded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Embedded").finish_non_exhaustive()
    }
}

impl Embedded {
    /// `idle_ms`: how long the record of a free lock is remembered.
    #[must_use]
    pub fn start(clock: Clock, idle_ms: u64, hub: Arc<Hub>, events: EventQueue) -> Arc<Embedded> {
        let mut machine = Machine::new();
        machine.set_remembering(false);
        machine.set_tier(Tier::Efficiency);
        let inner = Inner {
            machine,
            waiting: FxHashMap::default(),
            applied: Applied::default(),
            next_seq: 0,
            armed_ms: u64::MAX,
            event_seq: 0,
        };
        let embedded = Arc::new(Embedded {
            inner: Mutex::new(inner),
            clock,
            idle_ms,
            rearm: Notify::new(),
            hub,
            events,
        });
        tokio::spawn(end_what_is_due(Arc::downgrade(&embedded)));
        embedded
    }

    /// Runs one command. `owner_is_ours`: the owner was made up, so nobody can ask for its grant again.
    #[must_use]
    pub fn run(&self, work: Work<'_>, owner_is_ours: bool) -> Answer {
        let mut inner = self.lock();
        let command = match work {
            Work::Look(query) => {
                self.apply(&mut inner, None, Command::Expire { idle_ms: self.idle_ms });
                let reply = inner.machine.query(query);
                self.settle(inner);
                return Answer::Now(reply);
            }
            Work::Change(command) => command,
        };
        let undo = if owner_is_ours { undo_of(&command) } else { None };
        inner.next_seq += 1;
        let seq = inner.next_seq;
        self.apply(&mut inner, Some(RequestId { origin: ORIGIN, seq }), command);
        let own = inner.applied.replies.iter().position(|(id, _)| id.seq == seq);
        let answer = match own {
            Some(at) => Answer::Now(inner.applied.replies.swap_remove(at).1),
            None => {
                let (sender, receiver) = oneshot::channel();
                inner.waiting.insert(seq, Waiting { sender, undo: undo.clone() });
                Answer::Later(receiver, Ticket { seq, undo })
            }
        };
        self.settle(inner);
        answer
    }

    /// The client behind a waiting command is gone.
    pub fn abandon(&self, ticket: &Ticket, mut receiver: oneshot::Receiver<Reply>) {
        let mut inner = self.lock();
        if inner.waiting.remove(&ticket.seq).is_some() {
            let request = RequestId { origin: ORIGIN, seq: ticket.seq };
            self.apply(&mut inner, None, Command::Cancel { request });
        } else if let Ok(reply) = receiver.try_recv() {
            self.give_back(&mut inner, &reply, &ticket.undo);
        }
        self.settle(inner);
    }

    #[must_use]
    pub fn stats(&self) -> Stats {
        self.lock().machine.stats()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().expect("the machine is whole")
    }

    fn apply(&self, inner: &mut Inner, id: Option<RequestId>, command: Command<'_>) {
        let now = self.clock.now();
        let stamp = Stamp { term: 1, logical_ms: now.monotonic_ms(), wall_us: now.wall_us };
        inner.machine.set_watched(self.hub.is_watching_locks());
        let Inner { machine, applied, .. } = inner;
        machine.apply(stamp, id, command, applied);
    }

    /// Hands out what applying has brought about, until nothing is left; then lets go of the machine.
    fn settle(&self, mut guard: std::sync::MutexGuard<'_, Inner>) {
        let inner = &mut *guard;
        while let Some((id, reply)) = inner.applied.replies.pop() {
            let Some(waiting) = inner.waiting.remove(&id.seq) else { continue };
            if let Err(reply) = waiting.sender.send(reply) {
                self.give_back(inner, &reply, &waiting.undo);
            }
        }
        if !inner.applied.events.is_empty() {
            let mut events = std::mem::take(&mut inner.applied.events);
            for event in &mut events {
                inner.event_seq = (inner.event_seq + 1).max(crate::clock::wall_us());
                event.seq = inner.event_seq;
            }
            self.events.offer(Tier::Efficiency, events);
        }
        let next_ms = self.next_ms(&inner.machine);
        let sooner = next_ms < inner.armed_ms;
        if sooner {
            inner.armed_ms = next_ms;
        }
        drop(guard);
        if sooner {
            self.rearm.notify_one();
        }
    }

    fn next_ms(&self, machine: &Machine) -> u64 {
        let due_ms = machine.next_deadline_ms().unwrap_or(u64::MAX);
        let forget_ms =
            machine.oldest_idle_ms().map_or(u64::MAX, |since_ms| since_ms.saturating_add(self.idle_ms + 1));
        due_ms.min(forget_ms)
    }

    fn give_back(&self, inner: &mut Inner, reply: &Reply, undo: &Undo) {
        let Some((db, names)) = undo.as_deref() else { return };
        for (name, fence) in names.iter().zip(granted_fences(reply)) {
            self.apply(inner, None, Command::Release { db: *db, resource: name, fence });
        }
    }
}

/// The fences of a grant, single or multiple; none for any other reply.
#[must_use]
pub fn granted_fences(reply: &Reply) -> SmallVec<[Fence; 8]> {
    let fence_of = |item: &Reply| match item {
        Reply::Int(fence) => u64::try_from(*fence).ok().map(Fence),
        _ => None,
    };
    match reply {
        Reply::Granted { fence, .. } => SmallVec::from_slice(&[*fence]),
        Reply::Array(items) => match items.first() {
            Some(Reply::Array(fences)) => fences.iter().filter_map(fence_of).collect(),
            _ => SmallVec::new(),
        },
        _ => SmallVec::new(),
    }
}

fn undo_of(command: &Command<'_>) -> Undo {
    match command {
        Command::Acquire { db, resource, wait_ms, .. } if *wait_ms > 0 => {
            Some(Arc::new((*db, vec![(*resource).into()])))
        }
        Command::MAcquire { db, resources, wait_ms, .. } if *wait_ms > 0 => {
            Some(Arc::new((*db, resources.iter().map(|resource| (*resource).into()).collect())))
        }
        _ => None,
    }
}

async fn end_what_is_due(embedded: std::sync::Weak<Embedded>) {
    loop {
        let Some(alive) = embedded.upgrade() else { return };
        let now_ms = alive.clock.monotonic_ms();
        let next_ms = {
            let mut inner = alive.lock();
            inner.armed_ms = alive.next_ms(&inner.machine);
            inner.armed_ms
        };
        if next_ms <= now_ms {
            let mut inner = alive.lock();
            alive.apply(&mut inner, None, Command::Expire { idle_ms: alive.idle_ms });
            alive.settle(inner);
            continue;
        }
        // Wakes up once in a while even when nothing is due, to see whether the process still wants us.
        let pause = Duration::from_millis((next_ms - now_ms).min(60_000));
        tokio::select! {
            () = alive.rearm.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}
