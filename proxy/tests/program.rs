//! The program: how it starts, what it says when it cannot, how it stops.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Output;
use std::time::{Duration, Instant};
use support::{free_address, redfence, Node};
use tempfile::TempDir;

fn run(folder: &TempDir, flags: &[&str]) -> Output {
    redfence(folder, flags).output().unwrap()
}

/// The one line a failed start leaves behind.
#[track_caller]
fn refusal(flags: &[&str]) -> String {
    let folder = TempDir::new().unwrap();
    one_line(&run(&folder, flags))
}

#[track_caller]
fn one_line(output: &Output) -> String {
    assert!(!output.status.success(), "it started");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("redfence: ")).collect();
    assert_eq!(lines.len(), 1, "{text}");
    lines[0].to_string()
}

#[test]
fn says_ready_with_its_addresses_and_stops_on_sigterm() {
    let mut node = Node::start(&[]);
    let log = node.process.log();
    assert_eq!(log.matches(" ready ").count(), 1, "{log}");
    assert!(log.contains(&format!("listen={}", node.address)), "{log}");
    assert_eq!(node.connect().ask(&["PING"]), "PONG");
    let begin = Instant::now();
    node.process.signal("TERM");
    assert!(node.process.await_exit().success());
    assert!(begin.elapsed() < Duration::from_secs(5), "took {:?}", begin.elapsed());
}

#[test]
fn data_from_before_release_1_is_refused_in_one_line() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir_all(data.join("log")).unwrap();
    let body =
        "redfence-data 1\nnode 1\ncluster 00000000000000c1\nstore 000102030405060708090a0b0c0d0e0f\nlog 1\n";
    let crc = crc32fast::hash(body.as_bytes());
    std::fs::write(data.join("IDENTITY"), format!("{body}crc {crc:08x}\n")).unwrap();
    let listen = free_address().to_string();
    let line = one_line(&run(&folder, &["--listen", &listen, "--data", "data"]));
    assert!(line.contains("was written before release 1"), "{line}");
}

#[test]
fn a_restart_on_the_same_data_loses_nothing() {
    let mut node = Node::start(&["--data", "data"]);
    let fence = node.connect().acquire(&["kept", "600000", "OWNER", "me"]);
    node.process.signal("KILL");
    node.process.await_exit();
    let address = node.address.to_string();
    let mut again = support::Process::start(
        redfence(&node.folder, &["--listen", &address, "--data", "data"]),
        &node.folder,
        "again",
    );
    support::await_that("the node serves again", || again.log().contains(" ready "));
    let mut client = node.connect();
    assert_eq!(client.acquire(&["kept", "600000", "OWNER", "me"]), fence, "a retry gets the same fence");
    assert_eq!(client.ask(&["LOCK.ACQUIRE", "kept", "1000"]), "nil");
    again.signal("INT");
    assert!(again.await_exit().success());
}

#[test]
fn a_wrong_command_line_is_said_in_one_line() {
    let folder = TempDir::new().unwrap();
    let mut by_environment = redfence(&folder, &[]);
    by_environment.env("REDFENCE_ID", "x");
    for (mut command, expected) in [
        (redfence(&folder, &["--nosuch", "1"]), "unexpected argument '--nosuch' found"),
        (redfence(&folder, &["--id", "1", "--id", "2"]), "cannot be used multiple times"),
        (redfence(&folder, &["--liste", "x"]), "tip: a similar argument exists: '--listen'"),
        (by_environment, "invalid value 'x' for '--id <N>'"),
    ] {
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{text}");
        assert!(text.starts_with("redfence: ") && text.contains(expected), "{text}");
    }
    let help = redfence(&folder, &["--help"]).output().unwrap();
    assert!(help.status.success() && help.stdout.len() > 1_000, "help stays as it is");
}

#[test]
fn a_taken_port_is_said_in_one_line() {
    let node = Node::start(&[]);
    let line = refusal(&["--listen", &node.address.to_string()]);
    assert!(line.contains(&node.address.to_string()) && line.contains("in use"), "{line}");
}

#[test]
fn a_data_directory_in_use_is_said_in_one_line() {
    let node = Node::start(&["--data", "data"]);
    let line = one_line(&run(&node.folder, &["--listen", &free_address().to_string(), "--data", "data"]));
    assert!(line.contains("data"), "{line}");
}

#[test]
fn other_reasons_not_to_start() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("wrong.toml"), "lsiten = '127.0.0.1:1'").unwrap();
    std::fs::write(folder.path().join("broken.toml"), "listen = ").unwrap();
    std::fs::write(folder.path().join("empty"), "\n").unwrap();
    std::fs::write(folder.path().join("secret"), "hunter2\n").unwrap();
    std::fs::create_dir(folder.path().join("shared")).unwrap();
    std::fs::set_permissions(folder.path().join("shared"), std::fs::Permissions::from_mode(0o1777)).unwrap();
    for (flags, part) in [
        (&["--id", "9", "--cluster", "1=127.0.0.1:7380,2=127.0.0.1:7381"][..], "id not in the cluster"),
        (&["--listen", "0.0.0.0:0"], "protected-mode"),
        (&["--password", ""], "password is empty"),
        (&["--password-file", "empty"], "password-file empty: is empty"),
        (&["--redis-password", "x"], "without a password of its own"),
        (&["--redis-password-file", "secret"], "without a password of its own"),
        (&["--listen", "0.0.0.0:0", "--password-file", "secret"], "without TLS"),
        (&["--admin", "0.0.0.0:0"], "admin 0.0.0.0:0 is beyond loopback"),
        (&["--data", "shared"], "a directory of its own"),
        (&["--config", "wrong.toml"], "lsiten"),
        (&["--config", "broken.toml"], "broken.toml"),
        (&["--config", "missing.toml"], "missing.toml"),
        (&["--log", "re=d=f"], "log filter"),
    ] {
        let line = one_line(&run(&folder, flags));
        assert!(line.contains(part), "{flags:?}: {line}");
        assert!(!line.contains("hunter2"), "{line}");
    }
}

