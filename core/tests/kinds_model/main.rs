//! Every kind of lock against a small model, written apart from the machine: a list of holds and a list of waiters for each name, and
//! the contract's rules. Random work, the same on every run; a failure names its seed.
//!
//! Each session keeps to one name, so that no circles over several names arise: those are looked for in `kinds_properties.rs`.

use redfence_core::grammar::convert::ConvertTo;
use redfence_core::keyspace::Resp;
use redfence_core::machine::version::UpgradeCommand;
use redfence_core::machine::{Applied, Command, EntryBuilder, Machine, Query, Restorer};
use redfence_core::reply::{HolderInfo, Reply};
use redfence_core::types::{
    Fence, LockKind, LockMode, Origin, Reason, RequestId, SessionId, SessionPolicy, SessionScope, Stamp,
};
use std::collections::{BTreeMap, BTreeSet};

const ORIGIN: Origin = Origin { node: 1, incarnation: 1 };
const NAMES: [&str; 2] = ["a", "b"];

/// What the model expects a client to hear.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Heard {
    Granted(u64, u64),
    Renewed(u64),
    Released,
    Refused(Reason),
    Nil,
    Int(i64),
    Code(String),
    Session,
}

fn heard(reply: &Reply) -> Heard {
    match reply {
        Reply::Granted { fence, ttl_ms } => Heard::Granted(fence.0, *ttl_ms),
        Reply::Renewed { ttl_ms } => Heard::Renewed(*ttl_ms),
        Reply::Released => Heard::Released,
        Reply::Refused(reason) => Heard::Refused(*reason),
        Reply::Nil => Heard::Nil,
        Reply::Int(number) => Heard::Int(*number),
        Reply::Error(refusal) => Heard::Code(refusal.code().to_owned()),
        Reply::Bulk(_) => Heard::Session,
        other => panic!("unexpected: {other:?}"),
    }
}

#[derive(Clone, Debug)]
struct Hold {
    owner: String,
    value: String,
    fence: u64,
    kind: LockKind,
    /// `None`: as long as the session lives.
    ends_ms: Option<u64>,
    session: Option<u64>,
}

#[derive(Clone, Debug)]
struct Wait {
    /// Who asked, and until when each waits: retries of one owner.
    requests: Vec<(u64, u64)>,
    owner: String,
    value: String,
    kind: LockKind,
    ttl_ms: u64,
    session: Option<u64>,
    converts: Option<u64>,
}

/// The grant that ended last.
#[derive(Clone, Copy, Debug)]
struct Ended {
    fence: u64,
    how: Reason,
    /// It was one of several, or could have been.
    shared: bool,
    /// It became an exclusive hold.
    converted: bool,
}

#[derive(Clone, Debug, Default)]
struct Lock {
    holds: Vec<Hold>,
    queue: Vec<Wait>,
    last: u64,
    ended: Option<Ended>,
    mark: u64,
}

#[derive(Clone, Copy, Debug)]
struct Session {
    ends_ms: u64,
    policy: SessionPolicy,
    /// Smaller is older.
    age: (u64, u64),
}

#[derive(Default)]
struct Model {
    now_ms: u64,
    locks: BTreeMap<&'static str, Lock>,
    sessions: BTreeMap<u64, Session>,
    opened: u64,
    replies: Vec<(u64, Heard)>,
}

fn code(code: &str) -> Heard {
    Heard::Code(code.to_owned())
}

fn permits(kind: LockKind) -> u32 {
    match kind {
        LockKind::Permits { count, .. } => count,
        LockKind::Exclusive | LockKind::Shared => 1,
    }
}

fn is_same_kind(one: LockKind, other: LockKind) -> bool {
    one.mode() == other.mode() && permits(one) == permits(other)
}

impl Lock {
    fn mode(&self) -> Option<LockMode> {
        let held = self.holds.first().map(|hold| hold.kind);
        held.or_else(|| self.queue.first().map(|wait| wait.kind)).map(LockKind::mode)
    }

    fn admits(&self, kind: LockKind) -> bool {
        if self.holds.is_empty() {
            return true;
        }
        let all = |mode| self.holds.iter().all(|hold| hold.kind.mode() == mode);
        match kind {
            LockKind::Exclusive => false,
            LockKind::Shared => all(LockMode::Shared),
            LockKind::Permits { count, max } => all(LockMode::Permits) && self.permits_held() + count <= max,
        }
    }

    fn permits_held(&self) -> u32 {
        self.holds.iter().map(|hold| permits(hold.kind)).sum()
    }

    fn next_fence(&mut self, now_ms: u64) -> u64 {
        self.last = (self.last + 1).max(now_ms * 1000);
        self.last
    }

