//! The wider mix, in every sixth seed: high-water marks (`FENCE.*`), keys with absolute times (`PXAT`), replicated settings that change under
//! load, pipelines while connections between nodes are cut, wall clocks that jump.
//!
//! It goes on beside the clients, draws from a generator of its own, and is checked here: what was acknowledged is never taken back.
//! An answer counts from the moment the node gave it.

use super::event::WorldEvent;
use super::kernel::agenda::SimEvent;
use super::names;
use super::world::World;
use crate::rng::Rng;
use redfence::node_api::{Input, NodeId, OwnedQuery, Read, Submit, Ticket};
use redfence_core::keyspace::Resp;
use redfence_core::machine::settings::{Setting, SettingsCommand};
use redfence_core::machine::Command;
use redfence_core::reply::Reply;
use redfence_core::types::Fence;
use std::collections::{BTreeMap, BTreeSet};

const MARKS: u64 = 3;
/// The next step comes after so many microseconds.
const PAUSE_US: (u64, u64) = (20_000, 120_000);
const TIMEOUT_MS: u64 = 3_000;
const PIPELINE: (u64, u64) = (4, 12);
/// Values of `max-memory` that no run fills.
const MAX_MEMORY_FROM: u64 = 1 << 30;
/// How long a key with an absolute time lives, where all clocks are right.
const PROBE_MS: u64 = 60_000;
const ANSWER_WITHIN_US: u64 = 10_000_000;

#[derive(Clone, Debug, PartialEq, Eq)]
enum WiderAsk {
    /// `FENCE.CHECK`
    Check {
        mark: u64,
        fence: u64,
    },
    /// `FENCE.GET`
    Get {
        mark: u64,
    },
    /// `LOCK.CLUSTER SET max-memory`; which of [`Wider::changes`].
    Set {
        change: usize,
    },
    /// Its answer is of no interest.
    Write,
    /// Asked in the end.
    Setting,
    List {
        pipe: Pipe,
    },
    Probe,
    TimeLeft,
}

/// A connection: a client, a node, and which start of it.
type Pipe = (usize, NodeId, u64);

#[derive(Clone, Copy, Debug)]
struct SettingChange {
    value: u64,
    invoke_us: u64,
    /// `None`: nobody knows whether it was done.
    done_us: Option<u64>,
    refused: bool,
}

#[derive(Default)]
struct MarkHistory {
    /// From this time on the mark is known to be at least this high. Both rise.
    known: Vec<(u64, u64)>,
    /// The highest fence anybody has shown.
    shown: u64,
}

impl MarkHistory {
    fn floor_at(&self, at_us: u64) -> u64 {
        let upto = self.known.partition_point(|(known_us, _)| *known_us <= at_us);
        upto.checked_sub(1).map_or(0, |last| self.known[last].1)
    }

    fn learn(&mut self, at_us: u64, fence: u64) {
        if self.known.last().is_none_or(|(_, known)| *known < fence) {
            self.known.push((at_us, fence));
        }
    }
}

#[derive(Default)]
pub struct Wider {
    rng: Option<Rng>,
    asked: BTreeMap<Ticket, (u64, WiderAsk)>,
    marks: BTreeMap<u64, MarkHistory>,
    changes: Vec<SettingChange>,
    pipes: BTreeSet<Pipe>,
}

impl Wider {
    #[must_use]
    pub fn new(seed: u64) -> Wider {
        Wider { rng: Some(Rng::new(seed ^ 0x0077_6964_6572)), ..Wider::default() }
    }
}

impl World {
    /// One step: something is asked of some node.
    pub(super) fn wider_acts(&mut self) {
        if self.clients_rest {
            return;
        }
        let Some(mut rng) = self.wider.rng.take() else { return };
        let next_us = self.kernel.now_us + rng.between(PAUSE_US.0, PAUSE_US.1);
        self.kernel.plan(next_us, WorldEvent::Wider);
        let up: Vec<NodeId> = self
            .kernel
            .hosts
            .values()
            .filter(|host| host.is_up() && host.member_since_us.is_some())
            .map(|host| host.id)
            .collect();
        if let Some(&host) = rng.pick(&up) {
            match rng.below(10) {
                0..3 => self.check_mark(host, &mut rng),
                3..5 => {
                    let mark = rng.below(MARKS);
                    self.ask_wider(host, WiderAsk::Get { mark });
                }
                5 => self.change_setting(host),
                6..8 => self.set_until(host, &mut rng),
                _ => self.pipeline(host, &mut rng),
            }
        }
        self.wider.rng = Some(rng);
    }

