//! Random work for the machine and the model, and the comparison after each step.

use crate::model::*;
use redfence_core::grammar::convert::ConvertTo;
use redfence_core::keyspace::Resp;
use redfence_core::machine::version::UpgradeCommand;
use redfence_core::machine::{Applied, Command, EntryBuilder, Machine, Query, Restorer};
use redfence_core::reply::{HolderInfo, Reply};
use redfence_core::types::{
    Fence, LockKind, Origin, Reason, RequestId, SessionId, SessionPolicy, SessionScope, Stamp,
};
use std::collections::BTreeSet;

const ORIGIN: Origin = Origin { node: 1, incarnation: 1 };

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

pub(crate) struct Run {
    pub(crate) machine: Machine,
    pub(crate) model: Model,
    pub(crate) random: Random,
    pub(crate) seq: u64,
    pub(crate) now_ms: u64,
    pub(crate) next_session: u64,
    /// Times at which something ends: no two at once as far as can be foreseen.
    pub(crate) taken: BTreeSet<u64>,
    pub(crate) steps: Vec<String>,
}

impl Run {
    pub(crate) fn new(seed: u64) -> Run {
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

    pub(crate) fn log(&mut self, command: &Command<'_>, seq: u64) -> Vec<(u64, Heard)> {
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
    pub(crate) fn span(&mut self, most: u64) -> u64 {
        let mut ms = 1 + self.random.below(most);
        while !self.taken.insert(self.now_ms + ms) {
            ms += 1;
        }
        ms
    }

    pub(crate) fn kind(&mut self) -> LockKind {
        match self.random.below(6) {
            0 | 1 => LockKind::Exclusive,
            2 | 3 => LockKind::Shared,
            _ => {
                let max = 1 + self.random.below(4) as u32;
                LockKind::Permits { count: 1 + self.random.below(u64::from(max)) as u32, max }
            }
        }
    }

    pub(crate) fn some_fence(&mut self, name: &'static str) -> u64 {
        let lock = self.model.lock(name).clone();
        let ended = lock.ended.map(|ended| ended.fence);
        let known: Vec<u64> = lock.holds.iter().map(|hold| hold.fence).chain(ended).chain([7]).collect();
        known[self.random.below(known.len() as u64) as usize]
    }

    pub(crate) fn step(&mut self) {
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
    pub(crate) fn force(&mut self, name: &'static str) -> Vec<(u64, Heard)> {
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
    pub(crate) fn plain(&mut self, name: &'static str) -> Vec<(u64, Heard)> {
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
    pub(crate) fn pass(&mut self) {
        let replies = self.log(&Command::Expire { idle_ms: 600_000 }, 0);
        self.compare(replies);
    }

    pub(crate) fn acquire(&mut self, name: &'static str) -> Vec<(u64, Heard)> {
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

    pub(crate) fn say(&mut self, step: String) {
        self.steps.push(format!("{} #{}: {step}", self.now_ms, self.seq));
    }

    /// Answers, holders and queues are those of the model.
    pub(crate) fn compare(&mut self, mut replies: Vec<(u64, Heard)>) {
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

    pub(crate) fn restart(&mut self) {
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
