//! Kinds of locks with sessions of every policy at odds over several names, in random work: what must hold whatever comes of it. The
//! exact answers are the business of `kinds_model.rs`.
//!
//! - holders of a name go together, fences rise, whoever ends had it (from events alone);
//! - no circle of sessions; a `wait-die` session waits for younger ones alone; a `wound-wait` session that could wound its way does
//!   not wait, and only younger sessions of that policy are wounded (from what `LOCK.EXPLAIN` shows);
//! - a machine restored from a snapshot goes on alike; an entry that comes twice changes nothing; everybody is answered once.
//!
//! The same on every run; a failure names its seed. `KINDS_SEEDS=100000` looks further.

use redfence_core::event::{Event, EventKind};
use redfence_core::grammar::convert::ConvertTo;
use redfence_core::keyspace::Resp;
use redfence_core::machine::version::UpgradeCommand;
use redfence_core::machine::{
    Applied, Command, EntryBuilder, Limits, Loss, Machine, Query, Restorer, Wanted, Words,
};
use redfence_core::reply::Reply;
use redfence_core::types::{
    Fence, LockKind, LockMode, LossCause, Origin, RequestId, SessionId, SessionPolicy, SessionScope, Stamp,
};
use std::collections::{BTreeMap, BTreeSet};

const ORIGIN: Origin = Origin { node: 1, incarnation: 1 };
const NAMES: [&str; 4] = ["a", "b", "c", "p"];
const POLICIES: [SessionPolicy; 3] =
    [SessionPolicy::Detect, SessionPolicy::WaitDie, SessionPolicy::WoundWait];

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}

/// Small enough that the limits on holders, ends and steps are met.
fn tight() -> Limits {
    Limits {
        holders_per_lock_max: 3,
        holders_max: 6,
        waiters_per_lock_max: 4,
        due_per_entry_max: 1,
        session_ends_per_entry_max: 2,
        locks_per_session_max: 4,
        idle_max: 2,
        ..Limits::default()
    }
}

#[derive(Clone, Copy, Debug)]
struct Session {
    policy: SessionPolicy,
    /// Smaller is older.
    age: (u64, u64),
}

/// What a name's holder is, as far as events and `LOCK.EXPLAIN` show it.
#[derive(Clone, Debug)]
struct Holder {
    owner: String,
    session: Option<u64>,
    permits: u32,
}

#[derive(Clone, Debug)]
struct Place {
    owner: String,
    session: Option<u64>,
}

#[derive(Clone, Debug)]
struct Attempt {
    names: Vec<&'static str>,
    kind: LockKind,
}