    /// The only reader becomes the writer.
    fn make_exclusive(&mut self, now_ms: u64) -> Heard {
        let (fence, how) = (self.holds[0].fence, Reason::AlreadyReleased);
        self.ended = Some(Ended { fence, how, shared: true, converted: true });
        let new = self.next_fence(now_ms);
        (self.holds[0].fence, self.holds[0].kind) = (new, LockKind::Exclusive);
        Heard::Granted(new, left(self.holds[0].ends_ms, now_ms))
    }

    fn reason_against(&self, fence: u64) -> Reason {
        self.ended.filter(|ended| ended.fence == fence).map_or(Reason::NotOwner, |ended| ended.how)
    }

    fn oldest(&self) -> Option<&Hold> {
        self.holds.iter().min_by_key(|hold| hold.fence)
    }
}

fn left(ends_ms: Option<u64>, now_ms: u64) -> u64 {
    ends_ms.map_or(0, |ends_ms| (ends_ms - now_ms).max(1))
}

impl Model {
    fn lock(&mut self, name: &'static str) -> &mut Lock {
        self.locks.entry(name).or_default()
    }

    fn has_ties(&self) -> bool {
        let holds = self.locks.values().flat_map(|lock| lock.holds.iter().filter_map(|hold| hold.ends_ms));
        let waits = self.locks.values().flat_map(|lock| lock.queue.iter().flat_map(|wait| &wait.requests));
        let sessions = self.sessions.values().map(|session| session.ends_ms);
        let ends: Vec<u64> = holds.chain(waits.map(|(_, until_ms)| *until_ms)).chain(sessions).collect();
        let different: BTreeSet<&u64> = ends.iter().collect();
        different.len() < ends.len()
    }

    fn tell(&mut self, seq: u64, what: Heard) {
        self.replies.push((seq, what));
    }

    fn tell_all(&mut self, wait: &Wait, what: &Heard) {
        wait.requests.iter().for_each(|(seq, _)| self.tell(*seq, what.clone()));
    }

    /// One hold less. A conversion of it has nothing left to convert.
    fn end(&mut self, name: &'static str, fence: u64, how: Reason) {
        let lock = self.lock(name);
        let at = lock.holds.iter().position(|hold| hold.fence == fence).expect("it is held");
        let shared = lock.holds.remove(at).kind != LockKind::Exclusive;
        lock.ended = Some(Ended { fence, how, shared, converted: false });
        if let Some(at) = lock.queue.iter().position(|wait| wait.converts == Some(fence)) {
            let wait = lock.queue.remove(at);
            self.tell_all(&wait, &Heard::Nil);
        }
    }

    fn age(&self, session: Option<u64>) -> Option<(u64, u64)> {
        Some(self.sessions.get(&session?)?.age)
    }

    fn has_policy(&self, session: Option<u64>, policy: SessionPolicy) -> bool {
        session.and_then(|id| self.sessions.get(&id)).is_some_and(|session| session.policy == policy)
    }

    /// Whether a waiter's session may take a hold away.
    fn may_wound(&self, wait: &Wait, hold: &Hold) -> bool {
        let both = [wait.session, hold.session];
        both.iter().all(|session| self.has_policy(*session, SessionPolicy::WoundWait))
            && self.age(wait.session) < self.age(hold.session)
    }

    /// Which holds have to go so that the first in line can have the lock; `None`: it has to wait.
    fn in_the_way(&self, lock: &Lock, wait: &Wait) -> Option<Vec<u64>> {
        let others = || lock.holds.iter().filter(|hold| Some(hold.fence) != wait.converts);
        if wait.converts.is_none() && lock.admits(wait.kind) {
            return Some(Vec::new());
        }
        if let (LockKind::Permits { count, max }, None) = (wait.kind, wait.converts) {
            let missing = (lock.permits_held() + count).checked_sub(max)?;
            let mut younger: Vec<&Hold> = others().filter(|hold| self.may_wound(wait, hold)).collect();
            younger.sort_by_key(|hold| (std::cmp::Reverse(self.age(hold.session)), hold.fence));
            let mut taken: Vec<&Hold> = Vec::new();
            for hold in younger {
                if taken.iter().map(|hold| permits(hold.kind)).sum::<u32>() < missing {
                    taken.push(hold);
                }
            }
            // Nobody loses permits that are not needed, the youngest last of all.
            let sum: u32 = taken.iter().map(|hold| permits(hold.kind)).sum();
            let mut spare = sum.checked_sub(missing)?;
            taken.retain(|hold| {
                let is_spare = permits(hold.kind) <= spare;
                spare -= if is_spare { permits(hold.kind) } else { 0 };
                !is_spare
            });
            return Some(taken.iter().map(|hold| hold.fence).collect());
        }
        others().all(|hold| self.may_wound(wait, hold)).then(|| others().map(|hold| hold.fence).collect())
    }

