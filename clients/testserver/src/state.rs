//! The machine, its connections and its clock. One lock around all of it: commands follow each other as log entries do.

mod commands;
mod losses;

use crate::wire::Encoder;
use crate::{Fault, Partition, Stats};
use losses::Notified;
use redfence_core::event::{self, Event};
use redfence_core::keyspace::Resp;
use redfence_core::machine::version::{UpgradeCommand, NEWEST};
use redfence_core::machine::{Applied, Command, Loss, Machine, Wanted};
use redfence_core::reply::{Refusal, Reply};
use redfence_core::types::{Origin, RequestId, SessionId, Stamp, Tier};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// As a node by default: how long a session outlives the connection that opened it.
const GRACE_MS: u64 = 500;
/// As a node by default: how long a free lock is remembered.
const IDLE_MS: u64 = 600_000;
/// Commands a client may send behind one it is blocked in.
const BACKLOG_MAX: usize = 1024;
/// Subscriptions of a connection.
pub(crate) const WATCHES_MAX: usize = 1024;
/// How far the clock jumps at once while somebody is blocked on the connection that opened a session: being blocked keeps it alive.
const STEP_WHILE_BLOCKED_MS: u64 = 100;
const STEPS_WHILE_BLOCKED_MAX: u64 = 100_000;
/// Fences after a reset begin above those before it, though the clock stands still.
const RESET_US: u64 = 1_000_000;
const ORIGIN: Origin = Origin { node: 1, incarnation: 1 };

/// One connection, as the server sees it.
pub(crate) struct Peer {
    stream: TcpStream,
    pub(crate) resp: Resp,
    /// The command it is blocked in; what came behind it waits in `backlog`.
    blocked_in: Option<RequestId>,
    backlog: VecDeque<Vec<Vec<u8>>>,
    sessions: Vec<SessionId>,
    /// Patterns (true) and channels, as they were asked for.
    pub(crate) watches: Vec<(bool, Vec<u8>)>,
    /// Set by `LOCK.NOTIFY ON`.
    notified: Option<Notified>,
}

/// A command that was not answered yet.
struct Asked {
    peer: u64,
    fault: Option<Fault>,
    /// The locks it asks for, in its order.
    names: Vec<Vec<u8>>,
}

pub(crate) struct State {
    machine: Machine,
    applied: Applied,
    now_ms: u64,
    wall_base_us: u64,
    /// When `now_ms` was last brought up to the time that passed, where the clock runs by itself.
    running_since: Option<Instant>,
    peers: BTreeMap<u64, Peer>,
    asked: HashMap<RequestId, Asked>,
    last_number: u64,
    partition: Partition,
    partition_since_ms: u64,
    /// Losses that nobody hears of before the partition ends.
    untold: Vec<Loss>,
    faults: VecDeque<Fault>,
    calls: BTreeMap<String, u64>,
    commands: u64,
    is_closed: bool,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("now_ms", &self.now_ms)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

fn new_machine() -> Machine {
    let mut machine = Machine::new();
    let wanted = Wanted { events: true, messages: true, losses: true, ..Wanted::default() };
    machine.set_wanted(wanted);
    // As a cluster does by itself once all its members can.
    let raise = Command::Upgrade(UpgradeCommand::Raise { to: NEWEST });
    machine.apply(Stamp::default(), None, raise, &mut Applied::default());
    machine
}

impl State {
    pub(crate) fn new(real_time: bool) -> State {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        State {
            machine: new_machine(),
            applied: Applied::default(),
            now_ms: 0,
            wall_base_us: u64::try_from(wall.as_micros()).unwrap_or(0),
            running_since: real_time.then(Instant::now),
            peers: BTreeMap::new(),
            asked: HashMap::new(),
            last_number: 0,
            partition: Partition::Off,
            partition_since_ms: 0,
            untold: Vec::new(),
            faults: VecDeque::new(),
            calls: BTreeMap::new(),
            commands: 0,
            is_closed: false,
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        self.disconnect_all_but(None);
    }

    // Connections.

    pub(crate) fn join(&mut self, stream: TcpStream) -> u64 {
        let id = self.next_number();
        let peer = Peer {
            stream,
            resp: Resp::Two,
            blocked_in: None,
            backlog: VecDeque::new(),
            sessions: Vec::new(),
            watches: Vec::new(),
            notified: None,
        };
        self.peers.insert(id, peer);
        id
    }

    pub(crate) fn leave(&mut self, id: u64) {
        let Some(peer) = self.peers.remove(&id) else { return };
        let _ = peer.stream.shutdown(Shutdown::Both);
        if let Some(request) = peer.blocked_in {
            self.asked.remove(&request);
            self.apply(None, Command::Cancel { request });
        }
        if !peer.sessions.is_empty() {
            let ids = peer.sessions.into_iter().collect();
            self.apply(None, Command::SessionsOrphan { ids, grace_ms: GRACE_MS, heard_index: None });
        }
    }

    pub(crate) fn disconnect_all_but(&mut self, kept: Option<u64>) -> usize {
        let others: Vec<u64> = self.peers.keys().copied().filter(|id| Some(*id) != kept).collect();
        others.iter().for_each(|id| self.leave(*id));
        others.len()
    }

    pub(crate) fn protocol_error(&mut self, id: u64, text: &str) {
        self.reply(id, &Refusal::new(format!("ERR Protocol error: {text}")).into());
    }

    pub(crate) fn peer_mut(&mut self, id: u64) -> Option<&mut Peer> {
        self.peers.get_mut(&id)
    }

    /// Takes a command. False where the connection must end.
    pub(crate) fn submit(&mut self, id: u64, words: Vec<Vec<u8>>) -> bool {
        self.tick();
        let Some(peer) = self.peers.get_mut(&id) else { return false };
        if peer.backlog.len() >= BACKLOG_MAX {
            return false;
        }
        peer.backlog.push_back(words);
        self.pump(id);
        self.peers.contains_key(&id)
    }

    /// Runs what a client has sent, until it is blocked.
    fn pump(&mut self, id: u64) {
        loop {
            let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.blocked_in.is_none()) else { return };
            let Some(words) = peer.backlog.pop_front() else { return };
            if let Some(reply) = self.execute(id, &words) {
                self.reply(id, &reply);
            }
        }
    }