struct Run {
    machine: Machine,
    limits: Limits,
    is_tight: bool,
    random: Random,
    now_ms: u64,
    seq: u64,
    next_session: u64,
    opened: u64,
    sessions: BTreeMap<u64, Session>,
    /// What each owner asked for.
    asked: BTreeMap<String, Attempt>,
    open: BTreeSet<u64>,
    last: BTreeMap<String, u64>,
    held: BTreeMap<String, Vec<(u64, LockMode)>>,
    log: Vec<String>,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Run {
    fn new(seed: u64) -> Run {
        let is_tight = seed % 3 == 2;
        let limits = if is_tight { tight() } else { Limits::default() };
        let mut run = Run {
            machine: Machine::with_limits(limits),
            limits,
            is_tight,
            random: Random(seed),
            now_ms: 1_000,
            seq: 0,
            next_session: 1,
            opened: 0,
            sessions: BTreeMap::new(),
            asked: BTreeMap::new(),
            open: BTreeSet::new(),
            last: BTreeMap::new(),
            held: BTreeMap::new(),
            log: Vec::new(),
        };
        run.machine.set_wanted(Wanted::ALL);
        run.apply(&Command::Upgrade(UpgradeCommand::Raise { to: 2 }));
        (0..3).for_each(|_| run.open_session());
        run
    }

    fn apply(&mut self, command: &Command<'_>) {
        self.seq += 1;
        self.log.push(format!("{} #{}: {command:?}", self.now_ms, self.seq));
        let mut blob = Vec::new();
        command.encode(&mut blob);
        let stamp = Stamp { term: 1, logical_ms: self.now_ms, wall_us: self.now_ms * 1_000 };
        let mut entry = EntryBuilder::for_version(self.machine.cluster_version(), stamp);
        entry.push_batch(ORIGIN, 0, [(self.seq, blob)]);
        let entry = entry.finish();
        self.open.insert(self.seq);
        let mut out = Applied::default();
        self.machine.apply_entry(&entry, &mut out).expect("it is applied");
        for (id, _) in &out.replies {
            assert!(self.open.remove(&id.seq), "{} was answered twice", id.seq);
        }
        out.events.iter().for_each(|event| self.see(event));
        out.losses.iter().for_each(|loss| self.check_loss(loss));
        self.machine.check_invariants().unwrap_or_else(|violation| panic!("{violation}"));
        let before = self.machine.state_hash();
        let mut again = Applied::default();
        self.machine.apply_entry(&entry, &mut again).expect("it is applied");
        // What was left over for a later entry may end with the second.
        if !self.is_tight {
            assert_eq!(self.machine.state_hash(), before, "an entry that comes twice changes nothing");
        }
        for (id, _) in &again.replies {
            // Its own answer comes again, or now.
            let was_open = self.open.remove(&id.seq);
            assert!(was_open || id.seq == self.seq, "{} was answered twice", id.seq);
        }
        again.events.iter().for_each(|event| self.see(event));
        self.check_waits();
    }

    fn see(&mut self, event: &Event) {
        let name = text(&event.resource);
        let held = self.held.entry(name.clone()).or_default();
        match event.kind {
            EventKind::Acquired => {
                let last = self.last.insert(name.clone(), event.fence.0).unwrap_or(0);
                assert!(event.fence.0 > last, "the fence of {name} went from {last} to {}", event.fence);
                let goes =
                    held.iter().all(|(_, mode)| *mode == event.mode && event.mode != LockMode::Exclusive);
                assert!(goes, "{name} is granted in mode {:?} beside {held:?}", event.mode);
                held.push((event.fence.0, event.mode));
            }
            EventKind::Released | EventKind::Expired | EventKind::SessionEnded => {
                let at = held.iter().position(|(fence, _)| *fence == event.fence.0);
                held.remove(at.unwrap_or_else(|| panic!("{} of {name} ended and was not held", event.fence)));
            }
            EventKind::Renewed => {
                let hold = held.iter_mut().find(|(fence, _)| *fence == event.fence.0);
                // A conversion to SHARED renews it in its new mode.
                hold.unwrap_or_else(|| panic!("{} of {name} renewed and not held", event.fence)).1 =
                    event.mode;
            }
            EventKind::Queued | EventKind::Abandoned => {}
        }
    }

    fn check_loss(&self, loss: &Loss) {
        if loss.cause == Some(LossCause::Wounded) {
            let victim = loss.session.and_then(|id| self.sessions.get(&id.0)).expect("it has a session");
            assert_eq!(victim.policy, SessionPolicy::WoundWait);
            assert!(loss.successor.is_some(), "nobody loses a lock for nothing: {loss:?}");
        }
    }

    fn explain(&self, name: &str) -> (Vec<Holder>, Vec<Place>) {
        let query = Query::Explain { db: 0, resource: name.as_bytes(), sessions: SessionScope::All };
        let Reply::Map(pairs) = self.machine.query(query) else { panic!() };
        let rows = |field: &'static str| -> Vec<BTreeMap<String, Reply>> {
            let found = pairs.iter().find(|(key, _)| *key == Reply::Text(field));
            let Some((_, Reply::Array(rows))) = found else { panic!("{field}") };
            let map = |row: &Reply| match row {
                Reply::Map(pairs) => {
                    let key = |key: &Reply| match key {
                        Reply::Text(key) => (*key).to_owned(),
                        other => panic!("{other:?}"),
                    };
                    pairs.iter().map(|(name, value)| (key(name), value.clone())).collect()
                }
                other => panic!("{other:?}"),
            };
            rows.iter().map(map).collect()
        };
        let owner = |row: &BTreeMap<String, Reply>| match &row["owner"] {
            Reply::Bulk(owner) => text(owner),
            other => panic!("{other:?}"),
        };
        let session = |row: &BTreeMap<String, Reply>| match &row["session"] {
            Reply::Bulk(id) => Some(u64::from_str_radix(&text(id), 16).expect("an id")),
            Reply::Nil => None,
            other => panic!("{other:?}"),
        };
        let permits = |row: &BTreeMap<String, Reply>| match &row["permits"] {
            Reply::Int(count) => *count as u32,
            Reply::Nil => 1,
            other => panic!("{other:?}"),
        };
        let holder = |row| Holder { owner: owner(row), session: session(row), permits: permits(row) };
        let place = |row| Place { owner: owner(row), session: session(row) };
        (rows("holders").iter().map(holder).collect(), rows("queue").iter().map(place).collect())
    }