    fn serve(&mut self, name: &'static str) {
        let now_ms = self.now_ms;
        loop {
            let lock = self.lock(name).clone();
            let Some(first) = lock.queue.first().cloned() else { return };
            let is_over =
                |session: Option<u64>| session.is_some_and(|id| self.sessions[&id].ends_ms < now_ms);
            // One whose own lease is over by now is told so when its turn comes.
            let own = lock.holds.iter().find(|hold| Some(hold.fence) == first.converts);
            let ended =
                |hold: &Hold| hold.ends_ms.is_some_and(|ends_ms| ends_ms < now_ms) || is_over(hold.session);
            if own.is_some_and(ended) {
                return;
            }
            let Some(wounds) = self.in_the_way(&lock, &first) else { return };
            if is_over(first.session) {
                self.lock(name).queue.remove(0);
                self.tell_all(&first, &code("NOSESSION"));
                continue;
            }
            wounds.into_iter().for_each(|fence| self.end(name, fence, Reason::Expired));
            let lock = self.lock(name);
            lock.queue.remove(0);
            let told = match first.converts {
                Some(_) => lock.make_exclusive(now_ms),
                None => {
                    let fence = lock.next_fence(now_ms);
                    let ends_ms = (first.ttl_ms > 0).then_some(now_ms + first.ttl_ms);
                    let Wait { owner, value, kind, session, .. } = first.clone();
                    lock.holds.push(Hold { owner, value, fence, kind, ends_ms, session });
                    Heard::Granted(fence, first.ttl_ms)
                }
            };
            self.tell_all(&first, &told);
        }
    }

    /// Everything that ends before `now_ms`, in its order.
    fn advance(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        loop {
            let holds = self.locks.iter().flat_map(|(name, lock)| {
                lock.holds.iter().filter_map(move |hold| Some((hold.ends_ms?, 0, *name, hold.fence)))
            });
            let sessions = self.sessions.iter().map(|(id, session)| (session.ends_ms, 1, "", *id));
            let waits = self.locks.iter().flat_map(|(name, lock)| {
                let requests = lock.queue.iter().flat_map(|wait| &wait.requests);
                requests.map(move |(seq, until_ms)| (*until_ms, 2, *name, *seq))
            });
            let next = holds.chain(sessions).chain(waits).filter(|end| end.0 < now_ms).min();
            match next {
                None => return,
                Some((_, 0, name, fence)) => {
                    self.end(name, fence, Reason::Expired);
                    self.serve(name);
                }
                Some((_, 1, _, id)) => {
                    self.close(id);
                }
                Some((_, _, name, seq)) => self.give_up(name, seq),
            }
        }
    }

    /// One request of a waiter is over; with its last it leaves the line.
    fn give_up(&mut self, name: &'static str, seq: u64) {
        let queue = &mut self.lock(name).queue;
        queue.iter_mut().for_each(|wait| wait.requests.retain(|(of, _)| *of != seq));
        queue.retain(|wait| !wait.requests.is_empty());
        self.tell(seq, Heard::Nil);
        self.serve(name);
    }

    fn close(&mut self, id: u64) -> i64 {
        let mut ended = 0;
        for name in NAMES {
            let queue = self.lock(name).queue.clone();
            for wait in queue.iter().filter(|wait| wait.session == Some(id)) {
                self.tell_all(wait, &if wait.converts.is_some() { Heard::Nil } else { code("NOSESSION") });
            }
            self.lock(name).queue.retain(|wait| wait.session != Some(id));
            let mut holds = self.lock(name).holds.clone();
            // The writer's hold first, then the readers' as they came.
            holds.sort_by_key(|hold| hold.fence);
            for hold in holds.into_iter().filter(|hold| hold.session == Some(id)) {
                self.end(name, hold.fence, Reason::Expired);
                ended += 1;
            }
        }
        self.sessions.remove(&id);
        NAMES.into_iter().for_each(|name| self.serve(name));
        ended
    }

    /// Whether a wait has to be refused: for an older session, holder or in line before it.
    fn must_die(&self, lock: &Lock, wait: &Wait) -> bool {
        let ahead = lock.queue.iter().map(|wait| wait.session).filter(|_| wait.converts.is_none());
        let mut sessions = lock.holds.iter().map(|hold| hold.session).chain(ahead).flatten();
        self.has_policy(wait.session, SessionPolicy::WaitDie)
            && sessions.any(|id| Some(id) != wait.session && self.age(Some(id)) < self.age(wait.session))
    }

