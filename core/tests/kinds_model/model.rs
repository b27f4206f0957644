//! The model: the contract's rules for holds, waiters and sessions, without a thought of speed.

use redfence_core::grammar::convert::ConvertTo;
use redfence_core::reply::Reply;
use redfence_core::types::{LockKind, LockMode, Reason, SessionPolicy};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const NAMES: [&str; 2] = ["a", "b"];

/// What the model expects a client to hear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Granted(u64, u64),
    Renewed(u64),
    Released,
    Refused(Reason),
    Nil,
    Int(i64),
    Code(String),
    Session,
}

pub(crate) fn heard(reply: &Reply) -> Heard {
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
pub(crate) struct Hold {
    pub(crate) owner: String,
    pub(crate) value: String,
    pub(crate) fence: u64,
    pub(crate) kind: LockKind,
    /// `None`: as long as the session lives.
    pub(crate) ends_ms: Option<u64>,
    pub(crate) session: Option<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Wait {
    /// Who asked, and until when each waits: retries of one owner.
    pub(crate) requests: Vec<(u64, u64)>,
    pub(crate) owner: String,
    pub(crate) value: String,
    pub(crate) kind: LockKind,
    pub(crate) ttl_ms: u64,
    pub(crate) session: Option<u64>,
    pub(crate) converts: Option<u64>,
}

/// The grant that ended last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) fence: u64,
    pub(crate) how: Reason,
    /// It was one of several, or could have been.
    pub(crate) shared: bool,
    /// It became an exclusive hold.
    pub(crate) converted: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Lock {
    pub(crate) holds: Vec<Hold>,
    pub(crate) queue: Vec<Wait>,
    pub(crate) last: u64,
    pub(crate) ended: Option<Ended>,
    pub(crate) mark: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Session {
    pub(crate) ends_ms: u64,
    pub(crate) policy: SessionPolicy,
    /// Smaller is older.
    pub(crate) age: (u64, u64),
}

#[derive(Default)]
pub(crate) struct Model {
    pub(crate) now_ms: u64,
    pub(crate) locks: BTreeMap<&'static str, Lock>,
    pub(crate) sessions: BTreeMap<u64, Session>,
    pub(crate) opened: u64,
    pub(crate) replies: Vec<(u64, Heard)>,
}

pub(crate) fn code(code: &str) -> Heard {
    Heard::Code(code.to_owned())
}

pub(crate) fn permits(kind: LockKind) -> u32 {
    match kind {
        LockKind::Permits { count, .. } => count,
        LockKind::Exclusive | LockKind::Shared => 1,
    }
}

pub(crate) fn is_same_kind(one: LockKind, other: LockKind) -> bool {
    one.mode() == other.mode() && permits(one) == permits(other)
}

impl Lock {
    pub(crate) fn mode(&self) -> Option<LockMode> {
        let held = self.holds.first().map(|hold| hold.kind);
        held.or_else(|| self.queue.first().map(|wait| wait.kind)).map(LockKind::mode)
    }

    pub(crate) fn admits(&self, kind: LockKind) -> bool {
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

    pub(crate) fn permits_held(&self) -> u32 {
        self.holds.iter().map(|hold| permits(hold.kind)).sum()
    }

    pub(crate) fn next_fence(&mut self, now_ms: u64) -> u64 {
        self.last = (self.last + 1).max(now_ms * 1000);
        self.last
    }

    /// The only reader becomes the writer.
    pub(crate) fn make_exclusive(&mut self, now_ms: u64) -> Heard {
        let (fence, how) = (self.holds[0].fence, Reason::AlreadyReleased);
        self.ended = Some(Ended { fence, how, shared: true, converted: true });
        let new = self.next_fence(now_ms);
        (self.holds[0].fence, self.holds[0].kind) = (new, LockKind::Exclusive);
        Heard::Granted(new, left(self.holds[0].ends_ms, now_ms))
    }

    pub(crate) fn reason_against(&self, fence: u64) -> Reason {
        self.ended.filter(|ended| ended.fence == fence).map_or(Reason::NotOwner, |ended| ended.how)
    }

    pub(crate) fn oldest(&self) -> Option<&Hold> {
        self.holds.iter().min_by_key(|hold| hold.fence)
    }
}

pub(crate) fn left(ends_ms: Option<u64>, now_ms: u64) -> u64 {
    ends_ms.map_or(0, |ends_ms| (ends_ms - now_ms).max(1))
}

impl Model {
    pub(crate) fn lock(&mut self, name: &'static str) -> &mut Lock {
        self.locks.entry(name).or_default()
    }

    pub(crate) fn has_ties(&self) -> bool {
        let holds = self.locks.values().flat_map(|lock| lock.holds.iter().filter_map(|hold| hold.ends_ms));
        let waits = self.locks.values().flat_map(|lock| lock.queue.iter().flat_map(|wait| &wait.requests));
        let sessions = self.sessions.values().map(|session| session.ends_ms);
        let ends: Vec<u64> = holds.chain(waits.map(|(_, until_ms)| *until_ms)).chain(sessions).collect();
        let different: BTreeSet<&u64> = ends.iter().collect();
        different.len() < ends.len()
    }

    pub(crate) fn tell(&mut self, seq: u64, what: Heard) {
        self.replies.push((seq, what));
    }

    pub(crate) fn tell_all(&mut self, wait: &Wait, what: &Heard) {
        wait.requests.iter().for_each(|(seq, _)| self.tell(*seq, what.clone()));
    }

    /// One hold less. A conversion of it has nothing left to convert.
    pub(crate) fn end(&mut self, name: &'static str, fence: u64, how: Reason) {
        let lock = self.lock(name);
        let at = lock.holds.iter().position(|hold| hold.fence == fence).expect("it is held");
        let shared = lock.holds.remove(at).kind != LockKind::Exclusive;
        lock.ended = Some(Ended { fence, how, shared, converted: false });
        if let Some(at) = lock.queue.iter().position(|wait| wait.converts == Some(fence)) {
            let wait = lock.queue.remove(at);
            self.tell_all(&wait, &Heard::Nil);
        }
    }

    pub(crate) fn age(&self, session: Option<u64>) -> Option<(u64, u64)> {
        Some(self.sessions.get(&session?)?.age)
    }

    pub(crate) fn has_policy(&self, session: Option<u64>, policy: SessionPolicy) -> bool {
        session.and_then(|id| self.sessions.get(&id)).is_some_and(|session| session.policy == policy)
    }

    /// Whether a waiter's session may take a hold away.
    pub(crate) fn may_wound(&self, wait: &Wait, hold: &Hold) -> bool {
        let both = [wait.session, hold.session];
        both.iter().all(|session| self.has_policy(*session, SessionPolicy::WoundWait))
            && self.age(wait.session) < self.age(hold.session)
    }

    /// Which holds have to go so that the first in line can have the lock; `None`: it has to wait.
    pub(crate) fn in_the_way(&self, lock: &Lock, wait: &Wait) -> Option<Vec<u64>> {
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

    pub(crate) fn serve(&mut self, name: &'static str) {
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
    pub(crate) fn advance(&mut self, now_ms: u64) {
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
    pub(crate) fn give_up(&mut self, name: &'static str, seq: u64) {
        let queue = &mut self.lock(name).queue;
        queue.iter_mut().for_each(|wait| wait.requests.retain(|(of, _)| *of != seq));
        queue.retain(|wait| !wait.requests.is_empty());
        self.tell(seq, Heard::Nil);
        self.serve(name);
    }

    pub(crate) fn close(&mut self, id: u64) -> i64 {
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
    pub(crate) fn must_die(&self, lock: &Lock, wait: &Wait) -> bool {
        let ahead = lock.queue.iter().map(|wait| wait.session).filter(|_| wait.converts.is_none());
        let mut sessions = lock.holds.iter().map(|hold| hold.session).chain(ahead).flatten();
        self.has_policy(wait.session, SessionPolicy::WaitDie)
            && sessions.any(|id| Some(id) != wait.session && self.age(Some(id)) < self.age(wait.session))
    }

    /// Whether a wait has to be refused because another session waits, before it, for what its own session holds.
    pub(crate) fn closes_circle(lock: &Lock, wait: &Wait) -> bool {
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

    pub(crate) fn acquire(&mut self, name: &'static str, wait_ms: u64, wait: Wait) {
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

    pub(crate) fn convert(&mut self, name: &'static str, fence: u64, to: ConvertTo, wait_ms: u64, seq: u64) {
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
    pub(crate) fn check(&mut self, name: &'static str, fence: u64) -> Heard {
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
