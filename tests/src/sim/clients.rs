//! What clients do: take locks and hold them, wait, renew, look, keep sessions, retry what got lost, pause, die.

use super::calls::{complete, Ask, CallNumber, Heard, OpenCall};
use super::event::WorldEvent;
use super::kernel::agenda::SimEvent;
use super::kernel::host::Host;
use super::plain::{Attempt, Next, Role};
use super::world::{World, SETTLE_US};
use crate::checker::history::{NEVER, NO_RESOURCE};
use crate::checker::{Call, Operation, Outcome};
use crate::rng::Rng;
use redfence::node_api::{Input, NodeId, Ticket};
use redfence_core::reply::Reply;
use redfence_core::types::SessionId;

/// Ample for a read to be asked once more and answered, while all is well.
const RETRY_US: u64 = 500_000;
/// How long a node waits before it tries again to write a snapshot that failed.
const SNAPSHOT_RETRY_US: u64 = 5_000_000;

/// How long after its connection went a session lives on.
const GRACE_MS: u64 = 500;
/// A connection that is blocked in a WAIT reports its session this often.
const TOUCH_EVERY_US: u64 = 200_000;

pub struct Client {
    pub rng: Rng,
    /// Its number in the history; a new one after each unknown outcome.
    process: u64,
    pub(super) home: NodeId,
    holding: Vec<Hold>,
    session: Option<OwnSession>,
    /// An acquire whose answer got lost.
    retry: Option<Ask>,
    busy: bool,
    pub role: Role,
    /// What a plain client is at.
    pub attempt: Option<Attempt>,
    /// It has met a node that did not know its scripts, and sends them whole.
    pub whole_scripts: bool,
}

#[derive(Clone, Copy, Debug)]
struct Hold {
    resource: u32,
    fence: u64,
}

#[derive(Clone, Copy, Debug)]
struct OwnSession {
    id: u64,
    ttl_ms: u64,
    /// The connection that opened it: a start of a host. `None` once it broke.
    connection: Option<(NodeId, u64)>,
    /// When a node last heard that it lives.
    touched_us: u64,
    /// It may have died for good reason: trouble, or too long a silence of its client. A keep-alive that succeeds clears it.
    doubtful: bool,
}

/// A Redlock client does not wait long for one of its masters.
const MEMBER_PATIENCE_US: u64 = 300_000;

/// Keep-alives travel in batches and by way of the log; a silence this much shorter than the ttl is short enough.
const KEPT_MARGIN_US: u64 = 900_000;

impl Client {
    #[must_use]
    pub fn new(rng: Rng, process: u64) -> Client {
        Client {
            rng,
            process,
            home: 1,
            holding: Vec::new(),
            session: None,
            retry: None,
            busy: false,
            role: Role::Locks,
            attempt: None,
            whole_scripts: false,
        }
    }
}

impl World {
    pub(super) fn client_acts(&mut self, at: usize) {
        if self.clients[at].busy || self.clients_rest {
            return;
        }
        let Some(host) = self.pick_host(at) else {
            self.act_later(at, 50_000);
            return;
        };
        self.clients[at].home = host;
        if self.clients[at].rng.per_mille(30) {
            // It stands still, perhaps for longer than its locks last.
            let pause_us = self.clients[at].rng.below(5_000_000);
            self.act_later(at, pause_us);
            return;
        }
        if self.clients[at].rng.per_mille(25) {
            self.client_dies(at);
            return;
        }
        let value_permille = self.plan.value_permille;
        // Not drawn where there are none: other seeds mean what they meant.
        if value_permille > 0 && self.clients[at].rng.per_mille(value_permille) {
            let ask = self.store(at);
            self.call(at, host, ask);
            return;
        }
        let ask = match self.clients[at].role {
            Role::Locks => self.pick_ask(at),
            Role::Plain | Role::Redlock => match self.plain_acts(at, host) {
                Next::Ask(host, ask) => {
                    self.call(at, host, ask);
                    return;
                }
                Next::Pause(pause_us) => {
                    self.act_later(at, pause_us);
                    return;
                }
            },
        };
        match ask {
            Some(ask) => {
                self.call(at, host, ask);
            }
            None => self.act_later(at, 20_000),
        }
    }