    /// Whether a wait has to be refused because another session waits, before it, for what its own session holds.
    fn closes_circle(lock: &Lock, wait: &Wait) -> bool {
        let Some(own) = wait.session else { return false };
        let of = |session: u64| {
            let holds =
                lock.holds.iter().filter(move |hold| hold.session == Some(session)).cloned().collect();
            Lock { holds, ..Lock::default() }
        };
        let others = || lock.queue.iter().filter(|other| other.session.is_some_and(|session| session != own));
        if wait.converts.is_some() {
            // From now on they wait for it, and it waits for what they hold.
            let reads_more = |other: &Wait| {
                let held = of(other.session.expect("one of a session"));
                other.kind == LockKind::Shared && !held.holds.is_empty()
            };
            return others().any(reads_more);
        }
        let held = of(own);
        !held.holds.is_empty() && held.admits(wait.kind) && others().any(|other| !held.admits(other.kind))
    }

    fn acquire(&mut self, name: &'static str, wait_ms: u64, wait: Wait) {
        let (now_ms, seq) = (self.now_ms, wait.requests[0].0);
        let lock = self.lock(name);
        if let Some(own) = lock.holds.iter_mut().find(|hold| hold.owner == wait.owner) {
            if !is_same_kind(own.kind, wait.kind) {
                return self.tell(seq, code("MODE"));
            }
            if wait.session.is_some() && wait.session != own.session {
                return self.tell(seq, code("ERR"));
            }
            own.ends_ms = match (own.ends_ms, wait.ttl_ms) {
                (Some(ends_ms), 1..) => Some(ends_ms.max(now_ms + wait.ttl_ms)),
                (Some(_), 0) | (None, _) => None,
            };
            let told = Heard::Granted(own.fence, left(own.ends_ms, now_ms));
            return self.tell(seq, told);
        }
        let is_permits = |mode| mode == LockMode::Permits;
        if lock.mode().is_some_and(|mode| is_permits(mode) != is_permits(wait.kind.mode())) {
            return self.tell(seq, code("MODE"));
        }
        if lock.queue.is_empty() && lock.admits(wait.kind) {
            let fence = lock.next_fence(now_ms);
            let ends_ms = (wait.ttl_ms > 0).then_some(now_ms + wait.ttl_ms);
            let Wait { owner, value, kind, session, ttl_ms, .. } = wait;
            lock.holds.push(Hold { owner, value, fence, kind, ends_ms, session });
            return self.tell(seq, Heard::Granted(fence, ttl_ms));
        }
        if wait_ms == 0 {
            return self.tell(seq, Heard::Nil);
        }
        if let Some(queued) = lock.queue.iter_mut().find(|queued| queued.owner == wait.owner) {
            if !is_same_kind(queued.kind, wait.kind) {
                return self.tell(seq, code("MODE"));
            }
            if wait.session.is_some() && wait.session != queued.session {
                return self.tell(seq, code("ERR"));
            }
            queued.requests.extend(wait.requests);
            queued.ttl_ms =
                if queued.ttl_ms.min(wait.ttl_ms) == 0 { 0 } else { queued.ttl_ms.max(wait.ttl_ms) };
            return;
        }
        let lock = lock.clone();
        let goes_in = lock.queue.is_empty() && self.in_the_way(&lock, &wait).is_some();
        if !goes_in && (self.must_die(&lock, &wait) || Self::closes_circle(&lock, &wait)) {
            return self.tell(seq, code("DEADLOCK"));
        }
        self.lock(name).queue.push(wait);
        self.serve(name);
    }

