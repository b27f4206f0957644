//! Core's machine in this process: what its own front would be, with nothing between a case and the machine.
//!
//! One lock around everything makes commands follow each other as log entries do; a thread applies `Expire` when a
//! deadline has passed, as a leader does. As `machine` it is Tier 2; as `machine_tier1` it
//! answers what a Tier 1 should, for the comparison with module and Lua.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redfence_core::event;
use redfence_core::grammar::{self, errors, Request};
use redfence_core::keyspace::Resp;
use redfence_core::machine::request::{self, MachineWork};
use redfence_core::machine::version::{UpgradeCommand, NEWEST};
use redfence_core::machine::{Applied, Command, Machine, Wanted};
use redfence_core::reply::Reply;
use redfence_core::types::{LockKind, Origin, RequestId, SessionId, SessionScope, Stamp, Tier};

use crate::backend::{Abilities, Backend};
use crate::backends::rendering::rendered;
use crate::client::Wire;
use crate::resp::{Protocol, ReceiveError, Value};

const TICK_EVERY: Duration = Duration::from_millis(2);
/// As a proxy by default: how long a session outlives the connection that opened it.
const GRACE_MS: u64 = 500;
const IDLE_MS: u64 = 600_000;
const ORIGIN: Origin = Origin { node: 1, incarnation: 1 };

pub struct MachineBackend {
    tier: Tier,
    server: OnceLock<Arc<Mutex<Server>>>,
}

impl MachineBackend {
    pub fn new(tier: Tier) -> Arc<MachineBackend> {
        Arc::new(MachineBackend { tier, server: OnceLock::new() })
    }
}

impl Backend for MachineBackend {
    fn name(&self) -> &'static str {
        match self.tier {
            Tier::Correctness => "machine",
            Tier::Efficiency => "machine_tier1",
        }
    }

    fn abilities(&self) -> Abilities {
        Abilities::EVENTS.and(match self.tier {
            Tier::Correctness => Abilities::CORRECTNESS,
            Tier::Efficiency => Abilities::EFFICIENCY.and(Abilities::EFFICIENCY_ALONE),
        })
    }

    fn missing(&self) -> Option<String> {
        None
    }

    fn connect(&self, protocol: Protocol) -> Box<dyn Wire> {
        let server = self.server.get_or_init(|| Server::start(self.tier));
        let (replies, inbox) = channel();
        let id = server.lock().unwrap().join(protocol, replies);
        Box::new(MachineWire { server: Arc::clone(server), id, inbox })
    }

    fn log(&self) -> String {
        String::new()
    }
}

struct MachineWire {
    server: Arc<Mutex<Server>>,
    id: u64,
    inbox: Receiver<Value>,
}

impl Wire for MachineWire {
    fn send(&mut self, args: &[Vec<u8>]) {
        self.server.lock().unwrap().submit(self.id, args.to_vec());
    }

    fn receive(&mut self, timeout: Duration) -> Result<Value, ReceiveError> {
        self.inbox.recv_timeout(timeout).map_err(|error| match error {
            RecvTimeoutError::Timeout => ReceiveError::TimedOut,
            RecvTimeoutError::Disconnected => ReceiveError::Closed,
        })
    }
}

impl Drop for MachineWire {
    fn drop(&mut self) {
        // A case that panicked inside the server has poisoned it; every other case tells of it then.
        if let Ok(mut server) = self.server.lock() {
            server.leave(self.id);
        }
    }
}

/// One connection, as the server sees it.
struct Peer {
    protocol: Protocol,
    replies: Sender<Value>,
    /// The command it is blocked in; what came behind it waits in `backlog`.
    blocked_in: Option<RequestId>,
    backlog: VecDeque<Vec<Vec<u8>>>,
    sessions: Vec<SessionId>,
    /// Channels and patterns, as they were asked for.
    watches: Vec<(bool, Vec<u8>)>,
}

struct Server {
    machine: Machine,
    tier: Tier,
    started: Instant,
    applied: Applied,
    peers: HashMap<u64, Peer>,
    /// Who asked what is not answered yet.
    asked: HashMap<RequestId, u64>,
    last_number: u64,
}

