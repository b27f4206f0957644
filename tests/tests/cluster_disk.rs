//! Disks of real processes that fail, fill up, tear and rot: a node stops cleanly or refuses to start with a clear line,
//! the others go on, and nothing acknowledged is lost.
//!
//! Failing system calls are injected by strace into the unmodified program; each test checks that its fault was really hit.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use redfence_tests::client::REPLY_WITHIN;
use redfence_tests::cluster::{Cluster, Options};
use redfence_tests::inject::{self, Injection};
use redfence_tests::process::poll_until;
use redfence_tests::{ask, expect, left_out};

const WITHIN: Duration = Duration::from_secs(30);
const LONG_MS: u64 = 600_000;

/// The follower's disk fails under load; it stops with a clear line, the others go on, and it comes back with all there is.
fn a_node_stops_and_loses_nothing(syscall: &str, error: &str, words: &str) {
    if let Err(why) = inject::available() {
        left_out::or_fail(&format!("cluster_disk: disks that fail ({error}): {why}"));
        return;
    }
    let mut cluster = Cluster::start(&Options::nodes(3));
    let leader = cluster.wait_for_leader(REPLY_WITHIN);
    let failing = cluster.followers(leader)[0];
    let mut client = cluster.node(leader).client();
    let before = client.acquire_as("before", LONG_MS, "me");

    let trace = cluster.data(failing).with_extension("strace");
    let pid = cluster.node(failing).process().pid();
    let injection = Injection::attach(pid, syscall, &format!("error={error}"), &trace)
        .unwrap_or_else(|error| panic!("{error}"));
    let mut taken = Vec::new();
    assert!(
        poll_until(WITHIN, || {
            let name = format!("during-{}", taken.len());
            taken.push((name.clone(), client.acquire_as(&name, LONG_MS, "me").fence));
            cluster.node(failing).process().exit_status().is_some()
        }),
        "the node did not stop (fault hit: {})\n{}",
        injection.was_hit(),
        cluster.log()
    );
    assert!(injection.was_hit(), "the fault was never injected");
    let (status, log) = cluster.wait_for_end(failing, WITHIN);
    assert!(!status.success() && status.code().is_some(), "it ends by itself, non-zero: {status}\n{log}");
    assert!(log.contains(words), "the log says why: {words}\n{log}");
    assert!(
        !log.contains("RUST_BACKTRACE") && !log.contains("stack backtrace"),
        "a line, not a trace\n{log}"
    );
    drop(injection);

    cluster.restart(failing);
    cluster.wait_for_leader(WITHIN);
    let mut back = cluster.node(failing).client();
    taken.push(("before".into(), before.fence));
    for (name, fence) in &taken {
        assert_eq!(back.info(name).fence, *fence, "{name}");
    }
    println!("{error} at {syscall}: stopped, and {} locks are all there", taken.len());
}

#[test]
fn an_fsync_error_stops_the_node() {
    a_node_stops_and_loses_nothing("fdatasync", "EIO", "Input/output error");
}

#[test]
fn a_full_disk_stops_the_node() {
    a_node_stops_and_loses_nothing("pwrite64", "ENOSPC", "No space left on device");
}

/// The newest log file, and how many of its bytes are known to be durable.
fn log_file(data: &Path) -> (PathBuf, u64) {
    let mark = std::fs::read(data.join("durable-mark")).expect("a node keeps a durable mark");
    let number = |at: usize| u64::from_le_bytes(mark[at..at + 8].try_into().expect("eight bytes"));
    (data.join("log").join(format!("{:016}.raftlog", number(8))), number(16))
}

fn taken_and_killed(names: usize) -> (Cluster, Vec<(String, i64)>) {
    let mut cluster = Cluster::start(&Options::nodes(1));
    cluster.wait_for_leader(REPLY_WITHIN);
    let mut client = cluster.node(1).client();
    let taken = (0..names)
        .map(|number| {
            let name = format!("lock-{number}");
            let fence = client.acquire_as(&name, LONG_MS, "me").fence;
            (name, fence)
        })
        .collect();
    cluster.kill(1);
    (cluster, taken)
}

#[test]
fn a_torn_tail_is_cut() {
    let (mut cluster, taken) = taken_and_killed(20);
    let (path, durable_bytes) = log_file(&cluster.data(1));
    let mut file = File::options().read(true).write(true).open(path).expect("the log file");
    // The beginning of a record again, as a write that a power cut tore: never acknowledged.
    let mut torn = vec![0; 60];
    file.seek(SeekFrom::Start(durable_bytes - 142)).expect("inside the file");
    file.read_exact(&mut torn).expect("the last record");
    file.seek(SeekFrom::Start(durable_bytes)).expect("its end");
    file.write_all(&torn).expect("written");
    drop(file);

    cluster.restart(1);
    cluster.wait_for_leader(WITHIN);
    let mut client = cluster.node(1).client();
    for (name, fence) in &taken {
        assert_eq!(client.info(name).fence, *fence, "{name}");
    }
    let reply = ask!(client, "LOCK.ACQUIRE", "after", LONG_MS);
    expect::granted(&reply);
}

#[test]
fn a_damaged_middle_is_refused_with_a_clear_line() {
    let (mut cluster, _) = taken_and_killed(20);
    let (path, durable_bytes) = log_file(&cluster.data(1));
    let mut file = File::options().read(true).write(true).open(path).expect("the log file");
    let middle = durable_bytes / 2;
    let mut byte = [0];
    file.seek(SeekFrom::Start(middle)).expect("inside the file");
    file.read_exact(&mut byte).expect("a byte");
    file.seek(SeekFrom::Start(middle)).expect("inside the file");
    file.write_all(&[byte[0] ^ 0x40]).expect("written");
    drop(file);

    cluster.restart(1);
    let (status, log) = cluster.wait_for_end(1, WITHIN);
    assert!(!status.success() && status.code().is_some(), "{status}\n{log}");
    let last = log.lines().last().unwrap_or_default();
    assert!(last.contains("damaged"), "the last line says what is wrong: {last}\n{log}");
    assert!(!log.contains("stack backtrace"), "a line, not a trace\n{log}");
}

#[test]
fn a_data_directory_serves_one_process() {
    let cluster = Cluster::start(&Options::nodes(1));
    cluster.wait_for_leader(REPLY_WITHIN);
    let output = Command::new(redfence_tests::artifacts::redfence().expect("the program is built"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(cluster.data(1))
        .output()
        .expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(errors.lines().last().unwrap_or_default().contains("in use"), "{errors}");
}
