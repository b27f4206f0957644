//! Disks of real processes that fail, fill up, tear and rot: a node stops cleanly or refuses to start with a clear line,
//! the others go on, and nothing acknowledged is lost.
//!
//! Failing system calls are injected by strace into the unmodified program; each test checks that its fault was really hit.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use redfence_tests::chaos::environment::{enter_own_mounts, run};
use redfence_tests::client::REPLY_WITHIN;
use redfence_tests::cluster::{Cluster, Host, Options};
use redfence_tests::inject::{self, Injection};
use redfence_tests::process::poll_until;
use redfence_tests::resp::Value;
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

/// A file system of its own for each node, with room for the reserve file (16 MiB) and little beside it.
struct SmallDisks {
    hosts: Vec<Host>,
    folders: Vec<PathBuf>,
    // Last: the folder goes after the mounts in it.
    folder: tempfile::TempDir,
}

impl SmallDisks {
    fn mount(nodes: usize) -> Result<SmallDisks, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let prefix = enter_own_mounts()?;
        let mut disks = SmallDisks { hosts: Vec::new(), folders: Vec::new(), folder };
        for id in 1..=nodes {
            let disk = disks.folder.path().join(format!("disk-{id}"));
            std::fs::create_dir(&disk).map_err(|error| error.to_string())?;
            run(&["mount", "-t", "tmpfs", "-o", "size=48m", "small-disk", &disk.to_string_lossy()])?;
            let (prefix, data) = (prefix.clone(), Some(disk.clone()));
            disks.hosts.push(Host { prefix, disk: data, ..Host::default() });
            disks.folders.push(disk);
        }
        Ok(disks)
    }
}

impl Drop for SmallDisks {
    fn drop(&mut self) {
        for disk in &self.folders {
            // Whatever is left vanishes with this thread.
            let _ = run(&["umount", "-l", &disk.to_string_lossy()]);
        }
    }
}

/// Fills a disk with something else than our data, up to the last six MiB: too little to go on with.
fn fill(disk: &Path) {
    let mut file = File::create(disk.join("of-somebody-else")).expect("a file on our own disk");
    let mebibyte = vec![7; 1 << 20];
    while free_mib(disk) > 6 {
        file.write_all(&mebibyte).expect("there is room");
    }
}

fn free_mib(disk: &Path) -> u64 {
    let output = Command::new("df").args(["--output=avail", "-k"]).arg(disk).output().expect("df runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().nth(1).and_then(|line| line.trim().parse::<u64>().ok()).expect("a number") >> 10
}

#[test]
fn full_disks_of_all_nodes_at_once_stop_them_in_order_and_nothing_is_lost() {
    let disks = match SmallDisks::mount(3) {
        Ok(disks) => disks,
        Err(why) => return left_out::or_fail(&format!("cluster_disk: full disks of all nodes: {why}")),
    };
    let mut cluster = Cluster::start(&Options { hosts: disks.hosts.clone(), ..Options::nodes(3) });
    let reserve = |cluster: &Cluster, id| cluster.data(id).join("RESERVE");
    assert!((1..=3).all(|id| reserve(&cluster, id).exists()));

    let mut taken = Vec::new();
    let mut asked = 0;
    let mut take = |cluster: &Cluster| {
        asked += 1;
        let (name, ttl) = (format!("lock-{asked}"), LONG_MS.to_string());
        let node = cluster.node(asked % 3 + 1);
        let reply = node.ask(&["LOCK.ACQUIRE", &name, &ttl, "OWNER", "me"], Duration::from_secs(6));
        // Anything else: refused, or not known, or nobody there any more.
        if let Some(Value::Array(grant)) = reply {
            taken.push((name, grant[0].clone()));
        }
    };
    (0..30).for_each(|_| take(&cluster));
    disks.folders.iter().for_each(|disk| fill(disk));
    let all_ended =
        |cluster: &Cluster| cluster.nodes.iter().all(|node| node.process().exit_status().is_some());
    assert!(
        poll_until(2 * WITHIN, || {
            take(&cluster);
            all_ended(&cluster)
        }),
        "a node with a full disk goes on\n{}",
        cluster.log()
    );
    for id in 1..=3 {
        let (status, log) = cluster.wait_for_end(id, WITHIN);
        assert_eq!(status.code(), Some(1), "{log}");
        let last = log.lines().last().unwrap_or_default();
        assert!(last.contains("disk full") && last.contains("make room"), "{last}\n{log}");
        assert!(!reserve(&cluster, id).exists(), "the reserve file is given up");
    }

    // No room yet: refused in one line, however often it is tried.
    for _ in 0..2 {
        cluster.restart(1);
        let (status, log) = cluster.wait_for_end(1, WITHIN);
        assert!(!status.success() && status.code().is_some(), "{status}\n{log}");
        let last = log.lines().last().unwrap_or_default();
        assert!(last.contains("disk full") && last.contains("make room"), "{last}\n{log}");
    }

    for disk in &disks.folders {
        std::fs::remove_file(disk.join("of-somebody-else")).expect("it is there");
    }
    (1..=3).for_each(|id| cluster.restart(id));
    cluster.wait_for_leader(WITHIN);
    assert!((1..=3).all(|id| reserve(&cluster, id).exists()), "it is made again");
    assert!(taken.len() >= 30, "only {} locks were taken", taken.len());
    let mut client = cluster.node(2).client();
    for (name, fence) in &taken {
        assert_eq!(Value::Integer(client.info(name).fence), *fence, "{name}");
    }
    expect::granted(&ask!(client, "LOCK.ACQUIRE", "after", LONG_MS));
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