#[test]
fn an_environment_variable_that_is_an_empty_password_is_refused() {
    let folder = TempDir::new().unwrap();
    let output = redfence(&folder, &[]).env("REDFENCE_PASSWORD", "").output().unwrap();
    assert!(one_line(&output).contains("password is empty"));
}

#[test]
fn a_password_from_a_file_holds_and_is_shown_nowhere() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("secret");
    std::fs::write(&file, "hunter2\n").unwrap();
    let admin = free_address().to_string();
    let node = Node::start(&["--password-file", file.to_str().unwrap(), "--log", "debug", "--admin", &admin]);
    let mut client = node.connect();
    assert!(client.ask(&["GET", "x"]).starts_with("-NOAUTH"));
    assert!(client.ask(&["AUTH", "wrong"]).starts_with("-WRONGPASS"));
    assert_eq!(client.ask(&["AUTH", "hunter2"]), "OK");
    for words in [&["CONFIG", "GET", "*"][..], &["INFO", "everything"], &["CLIENT", "LIST"]] {
        let reply = client.ask(words);
        assert!(!reply.contains("hunter2"), "{words:?}: {reply}");
    }
    assert!(!node.process.log().contains("hunter2"));
}

#[test]
fn the_data_is_for_its_owner_alone() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    // As an older program, or a person, may have left it.
    std::fs::create_dir(&data).unwrap();
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o755)).unwrap();
    let node = Node::start(&["--data", data.to_str().unwrap(), "--snapshot-entries", "10"]);
    let mut client = node.connect();
    for number in 0..50 {
        assert_eq!(client.ask(&["SET", "x", &number.to_string()]), "OK");
    }
    let mut folders = vec![data];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        assert_eq!(folder.metadata().unwrap().mode() & 0o777, 0o700, "{}", folder.display());
        for entry in folder.read_dir().unwrap() {
            let path = entry.unwrap().path();
            match path.metadata() {
                Ok(meta) if meta.is_dir() => folders.push(path),
                Ok(meta) => {
                    files += 1;
                    assert_eq!(meta.mode() & 0o777, 0o600, "{}", path.display());
                }
                // A snapshot or a log file that was just replaced.
                Err(_) => {}
            }
        }
    }
    assert!(files >= 4, "{files} files");
}

#[test]
fn what_protected_mode_no_lifts_is_logged() {
    let node = Node::start(&["--admin", "0.0.0.0:0", "--protected-mode", "no"]);
    let log = node.process.log();
    assert!(log.contains("protected-mode no: admin 0.0.0.0:0 is beyond loopback"), "{log}");
}

#[test]
fn flag_over_environment_over_file() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("redfence.toml");
    std::fs::write(&file, "default-tier = 'efficiency'\nid = 7\nmax-clients = 3\n").unwrap();
    let node = Node::start_by(
        |command| {
            command.env("REDFENCE_ID", "8").env("REDFENCE_MAX_CLIENTS", "4");
        },
        &["--config", file.to_str().unwrap(), "--id", "9"],
    );
    let mut client = node.connect();
    assert!(client.ask(&["LOCK.CLUSTER", "INFO"]).contains("\"id\", 9"));
    assert_eq!(client.ask(&["CONFIG", "GET", "maxclients"]), "(\"maxclients\", \"4\")");
    support::await_that("the settings are founded", || {
        client.ask(&["LOCK.CLUSTER", "GET", "default-tier"]) == "\"efficiency\""
    });
}

#[test]
fn help_teaches() {
    let folder = TempDir::new().unwrap();
    let help = run(&folder, &["--help"]);
    assert!(help.status.success());
    let text = String::from_utf8_lossy(&help.stdout).into_owned();
    for part in
        ["Examples:", "--cluster", "--route", "REDFENCE_LISTEN", "LOCK.ACQUIRE", "[default: 127.0.0.1:6380]"]
    {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
}

#[test]
fn json_logs_are_json() {
    let node = Node::start(&["--log-format", "json"]);
    for line in node.process.log().lines() {
        assert!(serde_json::from_str::<serde_json::Value>(line).is_ok(), "{line}");
    }
}

#[test]
fn the_test_server_says_where_it_listens_and_ends_with_its_standard_input() {
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_redfence"))
        .args(["testserver", "--until-stdin-closes"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim_end().strip_prefix("ready ").unwrap_or_else(|| panic!("ready, not {line:?}"));
    let mut client = std::net::TcpStream::connect(address).unwrap();
    client.write_all(b"TEST.ADVANCE 30001\r\n").unwrap();
    let mut reply = [0; 8];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b":30001\r\n");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}