    /// Mostly a newer fence, sometimes an old one.
    fn check_mark(&mut self, host: NodeId, rng: &mut Rng) {
        let (mark, number) = (rng.below(MARKS), self.number());
        let fence = number.saturating_sub(rng.below(400)).max(1);
        let history = self.wider.marks.entry(mark).or_default();
        history.shown = history.shown.max(fence);
        self.ask_wider(host, WiderAsk::Check { mark, fence });
    }

    fn change_setting(&mut self, host: NodeId) {
        let (value, invoke_us) = (MAX_MEMORY_FROM + self.number(), self.kernel.now_us);
        self.wider.changes.push(SettingChange { value, invoke_us, done_us: None, refused: false });
        self.ask_wider(host, WiderAsk::Set { change: self.wider.changes.len() - 1 });
    }

    /// A key with an absolute time, counted by a client whose clock is right.
    fn set_until(&mut self, host: NodeId, rng: &mut Rng) {
        let (key, until_ms) = (names::value(100 + rng.below(4)), self.wall_ms() + rng.between(1, 3_000));
        let blob = redis(&["SET", &key, "1", "PXAT", &until_ms.to_string()]);
        self.submit_wider(host, 0, 0, blob, WiderAsk::Write);
    }

    /// Several writes one behind the other on one connection, none waiting for the answer of the one before.
    fn pipeline(&mut self, host: NodeId, rng: &mut Rng) {
        let client = rng.below(self.clients.len() as u64) as usize;
        let pipe = (client, host, self.kernel.hosts[&host].life);
        self.wider.pipes.insert(pipe);
        for at in 0..rng.between(PIPELINE.0, PIPELINE.1) {
            let number = self.number().to_string();
            let blob = redis(&["RPUSH", &pipe_key(pipe), &number]);
            self.submit_wider(host, client as u64 + 1_000, 40 * at, blob, WiderAsk::Write);
        }
    }

    fn ask_wider(&mut self, host: NodeId, ask: WiderAsk) -> Ticket {
        match ask {
            WiderAsk::Check { mark, fence } => {
                let name = mark_name(mark);
                let command = Command::FenceCheck { db: 0, resource: name.as_bytes(), fence: Fence(fence) };
                self.submit_wider(host, 0, 0, encoded(&command), ask)
            }
            WiderAsk::Set { change } => {
                let value = self.wider.changes[change].value.to_string();
                let set = SettingsCommand::Set { name: b"max-memory", value: value.as_bytes() };
                let blob = encoded(&Command::Settings(set));
                self.submit_wider(host, 0, 0, blob, ask)
            }
            WiderAsk::Probe => {
                let until_ms = (self.wall_ms() + PROBE_MS).to_string();
                let blob = redis(&["SET", &probe_key(host), "1", "PXAT", &until_ms]);
                self.submit_wider(host, 0, 0, blob, ask)
            }
            WiderAsk::Get { mark } => {
                self.read_wider(host, OwnedQuery::Mark { db: 0, resource: mark_name(mark).into() }, ask)
            }
            WiderAsk::Setting => self.read_wider(host, OwnedQuery::Setting(Setting::MaxMemory), ask),
            WiderAsk::List { pipe } => {
                self.read_wider(host, redis_query(&["LRANGE", &pipe_key(pipe), "0", "-1"]), ask)
            }
            WiderAsk::TimeLeft => self.read_wider(host, redis_query(&["PTTL", &probe_key(host)]), ask),
            WiderAsk::Write => unreachable!("writes are submitted by those who make them"),
        }
    }

