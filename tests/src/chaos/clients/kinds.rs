//! Readers, writers and permits on names of their own: what clients believe to hold at one time must go together.

use super::super::recorder::Epoch;
use super::LoadClient;
use crate::checker::kinds::{Belief, KindOwner};
use crate::resp::Value;
use redfence_core::types::LockMode;

/// The first is a semaphore, the others are for readers and writers.
const KIND_NAMES: u64 = 4;
/// Nodes count whole milliseconds.
const SLACK_US: u64 = 5_000;

/// One hold of this client.
struct Held {
    name: u64,
    owner: KindOwner,
    mode: LockMode,
    fence: u64,
}

impl LoadClient {
    pub(super) async fn kinds_round(&mut self, epoch: &Epoch) {
        let Some(mut held) = self.acquire_kind(epoch).await else { return };
        let ttl_ms = 200;
        self.hold(ttl_ms).await;
        if held.mode != LockMode::Permits && self.rng.per_mille(400) {
            match self.convert(epoch, held).await {
                Some(converted) => held = converted,
                None => return,
            }
            self.hold(ttl_ms).await;
        }
        self.recorder.end_belief(held.name, held.fence);
        let words = ["LOCK.RELEASE", &name_of(held.name), &held.fence.to_string()];
        let released = self.exchange(epoch, &words, 0).await;
        if let Some((_, Some(reply))) = released {
            self.expect(&words, &reply, matches!(reply, Value::Array(_)));
        }
    }

    async fn acquire_kind(&mut self, epoch: &Epoch) -> Option<Held> {
        let name = self.rng.below(KIND_NAMES);
        let (count, max) = (self.rng.between(1, 2) as u32, self.rng.between(2, 4) as u32);
        let (mode, count, max) = match (name, self.rng.below(3)) {
            (0, _) => (LockMode::Permits, count, max),
            (_, 0) => (LockMode::Exclusive, 1, 1),
            (_, _) => (LockMode::Shared, 1, 1),
        };
        let owner = KindOwner { number: self.recorder.number(), count, max };
        let wait_ms = *self.rng.pick(&[0, 100, 500]).expect("not empty");
        let line = format!(
            "LOCK.ACQUIRE {} {} OWNER {owner} WAIT {wait_ms}{}",
            name_of(name),
            self.ttl_ms(),
            match mode {
                LockMode::Exclusive => String::new(),
                LockMode::Shared => " SHARED".to_owned(),
                LockMode::Permits => format!(" PERMITS {count} OF {max}"),
            }
        );
        let words: Vec<&str> = line.split(' ').collect();
        let (invoke_ns, reply) = self.exchange(epoch, &words, wait_ms).await?;
        let reply = reply?;
        match granted(&reply) {
            Some((fence, ttl_ms)) => {
                let held = Held { name, owner, mode, fence };
                self.believe(&held, invoke_ns, ttl_ms);
                Some(held)
            }
            None => {
                self.expect(&words, &reply, reply == Value::NullBulk);
                None
            }
        }
    }

    /// `None`: what is held now nobody knows.
    async fn convert(&mut self, epoch: &Epoch, held: Held) -> Option<Held> {
        let Held { name, owner, mode, fence } = held;
        let (to, word) = match mode {
            LockMode::Exclusive => (LockMode::Shared, "SHARED"),
            LockMode::Shared | LockMode::Permits => (LockMode::Exclusive, "EXCLUSIVE"),
        };
        match to {
            LockMode::Shared => self.recorder.share_belief(name, fence),
            LockMode::Exclusive | LockMode::Permits => self.recorder.end_belief(name, fence),
        }
        let wait_ms = *self.rng.pick(&[0, 100, 500]).expect("not empty");
        let line = format!("LOCK.CONVERT {} {fence} {word} WAIT {wait_ms}", name_of(name));
        let words: Vec<&str> = line.split(' ').collect();
        let (invoke_ns, reply) = self.exchange(epoch, &words, wait_ms).await?;
        let reply = reply?;
        let Some((fence, ttl_ms)) = granted(&reply) else {
            self.expect(&words, &reply, reply == Value::NullBulk);
            return None;
        };
        let held = Held { name, owner, mode: to, fence };
        self.believe(&held, invoke_ns, ttl_ms);
        Some(held)
    }

    /// Its time counts from when it was asked for.
    fn believe(&mut self, held: &Held, invoke_ns: u64, ttl_ms: u64) {
        let now_us = self.recorder.run_state.now_ns() / 1_000;
        let until_us = (invoke_ns / 1_000 + ttl_ms * 1_000).saturating_sub(SLACK_US);
        let Held { name, owner, mode, fence } = *held;
        if let Err(text) = self.recorder.believe(name, now_us, Belief { owner, mode, fence, until_us }) {
            self.recorder.run_state.report_unexpected(format!("{}: {text}", name_of(name)));
        }
    }

    /// Errors of an outage are no news; neither is a second reader that wants to be the writer.
    fn expect(&self, words: &[&str], reply: &Value, fits: bool) {
        const OUTAGE: [&str; 3] = ["UNAVAILABLE", "INDETERMINATE", "DEADLOCK"];
        let is_outage = matches!(reply, Value::Error(line) if {
            OUTAGE.iter().any(|code| line.starts_with(code)) || line.contains("needs cluster version 2")
        });
        if !fits && !is_outage {
            let line = words.join(" ");
            self.recorder.run_state.report_unexpected(format!("{line} was answered {reply:?}"));
        }
    }
}

fn name_of(name: u64) -> String {
    format!("kind:{name}")
}

fn granted(reply: &Value) -> Option<(u64, u64)> {
    let Value::Array(items) = reply else { return None };
    let [Value::Integer(fence), Value::Integer(ttl_ms)] = items[..] else { return None };
    Some((fence.try_into().ok()?, ttl_ms.try_into().ok()?))
}
