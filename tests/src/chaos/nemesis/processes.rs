//! Faults of processes and of what hangs on them: kills, pauses, leadership, membership, clients' connections.

use std::net::TcpStream;
use std::time::Duration;

use super::{Nemesis, SERVES_WITHIN};
use crate::process::poll_until;
use crate::resp::Value;

const ASK_WITHIN: Duration = Duration::from_secs(2);
/// Connections of one storm. Far below the limit on open files of this process.
const STORM: usize = 400;

impl Nemesis {
    /// kill -9, a while without them, and back on their data.
    pub(super) fn kill(&mut self, ids: &[u64]) -> Result<u64, String> {
        for id in ids {
            self.cluster.kill(*id);
        }
        self.wait_ms(50, 1_500);
        for id in ids {
            self.cluster.restart(*id);
        }
        Ok(if ids.len() == 1 { ids[0] } else { 0 })
    }

    pub(super) fn kill_majority(&mut self, leader: u64) -> Result<u64, String> {
        let majority = self.cluster.nodes.len() / 2 + 1;
        let mut ids = self.cluster.followers(leader);
        ids.push(leader);
        ids.rotate_right(usize::from(self.rng.per_mille(500)));
        ids.truncate(majority);
        self.kill(&ids)
    }

    pub(super) fn kill_all(&mut self) -> Result<u64, String> {
        let ids = self.ids();
        self.kill(&ids)
    }

    /// SIGSTOP and SIGCONT.
    pub(super) fn pause(&mut self, id: u64, low_ms: u64, high_ms: u64) -> Result<u64, String> {
        self.cluster.pause(id);
        self.wait_ms(low_ms, high_ms);
        self.cluster.resume(id);
        Ok(id)
    }

    pub(super) fn transfer(&mut self, leader: u64, to: u64) -> Result<u64, String> {
        // It may be refused, e.g. while the other lags: then nothing happens.
        self.cluster.node(leader).ask(&["LOCK.CLUSTER", "TRANSFER", &to.to_string()], ASK_WITHIN);
        Ok(to)
    }

    /// Every client's connection breaks, with whatever is under way on it: replies are lost.
    pub(super) fn cut_clients(&mut self) -> Result<u64, String> {
        for _ in 0..self.rng.between(1, 8) {
            self.run_state.cut(0);
            std::thread::sleep(Duration::from_millis(self.rng.between(1, 120)));
        }
        Ok(0)
    }

    /// Hundreds of connections at once that say nothing, half a word, or nonsense, and vanish.
    pub(super) fn storm(&mut self, leader: u64) -> Result<u64, String> {
        use std::io::Write;
        let address = self.cluster.node(leader).address;
        for _ in 0..self.rng.between(1, 3) {
            let mut held = Vec::with_capacity(STORM);
            for number in 0..STORM {
                // A full backlog refuses: that is part of a storm.
                let Ok(mut stream) = TcpStream::connect_timeout(&address, ASK_WITHIN) else { continue };
                let words: &[u8] = match number % 3 {
                    0 => b"",
                    1 => b"*3\r\n$12\r\nLOCK.ACQ",
                    _ => b"*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPI",
                };
                let _ = stream.write_all(words);
                held.push(stream);
            }
            self.wait_ms(10, 300);
        }
        Ok(leader)
    }

    /// A member is removed, thrown away with its disk, and another takes its place.
    pub(super) fn replace(&mut self, leader: u64, follower: u64) -> Result<u64, String> {
        let gone = if self.rng.per_mille(300) { leader } else { follower };
        let id = self.next_id;
        self.next_id += 1;
        self.ask_until("REMOVE", &[&gone.to_string()], gone, |members| !members.contains_key(&gone))?;
        self.run_state.remove_node(gone);
        let host = self.cluster.discard(gone);
        let address = self.cluster.join_on(id, host);
        let added = |members: &Members| members.get(&id).is_some_and(|role| role != "learner");
        self.ask_until("ADD", &[&id.to_string(), &address.to_string()], id, added)?;
        self.run_state.add_node(id, self.cluster.node(id).address);
        Ok(id)
    }

    /// Asks any node but `not` for a change of members until all of that is true.
    fn ask_until(
        &mut self,
        verb: &str,
        words: &[&str],
        not: u64,
        done: impl Fn(&Members) -> bool,
    ) -> Result<(), String> {
        let askable: Vec<u64> = self.ids().into_iter().filter(|id| *id != not).collect();
        let mut turn = 0;
        let mut said = String::new();
        let reached = poll_until(SERVES_WITHIN, || {
            let asked = self.cluster.node(askable[turn % askable.len()]);
            turn += 1;
            let members = asked.ask(&["LOCK.CLUSTER", "NODES"], ASK_WITHIN).and_then(|reply| members(&reply));
            if members.is_some_and(|members| done(&members)) {
                return true;
            }
            // Asked again and again: it may have been lost, and once it is done it does no harm.
            if turn % 20 == 1 {
                said = format!("{:?}", asked.ask(&[&["LOCK.CLUSTER", verb], words].concat(), ASK_WITHIN));
            }
            std::thread::sleep(Duration::from_millis(20));
            false
        });
        match reached {
            true => Ok(()),
            false => Err(format!("{verb} {words:?} did not come about; the last answer was {said}")),
        }
    }
}

/// Id and role.
type Members = std::collections::BTreeMap<u64, String>;

fn members(reply: &Value) -> Option<Members> {
    let Value::Array(nodes) = reply else { return None };
    let member = |node: &Value| {
        let Value::Array(fields) = node else { return None };
        let field = |name: &str| {
            fields.chunks_exact(2).find(|pair| pair[0] == Value::bulk(name)).map(|pair| &pair[1])
        };
        match (field("id")?, field("role")?) {
            (Value::Integer(id), Value::Bulk(role)) => {
                Some((u64::try_from(*id).ok()?, String::from_utf8_lossy(role).into_owned()))
            }
            _ => None,
        }
    };
    nodes.iter().map(member).collect()
}
