//! Kinds of locks in some seeds: readers, writers and permits on names of their own, conversions, sessions with policies.
//!
//! It goes on beside the clients, draws from a generator of its own, and is checked twice: what clients believe to hold at one time goes
//! together ([`Beliefs`]), and so does what the log says (`books.rs`). An answer counts from the moment the node gave it.
//!
//! # Caveats
//!
//! Locks of sessions end with them, and may be wounded: of those only the log is checked.

use super::event::WorldEvent;
use super::kernel::agenda::SimEvent;
use super::kernel::host::Host;
use super::names;
use super::world::World;
use crate::checker::kinds::{Belief, Beliefs, KindOwner};
use crate::rng::Rng;
use redfence::node_api::{Input, NodeId, Submit, Ticket};
use redfence_core::grammar::convert::ConvertTo;
use redfence_core::machine::Command;
use redfence_core::reply::Reply;
use redfence_core::types::{Fence, LockKind, LockMode, SessionId, SessionPolicy};
use std::collections::{BTreeMap, BTreeSet};

const CLIENTS: usize = 6;
const NAMES: u64 = 2;
const PAUSE_US: (u64, u64) = (5_000, 60_000);
const TIMEOUT_MS: u64 = 3_000;
const WAIT_MS: [u64; 4] = [0, 200, 800, 1_500];
/// A client without an answer for so long begins something else.
const PATIENCE_US: u64 = 8_000_000;
const ANSWER_WITHIN_US: u64 = 10_000_000;
/// A grant that is told within this time of its stamp is told with its whole ttl.
const PROMPT_US: u64 = 260_000;
const POLICIES: [SessionPolicy; 3] =
    [SessionPolicy::Detect, SessionPolicy::WaitDie, SessionPolicy::WoundWait];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KindAsk {
    Acquire { name: u64, owner: KindOwner, kind: LockKind, ttl_ms: u64, wait_ms: u64, session: u64 },
    Release { name: u64, fence: u64 },
    Renew { name: u64, fence: u64, ttl_ms: u64 },
    Convert { name: u64, hold: KindHold, to: ConvertTo, wait_ms: u64 },
    Force { name: u64 },
    Open { session: u64, ttl_ms: u64, policy: SessionPolicy },
    KeepAlive { session: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KindHold {
    name: u64,
    owner: KindOwner,
    mode: LockMode,
    fence: u64,
    session: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct KindClient {
    asked: Option<(Ticket, u64)>,
    hold: Option<KindHold>,
    session: Option<u64>,
}

#[derive(Default)]
pub struct Kinds {
    rng: Option<Rng>,
    clients: Vec<KindClient>,
    asked: BTreeMap<Ticket, (usize, KindAsk)>,
    beliefs: BTreeMap<u64, Beliefs>,
    /// Names that somebody took by force: that may happen at any time from then on, so no hold of them is certain.
    forced: BTreeSet<u64>,
    /// What the last demand in the end was granted.
    granted: Option<u64>,
}

impl Kinds {
    #[must_use]
    pub fn new(seed: u64) -> Kinds {
        let rng = Some(Rng::new(seed ^ 0x006b_696e_6473));
        Kinds { rng, clients: vec![KindClient::default(); CLIENTS + 1], ..Kinds::default() }
    }
}

impl World {
    /// One step of one client.
    pub(super) fn kinds_act(&mut self) {
        if self.clients_rest {
            return;
        }
        let Some(mut rng) = self.kinds.rng.take() else { return };
        let next_us = self.kernel.now_us + rng.between(PAUSE_US.0, PAUSE_US.1);
        self.kernel.plan(next_us, WorldEvent::Kinds);
        // An older program does not know the words, and sends no such command.
        let knows =
            |host: &&Host| host.is_up() && host.member_since_us.is_some() && host.versions.newest >= 2;
        let up: Vec<NodeId> = self.kernel.hosts.values().filter(knows).map(|host| host.id).collect();
        let client = rng.below(CLIENTS as u64) as usize;
        if let (Some(&host), true) = (rng.pick(&up), self.is_free(client)) {
            let ask = self.next_kind_ask(client, &mut rng);
            self.ask_kind(client, host, ask);
        }
        self.kinds.rng = Some(rng);
    }

    /// Whether it has its answer, or has given it up: then it knows nothing of what it holds.
    fn is_free(&mut self, client: usize) -> bool {
        let record = &mut self.kinds.clients[client];
        match record.asked {
            Some((_, since_us)) if since_us + PATIENCE_US > self.kernel.now_us => false,
            Some((ticket, _)) => {
                self.kinds.asked.remove(&ticket);
                *record = KindClient::default();
                true
            }
            None => true,
        }
    }

    fn next_kind_ask(&mut self, client: usize, rng: &mut Rng) -> KindAsk {
        let ttl_ms = *rng.pick(&self.plan.ttl_ms).expect("not empty");
        let wait_ms = *rng.pick(&WAIT_MS).expect("not empty");
        let number = self.number();
        let KindClient { hold, session, .. } = self.kinds.clients[client];
        match (hold, session) {
            (None, None) if rng.per_mille(200) => {
                let policy = *rng.pick(&POLICIES).expect("not empty");
                KindAsk::Open { session: number, ttl_ms: ttl_ms + 800, policy }
            }
            (_, Some(session)) if rng.per_mille(300) => KindAsk::KeepAlive { session },
            (None, _) if self.plan.forced && rng.per_mille(30) => KindAsk::Force { name: rng.below(NAMES) },
            (None, session) => {
                // Every name has permits alone, or none: beside each other they are refused.
                let name = rng.below(NAMES);
                let max = rng.between(2, 4) as u32;
                let count = rng.between(1, 2) as u32;
                let kind = match (name, rng.below(3)) {
                    (0, _) => LockKind::Permits { count, max },
                    (_, 0) => LockKind::Exclusive,
                    (_, _) => LockKind::Shared,
                };
                let (count, max) = if name == 0 { (count, max) } else { (1, 1) };
                let owner = KindOwner { number, count, max };
                let session = session.filter(|_| rng.per_mille(700)).unwrap_or(0);
                KindAsk::Acquire { name, owner, kind, ttl_ms, wait_ms, session }
            }
            (Some(hold), _) => {
                let KindHold { name, fence, mode, .. } = hold;
                match (rng.below(6), mode) {
                    (0, _) => KindAsk::Renew { name, fence, ttl_ms },
                    (1 | 2, LockMode::Exclusive) => {
                        KindAsk::Convert { name, hold, to: ConvertTo::Shared, wait_ms }
                    }
                    (1 | 2, LockMode::Shared) => {
                        KindAsk::Convert { name, hold, to: ConvertTo::Exclusive, wait_ms }
                    }
                    (_, LockMode::Exclusive | LockMode::Shared | LockMode::Permits) => {
                        KindAsk::Release { name, fence }
                    }
                }
            }
        }
    }

    fn ask_kind(&mut self, client: usize, host: NodeId, ask: KindAsk) {
        let ticket = self.number();
        let now_us = self.kernel.now_us;
        // What is given up, or may be over from now on, is believed no more.
        match ask {
            KindAsk::Release { name, fence } | KindAsk::Renew { name, fence, .. } => {
                self.beliefs(name).end(fence);
                if matches!(ask, KindAsk::Release { .. }) {
                    self.kinds.clients[client].hold = None;
                }
            }
            KindAsk::Convert { name, hold, to: ConvertTo::Exclusive, .. } => {
                self.beliefs(name).end(hold.fence)
            }
            KindAsk::Convert { name, hold, to: ConvertTo::Shared, .. } => {
                self.beliefs(name).share(hold.fence)
            }
            KindAsk::Force { name } => _ = self.kinds.forced.insert(name),
            KindAsk::Acquire { .. } | KindAsk::Open { .. } | KindAsk::KeepAlive { .. } => {}
        }
        let wait_ms = ask.wait_ms();
        let (blob, timeout_ms) = (ask.blob().into(), TIMEOUT_MS);
        let input = Input::Submit(Submit { ticket, connection: 0, blob, timeout_ms, wait_ms });
        self.kinds.clients[client].asked = Some((ticket, now_us));
        self.kinds.asked.insert(ticket, (client, ask));
        let life = self.kernel.hosts[&host].life;
        self.kernel.agenda.plan(now_us + 1, SimEvent::Request { host, life, input });
    }

    fn beliefs(&mut self, name: u64) -> &mut Beliefs {
        self.kinds.beliefs.entry(name).or_default()
    }

    /// Takes the answer to a step of this mix. False: it was somebody else's.
    pub(super) fn kind_answered(&mut self, ticket: Ticket, reply: &Reply) -> bool {
        let Some((client, ask)) = self.kinds.asked.remove(&ticket) else { return false };
        let asked_us =
            self.kinds.clients[client].asked.take().map_or(self.kernel.now_us, |(_, since_us)| since_us);
        let refused = if let Reply::Error(refusal) = reply { refusal.code() } else { "" };
        match (ask, reply) {
            (KindAsk::Acquire { name, owner, kind, session, .. }, Reply::Granted { fence, ttl_ms }) => {
                let hold = KindHold { name, owner, mode: kind.mode(), fence: fence.0, session };
                self.kind_granted(client, hold, asked_us, *ttl_ms);
            }
            (KindAsk::Convert { hold, to, .. }, Reply::Granted { fence, ttl_ms }) => {
                let mode = match to {
                    ConvertTo::Shared => LockMode::Shared,
                    ConvertTo::Exclusive => LockMode::Exclusive,
                };
                let is_same = fence.0 == hold.fence;
                if is_same != (to == ConvertTo::Shared) {
                    self.fail(format!("kinds: {ask:?} is answered with fence {fence}"));
                }
                let hold = KindHold { mode, fence: fence.0, ..hold };
                self.kind_granted(client, hold, asked_us, *ttl_ms);
            }
            (KindAsk::Open { session, .. }, Reply::Bulk(_)) => {
                self.kinds.clients[client].session = Some(session);
            }
            (KindAsk::KeepAlive { .. }, Reply::Error(_)) if refused == "NOSESSION" => {
                let record = &mut self.kinds.clients[client];
                record.session = None;
                record.hold = record.hold.filter(|hold| hold.session == 0);
            }
            // Whether it is still held: nobody knows.
            (KindAsk::Convert { .. }, _) | (KindAsk::Renew { .. }, Reply::Refused(_) | Reply::Error(_)) => {
                self.kinds.clients[client].hold = None;
            }
            (KindAsk::Acquire { .. }, Reply::Nil)
            | (KindAsk::Release { .. }, Reply::Released | Reply::Refused(_))
            | (KindAsk::Renew { .. }, Reply::Renewed { .. })
            | (KindAsk::Force { .. } | KindAsk::KeepAlive { .. }, Reply::Int(_)) => {}
            (_, Reply::Error(_)) if matches!(refused, "UNAVAILABLE" | "INDETERMINATE" | "DEADLOCK") => {}
            // The session has ended, or the cluster is too old.
            (_, Reply::Error(_)) if refused == "NOSESSION" => self.kinds.clients[client].session = None,
            (_, Reply::Error(refusal)) if refusal.0.contains("needs cluster version 2") => {}
            (ask, reply) => self.fail(format!("kinds: {ask:?} is answered with {reply:?}")),
        }
        true
    }

    /// Its time counts from when it was asked for; and from when it was told, as `checker/holds.rs` has it.
    fn kind_granted(&mut self, client: usize, hold: KindHold, asked_us: u64, ttl_ms: u64) {
        let now_us = self.kernel.now_us;
        self.kinds.clients[client].hold = Some(hold);
        self.kinds.granted = Some(hold.fence);
        if hold.session != 0 || self.kinds.forced.contains(&hold.name) {
            return;
        }
        let KindHold { name, owner, mode, fence, .. } = hold;
        let rules = self.rules();
        let told_us = match rules.clock_fast_ppm {
            0 => now_us + (ttl_ms * 1_000).saturating_sub(PROMPT_US + rules.slack_ns / 1_000),
            _ => 0,
        };
        let until_us = asked_us.saturating_add(rules.shortest_ns(ttl_ms) / 1_000).max(told_us);
        let begun = self.beliefs(name).begin(now_us, Belief { owner, mode, fence, until_us });
        if let Err(text) = begun {
            self.fail(format!("kinds: name {name}: {text}"));
        }
    }

    /// In the end nothing is held: the whole of every name can be had at every member.
    pub(super) fn demand_kinds(&mut self) {
        if !self.plan.kinds {
            return;
        }
        for host in self.members() {
            for name in 0..NAMES {
                let number = self.number();
                let kind =
                    if name == 0 { LockKind::Permits { count: 2, max: 2 } } else { LockKind::Exclusive };
                let count = if name == 0 { 2 } else { 1 };
                let owner = KindOwner { number, count, max: count };
                let (ttl_ms, wait_ms, session) = (60_000, 0, 0);
                self.kinds.granted = None;
                self.demand_kind(host, KindAsk::Acquire { name, owner, kind, ttl_ms, wait_ms, session });
                match self.kinds.granted {
                    Some(fence) => self.demand_kind(host, KindAsk::Release { name, fence }),
                    None => self.fail(format!("kinds: name {name} cannot be had in the end at node {host}")),
                }
            }
        }
    }

    fn demand_kind(&mut self, host: NodeId, ask: KindAsk) {
        if !self.kernel.hosts.get(&host).is_some_and(|host| host.is_up()) {
            return;
        }
        self.ask_kind(CLIENTS, host, ask);
        let end_us = self.kernel.now_us + ANSWER_WITHIN_US;
        while self.kernel.now_us < end_us && self.kinds.clients[CLIENTS].asked.is_some() {
            self.run_to(self.kernel.now_us + 200);
        }
        if self.kinds.clients[CLIENTS].asked.is_some() {
            self.fail(format!("kinds: not served in the end: {ask:?} at node {host}"));
        }
    }
}

impl KindAsk {
    fn wait_ms(self) -> u64 {
        match self {
            KindAsk::Acquire { wait_ms, .. } | KindAsk::Convert { wait_ms, .. } => wait_ms,
            KindAsk::Release { .. }
            | KindAsk::Renew { .. }
            | KindAsk::Force { .. }
            | KindAsk::Open { .. }
            | KindAsk::KeepAlive { .. } => 0,
        }
    }

    fn blob(self) -> Vec<u8> {
        let mut blob = Vec::new();
        let db = 0;
        let name = match self {
            KindAsk::Acquire { name, .. }
            | KindAsk::Release { name, .. }
            | KindAsk::Renew { name, .. }
            | KindAsk::Convert { name, .. }
            | KindAsk::Force { name } => names::kind(name),
            KindAsk::Open { .. } | KindAsk::KeepAlive { .. } => String::new(),
        };
        let resource = name.as_bytes();
        match self {
            KindAsk::Acquire { owner, kind, ttl_ms, wait_ms, session, .. } => {
                let owner = owner.to_string();
                let (owner, session) = (owner.as_bytes(), (session != 0).then_some(SessionId(session)));
                let value = &[][..];
                let ask = Command::AcquireWith { db, resource, ttl_ms, wait_ms, owner, session, kind, value };
                ask.encode(&mut blob);
            }
            KindAsk::Release { fence, .. } => {
                Command::Release { db, resource, fence: Fence(fence) }.encode(&mut blob);
            }
            KindAsk::Renew { fence, ttl_ms, .. } => {
                Command::Renew { db, resource, fence: Fence(fence), ttl_ms }.encode(&mut blob);
            }
            KindAsk::Convert { hold, to, wait_ms, .. } => {
                Command::Convert { db, resource, fence: Fence(hold.fence), to, wait_ms }.encode(&mut blob);
            }
            KindAsk::Force { .. } => Command::ForceRelease { db, resource }.encode(&mut blob),
            KindAsk::Open { session, ttl_ms, policy } => {
                let (id, label, age) = (SessionId(session), &b""[..], 0);
                Command::SessionOpenWith { id, ttl_ms, label, policy, age }.encode(&mut blob);
            }
            KindAsk::KeepAlive { session } => {
                Command::SessionKeepAlive { id: SessionId(session), own: false }.encode(&mut blob);
            }
        }
        blob
    }
}
