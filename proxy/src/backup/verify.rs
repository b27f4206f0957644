//! `redfence backup verify`: whether a cluster can be founded from a file, and what is in it.

use super::file;
use crate::calendar;
use crate::cli::output::say;
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
    say(&format!("cluster:                {}", header.cluster));
    say(&format!("members:                {}", members.join(",")));
    say(&format!("taken at:               {}", calendar::utc_seconds(header.taken_at_us)));
    say(&format!("index:                  {} (term {})", header.index, header.term));
    say(&format!("cluster version:        {version}{}", if machine.upgrade_hold() { ", held" } else { "" }));
    say(&format!(
        "locks held:             {locks_held} (every key is a lock; {collections} of them are collections)"
    ));
    say(&format!("held without deadline:  {open_ended}"));
    say(&format!("sessions:               {sessions}"));
    say(&format!("waiters:                {waiters}"));
    say(&format!("marks:                  {marks}"));
    say(&format!("fence floor:            {fence_floor}"));
    say(&format!("highest fence:          {highest_fence}"));
    say(&format!(
        "state:                  {memory_bytes} bytes in memory, {} in the file",
        header.size_bytes
    ));
    say("ok");
    Ok(())
}