    /// Mostly small, sometimes as large as a value may be.
    fn store(&mut self, at: usize) -> Ask {
        let number = self.number();
        let rng = &mut self.clients[at].rng;
        let bytes =
            *rng.pick(&[0, 1, 100, 1_000, 1_000, 10_000, 60_000, 300_000, 1_000_000]).expect("not empty");
        Ask::Store { key: rng.below(6), number, bytes }
    }

    fn act_later(&mut self, at: usize, delay_us: u64) {
        self.kernel.plan(self.kernel.now_us + delay_us, WorldEvent::ClientActs { client: at });
    }

    /// Mostly the node it knows; another where that is down, or now and then.
    fn pick_host(&mut self, at: usize) -> Option<NodeId> {
        let up: Vec<NodeId> = self
            .kernel
            .hosts
            .values()
            .filter(|host| host.is_up() && host.member_since_us.is_some())
            .map(|host| host.id)
            .collect();
        let client = &mut self.clients[at];
        if let Some((host, life)) = client.session.and_then(|session| session.connection) {
            if self.kernel.hosts.get(&host).is_some_and(|host| host.is_up() && host.life == life) {
                return Some(host);
            }
        }
        let stays = up.contains(&client.home) && !client.rng.per_mille(100);
        if stays {
            return Some(client.home);
        }
        client.rng.pick(&up).copied()
    }

    /// The client is gone: what it held stays behind, its connection closes.
    fn client_dies(&mut self, at: usize) {
        self.connection_lost(at);
        let process = self.number();
        let client = &mut self.clients[at];
        client.holding.clear();
        client.session = None;
        client.retry = None;
        client.attempt = None;
        client.process = process;
        let delay_us = client.rng.below(500_000);
        self.act_later(at, delay_us);
    }

    /// The connection that opened the client's session is closed; the node notices, if it is there.
    fn connection_lost(&mut self, at: usize) {
        let Some(session) = &mut self.clients[at].session else { return };
        let Some((host, life)) = session.connection.take() else { return };
        let id = session.id;
        if !self.kernel.lives(host, life) {
            return;
        }
        let process = self.number();
        self.history.operations.push(Operation {
            process,
            resource: NO_RESOURCE,
            invoke_ns: self.kernel.now_us * 1_000,
            complete_ns: NEVER,
            call: Call::Orphan { session: id, grace_ms: GRACE_MS },
            outcome: Outcome::Unknown,
            group: 0,
        });
        let input =
            Input::SessionsOrphaned { ids: vec![SessionId(id)], grace_ms: GRACE_MS, heard_index: u64::MAX };
        let at_us = self.kernel.now_us + self.kernel.rng.between(50, 5_000);
        self.kernel.agenda.plan(at_us, SimEvent::Request { host, life, input });
    }

    fn pick_ask(&mut self, at: usize) -> Option<Ask> {
        let (resources, sessions, forced) = (self.plan.resources, self.plan.sessions, self.plan.forced);
        let look_permille = self.plan.look_permille;
        let session_number = self.number();
        let ttl_ms = *self.clients[at].rng.pick(&self.plan.ttl_ms)?;
        let client = &mut self.clients[at];
        if let Some(retry) = client.retry.take() {
            return Some(retry);
        }
        let rng = &mut client.rng;
        let resource = rng.below(u64::from(resources)) as u32;
        match rng.below(1_000) {
            drawn if drawn < look_permille => return Some(Ask::Look { resource }),
            150..170 => return Some(Ask::Queue { resource }),
            170..180 if forced => return Some(Ask::Force { resource }),
            180..220 if sessions => {
                return Some(match client.session {
                    None => Ask::Open { session: session_number, ttl_ms: ttl_ms + 800 },
                    Some(session) if rng.per_mille(250) => Ask::Close { session: session.id },
                    Some(session) => Ask::KeepAlive { session: session.id },
                });
            }
            _ => {}
        }
        match client.holding.len() {
            0 => Some(self.ask_for_locks(at, resource, ttl_ms)),
            _ => Some(self.go_on_holding(at, ttl_ms)),
        }
    }

