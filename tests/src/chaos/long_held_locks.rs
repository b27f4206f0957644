//! Locks taken before the first fault and read after the last: no acknowledged grant may be lost in between.

use std::time::Duration;

use crate::cluster::{Cluster, Node};
use crate::process::poll_until;
use crate::resp::Value;

const COUNT: usize = 100;
const TTL_MS: &str = "86400000";
const ASK_WITHIN: Duration = Duration::from_secs(3);
const WITHIN: Duration = Duration::from_secs(20);

pub struct LongHeldLocks(Vec<Value>);

fn name(number: usize) -> String {
    format!("long-held:{number}")
}

fn owner(number: usize) -> String {
    format!("keeper-{number}")
}

/// Retries until a reply is not an error.
fn answer(node: &Node, words: &[&str]) -> Result<Value, String> {
    let mut last = None;
    poll_until(WITHIN, || {
        last = node.ask(words, ASK_WITHIN);
        last.as_ref().is_some_and(|reply| !reply.is_error())
    });
    last.filter(|reply| !reply.is_error())
        .ok_or_else(|| format!("node {} does not answer {words:?}", node.id))
}

impl LongHeldLocks {
    pub fn take(cluster: &Cluster) -> Result<LongHeldLocks, String> {
        let grants = (0..COUNT).map(|number| {
            let node = &cluster.nodes[number % cluster.nodes.len()];
            answer(node, &["LOCK.ACQUIRE", &name(number), TTL_MS, "OWNER", &owner(number)])
        });
        grants
            .map(|grant| grant.map(|grant| grant.array()[0].clone()))
            .collect::<Result<_, _>>()
            .map(LongHeldLocks)
    }

    /// Each is still held, by the same owner under the same fence.
    pub fn are_held(&self, cluster: &Cluster) -> Result<(), String> {
        for (number, fence) in self.0.iter().enumerate() {
            let node = &cluster.nodes[number % cluster.nodes.len()];
            let seen = answer(node, &["LOCK.INFO", &name(number)])?;
            let (now, by) = (field(&seen, "fence"), field(&seen, "owner"));
            if now.as_ref() != Some(fence) || by != Some(Value::bulk(owner(number))) {
                return Err(format!(
                    "{} was granted under {fence:?} and never released; node {} shows {seen:?}",
                    name(number),
                    node.id
                ));
            }
        }
        Ok(())
    }

    /// Every node replies from its own state: all must agree on every lock that is held.
    pub fn are_the_same_everywhere(&self, cluster: &Cluster) -> Result<(), String> {
        for number in 0..self.0.len() {
            let mut said: Option<Vec<Option<Value>>> = None;
            for node in &cluster.nodes {
                let seen = answer(node, &["LOCK.INFO", &name(number)])?;
                let told =
                    ["state", "fence", "owner", "session", "waiters"].map(|key| field(&seen, key)).to_vec();
                match &said {
                    Some(known) if *known != told => {
                        return Err(format!(
                            "{}: node {} shows {told:?}, another {known:?}",
                            name(number),
                            node.id
                        ));
                    }
                    Some(_) => {}
                    None => said = Some(told),
                }
            }
        }
        Ok(())
    }
}

/// All clients are gone and every ttl has passed: any other lock that is still held is stuck.
pub fn nothing_is_stuck(cluster: &Cluster) -> Result<(), String> {
    let mut held = Vec::new();
    let free = poll_until(WITHIN, || {
        held = held_by_clients(&cluster.nodes[0]);
        held.is_empty()
    });
    match free {
        true => Ok(()),
        false => {
            Err(format!("{} locks are still held {WITHIN:?} after the last client: {held:?}", held.len()))
        }
    }
}

/// A complete `LOCK.SCAN`. A missing reply counts as held.
fn held_by_clients(node: &Node) -> Vec<String> {
    let (mut held, mut cursor) = (Vec::new(), "0".to_string());
    loop {
        let reply = node.ask(&["LOCK.SCAN", &cursor, "MATCH", "e*", "COUNT", "500"], ASK_WITHIN);
        let Some(Value::Array(parts)) = reply else { return vec![format!("no answer but {reply:?}")] };
        let [next, Value::Array(names)] = &parts[..] else { return vec![format!("{parts:?}")] };
        held.extend(names.iter().map(Value::text));
        cursor = next.text();
        if cursor == "0" {
            return held;
        }
    }
}

fn field(reply: &Value, name: &str) -> Option<Value> {
    let Value::Array(items) = reply else { return None };
    items.chunks_exact(2).find(|pair| pair[0] == Value::bulk(name)).map(|pair| pair[1].clone())
}
