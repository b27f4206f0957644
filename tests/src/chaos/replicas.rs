//! At the end all nodes are killed and their disks read: snapshot plus log must give the same state on all.
//!
//! A snapshot is the state a node had while it ran, so a node that diverged at run time is found as well.

use std::path::Path;
use std::time::Duration;

use raft::eraftpb::EntryType;
use redfence::storage::datadir::DataDir;
use redfence::storage::engine::{EngineLimits, EngineStore};
use redfence::storage::LogStore;
use redfence::tier2::load_snapshot;
use redfence_core::machine::{Applied, Machine};

use crate::cluster::Cluster;
use crate::process::poll_until;
use crate::resp::Value;

const LEVEL_WITHIN: Duration = Duration::from_secs(20);
const READ_BYTES: u64 = 1 << 20;

/// Kills all nodes. Returns a line that says what was compared, or what differs.
pub fn compare(cluster: &mut Cluster) -> Result<String, String> {
    let target = all_have_applied(cluster)?;
    let ids: Vec<u64> = cluster.nodes.iter().map(|node| node.id).collect();
    let mut hashes = Vec::new();
    for id in &ids {
        cluster.kill(*id);
    }
    for id in ids {
        let hash = state_at(&cluster.data(id), target).map_err(|error| format!("node {id}: {error}"))?;
        hashes.push((id, hash));
    }
    match hashes.windows(2).find(|pair| pair[0].1 != pair[1].1) {
        Some(pair) => Err(format!("nodes {} and {} differ after entry {target}", pair[0].0, pair[1].0)),
        None => Ok(format!("{} disks hold the same state after entry {target}", hashes.len())),
    }
}

/// Waits until every node has applied what the most advanced one has applied now; returns that index.
fn all_have_applied(cluster: &Cluster) -> Result<u64, String> {
    let applied = |at: usize| match cluster.nodes[at].cluster_info("applied") {
        Some(Value::Integer(index)) => u64::try_from(index).unwrap_or(0),
        _ => 0,
    };
    let all = 0..cluster.nodes.len();
    let target = all.clone().map(applied).max().unwrap_or(0);
    match poll_until(LEVEL_WITHIN, || all.clone().all(|at| applied(at) >= target)) {
        true => Ok(target),
        false => Err(format!("not every node applied entry {target}")),
    }
}

fn state_at(data: &Path, target: u64) -> Result<u64, String> {
    let dir = DataDir::open(data).map_err(|error| error.to_string())?;
    let store = EngineStore::open(&dir, EngineLimits::default()).map_err(|error| error.to_string())?;
    let (found, reader) = (store.recovered(), store.reader());
    let mut machine: Machine = load_snapshot(&found.snapshot, reader.as_ref())?;
    let mut at = found.snapshot.at.index;
    if at > target || found.last_index < target {
        return Err(format!(
            "its snapshot is at {at}, its log ends at {}, not around {target}",
            found.last_index
        ));
    }
    let mut applied = Applied::default();
    while at < target {
        for entry in reader.entries(at + 1, target + 1, READ_BYTES).map_err(|error| error.0)? {
            at = entry.index;
            if entry.get_entry_type() == EntryType::EntryNormal && !entry.data.is_empty() {
                applied.clear();
                machine
                    .apply_entry_at(entry.index, &entry.data, &mut applied)
                    .map_err(|error| error.to_string())?;
            }
        }
    }
    machine.check_invariants().map_err(|violation| violation.to_string())?;
    Ok(machine.state_hash())
}