    fn submit_wider(
        &mut self,
        host: NodeId,
        connection: u64,
        delay_us: u64,
        blob: Vec<u8>,
        ask: WiderAsk,
    ) -> Ticket {
        let ticket = self.number();
        let (blob, timeout_ms) = (blob.into(), TIMEOUT_MS);
        let input = Input::Submit(Submit { ticket, connection, blob, timeout_ms, wait_ms: 0 });
        self.send_wider(host, delay_us, ticket, input, ask)
    }

    fn read_wider(&mut self, host: NodeId, query: OwnedQuery, ask: WiderAsk) -> Ticket {
        let ticket = self.number();
        let input = Input::Read(Read { ticket, query, timeout_ms: TIMEOUT_MS, account: None });
        self.send_wider(host, 0, ticket, input, ask)
    }

    fn send_wider(
        &mut self,
        host: NodeId,
        delay_us: u64,
        ticket: Ticket,
        input: Input,
        ask: WiderAsk,
    ) -> Ticket {
        let (now_us, life) = (self.kernel.now_us, self.kernel.hosts[&host].life);
        self.wider.asked.insert(ticket, (now_us, ask));
        self.kernel.agenda.plan(now_us + 1 + delay_us, SimEvent::Request { host, life, input });
        ticket
    }

    /// What the wall clocks show that never jumped.
    fn wall_ms(&self) -> u64 {
        super::kernel::clock::HostClock::new(0, 0).now(self.kernel.now_us).wall_us / 1_000
    }

    /// Takes the answer to a step of the wider mix. False: it was somebody else's.
    pub(super) fn wider_answered(&mut self, ticket: Ticket, reply: &Reply) -> bool {
        let Some((invoke_us, ask)) = self.wider.asked.remove(&ticket) else { return false };
        let now_us = self.kernel.now_us;
        let wrong = match (&ask, reply) {
            (WiderAsk::Set { change }, Reply::Error(refusal)) => {
                self.wider.changes[*change].refused = refusal.code() != "INDETERMINATE";
                None
            }
            (_, Reply::Error(refusal)) if refusal.code() == "ERR" => Some("is refused".to_owned()),
            (_, Reply::Error(_)) | (WiderAsk::Write | WiderAsk::Probe, _) => None,
            (WiderAsk::Set { change }, _) => {
                self.wider.changes[*change].done_us = Some(now_us);
                None
            }
            (WiderAsk::Check { mark, fence }, Reply::Int(admitted)) => {
                self.mark_checked(*mark, *fence, *admitted == 1, invoke_us)
            }
            (WiderAsk::Get { mark }, Reply::Int(seen)) => self.mark_seen(*mark, *seen as u64, invoke_us),
            (WiderAsk::Setting, Reply::Bulk(text)) => self.setting_seen(text),
            (WiderAsk::List { .. }, Reply::Array(items)) => out_of_order(items),
            (WiderAsk::TimeLeft, Reply::Int(left_ms)) => {
                let lives = (PROBE_MS as i64 - 20_000..=PROBE_MS as i64 + 1_000).contains(left_ms);
                (!lives).then(|| "a key with an absolute time lives too long or too short".to_owned())
            }
            (_, _) => Some("gets an answer that does not fit".to_owned()),
        };
        if let Some(text) = wrong {
            self.fail(format!("wider mix: {ask:?} {text}: {reply:?}"));
        }
        true
    }

    fn mark_checked(&mut self, mark: u64, fence: u64, admitted: bool, invoke_us: u64) -> Option<String> {
        let now_us = self.kernel.now_us;
        let history = self.wider.marks.entry(mark).or_default();
        let floor = history.floor_at(invoke_us);
        if admitted {
            history.learn(now_us, fence);
            return (fence < floor).then(|| format!("is admitted behind {floor}"));
        }
        history.learn(now_us, fence + 1);
        (history.shown <= fence).then(|| "is refused though nobody showed a newer one".to_owned())
    }

    fn mark_seen(&mut self, mark: u64, seen: u64, invoke_us: u64) -> Option<String> {
        let now_us = self.kernel.now_us;
        let history = self.wider.marks.entry(mark).or_default();
        let floor = history.floor_at(invoke_us);
        history.learn(now_us, seen);
        (seen < floor || seen > history.shown)
            .then(|| format!("is not between {floor} and {}", history.shown))
    }

