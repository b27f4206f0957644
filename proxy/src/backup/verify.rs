//! `redfence backup verify`: whether a cluster can be founded from a file, and what is in it.

use super::file;
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
    println!("taken at:               {}", utc(header.taken_at_us));
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

/// Seconds are enough for people.
fn utc(us: u64) -> String {
    let seconds = us / 1_000_000;
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a number of days since 1970, by counting them off: no calendar crate for one line.
fn civil(mut days: u64) -> (u64, usize, u64) {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        // Far beyond every fence.
        if days < length || year >= 9_999 {
            break;
        }
        days -= length;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length || month == 12 {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_utc() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_399_000_000), "2000-02-28T23:59:59Z");
        assert_eq!(utc(951_782_400_000_000), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_735_689_599_999_999), "2024-12-31T23:59:59Z");
        let _ = utc(u64::MAX);
    }
}
