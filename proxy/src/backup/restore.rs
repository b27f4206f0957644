//! `redfence restore`: the data directory of one member of a new cluster, out of a backup.
//!
//! # Several nodes, one state
//!
//! Nodes that each restored the file by themselves would differ: the fence floor depends on the clock. So one member, the one with the
//! lowest id, gets the state; the others begin empty. Those know no members: they can vote for it and never stand for election
//! themselves, so it becomes the first leader as soon as a majority runs, and brings them in with a snapshot. Nothing is answered
//! before a majority has the state.
//!
//! One half of the new cluster's id is a hash of the backup and the list of members, the other half is drawn by the first member.
//! The others know the first half alone and learn the second from the first member that greets them. So neither a node of the old
//! cluster is let in, nor one of another restore of the same file. Log positions go on from the backup's: clocks in the state count
//! by term.

use super::file;
use crate::calendar;
use crate::cli::output::{say, tell};
use crate::cli::RestoreArgs;
use crate::clock;
use crate::config::cluster_list;
use crate::node_api::backup_file::BackupHeader;
use crate::node_api::snapshot_stream::framed;
use crate::node_api::{Input, NodeId, SnapshotId, SnapshotMeta, SnapshotOp, NO_ADDRESS};
use crate::storage::datadir::{DataDir, NodeIdentity, StoreId, LOST_AND_FOUND};
use crate::storage::engine::{EngineLimits, EngineStore};
use crate::storage::snapshots::SnapshotWriter;
use redfence_core::machine::{Machine, OpenEndedLock, Refounded, FENCE_MARGIN_US};
use redfence_core::types::Fence;
use sha2::{Digest, Sha256};
use std::path::Path;

/// No start of a node uses this number: those begin with the first.
const SNAPSHOT: SnapshotId = SnapshotId(1);
const SLOTS_AT_ONCE: usize = 16_384;
const NAME_SHOWN_BYTES: usize = 512;
const OWNER_SHOWN_BYTES: usize = 64;

pub fn restore(args: &RestoreArgs) -> Result<(), String> {
    let founders = founders(args)?;
    check_empty(&args.data)?;
    let is_made_here = !args.data.exists();
    let failed = |error: crate::storage::StorageError| error.to_string();
    // A restore that is cut short must never look like a node that was not started yet. Another may have been first.
    let Some(dir) = DataDir::begin_restore(&args.data).map_err(failed)? else {
        return Err(not_empty(&args.data));
    };
    match load(args, &founders) {
        Ok(loaded) => make(args, &founders, &dir, loaded),
        Err(line) => {
            dir.abandon_restore(is_made_here);
            Err(line)
        }
    }
}

/// The state of the new node.
struct Loaded {
    header: BackupHeader,
    machine: Machine,
    /// `None`: another member brings it in.
    refounded: Option<Refounded>,
    first: NodeId,
}

fn load(args: &RestoreArgs, founders: &[(NodeId, String)]) -> Result<Loaded, String> {
    let (header, mut machine) = file::load(&args.from)?;
    let first = founders.iter().map(|(id, _)| *id).min().unwrap_or(args.id);
    let now_us = clock::wall_us();
    if args.id != first && args.fence_floor.is_some() {
        tell(&format!(
            "warning: --fence-floor counts at node {first} alone, which brings the state in: it has no effect on node {}",
            args.id
        ));
    }
    if args.id == first && now_us < header.taken_at_us {
        tell(&format!(
            "warning: the clock here ({}) is behind the time of the backup ({}). Set it right, or give --fence-floor a number \
             above every fence of the old cluster",
            calendar::utc_seconds(now_us),
            calendar::utc_seconds(header.taken_at_us)
        ));
    }
    let known_us = now_us.max(header.taken_at_us);
    let highest = machine.highest_fence();
    if args.id == first && highest.0 > known_us {
        tell(&format!(
            "warning: the fences of the backup (up to {highest}) are ahead of the clock here ({now_us}): its clocks were, or it had a \
             fence floor ahead of them. If the old cluster may have granted more than {FENCE_MARGIN_US} above that after the backup, \
             give --fence-floor a number above every fence of it"
        ));
    }
    let floor = known_us.saturating_add(FENCE_MARGIN_US).max(args.fence_floor.unwrap_or(0));
    let refounded = (args.id == first).then(|| machine.refound(Fence(floor))).transpose();
    let refounded = refounded.map_err(|error| error.to_string())?;
    Ok(Loaded { header, machine, refounded, first })
}

fn make(
    args: &RestoreArgs,
    founders: &[(NodeId, String)],
    dir: &DataDir,
    loaded: Loaded,
) -> Result<(), String> {
    let Loaded { header, mut machine, refounded, first } = loaded;
    let failed = |error: crate::storage::StorageError| error.to_string();
    let store_id = StoreId::random().map_err(failed)?;
    let family = cluster_family(&header, founders);
    let drawn = match args.id == first {
        true => (StoreId::random().map_err(failed)?.0 as u32).max(1),
        false => 0,
    };
    let cluster_id = u64::from(family) << 32 | u64::from(drawn);
    let mut identity = NodeIdentity { node_id: args.id, cluster_id, store_id, log_made: false };
    dir.save_identity(&identity).map_err(failed)?;
    let meta = match refounded {
        Some(_) => write_state(dir, &header, founders, &mut machine)?,
        None => SnapshotMeta::joining(),
    };
    EngineStore::create(dir, EngineLimits::default(), meta).map_err(failed)?;
    identity.log_made = true;
    dir.save_identity(&identity).map_err(failed)?;
    dir.end_restore().map_err(failed)?;

    say(&format!("node {} is made in {}", args.id, args.data.display()));
    say(&format!("from the backup of cluster {} at index {}", header.cluster, header.index));
    match refounded {
        Some(done) => {
            say(&format!("it founds cluster {cluster_id:016x}"));
            say(&format!("fence floor {}: every new fence is above it", done.fence_floor));
            match done.floor_for_another() {
                Some(floor) => say(&format!(
                    "to restore this backup or an older one again: --fence-floor {floor}, or more where fences were granted above it"
                )),
                None => say("restored again, this backup or an older one would repeat fences: no floor may be that high"),
            }
            let contents = machine.contents();
            say(&format!(
                "{} locks held for their full ttl, {} sessions, {} marks; {} waiters dropped",
                contents.locks_held, contents.sessions, contents.marks, done.waiters_dropped
            ));
            if machine.upgrade_hold() {
                let version = machine.cluster_version();
                say(&format!("it stays at cluster version {version} until LOCK.CLUSTER UPGRADE FINISH"));
            }
            list_open_ended(&machine);
        }
        None => say(&format!(
            "it is empty: node {first}, restored from the same file with the same --cluster, brings it the state"
        )),
    }
    Ok(())
}