    /// Whatever was done last, or may have been.
    fn setting_seen(&self, text: &[u8]) -> Option<String> {
        let seen: Option<u64> = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
        let changes = &self.wider.changes;
        let last_invoke_us =
            changes.iter().filter(|change| change.done_us.is_some()).map(|change| change.invoke_us).max();
        let is_possible = |change: &SettingChange| {
            let is_over = change.done_us.zip(last_invoke_us).is_some_and(|(done_us, last)| done_us < last);
            Some(change.value) == seen && !change.refused && !is_over
        };
        let untouched = last_invoke_us.is_none() && seen == Some(MAX_MEMORY_FROM);
        let possible = untouched || changes.iter().any(is_possible);
        (!possible).then(|| "is not the last value that was acknowledged".to_owned())
    }

    /// In the end: every member shows all that was acknowledged, and absolute times are right again with the clocks.
    pub(super) fn demand_wider(&mut self) {
        if !self.plan.wider {
            return;
        }
        let members = self.members();
        for host in self.kernel.hosts.values_mut() {
            host.clock.jump_wall(0);
        }
        let pipes: Vec<Pipe> = self.wider.pipes.iter().copied().collect();
        for (at, id) in members.iter().enumerate() {
            (0..MARKS).for_each(|mark| self.demand_answer(*id, WiderAsk::Get { mark }));
            self.demand_answer(*id, WiderAsk::Setting);
            self.demand_answer(*id, WiderAsk::Probe);
            self.demand_answer(*id, WiderAsk::TimeLeft);
            // All members have the same lists: each shows some of them.
            for pipe in pipes.iter().skip(at).step_by(members.len()) {
                self.demand_answer(*id, WiderAsk::List { pipe: *pipe });
            }
        }
    }

    fn demand_answer(&mut self, host: NodeId, ask: WiderAsk) {
        if !self.kernel.hosts.get(&host).is_some_and(|host| host.is_up()) {
            return;
        }
        let ticket = self.ask_wider(host, ask.clone());
        let end_us = self.kernel.now_us + ANSWER_WITHIN_US;
        while self.kernel.now_us < end_us && self.wider.asked.contains_key(&ticket) {
            self.run_to(self.kernel.now_us + 200);
        }
        if self.wider.asked.contains_key(&ticket) {
            self.fail(format!("wider mix: not served in the end: {ask:?} at node {host}"));
        }
    }
}

/// One connection's writes are applied in the order they were sent.
fn out_of_order(items: &[Reply]) -> Option<String> {
    let number = |item: &Reply| match item {
        Reply::Bulk(text) => std::str::from_utf8(text).ok().and_then(|text| text.parse::<u64>().ok()),
        _ => None,
    };
    let numbers: Vec<Option<u64>> = items.iter().map(number).collect();
    let in_order = numbers.windows(2).all(|pair| pair[0] < pair[1]) && numbers.iter().all(Option::is_some);
    (!in_order).then(|| "is not in the order it was sent".to_owned())
}

fn mark_name(mark: u64) -> String {
    format!("m{mark}")
}

fn pipe_key((client, host, life): Pipe) -> String {
    format!("{}:{host}:{life}", names::value(1_000 + client as u64))
}

fn probe_key(host: NodeId) -> String {
    names::value(10_000 + host)
}

fn encoded(command: &Command<'_>) -> Vec<u8> {
    let mut blob = Vec::new();
    command.encode(&mut blob);
    blob
}

fn redis(words: &[&str]) -> Vec<u8> {
    let argv = words.iter().map(|word| word.as_bytes()).collect();
    encoded(&Command::Redis { db: 0, resp: Resp::Two, member: None, argv })
}

fn redis_query(words: &[&str]) -> OwnedQuery {
    let argv = words.iter().map(|word| bytes::Bytes::copy_from_slice(word.as_bytes())).collect();
    OwnedQuery::Redis { db: 0, resp: Resp::Two, member: None, argv }
}
