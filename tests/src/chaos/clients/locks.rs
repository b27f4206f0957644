//! Clients of `LOCK.*`: one lock or several, tried for or waited for, with OWNER and retries after whatever got lost.

use super::super::recorder::Epoch;
use super::super::replies::{owner_name, owner_number};
use super::plain::COMPARE_AND_DELETE;
use super::{LoadClient, HOT, NAMES};
use crate::checker::history::SeenQueued;
use crate::checker::{Answer, Call, Outcome};
use crate::resp::Value;

/// A client that got no certain answer asks again this often before it leaves the lock to its ttl.
pub(super) const TRIES_MAX: usize = 4;

impl LoadClient {
    pub(super) async fn lock_round(&mut self, epoch: &Epoch) {
        let resource = self.resource();
        if self.rng.per_mille(60) {
            self.look(epoch, resource).await;
        }
        if self.rng.per_mille(20) {
            self.look_at_queue(epoch, resource).await;
        }
        let (owner, ttl_ms) = (self.recorder.number(), self.ttl_ms());
        let wait_ms = *self.rng.pick(&[0, 0, 50, 300, 1_000]).expect("not empty");
        let Some(fence) = self.acquire(epoch, resource, owner, ttl_ms, wait_ms, None).await else { return };
        self.hold(ttl_ms).await;
        if self.rng.per_mille(120) {
            let ttl_ms = self.ttl_ms();
            self.renew(epoch, resource, fence, ttl_ms).await;
            self.hold(ttl_ms).await;
        }
        if self.rng.per_mille(50) {
            self.look(epoch, resource).await;
        }
        match self.rng.below(10) {
            0 => self.compare_and_delete(epoch, resource, owner).await,
            _ => self.release(epoch, resource, fence).await,
        }
    }

    /// The fence, where it was granted. The same OWNER in every try makes asking again safe.
    pub(super) async fn acquire(
        &mut self,
        epoch: &Epoch,
        resource: u32,
        owner: u64,
        ttl_ms: u64,
        wait_ms: u64,
        session: Option<(&str, u64)>,
    ) -> Option<u64> {
        let (name, ttl, wait, owned) =
            (epoch.name(resource), ttl_ms.to_string(), wait_ms.to_string(), owner_name(owner));
        let mut words = vec!["LOCK.ACQUIRE", &name, &ttl, "OWNER", &owned];
        if wait_ms > 0 {
            words.extend(["WAIT", &wait]);
        }
        if let Some((id, _)) = session {
            words.extend(["SESSION", id]);
        }
        let call = Call::Acquire { owner, ttl_ms, wait_ms, session: session.map_or(0, |(_, number)| number) };
        for _ in 0..TRIES_MAX {
            match self.ask(epoch, resource, call, &words).await {
                Outcome::Answered(Answer::Granted { fence, .. }) => return Some(fence),
                Outcome::Answered(_) => return None,
                Outcome::Failed | Outcome::Unknown if self.recorder.run_state.stopped() => return None,
                Outcome::Failed | Outcome::Unknown => self.pause_ms(20).await,
            }
        }
        None
    }

    pub(super) async fn renew(&mut self, epoch: &Epoch, resource: u32, fence: u64, ttl_ms: u64) -> Outcome {
        let words = ["LOCK.RENEW", &epoch.name(resource), &fence.to_string(), &ttl_ms.to_string()];
        self.ask(epoch, resource, Call::Renew { fence, ttl_ms }, &words).await
    }

    /// A release that got lost is sent again: it carries the fence, so it can free nobody else's grant.
    pub(super) async fn release(&mut self, epoch: &Epoch, resource: u32, fence: u64) {
        let words = ["LOCK.RELEASE", &epoch.name(resource), &fence.to_string()];
        for _ in 0..TRIES_MAX {
            match self.ask(epoch, resource, Call::Release { fence }, &words).await {
                Outcome::Answered(_) => return,
                Outcome::Failed | Outcome::Unknown => self.pause_ms(20).await,
            }
        }
    }