    fn policy(&self, session: Option<u64>) -> Option<SessionPolicy> {
        Some(self.sessions.get(&session?)?.policy)
    }

    fn age(&self, session: Option<u64>) -> Option<(u64, u64)> {
        Some(self.sessions.get(&session?)?.age)
    }

    fn may_wound(&self, by: Option<u64>, holder: &Holder) -> bool {
        let both = [by, holder.session];
        both.iter().all(|session| self.policy(*session) == Some(SessionPolicy::WoundWait))
            && self.age(by) < self.age(holder.session)
    }

    fn check_waits(&self) {
        if self.is_tight {
            // What is over may still be there.
            return;
        }
        self.machine.check_no_circle().unwrap_or_else(|violation| panic!("{violation}"));
        let shown: BTreeMap<&str, (Vec<Holder>, Vec<Place>)> =
            NAMES.iter().map(|name| (*name, self.explain(name))).collect();
        for (name, (holders, queue)) in &shown {
            for (at, place) in queue.iter().enumerate() {
                let ahead = queue[..at].iter().map(|place| place.session);
                let ahead = holders.iter().map(|holder| holder.session).chain(ahead).flatten();
                if self.policy(place.session) == Some(SessionPolicy::WaitDie) {
                    for other in ahead.filter(|other| Some(*other) != place.session) {
                        assert!(
                            self.age(place.session) < self.age(Some(other)),
                            "a wait-die session waits at {name} for the older {other}: {place:?}"
                        );
                    }
                }
            }
            if let Some(first) = queue.first() {
                self.check_first(first, &shown);
            }
        }
    }

    /// A wound-wait session that is first everywhere and could have all by wounding does not wait.
    fn check_first(&self, first: &Place, shown: &BTreeMap<&str, (Vec<Holder>, Vec<Place>)>) {
        if self.policy(first.session) != Some(SessionPolicy::WoundWait) {
            return;
        }
        let asked = &self.asked[&first.owner];
        let can_have = |name: &&str| {
            let (holders, queue) = &shown[name];
            let in_line = queue.first().is_some_and(|place| place.owner == first.owner);
            // Its own hold is what it converts, or keeps.
            let others: Vec<&Holder> = holders.iter().filter(|holder| holder.owner != first.owner).collect();
            let theirs: Vec<&Holder> =
                others.into_iter().filter(|holder| !self.may_wound(first.session, holder)).collect();
            let sum = |holders: &[&Holder]| holders.iter().map(|holder| holder.permits).sum::<u32>();
            let has_way = match asked.kind {
                LockKind::Permits { count, max } => sum(&theirs) + count <= max,
                LockKind::Exclusive | LockKind::Shared => theirs.is_empty(),
            };
            in_line && has_way
        };
        let converts = shown.values().any(|(holders, queue)| {
            let is_first = queue.first().is_some_and(|place| place.owner == first.owner);
            is_first && holders.iter().any(|holder| holder.owner == first.owner)
        });
        // Of an owner that holds some of what it waits for, the mode it holds them in decides too.
        if !converts {
            assert!(!asked.names.iter().all(can_have), "{first:?} could wound its way and waits");
        }
    }

    fn open_session(&mut self) {
        let id = self.next_session;
        self.next_session += 1;
        self.opened += 1;
        let policy = *self.random.pick(&POLICIES);
        let age = if self.random.below(3) == 0 { self.random.below(20) } else { 0 };
        self.sessions.insert(id, Session { policy, age: (age.max(self.opened), self.opened) });
        let ttl_ms = if self.random.below(4) == 0 { 1 + self.random.below(200) } else { 100_000 };
        self.apply(&Command::SessionOpenWith { id: SessionId(id), ttl_ms, label: b"", policy, age });
    }

