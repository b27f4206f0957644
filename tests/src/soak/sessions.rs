//! Many sessions over fewer connections, kept alive by a command on each connection now and then. One thread.
//!
//! A session may end only with its connection: where a node was killed or restarted. Then its client opens another.

use std::time::{Duration, Instant};

use super::load::PATIENCE;
use super::Shared;
use crate::resp::{encode, Connection, Value};

const TTL_MS: &str = "120000";
/// Each connection says something within this time, which is well below the ttl.
const KEEP_WITHIN: Duration = Duration::from_secs(30);
/// A connection must not have been silent for longer than this for its sessions to be alive for certain.
const SILENT_MAX: Duration = Duration::from_secs(100);

struct Group {
    connection: Connection,
    ids: Vec<String>,
    spoke: Instant,
}

pub fn keep(shared: &Shared, sessions: usize, connections: usize) {
    let each = sessions.div_ceil(connections.max(1));
    let mut groups: Vec<Option<Group>> = (0..connections).map(|_| None).collect();
    while !shared.stopped() {
        let round = Instant::now();
        for (number, group) in groups.iter_mut().enumerate() {
            if shared.stopped() {
                return;
            }
            let lives = group.as_mut().is_some_and(|group| check(shared, group));
            if !lives {
                if let Some(lost) = group.take() {
                    shared.report(|report| report.sessions_lost += lost.ids.len() as u64);
                }
                *group = open(shared, number, each);
            }
        }
        let rest = KEEP_WITHIN.saturating_sub(round.elapsed());
        let wakes = Instant::now() + rest / 3;
        while Instant::now() < wakes && !shared.stopped() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn open(shared: &Shared, number: usize, sessions: usize) -> Option<Group> {
    let mut connection = Connection::open(shared.address(number)).ok()?;
    let one = encode(&["LOCK.SESSION", "OPEN", TTL_MS, "NAME", "soak"]);
    connection.send_raw(&one.repeat(sessions)).ok()?;
    let mut ids = Vec::with_capacity(sessions);
    for _ in 0..sessions {
        match connection.receive(PATIENCE).ok()? {
            Value::Bulk(id) => ids.push(String::from_utf8_lossy(&id).into_owned()),
            reply if reply.is_error() => return None,
            reply => {
                shared.wrong(format!("no session: {reply:?}"));
                return None;
            }
        }
    }
    Some(Group { connection, ids, spoke: Instant::now() })
}

/// One of the sessions of a connection is asked for by name. False: the connection is gone, or the node does not serve.
fn check(shared: &Shared, group: &mut Group) -> bool {
    let at = group.spoke.elapsed().subsec_nanos() as usize % group.ids.len().max(1);
    let Some(id) = group.ids.get(at) else { return true };
    let silent = group.spoke.elapsed();
    let Ok(reply) = group.connection.ask(&["LOCK.SESSION", "KEEPALIVE", id], PATIENCE) else { return false };
    match reply.is_error() {
        false => {
            group.spoke = Instant::now();
            true
        }
        true if reply.error_code() == "NOSESSION" => {
            if silent < SILENT_MAX && group.connection.ask(&["PING"], PATIENCE).is_ok() {
                shared.wrong(format!(
                    "session {id} ended on a living connection, {silent:?} after its last word"
                ));
            }
            false
        }
        // No quorum for a moment: the sessions live on for their ttl.
        true => true,
    }
}
