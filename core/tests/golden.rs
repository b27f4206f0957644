//! Golden scripts: each file of `testscripts/` is one scenario, played against a fresh machine. The file holds what was done
//! and, indented below it, what came of it; a run that differs prints both. `UPDATE=1` writes what came.
//!
//! ```text
//! # why this scenario is here
//! at 100                         the clock: logical milliseconds, and microseconds since 1970 by the same number
//! c1 LOCK.ACQUIRE a 1000 OWNER x      client c1 says this
//!   c1: [100000, 1000]                  the answer, possibly to a request of long ago
//!   ! acquired a 100000 x               an event
//! ```
//! Other lines: `db N`, `node N.I` (who sends from now on), `term N`, `wall US`, `acked SEQ`, `again [N]` (the last or
//! the Nth entry once more), `cancelled SEQ` (a number that was not sent yet), `session N` (the number drawn next), `cancel CLIENT`, `expire [IDLE_MS]`, `touch ID…`, `orphan GRACE_MS ID…`, `orphan-since CLOSED_MS GRACE_MS ID…`, `start N.I`, `gone N.I`, `garbage HEX`,
//! `version N` (the cluster is raised to it), `losses` (lost grants are shown from now on, as `lost NAME FENCE CAUSE SUCCESSOR`), `snapshot` (go on with a restored machine), `stats`, `next` (deadline), and `limit NAME N` before all else.
//! Sessions are numbered from 1 as they are opened. A word may be written `"…"` or as `x*512` (512 times x).

mod show;

use redfence_core::grammar;
use redfence_core::keyspace::Resp;
use redfence_core::machine::request::{work, MachineWork, RequestContext};
use redfence_core::machine::version::UpgradeCommand;
use redfence_core::machine::{Applied, Command, EntryBuilder, Limits, Machine, Wanted};
use redfence_core::reply::Reply;
use redfence_core::types::{LockMode, LossCause, Origin, RequestId, SessionId, SessionScope, Stamp};
use std::collections::BTreeMap;
use std::path::Path;

#[test]
fn every_script_gives_what_it_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testscripts");
    let mut paths: Vec<_> =
        std::fs::read_dir(&folder).expect("the scripts").map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let update = std::env::var_os("UPDATE").is_some();
    let mut failed = Vec::new();
    for path in &paths {
        let script = std::fs::read_to_string(path).expect("a script is text");
        let played = Player::new().play(&script);
        if played != script {
            if update {
                std::fs::write(path, &played).expect("the script can be written");
            } else {
                print_difference(path, &script, &played);
                failed.push(path.file_name().unwrap().to_owned());
            }
        }
    }
    assert!(paths.len() >= 60, "only {} scripts were found", paths.len());
    assert!(failed.is_empty(), "scripts that differ: {failed:?}; UPDATE=1 accepts what came");
}

fn print_difference(path: &Path, script: &str, played: &str) {
    println!("--- {}", path.display());
    let (wanted, came): (Vec<&str>, Vec<&str>) = (script.lines().collect(), played.lines().collect());
    for at in 0..wanted.len().max(came.len()) {
        match (wanted.get(at), came.get(at)) {
            (Some(wanted), Some(came)) if wanted == came => println!("  {wanted}"),
            (wanted, came) => {
                wanted.iter().for_each(|line| println!("- {line}"));
                came.iter().for_each(|line| println!("+ {line}"));
            }
        }
    }
}

struct Player {
    machine: Machine,
    limits: Limits,
    stamp: Stamp,
    wall_fixed: Option<u64>,
    db: u32,
    origin: Origin,
    acked_below: u64,
    seq: u64,
    sessions: u64,
    /// Who asked.
    clients: BTreeMap<RequestId, String>,
    /// All that was applied, for `again`.
    entries: Vec<Vec<u8>>,
    text: String,
}

impl Player {
    fn new() -> Player {
        Player {
            machine: fresh(Limits::default()),
            limits: Limits::default(),
            stamp: Stamp { term: 1, logical_ms: 0, wall_us: 0 },
            wall_fixed: None,
            db: 0,
            origin: Origin { node: 1, incarnation: 1 },
            acked_below: 0,
            seq: 0,
            sessions: 0,
            clients: BTreeMap::new(),
            entries: Vec::new(),
            text: String::new(),
        }
    }

    fn play(mut self, script: &str) -> String {
        for line in script.lines() {
            if line.starts_with("  ") {
                continue;
            }
            self.text.push_str(line);
            self.text.push('\n');
            if !line.is_empty() && !line.starts_with('#') {
                self.line(line);
                self.machine.check_invariants().unwrap_or_else(|violation| panic!("{line}: {violation}"));
                self.machine.check_no_circle().unwrap_or_else(|violation| panic!("{line}: {violation}"));
            }
        }
        self.text
    }