    fn kind(&mut self, name: &str) -> LockKind {
        let count = 1 + self.random.below(3) as u32;
        match (name, self.random.below(2)) {
            ("p", _) => LockKind::Permits { count, max: count + self.random.below(3) as u32 },
            (_, 0) => LockKind::Exclusive,
            (_, _) => LockKind::Shared,
        }
    }

    fn some_session(&mut self) -> Option<SessionId> {
        let ids: Vec<u64> = self.sessions.keys().rev().take(4).copied().collect();
        (self.random.below(5) > 0 && !ids.is_empty()).then(|| SessionId(*self.random.pick(&ids)))
    }

    /// The fence of somebody who holds the name, or another.
    fn some_fence(&mut self, name: &str) -> Fence {
        let query = Query::Info { db: 0, resource: name.as_bytes(), sessions: SessionScope::All };
        let Reply::Info(info) = self.machine.query(query) else { panic!() };
        let fences: Vec<u64> = info.holders.iter().flatten().map(|holder| holder.fence.0).collect();
        match fences.is_empty() || self.random.below(10) == 0 {
            true => Fence(self.last.get(name).copied().unwrap_or(7)),
            false => Fence(*self.random.pick(&fences)),
        }
    }

    fn step(&mut self) {
        if self.random.below(3) == 0 {
            self.now_ms += self.random.below(30);
        }
        let name = *self.random.pick(&NAMES);
        let resource = name.as_bytes();
        let db = 0;
        match self.random.below(30) {
            0..=9 => {
                let kind = self.kind(name);
                let again = self.asked.keys().next_back().cloned().filter(|_| self.random.below(8) == 0);
                let owner = again.unwrap_or_else(|| format!("o{:05}", self.seq));
                let known = self.asked.get(&owner).cloned();
                let (names, kind) = match known {
                    Some(known) => (known.names, known.kind),
                    None => (vec![name], kind),
                };
                self.asked.insert(owner.clone(), Attempt { names: names.clone(), kind });
                let session = self.some_session();
                let (ttl_ms, wait_ms) = self.times(session.is_some());
                let (resource, owner) = (names[0].as_bytes(), owner.as_bytes());
                let value = if self.random.below(4) == 0 { &b"value"[..] } else { &[] };
                let command =
                    Command::AcquireWith { db, resource, ttl_ms, wait_ms, owner, session, kind, value };
                self.apply(&command);
            }
            10..=13 => {
                let mut names: Vec<&'static str> = NAMES[..3].to_vec();
                let left_out = self.random.below(4) as usize;
                if left_out < names.len() {
                    names.remove(left_out);
                }
                let owner = format!("o{:05}", self.seq);
                let shared = self.random.below(2) == 0;
                let kind = if shared { LockKind::Shared } else { LockKind::Exclusive };
                self.asked.insert(owner.clone(), Attempt { names: names.clone(), kind });
                let session = self.some_session();
                let (ttl_ms, wait_ms) = self.times(session.is_some());
                let (resources, owner) =
                    (names.iter().map(|name| name.as_bytes()).collect(), owner.as_bytes());
                match shared {
                    true => self.apply(&Command::MAcquireShared {
                        db,
                        resources,
                        ttl_ms,
                        wait_ms,
                        owner,
                        session,
                    }),
                    false => {
                        self.apply(&Command::MAcquire { db, resources, ttl_ms, wait_ms, owner, session })
                    }
                }
            }
            14..=18 => {
                let fence = self.some_fence(name);
                self.apply(&Command::Release { db, resource, fence });
            }
            19..=22 => {
                let fence = self.some_fence(name);
                let to = *self.random.pick(&[ConvertTo::Shared, ConvertTo::Exclusive]);
                let wait_ms = *self.random.pick(&[0, 50, 100_000]);
                self.apply(&Command::Convert { db, resource, fence, to, wait_ms });
            }
            23 => {
                let fence = self.some_fence(name);
                self.apply(&Command::Renew { db, resource, fence, ttl_ms: 40 });
            }
            24 => match self.random.below(3) {
                0 => self.apply(&Command::ForceRelease { db, resource }),
                _ => {
                    let fence = self.some_fence(name);
                    self.apply(&Command::ForceReleaseOne { db, resource, fence });
                }
            },
            25 => self.open_session(),
            26 => {
                if let Some(id) = self.some_session() {
                    self.apply(&Command::SessionClose { id, any_user: false });
                }
            }
            27 => {
                let back = self.random.below(8);
                let request = RequestId { origin: ORIGIN, seq: self.seq.saturating_sub(back).max(1) };
                self.apply(&Command::Cancel { request });
            }
            28 => self.plain(name),
            _ => self.transaction(name),
        }
        if self.random.below(12) == 0 {
            self.restart();
        }
    }

