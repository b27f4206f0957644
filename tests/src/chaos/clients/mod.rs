//! The load: many client tasks on one thread, each against all nodes, each with its own random generator.
//!
//! A client works in rounds: acquire, hold, release. Each kind of round has a file of its own; sending a request and
//! recording its outcome is here.

mod hostile;
mod kinds;
mod locks;
mod plain;
mod sessions;
mod values;

use std::rc::Rc;
use std::sync::mpsc::SyncSender;
use std::sync::Arc;
use std::time::Duration;

use super::connection::ClientConnection;
use super::recorder::{Bucket, Epoch, FinishedEpoch, Recorder};
use super::replies;
use super::run_state::RunState;
use super::settings::Settings;
use crate::checker::history::{may_be_told_late, NEVER, NO_RESOURCE};
use crate::checker::{Answer, Call, Operation, Outcome};
use crate::resp::Value;
use crate::rng::Rng;

/// How long a session outlives its connection: the servers' default.
const GRACE_MS: u64 = 500;
/// A client disconnects from a node that does not reply for this long, beyond the WAIT it asked for.
const PATIENCE_MS: u64 = 1_500;
/// Nodes count whole milliseconds.
const CLOCK_SLACK_MS: u64 = 5;
/// The first few names are contended, the others mostly free.
const HOT: u64 = 6;
const NAMES: u64 = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientRole {
    Locks,
    Plain,
    Sessions,
    Multi,
    /// Values of every size.
    Values,
    Hostile,
    /// Readers, writers and permits.
    Kinds,
}

/// Runs all clients on this thread until the run is stopped; returns what they saw, by tenths of a second.
pub fn run(settings: &Settings, run_state: Arc<RunState>, checker: SyncSender<FinishedEpoch>) -> Vec<Bucket> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let recorder = Rc::new(Recorder::new(run_state, checker, settings.mix.multi > 0, settings.sabotage));
    let mut rng = Rng::new(settings.seed ^ 0xc11e_0175);
    let local = tokio::task::LocalSet::new();
    for role in settings.mix.roles(settings.clients) {
        let client = LoadClient::new(Rc::clone(&recorder), rng.fork(), settings.hold_ms_max);
        local.spawn_local(client.work(role));
    }
    runtime.block_on(local);
    Rc::try_unwrap(recorder).unwrap_or_else(|_| panic!("every client has ended")).close()
}

pub struct LoadClient {
    recorder: Rc<Recorder>,
    rng: Rng,
    process: u64,
    connection: Option<ClientConnection>,
    /// The session opened on the current connection.
    session: Option<u64>,
    /// Scripts that are loaded, with their digests.
    digests: Vec<(&'static str, String)>,
    hold_ms_max: u64,
    register: values::Register,
}

impl LoadClient {
    fn new(recorder: Rc<Recorder>, rng: Rng, hold_ms_max: u64) -> LoadClient {
        let (process, register) = (recorder.number(), values::Register::default());
        LoadClient {
            recorder,
            rng,
            process,
            connection: None,
            session: None,
            digests: Vec::new(),
            hold_ms_max,
            register,
        }
    }

    async fn work(mut self, role: ClientRole) {
        while !self.recorder.run_state.stopped() {
            let epoch = self.recorder.epoch();
            match role {
                ClientRole::Locks => self.lock_round(&epoch).await,
                ClientRole::Plain => self.plain_round(&epoch).await,
                ClientRole::Sessions => self.session_round(&epoch).await,
                ClientRole::Multi if epoch.multi => self.multi_round(&epoch).await,
                ClientRole::Multi => self.lock_round(&epoch).await,
                ClientRole::Values => self.value_round(&epoch).await,
                ClientRole::Hostile => self.hostile_round(&epoch).await,
                ClientRole::Kinds => self.kinds_round(&epoch).await,
            }
            if self.rng.per_mille(5) {
                self.hang_up(&epoch);
            }
        }
    }

    fn resource(&mut self) -> u32 {
        let hot = self.rng.per_mille(400);
        (if hot { self.rng.below(HOT) } else { self.rng.between(HOT, NAMES - 1) }) as u32
    }

    fn ttl_ms(&mut self) -> u64 {
        *self.rng.pick(&[200, 500, 1_000, 1_000, 3_000]).expect("not empty")
    }

    async fn pause_ms(&mut self, ms_max: u64) {
        let us = self.rng.below(ms_max * 1_000 + 1);
        tokio::time::sleep(Duration::from_micros(us)).await;
    }

    /// Mostly next to nothing, sometimes a while, now and then past the ttl: a holder that was paused.
    async fn hold(&mut self, ttl_ms: u64) {
        match self.rng.below(1_000) {
            0..4 => tokio::time::sleep(Duration::from_millis(ttl_ms + 100)).await,
            4..300 => self.pause_ms(self.hold_ms_max).await,
            _ => tokio::task::yield_now().await,
        }
    }