    fn ask_for_locks(&mut self, at: usize, resource: u32, ttl_ms: u64) -> Ask {
        let owner = self.number();
        let (count, multi) = (u64::from(self.plan.resources), self.plan.multi_locks);
        let client = &mut self.clients[at];
        let mut resources = vec![resource];
        if multi && client.rng.per_mille(300) {
            for _ in 0..client.rng.between(1, 2) {
                let another = client.rng.below(count) as u32;
                if !resources.contains(&another) {
                    resources.push(another);
                }
            }
        }
        let wait_ms = *client.rng.pick(&[0, 0, 100, 800, 4_000]).expect("not empty");
        let session = client.session.filter(|_| client.rng.per_mille(700)).map_or(0, |session| session.id);
        let bound = session != 0 && client.rng.per_mille(300);
        let ttl_ms = if bound { 0 } else { ttl_ms };
        Ask::Acquire { resources, owner, ttl_ms, wait_ms, session }
    }

    fn go_on_holding(&mut self, at: usize, ttl_ms: u64) -> Ask {
        let client = &mut self.clients[at];
        let hold = *client.rng.pick(&client.holding).expect("it holds something");
        match client.rng.below(10) {
            0..3 => Ask::Renew { resource: hold.resource, fence: hold.fence, ttl_ms },
            _ => {
                let pairs = client.holding.drain(..).map(|hold| (hold.resource, hold.fence)).collect();
                Ask::Release { pairs }
            }
        }
    }

    /// Sends a call off. Its answer, or the end of its connection, comes later.
    pub fn call(&mut self, client: usize, host: NodeId, ask: Ask) -> CallNumber {
        let number = self.number();
        let ticket: Ticket = self.number();
        let process = self.clients[client].process;
        let operations = ask.invoke(&mut self.history, process, number, self.kernel.now_us);
        let life = self.host(host).life;
        let mut input = ask.input(ticket, self.plan.timeout_ms);
        if let (Input::Submit(submit), Ask::Acquire { wait_ms, .. }) = (&mut input, &ask) {
            submit.wait_ms = *wait_ms;
        }
        if let Input::Submit(submit) = &mut input {
            submit.connection = client as u64 + 1;
        }
        let delay_us = self.kernel.rng.between(30, 500);
        self.kernel.agenda.plan(self.kernel.now_us + delay_us, SimEvent::Request { host, life, input });
        self.touch(client, host, life, delay_us);
        let call = OpenCall {
            client,
            host,
            life,
            ticket,
            invoke_us: self.kernel.now_us,
            answered: false,
            operations,
            ask,
        };
        let patience_us = 1_000 * (self.plan.timeout_ms + call.ask.wait_ms());
        let gives_up_us = match call.ask.is_by_member() {
            true => self.clients[client].rng.between(MEMBER_PATIENCE_US / 10, MEMBER_PATIENCE_US),
            false => self.give_up_us(client, patience_us),
        };
        self.kernel.plan(self.kernel.now_us + gives_up_us, WorldEvent::HungUp { call: number });
        if call.ask.wait_ms() > 0 {
            self.kernel.plan(self.kernel.now_us + TOUCH_EVERY_US, WorldEvent::Touch { call: number });
        }
        self.calls.insert(number, call);
        self.call_of_ticket.insert(ticket, number);
        self.clients[client].busy = true;
        number
    }

    /// Clients wait a little longer than nodes do; some hang up long before. A node may be slow, its clock may be too.
    fn give_up_us(&mut self, client: usize, patience_us: u64) -> u64 {
        match self.clients[client].rng.per_mille(if self.healed { 0 } else { 40 }) {
            true => self.clients[client].rng.below(patience_us),
            false => 2 * patience_us + 3_000_000,
        }
    }

    /// Any word on the connection that opened a session keeps it alive.
    fn touch(&mut self, client: usize, host: NodeId, life: u64, delay_us: u64) {
        let now_us = self.kernel.now_us;
        let settled = self.calm_since_us.is_some_and(|since_us| since_us + SETTLE_US <= now_us);
        let Some(session) = &mut self.clients[client].session else { return };
        if session.connection == Some((host, life)) {
            let silent_us = (now_us + delay_us).saturating_sub(session.touched_us);
            session.doubtful |= !settled || silent_us + KEPT_MARGIN_US > session.ttl_ms * 1_000;
            session.touched_us = now_us + delay_us;
            let input = Input::SessionsTouched(vec![SessionId(session.id)]);
            self.kernel.agenda.plan(now_us + delay_us, SimEvent::Request { host, life, input });
        }
    }