    fn times(&mut self, in_session: bool) -> (u64, u64) {
        let ttl_ms = match in_session {
            true => *self.random.pick(&[0, 0, 60]),
            false => *self.random.pick(&[30, 90, 5_000]),
        };
        (ttl_ms, *self.random.pick(&[0, 40, 100_000, 100_000]))
    }

    fn redis(&mut self, words: &[&str]) {
        let argv: Words<'_> = words.iter().map(|word| word.as_bytes()).collect();
        self.apply(&Command::Redis { db: 0, resp: Resp::Two, member: None, argv });
    }

    fn plain(&mut self, name: &str) {
        match self.random.below(6) {
            0 => self.redis(&["SET", name, "plain", "NX", "PX", "50"]),
            1 => self.redis(&["SET", name, "plain", "PX", "50"]),
            2 => self.redis(&["DEL", name]),
            3 => self.redis(&["PEXPIRE", name, "20"]),
            4 => self.redis(&["RENAME", name, "b"]),
            _ => self.redis(&["FLUSHALL"]),
        }
    }

    fn transaction(&mut self, name: &str) {
        let (one, two) = (self.some_fence(name), self.some_fence(name));
        let owner = format!("o{:05}", self.seq);
        let release = format!("LOCK.RELEASE {name} {one}");
        let convert = format!("LOCK.CONVERT {name} {two} EXCLUSIVE");
        let down = format!("LOCK.CONVERT {name} {two} SHARED");
        let acquire = format!("LOCK.ACQUIRE {name} 50 OWNER {owner} SHARED");
        let set = format!("SET {name} plain");
        let all = [release, convert, down, acquire, set];
        let count = 1 + self.random.below(3);
        let lines: Vec<&String> = (0..count).map(|_| self.random.pick(&all)).collect();
        let commands = lines.iter().map(|line| line.split(' ').map(str::as_bytes).collect()).collect();
        let (watched, member) = (Vec::new(), None);
        self.apply(&Command::Transaction { db: 0, resp: Resp::Two, member, watched, commands });
    }

    fn restart(&mut self) {
        self.machine.snapshot_begin();
        let mut restorer = Restorer::new(self.limits);
        while let Some(piece) = self.machine.snapshot_step(3) {
            restorer.push(&piece).expect("a piece that was written can be read");
        }
        let mut restored = restorer.finish().expect("a snapshot that was written can be read");
        assert_eq!(restored.state_hash(), self.machine.state_hash());
        assert_eq!(restored.memory_used_bytes(), self.machine.memory_used_bytes());
        restored.set_wanted(Wanted::ALL);
        self.machine = restored;
    }

    /// With time everybody is answered, and nothing is left but keys without an end.
    fn wind_up(&mut self) {
        self.redis(&["FLUSHALL"]);
        for _ in 0..200 {
            self.now_ms += 10_000;
            self.apply(&Command::Expire { idle_ms: 0 });
        }
        assert!(self.open.is_empty(), "never answered: {:?}", self.open);
        let stats = self.machine.stats();
        assert_eq!((stats.locks_held, stats.waiters, stats.sessions, stats.idle_records), (0, 0, 0, 0));
        assert!(self.held.values().all(Vec::is_empty), "{:?}", self.held);
    }
}

fn play(run: &mut Run) {
    (0..80).for_each(|_| run.step());
    run.wind_up();
}

#[test]
fn kinds_and_policies_keep_their_promises() {
    let seeds = std::env::var("KINDS_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(300);
    for seed in 0..seeds {
        let mut run = Run::new(seed);
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| play(&mut run)));
        if let Err(panic) = checked {
            println!("seed {seed}:\n{}", run.log.join("\n"));
            std::panic::resume_unwind(panic);
        }
    }
}