impl Server {
    fn start(tier: Tier) -> Arc<Mutex<Server>> {
        let mut machine = Machine::new();
        machine.set_wanted(Wanted { events: true, losses: true, ..Wanted::default() });
        // As a cluster does by itself.
        let raise = Command::Upgrade(UpgradeCommand::Raise { to: NEWEST });
        machine.apply(Stamp::default(), None, raise, &mut Applied::default());
        let server = Arc::new(Mutex::new(Server {
            machine,
            tier,
            started: Instant::now(),
            applied: Applied::default(),
            peers: HashMap::new(),
            asked: HashMap::new(),
            last_number: 0,
        }));
        let watched = Arc::downgrade(&server);
        std::thread::Builder::new()
            .name("machine-clock".into())
            .spawn(move || tick(&watched))
            .expect("a thread");
        server
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn stamp(&self) -> Stamp {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
        let logical_ms = self.started.elapsed().as_millis() as u64;
        Stamp { term: 1, logical_ms, wall_us: wall.as_micros() as u64 }
    }

    fn join(&mut self, protocol: Protocol, replies: Sender<Value>) -> u64 {
        let id = self.next_number();
        let peer = Peer {
            protocol,
            replies,
            blocked_in: None,
            backlog: VecDeque::new(),
            sessions: Vec::new(),
            watches: Vec::new(),
        };
        self.peers.insert(id, peer);
        id
    }

    fn leave(&mut self, id: u64) {
        let Some(peer) = self.peers.remove(&id) else { return };
        if let Some(request) = peer.blocked_in {
            self.asked.remove(&request);
            self.apply(None, Command::Cancel { request });
        }
        if !peer.sessions.is_empty() {
            let ids = peer.sessions.into_iter().collect();
            self.apply(None, Command::SessionsOrphan { ids, grace_ms: GRACE_MS, heard_index: None });
        }
    }

    fn submit(&mut self, id: u64, args: Vec<Vec<u8>>) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.backlog.push_back(args);
            self.pump(id);
        }
    }

    /// Runs what a peer has sent, until it is blocked.
    fn pump(&mut self, id: u64) {
        loop {
            let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.blocked_in.is_none()) else { return };
            let Some(args) = peer.backlog.pop_front() else { return };
            if let Some(reply) = self.execute(id, &args) {
                self.reply(id, &reply);
            }
        }
    }

    fn reply(&self, id: u64, reply: &Reply) {
        if let Some(peer) = self.peers.get(&id) {
            // A receiver that is gone belongs to a client that is leaving.
            let _ = peer.replies.send(rendered(reply, peer.protocol));
        }
    }

    /// The reply, where there is one now.
    fn execute(&mut self, id: u64, args: &[Vec<u8>]) -> Option<Reply> {
        self.touch_sessions(id);
        let number = self.next_number();
        let made_up = format!("made-up-{number}");
        let guarded: Vec<&[u8]> = args.iter().skip(3).map(Vec::as_slice).collect();
        let request = match grammar::parse(args) {
            Some(Ok(request)) => request,
            Some(Err(refusal)) => return Some(refusal.into()),
            None => {
                self.watch(id, args);
                return None;
            }
        };
        if let Err(refusal) = self.check_tier(&request) {
            return Some(refusal);
        }
        let session = SessionId(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let context = request::RequestContext {
            sessions: SessionScope::All,
            db: 0,
            owner: made_up.as_bytes(),
            session,
            resp: Resp::Two,
            guarded: &guarded,
        };
        let command = match request::work(request, context) {
            Ok(MachineWork::Change(command)) => command,
            Ok(MachineWork::Look(query)) => {
                // As a read index does: the clock first, then the look.
                self.apply(None, Command::Expire { idle_ms: IDLE_MS });
                let mut reply = self.machine.query(query);
                if let Reply::Info(info) = &mut reply {
                    info.tier = self.tier;
                }
                return Some(reply);
            }
            Err(refusal) => return Some(refusal.into()),
        };
        if let Command::SessionOpen { id: opened, .. } | Command::SessionOpenWith { id: opened, .. } =
            &command
        {
            self.peers.get_mut(&id)?.sessions.push(*opened);
        }
        let request_id = RequestId { origin: ORIGIN, seq: number };
        self.peers.get_mut(&id)?.blocked_in = Some(request_id);
        self.asked.insert(request_id, id);
        self.apply(Some(request_id), command);
        None
    }

    fn check_tier(&self, request: &Request<'_>) -> Result<(), Reply> {
        if self.tier == Tier::Correctness {
            return Ok(());
        }
        let names_session = match request {
            Request::Acquire(acquire) => acquire.options.session.is_some(),
            Request::MAcquire(acquire) => acquire.options.session.is_some(),
            Request::Session(_) => true,
            _ => false,
        };
        if names_session {
            return Err(errors::tier_sessions_here().into());
        }
        if matches!(request, Request::Notify(_)) {
            return Err(errors::tier_notify_here().into());
        }
        let is_other_kind =
            request.acquire_options().is_some_and(|options| options.kind != LockKind::Exclusive);
        if is_other_kind || matches!(request, Request::Convert(_) | Request::Explain(_)) {
            return Err(errors::tier_kinds_here().into());
        }
        match request.tier() {
            Some(Tier::Correctness) => Err(errors::tier_correctness_here().into()),
            Some(Tier::Efficiency) | None => Ok(()),
        }
    }

    /// Applies one command, and then whatever its answers let go on.
    fn apply(&mut self, id: Option<RequestId>, command: Command<'_>) {
        let stamp = self.stamp();
        let mut applied = std::mem::take(&mut self.applied);
        self.machine.apply(stamp, id, command, &mut applied);
        let replies: Vec<(RequestId, Reply)> = applied.replies.drain(..).collect();
        for event in applied.events.drain(..) {
            self.publish(&event::channel(&event.resource), &event::event_to_json(&event, self.tier));
        }
        for loss in applied.losses.drain(..) {
            let Some(cause) = loss.cause else { continue };
            let json =
                event::loss_to_json("lock-lost", &loss.resource, loss.fence, cause.as_str(), loss.successor);
            self.publish(&event::lost_channel(&loss.resource), &json);
        }
        applied.clear();
        self.applied = applied;
        let mut unblocked = Vec::new();
        for (request, reply) in replies {
            let Some(peer_id) = self.asked.remove(&request) else { continue };
            self.reply(peer_id, &reply);
            if let Some(peer) = self.peers.get_mut(&peer_id) {
                peer.blocked_in = None;
                unblocked.push(peer_id);
            }
        }
        unblocked.into_iter().for_each(|peer_id| self.pump(peer_id));
    }

    /// Any command of the connection that opened a session keeps it alive.
    fn touch_sessions(&mut self, id: u64) {
        let sessions = self.peers.get(&id).map(|peer| peer.sessions.clone()).unwrap_or_default();
        if !sessions.is_empty() {
            self.apply(None, Command::SessionsTouch { ids: sessions.into_iter().collect() });
        }
    }

    fn watch(&mut self, id: u64, args: &[Vec<u8>]) {
        let verb = String::from_utf8_lossy(&args[0]).to_ascii_lowercase();
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let watch = (verb.starts_with('p'), args[1].clone());
        match verb.as_str() {
            "subscribe" | "psubscribe" => peer.watches.push(watch),
            "unsubscribe" | "punsubscribe" => peer.watches.retain(|known| *known != watch),
            _ => panic!("the machine has no {verb}: a case needs an ability that this backend does not have"),
        }
        let count = peer.watches.len() as i64;
        push(peer, vec![Value::bulk(verb), Value::bulk(&args[1]), Value::Integer(count)]);
    }

    fn publish(&self, channel: &[u8], json: &str) {
        for peer in self.peers.values() {
            for (is_pattern, watched) in &peer.watches {
                if *is_pattern && redfence_core::glob::matches(watched, channel) {
                    let head = [Value::bulk("pmessage"), Value::bulk(watched)];
                    push(peer, head.into_iter().chain([Value::bulk(channel), Value::bulk(json)]).collect());
                } else if !is_pattern && watched == channel {
                    push(peer, vec![Value::bulk("message"), Value::bulk(channel), Value::bulk(json)]);
                }
            }
        }
    }
}

fn push(peer: &Peer, items: Vec<Value>) {
    let message = match peer.protocol {
        Protocol::Resp2 => Value::Array(items),
        Protocol::Resp3 => Value::Push(items),
    };
    let _ = peer.replies.send(message);
}

/// What the leader and the nodes do by themselves: expire what is due, keep alive who is blocked.
fn tick(server: &Weak<Mutex<Server>>) {
    while let Some(server) = server.upgrade() {
        if let Ok(mut server) = server.lock() {
            let now_ms = server.stamp().logical_ms;
            let blocked: Vec<u64> = server
                .peers
                .iter()
                .filter(|(_, peer)| peer.blocked_in.is_some() && !peer.sessions.is_empty())
                .map(|(id, _)| *id)
                .collect();
            blocked.into_iter().for_each(|id| server.touch_sessions(id));
            if server.machine.next_due_ms().is_some_and(|due_ms| due_ms <= now_ms) {
                server.apply(None, Command::Expire { idle_ms: IDLE_MS });
            }
        }
        drop(server);
        std::thread::sleep(TICK_EVERY);
    }
}