    /// Ours, given back by an old client's script: every lock is a key with its owner as value.
    async fn compare_and_delete(&mut self, epoch: &Epoch, resource: u32, owner: u64) {
        let words = ["EVAL", COMPARE_AND_DELETE, "1", &epoch.name(resource), &owner_name(owner)];
        for _ in 0..TRIES_MAX {
            match self.ask(epoch, resource, Call::ReleaseBy { owner }, &words).await {
                Outcome::Answered(_) => return,
                Outcome::Failed | Outcome::Unknown => self.pause_ms(20).await,
            }
        }
    }

    async fn look_at_queue(&mut self, epoch: &Epoch, resource: u32) {
        let asked = self.exchange(epoch, &["LOCK.QUEUE", &epoch.name(resource)], 0).await;
        let Some((_, Some(Value::Array(rows)))) = asked else { return };
        let at_ns = self.recorder.run_state.now_ns();
        for row in rows {
            if let Value::Array(columns) = row {
                if let Some(Value::Bulk(owner)) = columns.first() {
                    epoch.saw_queued(SeenQueued { at_ns, resource, owner: owner_number(owner) });
                }
            }
        }
    }

    /// Two or three at once, or none.
    pub(super) async fn multi_round(&mut self, epoch: &Epoch) {
        let mut resources = vec![self.rng.below(HOT) as u32];
        while resources.len() < 2 + usize::from(self.rng.per_mille(300)) {
            let another = self.rng.below(NAMES / 4) as u32;
            if !resources.contains(&another) {
                resources.push(another);
            }
        }
        let (owner, ttl_ms) = (self.recorder.number(), self.ttl_ms());
        let wait_ms = *self.rng.pick(&[0, 100, 500]).expect("not empty");
        let Some(fences) = self.acquire_all(epoch, &resources, owner, ttl_ms, wait_ms).await else { return };
        self.hold(ttl_ms).await;
        self.release_all(epoch, &resources, &fences).await;
    }

    async fn acquire_all(
        &mut self,
        epoch: &Epoch,
        resources: &[u32],
        owner: u64,
        ttl_ms: u64,
        wait_ms: u64,
    ) -> Option<Vec<u64>> {
        let mut words = vec!["LOCK.MACQUIRE".to_string(), resources.len().to_string()];
        words.extend(resources.iter().map(|resource| epoch.name(*resource)));
        words.extend([ttl_ms.to_string(), "WAIT".into(), wait_ms.to_string()]);
        words.extend(["OWNER".into(), owner_name(owner)]);
        let call = Call::Acquire { owner, ttl_ms, wait_ms, session: 0 };
        let parts: Vec<(u32, Call)> = resources.iter().map(|resource| (*resource, call)).collect();
        for _ in 0..TRIES_MAX {
            let outcomes = self.ask_all(epoch, &parts, &words).await;
            match outcomes[0] {
                Outcome::Answered(Answer::Granted { .. }) => {
                    let fences = outcomes.iter().filter_map(|outcome| match outcome {
                        Outcome::Answered(Answer::Granted { fence, .. }) => Some(*fence),
                        _ => None,
                    });
                    return Some(fences.collect());
                }
                Outcome::Answered(_) => return None,
                Outcome::Failed | Outcome::Unknown => self.pause_ms(20).await,
            }
        }
        None
    }

    async fn release_all(&mut self, epoch: &Epoch, resources: &[u32], fences: &[u64]) {
        let mut words = vec!["LOCK.MRELEASE".to_string(), resources.len().to_string()];
        let mut parts = Vec::new();
        for (resource, fence) in resources.iter().zip(fences) {
            words.extend([epoch.name(*resource), fence.to_string()]);
            parts.push((*resource, Call::Release { fence: *fence }));
        }
        for _ in 0..TRIES_MAX {
            match self.ask_all(epoch, &parts, &words).await[0] {
                Outcome::Answered(_) => return,
                Outcome::Failed | Outcome::Unknown => self.pause_ms(20).await,
            }
        }
    }
}