    pub(super) fn touch_blocked(&mut self, number: CallNumber) {
        let Some(call) = self.calls.get(&number).filter(|call| !call.answered) else { return };
        let (client, host, life) = (call.client, call.host, call.life);
        if self.kernel.lives(host, life) {
            self.touch(client, host, life, 0);
            self.kernel.plan(self.kernel.now_us + TOUCH_EVERY_US, WorldEvent::Touch { call: number });
        }
    }

    /// A node has answered: the reply travels, or gets lost with its connection.
    pub(super) fn replied(&mut self, ticket: Ticket, reply: Reply) {
        if self.operator_answered(ticket, &reply)
            || self.wider_answered(ticket, &reply)
            || self.kind_answered(ticket, &reply)
        {
            return;
        }
        let Some(&number) = self.call_of_ticket.get(&ticket) else { return };
        let Some(call) = self.calls.get_mut(&number) else { return };
        if std::mem::replace(&mut call.answered, true) {
            self.fail(format!("a request was answered twice: {ticket} {reply:?}"));
            return;
        }
        let loss_permille = if self.healed { 0 } else { self.plan.reply_loss_permille };
        let at_us = self.kernel.now_us + self.kernel.rng.between(30, 500);
        match self.kernel.rng.per_mille(loss_permille) {
            true => self.kernel.plan(at_us, WorldEvent::HungUp { call: number }),
            false => self.kernel.plan(at_us, WorldEvent::Answer { ticket, reply }),
        }
    }

    pub(super) fn answered(&mut self, ticket: Ticket, reply: &Reply) {
        let Some(number) = self.call_of_ticket.remove(&ticket) else { return };
        let Some(call) = self.calls.remove(&number) else { return };
        let heard = complete(&mut self.history, &call, Some(reply), self.kernel.now_us);
        if let (Ask::Queue { resource }, Reply::Array(rows)) = (&call.ask, reply) {
            self.note_queue(*resource, rows);
        }
        self.check_served(&call, &heard, reply);
        self.books.note_reply(&call.ask, &heard);
        self.go_on(&call, &heard);
    }

    /// `LOCK.QUEUE` shows who stands in line.
    fn note_queue(&mut self, resource: u32, rows: &[Reply]) {
        for row in rows {
            if let Reply::Array(columns) = row {
                if let Some(Reply::Bulk(owner)) = columns.first() {
                    self.history.queued.push(crate::checker::history::SeenQueued {
                        at_ns: self.kernel.now_us * 1_000,
                        resource,
                        owner: super::names::owner_number(owner),
                    });
                }
            }
        }
    }

    /// While nothing is wrong, and has not been for a while, nobody is turned away.
    fn check_served(&mut self, call: &OpenCall, heard: &Heard, reply: &Reply) {
        // A read promises nothing to anybody: however long ago it was asked, it can be asked again once all is well.
        let since_us =
            if call.ask.is_read() { self.kernel.now_us.max(RETRY_US) - RETRY_US } else { call.invoke_us };
        let quiet = |from_us: u64| from_us + SETTLE_US <= since_us;
        let settled = self
            .kernel
            .hosts
            .get(&call.host)
            .is_some_and(|host| host.member_since_us.is_some_and(quiet) && quiet(host.disturbed_us));
        let settled = settled && !self.waits_for_snapshot(call.host, since_us);
        if !self.calm_since_us.is_some_and(quiet) || !settled || !quiet(self.changes.unsettled_us) {
            return;
        }
        match heard {
            Heard::Failed | Heard::Unknown => {
                self.fail(format!(
                    "turned away though nothing is wrong: {:?} at node {}: {reply:?}",
                    call.ask, call.host
                ));
            }
            Heard::NoSession => self.check_kept_alive(call),
            Heard::Granted(_)
            | Heard::Taken
            | Heard::Busy
            | Heard::Done
            | Heard::Refused
            | Heard::NoScript
            | Heard::Nothing => {}
        }
    }