fn founders(args: &RestoreArgs) -> Result<Vec<(NodeId, String)>, String> {
    if !(1..=65_535).contains(&args.id) {
        return Err(format!("id is {}: use 1 to 65535", args.id));
    }
    let mut founders = match args.cluster.as_deref().map(cluster_list).transpose()? {
        // As a single node that is founded without --cluster.
        None => vec![(args.id, NO_ADDRESS.to_owned())],
        Some(named) if named.is_empty() => {
            return Err("cluster is empty: name every member, or leave it out".to_owned())
        }
        Some(named) => named,
    };
    founders.sort();
    if !founders.iter().any(|(id, _)| *id == args.id) {
        let members: Vec<String> = founders.iter().map(|(id, _)| id.to_string()).collect();
        let members = members.join(", ");
        return Err(format!("id not in the cluster: this is node {}, but cluster names {members}", args.id));
    }
    Ok(founders)
}

/// A file system's own folder is no data.
fn check_empty(data: &Path) -> Result<(), String> {
    let mut entries = match std::fs::read_dir(data) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(format!("data directory {}: {error}", data.display())),
    };
    match entries.any(|entry| entry.map_or(true, |entry| entry.file_name() != LOST_AND_FOUND)) {
        true => Err(not_empty(data)),
        false => Ok(()),
    }
}

fn not_empty(data: &Path) -> String {
    format!(
        "data directory {} is not empty: restore makes a new one; name another, or remove what is there",
        data.display()
    )
}

/// The half that every member knows: never that of the cluster the backup was taken of.
fn cluster_family(header: &BackupHeader, founders: &[(NodeId, String)]) -> u32 {
    let mut hash = Sha256::new();
    hash.update(b"redfence restore\n");
    hash.update(header.encode());
    for (id, addr) in founders {
        hash.update(format!("{id}={addr}\n").as_bytes());
    }
    let digest = hash.finalize();
    let (first, _) = digest.split_first_chunk().expect("a digest has 32 bytes");
    // 0 stands for "not known yet".
    u32::from_le_bytes(*first).max(1)
}

/// Stores the state as the snapshot that the new node starts from.
fn write_state(
    dir: &DataDir,
    header: &BackupHeader,
    founders: &[(NodeId, String)],
    machine: &mut Machine,
) -> Result<SnapshotMeta, String> {
    let mut writer = SnapshotWriter::new(&dir.snapshots_path());
    let mut carry_out = |op| match writer.carry_out(op) {
        Some(Input::SnapshotFailed { reason, .. }) => Err(reason),
        Some(_) | None => Ok(()),
    };
    carry_out(SnapshotOp::Create(SNAPSHOT))?;
    let mut crc = crc32fast::Hasher::new();
    let mut size_bytes = 0;
    machine.snapshot_begin();
    while let Some(piece) = machine.snapshot_step(SLOTS_AT_ONCE) {
        let bytes = framed(&piece);
        crc.update(&bytes);
        size_bytes += bytes.len() as u64;
        carry_out(SnapshotOp::Append { id: SNAPSHOT, bytes })?;
    }
    let crc32 = crc.finalize();
    carry_out(SnapshotOp::Finish { id: SNAPSHOT, size_bytes, crc32 })?;
    Ok(SnapshotMeta { id: SNAPSHOT, at: header.at(), size_bytes, crc32, ..SnapshotMeta::founding(founders) })
}

fn list_open_ended(machine: &Machine) {
    let mut is_first = true;
    for OpenEndedLock { db, name, owner, fence, session } in machine.open_ended_locks() {
        if std::mem::take(&mut is_first) {
            say("held without a deadline (LOCK.FORCERELEASE ends one):");
        }
        let bound = session.map_or_else(String::new, |(id, ttl_ms)| {
            format!(" session {id} (ends {ttl_ms} ms after the start, unless it is kept alive)")
        });
        let (name, owner) = (shown(&name, NAME_SHOWN_BYTES), shown(&owner, OWNER_SHOWN_BYTES));
        say(&format!("  db {db} resource {name} owner {owner} fence {fence}{bound}"));
    }
}

/// In one line, whatever is in it. The owner of a plain key is its value, which may be long.
fn shown(text: &[u8], bytes_max: usize) -> String {
    match text.get(..bytes_max) {
        Some(begin) if text.len() > bytes_max => {
            format!("\"{}\"… ({} bytes)", begin.escape_ascii(), text.len())
        }
        Some(_) | None => format!("\"{}\"", text.escape_ascii()),
    }
}
