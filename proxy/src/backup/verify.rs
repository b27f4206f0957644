//! `redfence backup verify`: whether a cluster can be founded from a file, and what is in it.

use super::file;
use crate::calendar;
use redfence_core::machine::Contents;
use redfence_core::types::Fence;
use std::path::Path;

pub(super) fn verify(path: &Path) -> Result<(), String> {
    let (header, mut machine) = file::load(path)?;
    let Contents {
        locks_held,
        collections,
        waiters,
        sessions,
        marks,
        fence_floor,
        highest_fence,
        memory_bytes,
    } = machine.contents();
    let open_ended = machine.open_ended_locks().count();
    let version = machine.cluster_version();
    // As a restore would, with any floor.
    machine.refound(Fence(0)).map_err(|error| format!("backup {}: {error}", path.display()))?;
    let members: Vec<String> =
        header.members.iter().map(|(id, addr)| format!("{id}={}", addr.escape_debug())).collect();
    println!("cluster:                {}", header.cluster);
    println!("members:                {}", members.join(","));
    println!("taken at:               {}", calendar::utc_seconds(header.taken_at_us));
    println!("index:                  {} (term {})", header.index, header.term);
    println!("cluster version:        {version}");
    println!(
        "locks held:             {locks_held} (every key is a lock; {collections} of them are collections)"
    );
    println!("held without deadline:  {open_ended}");
    println!("sessions:               {sessions}");
    println!("waiters:                {waiters}");
    println!("marks:                  {marks}");
    println!("fence floor:            {fence_floor}");
    println!("highest fence:          {highest_fence}");
    println!("state:                  {memory_bytes} bytes in memory, {} in the file", header.size_bytes);
    println!("ok");
    Ok(())
}