    /// A new member comes in by a snapshot, and where that could not be written it waits for the next try.
    fn waits_for_snapshot(&self, id: NodeId, since_us: u64) -> bool {
        let tried_again = |refused_us: u64| refused_us + SNAPSHOT_RETRY_US + SETTLE_US <= since_us;
        let is_new = |host: &Host| host.first_applied_us.is_none_or(|applied_us| applied_us > since_us);
        self.kernel.hosts.get(&id).is_some_and(is_new)
            && self.kernel.snapshot_refused_us.is_some_and(|refused_us| !tried_again(refused_us))
    }

    /// A session whose client was heard of in time must live.
    fn check_kept_alive(&mut self, call: &OpenCall) {
        let Some(session) = self.clients[call.client].session else { return };
        let named = matches!(&call.ask, Ask::KeepAlive { session: id } | Ask::Close { session: id } if *id == session.id);
        let connected = session.connection.is_some_and(|(host, life)| self.kernel.lives(host, life));
        // Its own word, which came too late, does not count; what made the session doubtful before it does.
        if named && connected && !session.doubtful {
            self.fail(format!("session {} ended though its client was heard of: {:?}", session.id, call.ask));
        }
    }

    /// The connection broke before an answer came.
    pub(super) fn hung_up(&mut self, number: CallNumber) {
        let Some(call) = self.calls.remove(&number) else { return };
        self.call_of_ticket.remove(&call.ticket);
        if !call.answered && self.kernel.lives(call.host, call.life) {
            let patience_us = 1_000 * (self.plan.timeout_ms + call.ask.wait_ms());
            // A node that stood still when the call came has its time from when it went on.
            let asked_us = self.calm_since_us.map(|calm_us| calm_us.max(call.invoke_us));
            if self.healed && asked_us.is_some_and(|asked_us| asked_us + 2 * patience_us < self.kernel.now_us)
            {
                self.fail(format!("no answer at all from node {}: {:?}", call.host, call.ask));
            }
            if call.ask.wait_ms() > 0 {
                self.kernel.give(call.host, Input::Cancel { ticket: call.ticket });
            }
        }
        self.connection_lost(call.client);
        let heard = complete(&mut self.history, &call, None, self.kernel.now_us);
        self.go_on(&call, &heard);
    }

    /// What the client makes of an outcome, and when it acts again.
    fn go_on(&mut self, call: &OpenCall, heard: &Heard) {
        if *heard == Heard::Unknown || call.ask.is_by_member() {
            self.clients[call.client].process = self.number();
        }
        let think_us = 1_000 * self.plan.think_ms_max;
        let client = &mut self.clients[call.client];
        client.busy = false;
        match (&call.ask, heard) {
            (Ask::Acquire { resources, .. }, Heard::Granted(fences)) => {
                let holds = resources.iter().zip(fences);
                client.holding =
                    holds.map(|(resource, fence)| Hold { resource: *resource, fence: *fence }).collect();
            }
            (Ask::Acquire { .. }, Heard::Unknown) if client.rng.per_mille(600) => {
                client.retry = Some(call.ask.clone());
            }
            (Ask::Release { pairs }, Heard::Unknown | Heard::Failed) if client.rng.per_mille(500) => {
                client.holding = pairs.iter().map(|&(resource, fence)| Hold { resource, fence }).collect();
            }
            (Ask::Renew { fence, .. }, Heard::Refused) => client.holding.retain(|hold| hold.fence != *fence),
            (Ask::Open { session, ttl_ms }, Heard::Done) => {
                let (id, ttl_ms, connection) = (*session, *ttl_ms, Some((call.host, call.life)));
                client.session =
                    Some(OwnSession { id, ttl_ms, connection, touched_us: call.invoke_us, doubtful: false });
            }
            (Ask::KeepAlive { .. }, Heard::Done) => {
                client.session.iter_mut().for_each(|session| session.doubtful = false);
            }
            (_, Heard::NoSession) | (Ask::Close { .. }, Heard::Done | Heard::Unknown) => {
                client.session = None;
                client.holding.clear();
            }
            _ => {}
        }
        let think_us = match client.heard_of_attempt(&call.ask, heard) {
            true => 1_000,
            false => think_us,
        };
        let delay_us = 200 + client.rng.below(think_us);
        self.act_later(call.client, delay_us);
    }
}