    pub(crate) fn reply(&mut self, id: u64, reply: &Reply) {
        let Some(peer) = self.peers.get(&id) else { return };
        let mut encoder = Encoder::new(peer.resp);
        reply.render(&mut encoder);
        self.send(id, &encoder.out);
    }

    /// A message that is no reply.
    pub(crate) fn push(&mut self, id: u64, items: &[Reply]) {
        let Some(peer) = self.peers.get(&id) else { return };
        let mut encoder = Encoder::new(peer.resp);
        encoder.push(items.len());
        items.iter().for_each(|item| item.render(&mut encoder));
        self.send(id, &encoder.out);
    }

    fn send(&mut self, id: u64, bytes: &[u8]) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if peer.stream.write_all(bytes).is_err() {
            // Its reading thread sees the end and takes it off the list: here it may be in the middle of one.
            let _ = peer.stream.shutdown(Shutdown::Both);
        }
    }

    /// Applies one command, and then whatever its answers let go on.
    fn apply(&mut self, id: Option<RequestId>, command: Command<'_>) {
        let wall_us = self.wall_base_us + self.now_ms * 1000;
        let stamp = Stamp { term: 1, logical_ms: self.now_ms, wall_us };
        let mut applied = std::mem::take(&mut self.applied);
        self.machine.apply(stamp, id, command, &mut applied);
        let replies: Vec<(RequestId, Reply)> = applied.replies.drain(..).collect();
        let events: Vec<Event> = applied.events.drain(..).collect();
        let messages: Vec<_> = applied.published.drain(..).collect();
        let losses: Vec<Loss> = applied.losses.drain(..).collect();
        applied.clear();
        self.applied = applied;
        for event in &events {
            let json = event::event_to_json(event, Tier::Correctness);
            self.publish(&event::channel(&event.resource), json.as_bytes());
        }
        messages.iter().for_each(|(channel, message)| self.publish(channel, message));
        let mut unblocked = Vec::new();
        for (request, reply) in replies {
            let Some(asked) = self.asked.remove(&request) else { continue };
            if let Some(peer) = self.peers.get_mut(&asked.peer) {
                peer.blocked_in = None;
                unblocked.push(asked.peer);
            }
            if asked.fault.is_none() {
                self.note_granted(asked.peer, asked.names, &reply);
            }
            self.answer(asked.peer, asked.fault, &reply);
        }
        // Behind the replies: a grant that ended in the step that made it is told first.
        losses.into_iter().for_each(|loss| self.tell_ended(loss));
        unblocked.into_iter().for_each(|peer| self.pump(peer));
    }

