//! `redfence backup`, `backup verify` and `restore` on one node: files that are whole or not there, and one line where it cannot be done.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};
use support::tls::Certificates;
use support::{await_that, free_address, redfence, Node, Process};
use tempfile::TempDir;

fn run(folder: &TempDir, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redfence"));
    command.current_dir(folder.path()).env_remove("REDFENCE_PASSWORD").args(args);
    command.output().expect("redfence runs")
}

#[track_caller]
fn succeeds(folder: &TempDir, args: &[&str]) -> String {
    let output = run(folder, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
fn refusal(folder: &TempDir, args: &[&str]) -> String {
    let output = run(folder, args);
    assert!(!output.status.success(), "{args:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("redfence: ")).collect();
    assert_eq!(lines.len(), 1, "{text}");
    lines[0].to_owned()
}

#[test]
fn one_node_is_backed_up_and_restored() {
    let node = Node::start(&[]);
    let mut client = node.connect();
    let fence = client.acquire(&["kept", "600000", "OWNER", "me"]);
    let value = "v".repeat(60_000);
    for number in 0..60 {
        assert_eq!(client.ask(&["SET", &format!("large:{number}"), &value]), "OK");
    }
    let folder = TempDir::new().unwrap();
    let from = node.address.to_string();
    succeeds(&folder, &["backup", "--from", &from, "--out", "a.backup"]);
    let names: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["a.backup"], "nothing else is left");
    assert!(succeeds(&folder, &["backup", "verify", "a.backup"]).contains("locks held:             61 "));

    let said = succeeds(&folder, &["restore", "--from", "a.backup", "--data", "data"]);
    let floor = said.split("fence floor ").nth(1).and_then(|rest| rest.split(':').next()).unwrap();
    let floor: u64 = floor.parse().unwrap();
    assert!(said.contains("resource \"large:0\""), "it has no deadline: {said}");
    assert!(said.len() < 60_000, "values are not printed");
    let address = free_address();
    let command = redfence(&folder, &["--listen", &address.to_string(), "--data", "data"]);
    let again = Process::start(command, &folder, "again");
    await_that("the restored node serves", || again.log().contains(" ready "));
    let mut client = support::Client::connect(address);
    assert!(client.ask(&["GET", "large:59"]).contains(&value));
    assert_eq!(client.acquire(&["kept", "600000", "OWNER", "me"]), fence, "a retry of its holder");
    assert!(client.acquire(&["new", "600000"]) > floor);
}

#[test]
fn a_floor_that_is_asked_for_is_kept_and_so_is_an_upgrade_hold() {
    let node = Node::start(&[]);
    let folder = TempDir::new().unwrap();
    assert_eq!(node.connect().ask(&["LOCK.CLUSTER", "UPGRADE", "HOLD"]), "OK");
    succeeds(&folder, &["backup", "--from", &node.address.to_string(), "--out", "a.backup"]);
    let verified = succeeds(&folder, &["backup", "verify", "a.backup"]);
    assert!(verified.lines().any(|line| line.starts_with("cluster version:") && line.ends_with(", held")));
    let floor = 1_u64 << 52;
    let said = succeeds(
        &folder,
        &["restore", "--from", "a.backup", "--data", "data", "--fence-floor", &floor.to_string()],
    );
    assert!(said.contains(&format!("fence floor {floor}:")), "{said}");
    assert!(said.contains("would repeat fences"), "it is the largest: {said}");
    assert!(said.contains("until LOCK.CLUSTER UPGRADE FINISH"), "{said}");
    let beyond = ["restore", "--from", "a.backup", "--data", "b", "--fence-floor", "9007199254740992"];
    assert!(refusal(&folder, &beyond).contains("out of range"));
}

/// The second backup is of a cluster whose fences run a day ahead of the clock.
#[test]
fn fences_ahead_of_the_clock_are_warned_of_and_do_not_come_again() {
    const HOUR_US: u64 = 3_600_000_000;
    let after = |said: &str, words: &str| -> u64 {
        let rest = said.split(words).nth(1).unwrap_or_else(|| panic!("no {words:?} in {said}"));
        rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    let start = |folder: &TempDir, data: &str| {
        let address = free_address();
        let process = Process::start(
            redfence(folder, &["--listen", &address.to_string(), "--data", data]),
            folder,
            data,
        );
        await_that("the restored node serves", || process.log().contains(" ready "));
        (support::Client::connect(address), process, address.to_string())
    };
    let node = Node::start(&[]);
    let folder = TempDir::new().unwrap();
    succeeds(&folder, &["backup", "--from", &node.address.to_string(), "--out", "a.backup"]);
    let now_us =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros() as u64;
    let ahead = (now_us + 24 * HOUR_US).to_string();
    let first = run(&folder, &["restore", "--from", "a.backup", "--data", "one", "--fence-floor", &ahead]);
    assert!(first.status.success());
    assert!(!String::from_utf8_lossy(&first.stderr).contains("ahead of the clock"), "the backup's are not");
    let said = String::from_utf8_lossy(&first.stdout).into_owned();
    assert_eq!(after(&said, "fence floor ").to_string(), ahead, "as it was asked for");
    assert_eq!(after(&said, "again: --fence-floor "), now_us + 25 * HOUR_US);

    let (mut client, process, address) = start(&folder, "one");
    let hottest = client.acquire(&["before", "600000"]);
    succeeds(&folder, &["backup", "--from", &address, "--out", "b.backup"]);
    let later = client.acquire(&["later", "600000"]);
    drop((client, process));

    let second = run(&folder, &["restore", "--from", "b.backup", "--data", "two"]);
    assert!(second.status.success());
    let warned = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(after(&warned, "fences of the backup (up to "), hottest);
    let said = String::from_utf8_lossy(&second.stdout).into_owned();
    assert_eq!(after(&said, "fence floor "), hottest + HOUR_US);
    let (mut client, _process, _) = start(&folder, "two");
    let fence = client.acquire(&["later", "600000"]);
    assert!(fence > later && fence > hottest + HOUR_US, "{fence} after {later}");

    let another = after(&said, "again: --fence-floor ").to_string();
    let third = ["restore", "--from", "b.backup", "--data", "three", "--fence-floor", &another];
    assert_eq!(after(&succeeds(&folder, &third), "fence floor "), hottest + 2 * HOUR_US);
}

#[test]
fn what_cannot_be_done_is_said_in_one_line_and_leaves_nothing_behind() {
    let node = Node::start(&["--password", "secret"]);
    let folder = TempDir::new().unwrap();
    let from = node.address.to_string();
    let backup = ["backup", "--from", &from, "--out", "a.backup"];
    assert!(refusal(&folder, &backup).contains("NOAUTH"));
    for (name, text) in [("wrong", "guess\n"), ("right", "secret\n")] {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let with = |file: &'static str| [&backup[..], &["--password-file", file]].concat();
    assert!(refusal(&folder, &with("wrong")).contains("refuses the password"));
    assert!(refusal(&folder, &with("missing")).contains("password-file missing"));
    assert!(!folder.path().join("a.backup").exists() && !folder.path().join("a.backup.partial").exists());
    succeeds(&folder, &with("right"));

    let nobody = free_address().to_string();
    assert!(refusal(&folder, &["backup", "--from", &nobody, "--out", "x"]).contains("cannot reach"));
    assert!(refusal(&folder, &["backup", "--out", "x"]).contains("--from ADDR"));
    let good = std::fs::read(folder.path().join("a.backup")).unwrap();
    std::fs::write(folder.path().join("cut"), &good[..good.len() - 1]).unwrap();
    assert!(refusal(&folder, &["backup", "verify", "cut"]).contains("the file ends after"));
    assert!(refusal(&folder, &["restore", "--from", "cut", "--data", "d"]).contains("the file ends after"));
    assert!(!folder.path().join("d").exists(), "a bad backup makes no directory");
    std::fs::write(folder.path().join("other"), "REDIS0011").unwrap();
    assert!(refusal(&folder, &["backup", "verify", "other"]).contains("no backup of Redfence"));
    assert!(refusal(&folder, &["restore", "--from", "a.backup", "--data", "."]).contains("is not empty"));
    let stranger = ["restore", "--from", "a.backup", "--data", "d", "--id", "3", "--cluster", "1=a:1,2=b:1"];
    assert!(refusal(&folder, &stranger).contains("id not in the cluster"));
}

#[test]
fn a_restore_that_was_cut_short_is_no_empty_cluster() {
    let folder = TempDir::new().unwrap();
    std::fs::create_dir(folder.path().join("data")).unwrap();
    std::fs::write(folder.path().join("data/RESTORING"), "").unwrap();
    let output =
        redfence(&folder, &["--data", "data", "--listen", &free_address().to_string()]).output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("did not come to its end"), "{text}");
}

#[test]
fn clients_that_begin_backups_and_do_not_read_stop_neither_snapshots_nor_locks() {
    let node = Node::start(&["--snapshot-entries", "20", "--data", "data"]);
    let mut client = node.connect();
    let ids: Vec<String> = (0..4).map(|_| client.ask(&["LOCK.CLUSTER", "BACKUP", "BEGIN"])).collect();
    assert!(ids.iter().all(|id| id.parse::<u64>().is_ok()), "{ids:?}");
    assert!(client.ask(&["LOCK.CLUSTER", "BACKUP", "BEGIN"]).contains("4 backups under way"));
    let newest = || {
        let files = std::fs::read_dir(node.folder.path().join("data/snapshots")).unwrap();
        files.filter_map(|file| file.unwrap().file_name().into_string().ok()).max()
    };
    await_that("the first snapshot", || newest().is_some());
    let first = newest();
    await_that("a later snapshot", || {
        for number in 0..30 {
            client.acquire(&[&format!("lock:{number}"), "600000", "OWNER", "me"]);
        }
        newest() > first
    });
    assert_eq!(client.ask(&["LOCK.CLUSTER", "BACKUP", "END", &ids[0]]), "1");
    assert_eq!(client.ask(&["LOCK.CLUSTER", "BACKUP", "END", &ids[0]]), "0");
    assert!(client.ask(&["LOCK.CLUSTER", "BACKUP", "READ", &ids[0], "0"]).contains("no such backup"));
    assert!(client.ask(&["LOCK.CLUSTER", "BACKUP", "READ", &ids[1], "0"]).contains("ready"));
    assert!(client.ask(&["LOCK.CLUSTER", "BACKUP", "BEGIN"]).parse::<u64>().is_ok());
}

#[test]
fn a_backup_is_taken_through_tls_by_a_user_with_the_right() {
    let certificates = Certificates::new();
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write(
        "users.acl",
        "user default off\nuser keeper on >pw allcommands allkeys\nuser app on >pw ~* +lock.acquire\n",
    );
    write("password", "pw\n");
    let users = folder.path().join("users.acl").to_string_lossy().into_owned();
    let flags = certificates.flags(&["--acl-file", &users]);
    let node = Node::start(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    let from = format!("localhost:{}", node.address.port());
    let ca = certificates.file("ca.crt");
    let by = |user: &'static str, ca: &str| {
        let words =
            ["backup", "--from", &from, "--out", "a.backup", "--user", user, "--password-file", "password"];
        run(&folder, &[&words[..], &["--tls-ca", ca]].concat())
    };
    assert!(by("keeper", &ca).status.success(), "{:?}", by("keeper", &ca));
    succeeds(&folder, &["backup", "verify", "a.backup"]);
    let said = |output: Output| String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said(by("app", &ca)).contains("NOPERM"));
    assert!(said(by("nobody", &ca)).contains("WRONGPASS"));
    let other = Certificates::new();
    assert!(
        said(by("keeper", &other.file("ca.crt"))).contains("certificate"),
        "not the authority of its certificate"
    );
    let without_tls =
        ["backup", "--from", &from, "--out", "b.backup", "--user", "keeper", "--password-file", "password"];
    assert!(refusal(&folder, &without_tls).contains("the node speaks TLS: give --tls-ca"));
    let plain = Node::start(&[]);
    let plain = plain.address.to_string();
    let with_tls = ["backup", "--from", &plain, "--out", "b.backup", "--tls-ca", &ca];
    assert!(refusal(&folder, &with_tls).contains("the node does not speak TLS: leave out --tls-ca"));
    let no_password = ["backup", "--from", &from, "--out", "b.backup", "--user", "keeper", "--tls-ca", &ca];
    assert!(refusal(&folder, &no_password).contains("--user needs a password"));
}

/// Two that were begun at once, by a slow disk or an impatient operator: whichever ends last, the file is a whole backup.
#[test]
fn backups_to_the_same_file_do_not_mix() {
    let node = Node::start(&[]);
    let mut client = node.connect();
    let value = "v".repeat(60_000);
    for number in 0..100 {
        assert_eq!(client.ask(&["SET", &format!("large:{number}"), &value]), "OK");
    }
    let folder = TempDir::new().unwrap();
    let from = node.address.to_string();
    // What earlier backups and other people have left is not touched.
    std::fs::write(folder.path().join("target"), "of somebody").unwrap();
    std::os::unix::fs::symlink("target", folder.path().join("a.backup.partial")).unwrap();
    let backups: Vec<Process> = (0..4)
        .map(|number| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_redfence"));
            command.current_dir(folder.path()).args(["backup", "--from", &from, "--out", "a.backup"]);
            Process::start(command, &folder, &format!("backup{number}"))
        })
        .collect();
    for mut backup in backups {
        assert!(backup.await_exit().success(), "{}", backup.log());
    }
    succeeds(&folder, &["backup", "verify", "a.backup"]);
    let mode = std::fs::metadata(folder.path().join("a.backup")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(std::fs::read_to_string(folder.path().join("target")).unwrap(), "of somebody");
}

/// Three that were restored without a list are three clusters, each its own majority: they must not be started as one.
#[test]
fn a_node_restored_alone_does_not_start_in_a_list_of_several() {
    let node = Node::start(&[]);
    let folder = TempDir::new().unwrap();
    succeeds(&folder, &["backup", "--from", &node.address.to_string(), "--out", "a.backup"]);
    for list in ["", ",", " , "] {
        let words = ["restore", "--from", "a.backup", "--data", "d", "--id", "2", "--cluster", list];
        assert!(refusal(&folder, &words).contains("cluster is empty"), "{list:?}");
        assert!(!folder.path().join("d").exists());
    }
    succeeds(&folder, &["restore", "--from", "a.backup", "--data", "d", "--id", "2"]);
    let peers = [free_address().to_string(), free_address().to_string()];
    let list = format!("1={},2={}", peers[0], peers[1]);
    let listen = free_address().to_string();
    let serve = ["serve", "--id", "2", "--data", "d", "--listen", &listen];
    let in_list = [&serve[..], &["--peer-listen", &peers[1], "--cluster", &list]].concat();
    assert!(refusal(&folder, &in_list).contains("a cluster by itself, and --cluster names 2 nodes"));
    let alone = Process::start(redfence(&folder, &serve[1..]), &folder, "alone");
    await_that("it serves alone", || std::net::TcpStream::connect(&listen).is_ok());
    drop(alone);
}

/// Killed while it reads: what is there must not be taken for the directory of a new node.
#[test]
fn a_restore_killed_while_it_reads_is_no_empty_cluster() {
    let folder = TempDir::new().unwrap();
    assert!(Command::new("mkfifo").arg(folder.path().join("pipe")).status().unwrap().success());
    let mut command = Command::new(env!("CARGO_BIN_EXE_redfence"));
    command.current_dir(folder.path()).args(["restore", "--from", "pipe", "--data", "data"]);
    let mut restore = Process::start(command, &folder, "restore");
    await_that("it has begun", || folder.path().join("data/RESTORING").exists());
    restore.signal("KILL");
    restore.await_exit();
    let output =
        redfence(&folder, &["--data", "data", "--listen", &free_address().to_string()]).output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("did not come to its end"), "{text}");
    let again = ["restore", "--from", "nowhere", "--data", "data"];
    assert!(refusal(&folder, &again).contains("is not empty"));
}