    fn line(&mut self, line: &str) {
        let words: Vec<Vec<u8>> = split(line);
        let texts: Vec<&str> = words.iter().map(|word| std::str::from_utf8(word).unwrap_or("?")).collect();
        match texts[..] {
            ["at", ms] => self.stamp.logical_ms = number(ms),
            ["term", term] => self.stamp.term = number(term),
            ["wall", us] => self.wall_fixed = Some(number(us)),
            ["db", db] => self.db = number(db) as u32,
            ["node", origin] => self.origin = parse_origin(origin),
            ["acked", seq] => self.acked_below = number(seq),
            ["limit", name, value] => self.set_limit(name, number(value) as usize),
            ["again"] => self.apply_entry(self.entries.last().expect("an entry before").clone()),
            ["again", number] => self.apply_entry(self.entries[self::number(number) as usize - 1].clone()),
            ["session", number] => self.sessions = self::number(number) - 1,
            ["garbage", hex] => {
                let bytes =
                    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap());
                self.apply_entry(bytes.collect());
            }
            ["snapshot"] => self.snapshot(),
            ["version", to] => {
                let to = number(to) as u16;
                self.submit(None, &Command::Upgrade(UpgradeCommand::Raise { to }));
            }
            ["losses"] => self.machine.set_wanted(Wanted::ALL),
            ["stats"] => {
                let stats = self.machine.stats();
                self.say(&format!(
                    "held {} waiters {} sessions {} idle {} grants {} releases {} expiries {} refusals {}",
                    stats.locks_held,
                    stats.waiters,
                    stats.sessions,
                    stats.idle_records,
                    stats.grants,
                    stats.releases,
                    stats.expiries,
                    stats.refusals
                ));
            }
            ["next"] => {
                let next = self.machine.next_due_ms();
                self.say(&format!("{next:?} at {}", self.machine.logical_ms()));
            }
            ["cancel", client] => {
                let asked = self.clients.iter().rev().find(|(_, name)| *name == client);
                let request = *asked.expect("a client that asked before").0;
                self.submit(None, &Command::Cancel { request });
            }
            ["cancelled", seq] => {
                let request = RequestId { origin: self.origin, seq: number(seq) };
                self.submit(None, &Command::Cancel { request });
            }
            ["expire"] => self.submit(None, &Command::Expire { idle_ms: 600_000 }),
            ["expire", idle_ms] => self.submit(None, &Command::Expire { idle_ms: number(idle_ms) }),
            ["touch", ref ids @ ..] => self.submit(None, &Command::SessionsTouch { ids: session_ids(ids) }),
            ["orphan", grace_ms, ref ids @ ..] => {
                let grace_ms = number(grace_ms);
                let orphan = Command::SessionsOrphan { ids: session_ids(ids), grace_ms, heard_index: None };
                self.submit(None, &orphan);
            }
            ["orphan-since", heard_index, grace_ms, ref ids @ ..] => {
                let (grace_ms, heard_index) = (number(grace_ms), Some(number(heard_index)));
                self.submit(None, &Command::SessionsOrphan { ids: session_ids(ids), grace_ms, heard_index });
            }
            ["start", origin] => self.submit(None, &Command::OriginStart { origin: parse_origin(origin) }),
            ["gone", origin] => self.submit(None, &Command::OriginGone { origin: parse_origin(origin) }),
            [client, ..] => self.client(client, &words[1..]),
            [] => {}
        }
    }

    fn client(&mut self, client: &str, argv: &[Vec<u8>]) {
        let owner = format!("owner{}", self.seq + 1);
        let guarded: Vec<&[u8]> = argv.iter().skip(3).map(Vec::as_slice).collect();
        let context = RequestContext {
            sessions: SessionScope::All,
            db: self.db,
            owner: owner.as_bytes(),
            session: SessionId(self.sessions + 1),
            resp: Resp::Two,
            guarded: &guarded,
        };
        let request = match grammar::parse(argv) {
            None => panic!("not a command of ours: {argv:?}"),
            Some(Ok(request)) => request,
            Some(Err(refusal)) => return self.answer(client, &Reply::Error(refusal)),
        };
        let work = work(request, context);
        match work {
            Ok(MachineWork::Look(query)) => {
                let reply = self.machine.query(query);
                self.answer(client, &reply);
            }
            Ok(MachineWork::Change(command)) => {
                let opens = matches!(command, Command::SessionOpen { .. } | Command::SessionOpenWith { .. });
                self.sessions += u64::from(opens);
                self.submit(Some(client), &command);
            }
            Err(refusal) => self.answer(client, &Reply::Error(refusal)),
        }
    }

    fn submit(&mut self, client: Option<&str>, command: &Command<'_>) {
        let mut blob = Vec::new();
        command.encode(&mut blob);
        let mut again = Vec::new();
        Command::decode(&blob).expect("what is written can be read").encode(&mut again);
        assert_eq!(blob, again);
        let mut seq = 0;
        if let Some(client) = client {
            self.seq += 1;
            seq = self.seq;
            self.clients.insert(RequestId { origin: self.origin, seq }, client.to_owned());
        }
        let mut entry = EntryBuilder::for_version(self.machine.cluster_version(), self.now());
        entry.push_batch(self.origin, self.acked_below, [(seq, blob)]);
        self.apply_entry(entry.finish());
    }

    fn now(&self) -> Stamp {
        Stamp { wall_us: self.wall_fixed.unwrap_or(self.stamp.logical_ms * 1000), ..self.stamp }
    }

    fn apply_entry(&mut self, entry: Vec<u8>) {
        let mut out = Applied::default();
        if let Err(error) = self.machine.apply_entry(&entry, &mut out) {
            self.say(&format!("the node stops: {error}"));
        }
        self.entries.push(entry);
        for (id, reply) in &out.replies {
            let client = self.clients.get(id).cloned().unwrap_or_else(|| format!("{id:?}"));
            self.answer(&client, reply);
        }
        for event in &out.events {
            let db = if event.db == 0 { String::new() } else { format!(" in db {}", event.db) };
            let (kind, fence) = (event.kind.as_str(), event.fence);
            let (name, owner) = (show::bytes(&event.resource), show::bytes(&event.owner));
            let mode = match event.mode {
                LockMode::Exclusive => String::new(),
                mode @ (LockMode::Shared | LockMode::Permits) => format!(" {}", mode.as_str()),
            };
            let value = match event.value.is_empty() {
                true => String::new(),
                false => format!(" value {}", show::bytes(&event.value)),
            };
            self.say(&format!("! {kind} {name} {fence} {owner}{db}{mode}{value} #{}", event.seq));
        }
        for loss in out.losses.iter().filter(|loss| loss.cause.is_some()) {
            let successor = loss.successor.map_or("nil".to_owned(), |fence| fence.to_string());
            let session = loss.session.map_or(String::new(), |id| format!(" of session {}", id.0));
            let (name, fence, cause) =
                (show::bytes(&loss.resource), loss.fence, loss.cause.map_or("", LossCause::as_str));
            self.say(&format!("lost {name} {fence} {cause} {successor}{session}"));
        }
    }

    fn snapshot(&mut self) {
        self.machine.snapshot_begin();
        let pieces: Vec<Vec<u8>> = std::iter::from_fn(|| self.machine.snapshot_step(2)).collect();
        let mut restorer = redfence_core::machine::Restorer::new(self.limits);
        pieces.iter().for_each(|piece| restorer.push(piece).expect("a piece that was written can be read"));
        let mut restored = restorer.finish().expect("a snapshot that was written can be read");
        assert_eq!(restored.state_hash(), self.machine.state_hash());
        restored.set_wanted(self.machine.wanted());
        self.machine = restored;
        self.say("restored");
    }

    fn set_limit(&mut self, name: &str, value: usize) {
        let limits = &mut self.limits;
        *match name {
            "locks" => &mut limits.locks_max,
            "waiters_per_lock" => &mut limits.waiters_per_lock_max,
            "waiters" => &mut limits.waiters_max,
            "queue_entries" => &mut limits.queue_entries_max,
            "requests_per_waiter" => &mut limits.requests_per_waiter_max,
            "sessions" => &mut limits.sessions_max,
            "holders_per_lock" => &mut limits.holders_per_lock_max,
            "holders" => &mut limits.holders_max,
            "idle" => &mut limits.idle_max,
            "origins" => &mut limits.origins_max,
            "remembered" => &mut limits.remembered_per_origin_max,
            "due" => &mut limits.due_per_entry_max,
            "idle_per_entry" => &mut limits.idle_per_entry_max,
            "deadlock_steps" => &mut limits.deadlock_steps_max,
            other => panic!("no such limit: {other}"),
        } = value;
        self.machine = fresh(*limits);
    }

    fn answer(&mut self, client: &str, reply: &Reply) {
        self.say(&format!("{client}: {}", show::reply(reply)));
    }

    fn say(&mut self, line: &str) {
        self.text.push_str("  ");
        self.text.push_str(line);
        self.text.push('\n');
    }
}

fn fresh(limits: Limits) -> Machine {
    let mut machine = Machine::with_limits(limits);
    machine.set_watched(true);
    machine
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("not a number: {word}"))
}

fn parse_origin(word: &str) -> Origin {
    let (node, incarnation) = word.split_once('.').expect("node.incarnation");
    Origin { node: number(node), incarnation: number(incarnation) }
}

fn session_ids(words: &[&str]) -> smallvec::SmallVec<[SessionId; 4]> {
    words.iter().map(|word| SessionId(number(word))).collect()
}

/// Words apart by blanks; `""` is the empty word, `x*512` 512 times x, `s1` the id of the first session.
fn split(line: &str) -> Vec<Vec<u8>> {
    line.split_whitespace()
        .map(|word| {
            if let Some(inner) = word.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
                return inner.as_bytes().to_vec();
            }
            if let Some(number) = word.strip_prefix("$s") {
                return SessionId(self::number(number)).to_string().into_bytes();
            }
            match word.split_once('*') {
                Some((unit, times)) if !unit.is_empty() && times.parse::<usize>().is_ok() => {
                    unit.repeat(times.parse().unwrap()).into_bytes()
                }
                Some(_) | None => word.as_bytes().to_vec(),
            }
        })
        .collect()
}