    fn publish(&mut self, channel: &[u8], message: &[u8]) {
        let mut sent = Vec::new();
        for (id, peer) in &self.peers {
            for (is_pattern, watched) in &peer.watches {
                if *is_pattern && redfence_core::glob::matches(watched, channel) {
                    sent.push((*id, vec![Reply::Text("pmessage"), Reply::bulk(watched)]));
                } else if !is_pattern && watched == channel {
                    sent.push((*id, vec![Reply::Text("message")]));
                }
            }
        }
        for (id, mut items) in sent {
            items.extend([Reply::bulk(channel), Reply::bulk(message)]);
            self.push(id, &items);
        }
    }

    /// Any command of the connection that opened a session keeps it alive.
    fn touch_sessions(&mut self, id: u64) {
        let sessions = self.peers.get(&id).map(|peer| peer.sessions.clone()).unwrap_or_default();
        if !sessions.is_empty() {
            self.apply(None, Command::SessionsTouch { ids: sessions.into_iter().collect() });
        }
    }

    // The clock.

    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Brings a clock that runs by itself up to the time that passed.
    pub(crate) fn tick(&mut self) {
        let Some(since) = self.running_since else { return };
        let passed_ms = crate::whole_ms(since.elapsed());
        if passed_ms > 0 {
            self.running_since = Some(since + std::time::Duration::from_millis(passed_ms));
            self.advance(passed_ms);
        }
    }

    pub(crate) fn advance(&mut self, by_ms: u64) {
        let target_ms = self.now_ms.saturating_add(by_ms).min(1 << 42);
        let step_ms = STEP_WHILE_BLOCKED_MS.max(by_ms / STEPS_WHILE_BLOCKED_MAX);
        loop {
            let blocked = self.blocked_openers();
            blocked.iter().for_each(|id| self.touch_sessions(*id));
            let step_end_ms = if blocked.is_empty() { target_ms } else { self.now_ms + step_ms };
            let due_ms = self.machine.next_due_ms().unwrap_or(target_ms).max(self.now_ms);
            self.now_ms =
                due_ms.min(self.next_suspect_ms().unwrap_or(u64::MAX)).min(step_end_ms).min(target_ms);
            self.expire();
            self.tell_suspects();
            let is_due = self.machine.next_due_ms().is_some_and(|due_ms| due_ms <= self.now_ms);
            if self.now_ms >= target_ms && !is_due {
                return;
            }
        }
    }

    /// Connections that are blocked in a wait and have opened a session.
    fn blocked_openers(&self) -> Vec<u64> {
        let blocked =
            self.peers.iter().filter(|(_, peer)| peer.blocked_in.is_some() && !peer.sessions.is_empty());
        blocked.map(|(id, _)| *id).collect()
    }

    fn expire(&mut self) {
        self.apply(None, Command::Expire { idle_ms: IDLE_MS });
    }

    // What `TEST.*` asks.

    pub(crate) fn lose(&mut self, resource: &[u8]) -> bool {
        let held = self.machine.stats().locks_held;
        let grants = self.machine.stats().grants;
        self.apply(None, Command::ForceRelease { db: 0, resource });
        let stats = self.machine.stats();
        stats.locks_held < held || stats.grants > grants
    }

    pub(crate) fn set_partition(&mut self, partition: Partition) {
        if self.partition == Partition::Off {
            self.partition_since_ms = self.now_ms;
        }
        self.partition = partition;
        if partition == Partition::Off {
            self.tell_untold();
        }
    }

    pub(crate) fn add_faults(&mut self, fault: Fault, times: usize) {
        self.faults.extend(std::iter::repeat_n(fault, times));
    }

    pub(crate) fn reset(&mut self, kept: Option<u64>) {
        self.disconnect_all_but(kept);
        self.asked.clear();
        self.machine = new_machine();
        // One grant is at most one microsecond ahead of the last.
        self.wall_base_us += RESET_US + self.commands;
        self.partition = Partition::Off;
        self.untold.clear();
        self.faults.clear();
        self.calls.clear();
        self.commands = 0;
        if let Some(peer) = kept.and_then(|id| self.peers.get_mut(&id)) {
            peer.sessions.clear();
            peer.watches.clear();
            peer.notified = None;
        }
    }

    pub(crate) fn calls(&self, command: &str) -> u64 {
        self.calls.get(&command.to_ascii_uppercase()).copied().unwrap_or(0)
    }

    pub(crate) fn stats(&self) -> Stats {
        let machine = self.machine.stats();
        Stats {
            connections: self.peers.len(),
            locks: machine.locks_held,
            waiters: machine.waiters,
            sessions: machine.sessions,
            subscriptions: self.peers.values().map(|peer| peer.watches.len()).sum(),
            commands: self.commands,
        }
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}