    fn convert(&mut self, name: &'static str, fence: u64, to: ConvertTo, wait_ms: u64, seq: u64) {
        let now_ms = self.now_ms;
        let lock = self.lock(name);
        let others = lock.holds.len().saturating_sub(1);
        let other_upgrader =
            lock.queue.iter().any(|wait| wait.converts.is_some_and(|converts| converts != fence));
        let Some(hold) = lock.holds.iter_mut().find(|hold| hold.fence == fence) else {
            // A retry: what it became.
            let became = lock.ended.is_some_and(|ended| ended.fence == fence && ended.converted)
                && lock.mode() == Some(LockMode::Exclusive)
                && lock.holds.len() == 1;
            let told = match became && to == ConvertTo::Exclusive {
                true => Heard::Granted(lock.holds[0].fence, left(lock.holds[0].ends_ms, now_ms)),
                false => Heard::Nil,
            };
            return self.tell(seq, told);
        };
        let told = match (hold.kind.mode(), to) {
            (LockMode::Permits, _) => code("MODE"),
            (LockMode::Exclusive, ConvertTo::Exclusive) | (LockMode::Shared, ConvertTo::Shared) => {
                Heard::Granted(fence, left(hold.ends_ms, now_ms))
            }
            (LockMode::Exclusive, ConvertTo::Shared) => {
                hold.kind = LockKind::Shared;
                let told = Heard::Granted(fence, left(hold.ends_ms, now_ms));
                self.tell(seq, told);
                return self.serve(name);
            }
            (LockMode::Shared, ConvertTo::Exclusive) if other_upgrader => code("DEADLOCK"),
            (LockMode::Shared, ConvertTo::Exclusive) if others == 0 => {
                let told = lock.make_exclusive(now_ms);
                self.tell(seq, told);
                return self.serve(name);
            }
            (LockMode::Shared, ConvertTo::Exclusive) if wait_ms == 0 => Heard::Nil,
            (LockMode::Shared, ConvertTo::Exclusive) => {
                let request = (seq, now_ms + wait_ms);
                if let Some(queued) = lock.queue.iter_mut().find(|wait| wait.converts == Some(fence)) {
                    queued.requests.push(request);
                    return;
                }
                let (owner, value, session) = (hold.owner.clone(), String::new(), hold.session);
                let (requests, kind) = (vec![request], LockKind::Exclusive);
                let wait = Wait { requests, owner, value, kind, ttl_ms: 0, session, converts: Some(fence) };
                let lock = lock.clone();
                let refused = self.must_die(&lock, &wait) || Self::closes_circle(&lock, &wait);
                if self.in_the_way(&lock, &wait).is_none() && refused {
                    return self.tell(seq, code("DEADLOCK"));
                }
                self.lock(name).queue.insert(0, wait);
                return self.serve(name);
            }
        };
        self.tell(seq, told);
    }

