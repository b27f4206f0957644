//! Clients with a session: locks that live and die with it, kept alive, closed, or left behind by a broken connection.

use super::super::recorder::Epoch;
use super::locks::TRIES_MAX;
use super::LoadClient;
use crate::checker::history::NO_RESOURCE;
use crate::checker::{Answer, Call, Operation, Outcome};
use crate::resp::Value;

impl LoadClient {
    pub(super) async fn session_round(&mut self, epoch: &Epoch) {
        // Only on a connection that has no other session to keep alive.
        self.hang_up(epoch);
        let ttl_ms = self.rng.between(800, 3_000);
        let Some((id, session)) = self.open_session(epoch, ttl_ms).await else { return };
        for _ in 0..self.rng.between(2, 12) {
            if self.recorder.run_state.stopped() || !self.session_step(epoch, &id, session).await {
                break;
            }
        }
        if self.rng.per_mille(700) {
            self.close_session(epoch, &id, session).await;
        } else {
            self.hang_up(epoch);
        }
    }

    async fn open_session(&mut self, epoch: &Epoch, ttl_ms: u64) -> Option<(String, u64)> {
        let words = ["LOCK.SESSION", "OPEN", &ttl_ms.to_string()];
        let (invoke_ns, reply) = self.exchange(epoch, &words, 0).await?;
        // One whose id got lost is nobody's: there is nothing to write down.
        let Some(Value::Bulk(id)) = reply else { return None };
        let session = self.recorder.number();
        let (process, complete_ns) = (self.process, self.recorder.run_state.now_ns());
        let (call, outcome) = (Call::Open { session, ttl_ms }, Outcome::Answered(Answer::Done));
        let op =
            Operation { process, resource: NO_RESOURCE, invoke_ns, complete_ns, call, outcome, group: 0 };
        self.recorder.record(epoch, op);
        self.session = self.connection.is_some().then_some(session);
        Some((String::from_utf8(id).ok()?, session))
    }

    /// One lock of the session, or a keep-alive. False where the session is over.
    async fn session_step(&mut self, epoch: &Epoch, id: &str, session: u64) -> bool {
        if self.rng.per_mille(250) {
            let call = Call::KeepAlive { session };
            let words = ["LOCK.SESSION", "KEEPALIVE", id];
            let outcome = self.ask(epoch, NO_RESOURCE, call, &words).await;
            return outcome != Outcome::Answered(Answer::NoSession);
        }
        let (resource, owner) = (self.resource(), self.recorder.number());
        let bound = self.rng.per_mille(500);
        let ttl_ms = if bound { 0 } else { self.ttl_ms() };
        let wait_ms = *self.rng.pick(&[0, 0, 100, 500]).expect("not empty");
        let granted = self.acquire(epoch, resource, owner, ttl_ms, wait_ms, Some((id, session))).await;
        let Some(fence) = granted else { return true };
        self.hold(200).await;
        // Half are left to the end of the session.
        if self.rng.per_mille(500) {
            self.release(epoch, resource, fence).await;
        }
        true
    }

    async fn close_session(&mut self, epoch: &Epoch, id: &str, session: u64) {
        let words = ["LOCK.SESSION", "CLOSE", id];
        for _ in 0..TRIES_MAX {
            match self.ask(epoch, NO_RESOURCE, Call::Close { session }, &words).await {
                Outcome::Answered(_) => break,
                Outcome::Failed | Outcome::Unknown => self.pause_ms(20).await,
            }
        }
        self.session = None;
    }
}
