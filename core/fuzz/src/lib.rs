//! What the script targets share: a machine with keys of every type, and a script's way from request to state.

use redfence_core::keyspace::Resp;
use redfence_core::machine::{Applied, Command, EntryBuilder, Machine};
use redfence_core::script::{CpuMeter, Engine, Preparation, SharedEntry};
use redfence_core::types::{Member, Origin, Stamp};
use std::time::Instant;

const ORIGIN: Origin = Origin { node: 1, incarnation: 1 };
/// What an entry's command may have, with room for its frame.
const BLOB_BYTES_MAX: usize = (4 << 20) + 4096;

struct Elapsed(Instant);

impl CpuMeter for Elapsed {
    fn elapsed_us(&mut self) -> u64 {
        self.0.elapsed().as_micros() as u64
    }
}

/// One machine and the engine beside it.
pub struct Leader {
    pub machine: Machine,
    engine: Engine,
    at_ms: u64,
    seq: u64,
    /// What was applied so far.
    pub entries: Vec<Vec<u8>>,
    /// Requests that wait until there are enough to share entries.
    gathered: Vec<Vec<u8>>,
}

fn blob(words: &[&[u8]]) -> Vec<u8> {
    blob_of(None, words)
}

fn blob_of(member: Option<u64>, words: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    let argv = words.iter().copied().collect();
    Command::Redis { db: 0, resp: Resp::Two, member: member.map(Member), argv }.encode(&mut out);
    out
}

impl Leader {
    pub fn new() -> Leader {
        let mut leader = Leader { machine: Machine::new(), engine: Engine::new(), at_ms: 1_000, seq: 0, entries: Vec::new(), gathered: Vec::new() };
        let mut start = Vec::new();
        Command::OriginStart { origin: ORIGIN }.encode(&mut start);
        leader.apply(&start);
        let keys: &[&[&[u8]]] = &[
            &[b"SET", b"k1", b"value"],
            &[b"SET", b"k2", b"10", b"PX", b"100000"],
            &[b"RPUSH", b"l", b"a", b"b", b"c"],
            &[b"SADD", b"s", b"a", b"b", b"c"],
            &[b"HSET", b"h", b"f", b"1", b"g", b"2"],
            &[b"ZADD", b"z", b"1", b"a", b"2", b"b"],
        ];
        keys.iter().for_each(|words| leader.apply(&blob(words)));
        leader
    }

    fn stamp(&self) -> Stamp {
        Stamp { term: 1, logical_ms: self.at_ms, wall_us: 1_700_000_000_000_000 + self.at_ms * 1_000 }
    }

    fn apply(&mut self, blob: &[u8]) {
        self.apply_now(blob);
        self.at_ms += 1;
    }

    fn apply_now(&mut self, blob: &[u8]) {
        self.apply_all(&[blob]);
    }

    fn apply_all<B: AsRef<[u8]>>(&mut self, blobs: &[B]) {
        let mut entry = EntryBuilder::new(self.stamp());
        let first = self.seq + 1;
        self.seq += blobs.len() as u64;
        entry.push_batch(ORIGIN, 0, (first..).zip(blobs));
        let entry = entry.finish();
        let _ = self.machine.apply_entry(&entry, &mut Applied::default());
        self.entries.push(entry);
    }

    /// The way of a request: prepared, run if it must be, logged and applied. A result that comes out differently than in
    /// the overlay fails by an assertion of the machine.
    pub fn request(&mut self, words: &[&[u8]]) -> Vec<u8> {
        let request = blob(words);
        let logged = match self.engine.prepare(&self.machine, &request) {
            Preparation::AsIs => request.into(),
            Preparation::Native(bytes) => bytes,
            Preparation::Run => {
                self.end_due();
                let mut cpu = Elapsed(Instant::now());
                self.engine.run(&self.machine, self.stamp(), &request, &mut cpu).blob
            }
        };
        assert!(logged.len() <= BLOB_BYTES_MAX, "{} bytes to log", logged.len());
        self.apply(&logged);
        logged.to_vec()
    }

    /// What is due ends in an entry of its own, as the node does it.
    fn end_due(&mut self) {
        let mut expire = Vec::new();
        Command::Expire { idle_ms: 600_000 }.encode(&mut expire);
        while self.machine.has_due(self.stamp()) {
            self.apply_now(&expire);
        }
    }

    /// Puts a request with a script by others, to be run in one entry with them where that is allowed.
    pub fn gather(&mut self, member: Option<u64>, words: &[&[u8]]) {
        self.gathered.push(blob_of(member, words));
        if self.gathered.len() < 3 {
            return;
        }
        let requests = std::mem::take(&mut self.gathered);
        let mut rest = &requests[..];
        while !rest.is_empty() {
            self.end_due();
            let (mut shared, mut blobs) = (SharedEntry::default(), Vec::new());
            while let Some((request, others)) = rest.split_first().filter(|_| !shared.is_closed()) {
                let mut cpu = Elapsed(Instant::now());
                let ran =
                    self.engine.run_behind(shared.taken(), &self.machine, self.stamp(), request, &mut cpu);
                if !shared.admits(&ran) {
                    break;
                }
                assert!(ran.blob.len() <= BLOB_BYTES_MAX, "{} bytes to log", ran.blob.len());
                shared.add(&self.machine, &ran);
                blobs.push(ran.blob);
                rest = others;
            }
            self.apply_all(&blobs);
            self.at_ms += 1;
        }
    }

    pub fn snapshot(&mut self) -> Vec<Vec<u8>> {
        self.machine.snapshot_begin();
        std::iter::from_fn(|| self.machine.snapshot_step(4)).collect()
    }

    pub fn check(&self) {
        self.machine.check_invariants().expect("the machine stays whole");
    }
}

impl Default for Leader {
    fn default() -> Leader {
        Leader::new()
    }
}

/// What this source tree writes in front of every piece of a snapshot.
pub fn snapshot_version() -> u8 {
    static VERSION: std::sync::OnceLock<u8> = std::sync::OnceLock::new();
    *VERSION.get_or_init(|| Leader::new().snapshot()[0][0])
}
