//! The processes of this machine, as far as the end of a command needs to know them: who belongs to its group, and who descends from it.
//!
//! # Caveats
//!
//! Linux alone: without `/proc` nobody is found, and the callers fall back on what signals tell.

use rustix::process::Pid;
use std::collections::BTreeSet;

#[derive(Debug, PartialEq, Eq)]
struct Process {
    pid: i32,
    parent: i32,
    group: i32,
    /// Not dead and only waiting to be reaped.
    is_alive: bool,
}

/// `pid (name) state parent group …`; the name may hold anything, parentheses and spaces too.
fn parse_stat(stat: &str) -> Option<Process> {
    let (head, tail) = stat.rsplit_once(')')?;
    let mut fields = tail.split_ascii_whitespace();
    let state = fields.next()?;
    let mut number = || fields.next()?.parse().ok();
    let (parent, group) = (number()?, number()?);
    let pid = head.split(' ').next()?.parse().ok()?;
    Some(Process { pid, parent, group, is_alive: !matches!(state, "Z" | "X") })
}

fn all() -> Vec<Process> {
    let Ok(folder) = std::fs::read_dir("/proc") else { return Vec::new() };
    let is_number =
        |entry: &std::fs::DirEntry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
    let stat = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("stat")).ok();
    // One that ends meanwhile is none.
    folder.flatten().filter(is_number).filter_map(stat).filter_map(|stat| parse_stat(&stat)).collect()
}

/// The living members of a process group; `None` where that is not known.
pub(crate) fn of_group(group: Pid) -> Option<Vec<i32>> {
    let all = all();
    let of_group = |process: &&Process| process.is_alive && process.group == group.as_raw_nonzero().get();
    (!all.is_empty()).then(|| all.iter().filter(of_group).map(|process| process.pid).collect())
}

/// Whoever descends from a process and lives, whatever group or session it is in.
pub(crate) fn below(ancestor: Pid) -> Vec<Pid> {
    let all = all();
    let mut family = BTreeSet::from([ancestor.as_raw_nonzero().get()]);
    // Parents are not always found before their children.
    while all
        .iter()
        .filter(|process| family.contains(&process.parent))
        .any(|process| !family.contains(&process.pid))
    {
        let children: Vec<i32> = all
            .iter()
            .filter(|process| family.contains(&process.parent))
            .map(|process| process.pid)
            .collect();
        family.extend(children);
    }
    all.iter()
        .filter(|process| process.is_alive && process.pid != ancestor.as_raw_nonzero().get())
        .filter(|process| family.contains(&process.pid))
        .filter_map(|process| Pid::from_raw(process.pid))
        .collect()
}

/// The signals that this process ignores, as it was started: `nohup` ignores SIGHUP, a shell SIGINT for what it starts with `&`.
pub(crate) fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_may_hold_anything() {
        let stat = "42 (a) R (b) S 7 40 40 0 -1 4194560";
        assert_eq!(parse_stat(stat), Some(Process { pid: 42, parent: 7, group: 40, is_alive: true }));
        assert_eq!(parse_stat("42 (x) Z 7 40 40").map(|process| process.is_alive), Some(false));
        assert_eq!(parse_stat("42 (x"), None);
    }

    #[test]
    fn a_child_of_ours_is_below_us() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert!(below(rustix::process::getpid()).contains(&pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!below(rustix::process::getpid()).contains(&pid));
    }
}
