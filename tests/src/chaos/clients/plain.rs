//! Clients of an unchanged Redlock library: `SET NX PX` with a value of their own, scripts to extend and to let go.
//!
//! They know nothing of fences. Half of them are watched by `LOCK.INFO`, as a migrating team would do to get the fence into
//! its database; the others hold it as unknown.

use super::super::recorder::Epoch;
use super::super::replies::owner_name;
use super::locks::TRIES_MAX;
use super::LoadClient;
use crate::checker::{Answer, Call, Outcome};
use crate::resp::Value;

pub(super) const COMPARE_AND_DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
const COMPARE_AND_PEXPIRE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";

/// What a home-grown lock does: the same by scripts that no server recognises.
const SET_IF_ABSENT: &str = "if redis.call('exists', KEYS[1]) == 0 then \
    redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2]) return redis.status_reply('OK') end return false";
const HOME_GROWN_DELETE: &str = "local t = {redis.call('get', KEYS[1])} local gone = 0 \
    for _, held in ipairs(t) do if held == ARGV[1] then gone = gone + redis.call('del', KEYS[1]) end end return gone";

impl LoadClient {
    pub(super) async fn plain_round(&mut self, epoch: &Epoch) {
        let resource = self.resource();
        // A new value for every attempt, as every library does.
        let (owner, ttl_ms) = (self.recorder.number(), self.ttl_ms());
        let words = ["SET", &epoch.name(resource), &owner_name(owner), "NX", "PX", &ttl_ms.to_string()];
        let call = Call::Acquire { owner, ttl_ms, wait_ms: 0, session: 0 };
        let asked = match self.rng.per_mille(150) {
            true => {
                let arguments = [epoch.name(resource), owner_name(owner), ttl_ms.to_string()];
                self.run_script(epoch, resource, call, SET_IF_ABSENT, &arguments).await
            }
            false => self.ask(epoch, resource, call, &words).await,
        };
        match asked {
            Outcome::Answered(Answer::Taken) => {}
            // It may have it and cannot know: it lets go to be safe, as the algorithm says.
            Outcome::Unknown => return self.let_go(epoch, resource, owner).await,
            Outcome::Answered(_) | Outcome::Failed => return self.pause_ms(2).await,
        }
        if self.rng.per_mille(500) {
            self.look(epoch, resource).await;
        }
        self.hold(ttl_ms).await;
        if self.rng.per_mille(120) {
            let ttl_ms = self.ttl_ms();
            let arguments = [epoch.name(resource), owner_name(owner), ttl_ms.to_string()];
            let call = Call::RenewBy { owner, ttl_ms };
            self.run_script(epoch, resource, call, COMPARE_AND_PEXPIRE, &arguments).await;
            self.hold(ttl_ms).await;
        }
        self.let_go(epoch, resource, owner).await;
    }

    async fn let_go(&mut self, epoch: &Epoch, resource: u32, owner: u64) {
        let arguments = [epoch.name(resource), owner_name(owner)];
        let script = if self.rng.per_mille(200) { HOME_GROWN_DELETE } else { COMPARE_AND_DELETE };
        for _ in 0..TRIES_MAX {
            let call = Call::ReleaseBy { owner };
            match self.run_script(epoch, resource, call, script, &arguments).await {
                Outcome::Answered(_) => return,
                Outcome::Failed | Outcome::Unknown => self.pause_ms(20).await,
            }
        }
    }

    /// `EVALSHA`, and `EVAL` where the server does not know the script: what every library does.
    async fn run_script(
        &mut self,
        epoch: &Epoch,
        resource: u32,
        call: Call,
        script: &'static str,
        arguments: &[String],
    ) -> Outcome {
        let digest = self.digest_of(epoch, script).await;
        let verb = if digest.is_some() { "EVALSHA" } else { "EVAL" };
        let mut words = vec![verb, digest.as_deref().unwrap_or(script), "1"];
        words.extend(arguments.iter().map(String::as_str));
        let outcome = self.ask(epoch, resource, call, &words).await;
        if outcome == Outcome::Failed {
            // Perhaps NOSCRIPT.
            self.digests.clear();
        }
        outcome
    }

    /// Loaded once by each client; asked for anew only where the load got lost.
    async fn digest_of(&mut self, epoch: &Epoch, script: &'static str) -> Option<String> {
        if let Some((_, digest)) = self.digests.iter().find(|(known, _)| *known == script) {
            return Some(digest.clone());
        }
        let (_, reply) = self.exchange(epoch, &["SCRIPT", "LOAD", script], 0).await?;
        let Some(Value::Bulk(digest)) = reply else { return None };
        let digest = String::from_utf8(digest).ok()?;
        self.digests.push((script, digest.clone()));
        Some(digest)
    }
}