    /// `FENCE.CHECK`.
    fn check(&mut self, name: &'static str, fence: u64) -> Heard {
        let lock = self.lock(name);
        let held = lock.holds.iter().any(|hold| hold.fence == fence && hold.kind != LockKind::Exclusive);
        if held || lock.ended.is_some_and(|ended| ended.fence == fence && ended.shared) {
            return code("MODE");
        }
        let is_current = fence >= lock.mark;
        lock.mark = lock.mark.max(fence);
        Heard::Int(i64::from(is_current))
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

struct Run {
    machine: Machine,
    model: Model,
    random: Random,
    seq: u64,
    now_ms: u64,
    next_session: u64,
    /// Times at which something ends: no two at once as far as can be foreseen.
    taken: BTreeSet<u64>,
    steps: Vec<String>,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut run = Run {
            machine: Machine::new(),
            model: Model::default(),
            random: Random(seed),
            seq: 0,
            now_ms: 1_000,
            next_session: 1,
            taken: BTreeSet::new(),
            steps: Vec::new(),
        };
        run.log(&Command::Upgrade(UpgradeCommand::Raise { to: 2 }), 0);
        run
    }

    fn log(&mut self, command: &Command<'_>, seq: u64) -> Vec<(u64, Heard)> {
        let mut blob = Vec::new();
        command.encode(&mut blob);
        let stamp = Stamp { term: 1, logical_ms: self.now_ms, wall_us: self.now_ms * 1_000 };
        let mut entry = EntryBuilder::for_version(self.machine.cluster_version(), stamp);
        entry.push_batch(ORIGIN, 0, [(seq, blob)]);
        let mut out = Applied::default();
        self.machine.apply_entry(&entry.finish(), &mut out).expect("it is applied");
        self.machine.check_invariants().unwrap_or_else(|violation| panic!("{violation}"));
        out.replies.iter().map(|(id, reply)| (id.seq, heard(reply))).collect()
    }

    /// A time from now on that nothing else ends at.
    fn span(&mut self, most: u64) -> u64 {
        let mut ms = 1 + self.random.below(most);
        while !self.taken.insert(self.now_ms + ms) {
            ms += 1;
        }
        ms
    }

    fn kind(&mut self) -> LockKind {
        match self.random.below(6) {
            0 | 1 => LockKind::Exclusive,
            2 | 3 => LockKind::Shared,
            _ => {
                let max = 1 + self.random.below(4) as u32;
                LockKind::Permits { count: 1 + self.random.below(u64::from(max)) as u32, max }
            }
        }
    }

    fn some_fence(&mut self, name: &'static str) -> u64 {
        let lock = self.model.lock(name).clone();
        let ended = lock.ended.map(|ended| ended.fence);
        let known: Vec<u64> = lock.holds.iter().map(|hold| hold.fence).chain(ended).chain([7]).collect();
        known[self.random.below(known.len() as u64) as usize]
    }

    fn step(&mut self) {
        if self.random.below(3) > 0 {
            self.now_ms += self.random.below(40);
        }
        self.model.advance(self.now_ms);
        self.seq += 1;
        let (seq, name) = (self.seq, NAMES[self.random.below(2) as usize]);
        let resource = name.as_bytes();
        let replies = match self.random.below(25) {
            0..=8 => self.acquire(name),
            9..=11 => {
                let fence = self.some_fence(name);
                let lock = self.model.lock(name);
                let held = lock.holds.iter().any(|hold| hold.fence == fence);
                let told = if held { Heard::Released } else { Heard::Refused(lock.reason_against(fence)) };
                self.model.tell(seq, told);
                if held {
                    self.model.end(name, fence, Reason::AlreadyReleased);
                    self.model.serve(name);
                }
                self.say(format!("release {name} {fence}"));
                self.log(&Command::Release { db: 0, resource, fence: Fence(fence) }, seq)
            }
            12 | 13 => {
                let (fence, ttl_ms) = (self.some_fence(name), self.span(80));
                let now_ms = self.now_ms;
                let lock = self.model.lock(name);
                let told = match lock.holds.iter_mut().find(|hold| hold.fence == fence) {
                    Some(hold) => {
                        hold.ends_ms = Some(now_ms + ttl_ms);
                        Heard::Renewed(ttl_ms)
                    }
                    None => Heard::Refused(lock.reason_against(fence)),
                };
                self.model.tell(seq, told);
                self.say(format!("renew {name} {fence} {ttl_ms}"));
                self.log(&Command::Renew { db: 0, resource, fence: Fence(fence), ttl_ms }, seq)
            }
            14..=17 => {
                let fence = self.some_fence(name);
                let to = [ConvertTo::Shared, ConvertTo::Exclusive][self.random.below(2) as usize];
                let wait_ms = if self.random.below(3) == 0 { 0 } else { self.span(60) };
                self.model.convert(name, fence, to, wait_ms, seq);
                self.say(format!("convert {name} {fence} {to:?} wait {wait_ms}"));
                self.log(&Command::Convert { db: 0, resource, fence: Fence(fence), to, wait_ms }, seq)
            }
            18 => self.force(name),
            19 => {
                let fence = self.some_fence(name);
                let told = self.model.check(name, fence);
                self.model.tell(seq, told);
                self.say(format!("check {name} {fence}"));
                self.log(&Command::FenceCheck { db: 0, resource, fence: Fence(fence) }, seq)
            }
            20 => self.plain(name),
            21 | 22 => {
                let (id, ttl_ms) = (self.next_session, self.span(150));
                self.next_session += 1;
                let policies = [SessionPolicy::Detect, SessionPolicy::WaitDie, SessionPolicy::WoundWait];
                let policy = policies[self.random.below(3) as usize];
                let age = if self.random.below(3) == 0 { self.random.below(60) } else { 0 };
                self.model.opened += 1;
                let order = self.model.opened;
                let session = Session { ends_ms: self.now_ms + ttl_ms, policy, age: (age.max(order), order) };
                self.model.sessions.insert(id, session);
                self.model.tell(seq, Heard::Session);
                self.say(format!("open {id} {ttl_ms} {policy:?} age {age}"));
                let open = Command::SessionOpenWith { id: SessionId(id), ttl_ms, label: b"", policy, age };
                self.log(&open, seq)
            }
            23 => {
                let id = 1 + self.random.below(self.next_session);
                let told = match self.model.sessions.contains_key(&id) {
                    true => Heard::Int(self.model.close(id)),
                    false => code("NOSESSION"),
                };
                self.model.tell(seq, told);
                self.say(format!("close {id}"));
                self.log(&Command::SessionClose { id: SessionId(id), any_user: false }, seq)
            }
            _ => {
                let queue = &self.model.lock(name).queue;
                let waiting: Vec<u64> =
                    queue.iter().flat_map(|wait| &wait.requests).map(|(seq, _)| *seq).collect();
                if waiting.is_empty() {
                    return self.pass();
                }
                let waiting = waiting[self.random.below(waiting.len() as u64) as usize];
                self.model.give_up(name, waiting);
                self.say(format!("cancel {waiting}"));
                self.log(&Command::Cancel { request: RequestId { origin: ORIGIN, seq: waiting } }, 0)
            }
        };
        self.compare(replies);
    }

    /// All holders, or one.
    fn force(&mut self, name: &'static str) -> Vec<(u64, Heard)> {
        let (seq, resource) = (self.seq, name.as_bytes());
        let one = (self.random.below(2) == 0).then(|| self.some_fence(name));
        let mut holds = self.model.lock(name).holds.clone();
        holds.sort_by_key(|hold| hold.fence);
        holds.retain(|hold| one.is_none_or(|fence| hold.fence == fence));
        for hold in &holds {
            self.model.end(name, hold.fence, Reason::Expired);
        }
        self.model.tell(seq, Heard::Int(i64::from(!holds.is_empty())));
        self.model.serve(name);
        self.say(format!("force {name} {one:?}"));
        match one {
            None => self.log(&Command::ForceRelease { db: 0, resource }, seq),
            Some(fence) => self.log(&Command::ForceReleaseOne { db: 0, resource, fence: Fence(fence) }, seq),
        }
    }

    /// Plain commands on a name that is held.
    fn plain(&mut self, name: &'static str) -> Vec<(u64, Heard)> {
        let seq = self.seq;
        let lock = self.model.lock(name).clone();
        let Some(oldest) = lock.oldest() else {
            self.say("nothing".to_owned());
            return self.log(&Command::Expire { idle_ms: 600_000 }, 0);
        };
        let shown = self.machine.read(0, Resp::Two, &[b"GET", name.as_bytes()]);
        // Its end may be due, and in no entry yet.
        if lock.holds.iter().all(|hold| hold.ends_ms.is_none() && hold.session.is_none()) {
            assert_eq!(shown, Reply::bulk(&oldest.owner), "GET shows the oldest holder");
        }
        let is_shared = oldest.kind != LockKind::Exclusive;
        let words: &[&[u8]] = match (is_shared, self.random.below(4)) {
            (true, 0) => &[b"SET", name.as_bytes(), b"v"],
            (true, 1) => &[b"DEL", name.as_bytes()],
            (true, 2) => &[b"PEXPIRE", name.as_bytes(), b"100"],
            (_, _) => &[b"SET", name.as_bytes(), b"v", b"NX"],
        };
        self.model.tell(seq, if words.len() == 4 { Heard::Nil } else { code("MODE") });
        self.say(format!("plain {:?} {name}", String::from_utf8_lossy(words[0])));
        let argv = words.iter().copied().collect();
        self.log(&Command::Redis { db: 0, resp: Resp::Two, member: None, argv }, seq)
    }

    /// Nothing but the time.
    fn pass(&mut self) {
        let replies = self.log(&Command::Expire { idle_ms: 600_000 }, 0);
        self.compare(replies);
    }

    fn acquire(&mut self, name: &'static str) -> Vec<(u64, Heard)> {
        let seq = self.seq;
        let lock = self.model.lock(name).clone();
        let holds = lock.holds.iter().map(|hold| (hold.owner.clone(), hold.kind));
        let waits = lock.queue.iter().map(|wait| (wait.owner.clone(), wait.kind));
        let known: Vec<(String, LockKind)> = holds.chain(waits).collect();
        let retry = !known.is_empty() && self.random.below(4) == 0;
        let (owner, kind) = match retry {
            true => known[self.random.below(known.len() as u64) as usize].clone(),
            false => (format!("o{seq}"), self.kind()),
        };
        let kind = if retry && self.random.below(5) == 0 { self.kind() } else { kind };
        // A session keeps to one name.
        let place = NAMES.iter().position(|known| *known == name).expect("one of them") as u64;
        let live: Vec<u64> = self.model.sessions.keys().copied().filter(|id| id % 2 == place).collect();
        let in_session = !live.is_empty() && self.random.below(if retry { 4 } else { 2 }) == 0;
        let session = in_session.then(|| live[self.random.below(live.len() as u64) as usize]);
        let wait_ms = if self.random.below(3) == 0 { 0 } else { self.span(80) };
        let ttl_ms = if in_session && self.random.below(2) == 0 { 0 } else { self.span(80) };
        let value = if self.random.below(3) == 0 { format!("v{seq}") } else { String::new() };
        let requests = vec![(seq, self.now_ms + wait_ms)];
        let wait = Wait {
            requests,
            owner: owner.clone(),
            value: value.clone(),
            kind,
            ttl_ms,
            session,
            converts: None,
        };
        self.model.acquire(name, wait_ms, wait);
        self.say(format!("acquire {name} {owner} {kind:?} ttl {ttl_ms} wait {wait_ms} session {session:?}"));
        let (resource, owner) = (name.as_bytes(), owner.as_bytes());
        let (session, value) = (session.map(SessionId), value.as_bytes());
        let command = Command::AcquireWith { db: 0, resource, ttl_ms, wait_ms, owner, session, kind, value };
        self.log(&command, seq)
    }

    fn say(&mut self, step: String) {
        self.steps.push(format!("{} #{}: {step}", self.now_ms, self.seq));
    }

    /// Answers, holders and queues are those of the model.
    fn compare(&mut self, mut replies: Vec<(u64, Heard)>) {
        let mut expected = std::mem::take(&mut self.model.replies);
        let by_seq = |a: &(u64, Heard), b: &(u64, Heard)| a.0.cmp(&b.0);
        replies.sort_by(by_seq);
        expected.sort_by(by_seq);
        assert_eq!(replies, expected, "answers differ from the model");
        for name in NAMES {
            let lock = self.model.lock(name).clone();
            let resource = name.as_bytes();
            let Reply::Info(info) =
                self.machine.query(Query::Info { db: 0, resource, sessions: SessionScope::All })
            else {
                panic!()
            };
            type Shown = (String, u64, LockKind, i64, Option<u64>, String);
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let row = |holder: &HolderInfo| -> Shown {
                let (session, value) = (holder.session.map(|id| id.0), holder.value.clone());
                let value = text(&value.unwrap_or_default());
                (text(&holder.owner), holder.fence.0, holder.kind, holder.ttl_ms, session, value)
            };
            let shown: Vec<Shown> = info.holders.iter().flatten().map(row).collect();
            let ttl_ms = |hold: &Hold| hold.ends_ms.map_or(-1, |ends_ms| (ends_ms - self.now_ms) as i64);
            let expected = |hold: &Hold| -> Shown {
                let Hold { owner, value, fence, kind, session, .. } = hold.clone();
                (owner, fence, kind, ttl_ms(hold), session, value)
            };
            let mut holds: Vec<Shown> = lock.holds.iter().map(expected).collect();
            holds.sort_by_key(|hold| hold.1);
            assert_eq!(shown, holds, "holders of {name} differ from the model");
            assert_eq!((info.fence.0, info.waiters), (lock.last, lock.queue.len() as u64));
            let Reply::Array(queue) = self.machine.query(Query::Queue { db: 0, resource }) else { panic!() };
            let owner = |row: &Reply| match row {
                Reply::Array(row) => match &row[0] {
                    Reply::Bulk(owner) => String::from_utf8_lossy(owner).into_owned(),
                    other => panic!("{other:?}"),
                },
                other => panic!("{other:?}"),
            };
            let queue: Vec<String> = queue.iter().map(owner).collect();
            let expected: Vec<String> = lock.queue.iter().map(|wait| wait.owner.clone()).collect();
            assert_eq!(queue, expected, "the queue of {name} differs from the model");
        }
    }

    fn restart(&mut self) {
        self.machine.snapshot_begin();
        let mut restorer = Restorer::default();
        while let Some(piece) = self.machine.snapshot_step(3) {
            restorer.push(&piece).expect("a piece that was written can be read");
        }
        let restored = restorer.finish().expect("a snapshot that was written can be read");
        assert_eq!(restored.state_hash(), self.machine.state_hash());
        self.machine = restored;
    }
}

/// One run of random work. A panic says where machine and model differ.
fn play(run: &mut Run) {
    for step in 0..120 {
        if run.model.has_ties() {
            // Two ends in one millisecond: their order is the machine's own.
            return;
        }
        run.step();
        if step % 40 == 39 {
            run.restart();
        }
    }
}

#[test]
fn every_kind_does_what_the_model_says() {
    let seeds = std::env::var("KINDS_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(400);
    for seed in 0..seeds {
        let mut run = Run::new(seed);
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| play(&mut run)));
        if let Err(panic) = checked {
            println!("seed {seed}:\n{}", run.steps.join("\n"));
            std::panic::resume_unwind(panic);
        }
    }
}

/// Bugs planted on purpose are found.
#[cfg(feature = "mutants")]
#[test]
fn planted_bugs_are_found() {
    use redfence_core::mutants::{choose, Mutant};
    for mutant in [
        Mutant::ReaderBesideWriter,
        Mutant::ReaderOvertakes,
        Mutant::UpgradeBesideReaders,
        Mutant::WoundKeepsFence,
        Mutant::YoungerWaits,
    ] {
        choose(Some(mutant));
        let found = (0..400).any(|seed| {
            let mut run = Run::new(seed);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| play(&mut run))).is_err()
        });
        choose(None);
        assert!(found, "{mutant:?} was not found");
    }
}