    /// One question about one resource.
    async fn ask(&mut self, epoch: &Epoch, resource: u32, call: Call, words: &[impl AsRef<[u8]>]) -> Outcome {
        self.ask_all(epoch, &[(resource, call)], words).await[0]
    }

    /// One question about several resources: an operation for each, with one window.
    async fn ask_all(
        &mut self,
        epoch: &Epoch,
        parts: &[(u32, Call)],
        words: &[impl AsRef<[u8]>],
    ) -> Vec<Outcome> {
        let wait_ms = match parts[0].1 {
            Call::Acquire { wait_ms, .. } => wait_ms,
            _ => 0,
        };
        let asked = self.exchange(epoch, words, wait_ms).await;
        let Some((invoke_ns, reply)) = asked else { return vec![Outcome::Failed; parts.len()] };
        let complete_ns = self.recorder.run_state.now_ns();
        let group = if parts.len() > 1 { self.recorder.number() } else { 0 };
        let outcomes: Vec<Outcome> = parts
            .iter()
            .enumerate()
            .map(|(at, (_, call))| {
                let Some(reply) = &reply else { return Outcome::Unknown };
                let part = (parts.len() > 1).then_some(at);
                let took_ms = complete_ns.saturating_sub(invoke_ns) / 1_000_000;
                if is_told_too_late(call, reply, took_ms) {
                    return Outcome::Unknown;
                }
                replies::outcome(call, part, reply).unwrap_or_else(|text| {
                    self.recorder.run_state.report_unexpected(text);
                    Outcome::Unknown
                })
            })
            .collect();
        for ((resource, call), outcome) in parts.iter().zip(&outcomes) {
            let complete_ns = if *outcome == Outcome::Unknown { NEVER } else { complete_ns };
            let (process, resource, call, outcome) = (self.process, *resource, *call, *outcome);
            let op = Operation { process, resource, invoke_ns, complete_ns, call, outcome, group };
            self.recorder.record(epoch, op);
            if may_be_told_late(&op) {
                let process = self.recorder.number();
                let (outcome, complete_ns) = (Outcome::Unknown, NEVER);
                self.recorder.record(epoch, Operation { process, outcome, complete_ns, ..op });
            }
        }
        if outcomes.contains(&Outcome::Unknown) {
            self.process = self.recorder.number();
        }
        if matches!(outcomes[0], Outcome::Answered(Answer::Granted { .. } | Answer::Taken)) {
            if let Some(connection) = &self.connection {
                connection.endpoint.granted(complete_ns);
            }
        }
        outcomes
    }

    /// Sends and waits. `None`: there was nobody to send it to. No reply: it is lost, and the connection with it.
    async fn exchange(
        &mut self,
        epoch: &Epoch,
        words: &[impl AsRef<[u8]>],
        wait_ms: u64,
    ) -> Option<(u64, Option<Value>)> {
        if self.connection.is_none() {
            let endpoint = self.recorder.run_state.endpoint(self.rng.draw())?;
            self.connection = ClientConnection::open(endpoint).await;
        }
        let Some(connection) = &mut self.connection else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            return None;
        };
        let invoke_ns = self.recorder.run_state.now_ns();
        let reply = connection.ask(words, Duration::from_millis(PATIENCE_MS + wait_ms)).await.ok();
        // A node without a quorum says so at once or after its deadline; another may serve.
        if reply.as_ref().is_none_or(Value::is_error) {
            self.hang_up_if(epoch, reply.is_none());
        }
        Some((invoke_ns, reply))
    }

    fn hang_up_if(&mut self, epoch: &Epoch, lost: bool) {
        if lost || self.rng.per_mille(300) {
            self.hang_up(epoch);
        }
    }

    /// The connection goes, and what hangs on it.
    fn hang_up(&mut self, epoch: &Epoch) {
        let had = self.connection.take().is_some();
        if let Some(session) = self.session.take().filter(|_| had) {
            let op = Operation {
                process: self.recorder.number(),
                resource: NO_RESOURCE,
                invoke_ns: self.recorder.run_state.now_ns(),
                complete_ns: NEVER,
                call: Call::Orphan { session, grace_ms: GRACE_MS },
                outcome: Outcome::Unknown,
                group: 0,
            };
            self.recorder.record(epoch, op);
        }
    }

    /// `LOCK.INFO`
    async fn look(&mut self, epoch: &Epoch, resource: u32) -> Outcome {
        self.ask(epoch, resource, Call::Look, &["LOCK.INFO", &epoch.name(resource)]).await
    }
}

/// A grant that ended before a node that was late could tell it is answered nil: no answer, for the checker. Its ttl must have
/// passed since it was asked for, or its session have ended.
fn is_told_too_late(call: &Call, reply: &Value, took_ms: u64) -> bool {
    match call {
        Call::Acquire { ttl_ms, session, .. } => {
            *reply == Value::NullBulk && (*session != 0 || took_ms + CLOCK_SLACK_MS >= *ttl_ms)
        }
        _ => false,
    }
}
