//! What a service manager, a container engine and a script that starts nodes see of the program: `$NOTIFY_SOCKET`, `--version`,
//! `redfence health`, `redfence join`.

mod support;

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Command, Output};
use support::tls::Certificates;
use support::{await_that, free_address, redfence, Node, Process, PATIENCE};
use tempfile::TempDir;

fn program(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redfence"));
    let variables = ["REDFENCE_PASSWORD", "REDFENCE_ADMIN", "REDFENCE_ID", "REDFENCE_DATA"];
    for variable in variables {
        command.env_remove(variable);
    }
    command.args(args).output().expect("redfence runs")
}

#[track_caller]
fn succeeds(args: &[&str]) -> String {
    let output = program(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
fn fails(args: &[&str]) -> String {
    let output = program(args);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Starts and stops a node that reports to the socket of this name.
fn what_is_reported(socket: &UnixDatagram, name: &str) -> Vec<String> {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let folder = TempDir::new().unwrap();
    let mut command = redfence(&folder, &["--listen", &free_address().to_string(), "--data", "data"]);
    command.env("NOTIFY_SOCKET", name);
    let mut process = Process::start(command, &folder, "node");
    let mut buffer = [0; 512];
    let mut receive = || {
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let mut reported = vec![receive()];
    assert!(process.log().contains(" ready "), "READY=1 comes when the node serves: {}", process.log());
    process.signal("TERM");
    reported.push(receive());
    assert!(process.await_exit().success());
    reported
}

#[test]
fn systemd_is_told_that_the_node_serves_and_that_it_stops() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("notify");
    let by_path = UnixDatagram::bind(&path).unwrap();
    let name = format!("redfence-test-{}", std::process::id());
    let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name.as_bytes()).unwrap()).unwrap();
    for (socket, name) in [(by_path, path.display().to_string()), (by_name, format!("@{name}"))] {
        let reported = what_is_reported(&socket, &name);
        assert!(reported[0].starts_with("READY=1\n"), "{reported:?}");
        assert!(reported[1].starts_with("STOPPING=1\n"), "{reported:?}");
    }
}

#[test]
fn a_service_manager_that_does_not_listen_stops_no_node() {
    let node = Node::start_by(
        |command| {
            command.env("NOTIFY_SOCKET", "/nonexistent/notify");
        },
        &[],
    );
    assert_eq!(node.connect().ask(&["PING"]), "PONG");
    await_that("it says so", || node.process.log().contains("cannot notify the service manager"));
}

#[test]
fn the_version_names_commit_and_build() {
    let line = succeeds(&["--version"]);
    assert!(line.starts_with(concat!("redfence ", env!("CARGO_PKG_VERSION"), " (commit ")), "{line}");
    assert!(line.contains(" build, ") && line.lines().count() == 1, "{line}");
    assert_eq!(line, succeeds(&["-V"]));
}

#[test]
fn health_is_that_of_the_admin_address() {
    let admin = free_address().to_string();
    let node = Node::start(&["--admin", &admin]);
    assert_eq!(succeeds(&["health", "--admin", &admin]), "alive\n");
    await_that("it is ready", || program(&["health", "--admin", &admin, "--ready"]).status.success());
    drop(node);
    assert!(fails(&["health", "--admin", &admin]).contains("no answer at"));
    assert!(fails(&["health", "--admin", "nonsense"]).contains("host:port"));
}

#[test]
fn a_node_without_quorum_lives_and_is_not_ready() {
    let (admin, own, other) =
        (free_address().to_string(), free_address().to_string(), free_address().to_string());
    let folder = TempDir::new().unwrap();
    let cluster = format!("1={own},2={other}");
    let listen = free_address().to_string();
    let flags = ["--listen", &listen, "--admin", &admin, "--cluster", &cluster, "--data", "data"];
    let process = Process::start(redfence(&folder, &flags), &folder, "node");
    await_that("it serves", || process.log().contains(" ready "));
    assert_eq!(succeeds(&["health", "--admin", &admin]), "alive\n");
    assert!(fails(&["health", "--admin", &admin, "--ready"]).contains("no quorum"));
}

#[test]
fn with_tls_health_shows_life_alone() {
    let certificates = Certificates::new();
    let admin = free_address().to_string();
    let flags = certificates.flags(&["--admin", &admin]);
    let _node = Node::start(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(succeeds(&["health", "--admin", &admin]), "alive (TLS)\n");
    assert!(fails(&["health", "--admin", &admin, "--ready"]).contains("HTTPS"));
}

#[test]
fn join_adds_a_node_that_starts_afterwards_and_only_once() {
    let (peer, new_peer) = (free_address().to_string(), free_address().to_string());
    let node = Node::start(&["--peer-listen", &peer, "--cluster", &format!("1={peer}")]);
    let via = node.address.to_string();
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data").display().to_string();
    let join = ["join", "--via", &via, "--id", "4", "--advertise", &new_peer, "--data", &data];
    assert!(succeeds(&join).contains("is a member"));
    assert!(succeeds(&join).contains("is a member"), "asked again it is the same");

    let listen = free_address().to_string();
    let flags = ["--id", "4", "--join", "--listen", &listen, "--peer-listen", &new_peer, "--data", &data];
    let process = Process::start(redfence(&folder, &flags), &folder, "new");
    let info = || node.connect().ask(&["LOCK.CLUSTER", "INFO"]);
    await_that("it is a voter", || info().contains("\"voters\", 2"));

    let elsewhere = folder.path().join("elsewhere").display().to_string();
    let taken = ["join", "--via", &via, "--id", "5", "--advertise", &new_peer, "--data", &elsewhere];
    assert!(fails(&taken).contains("ERR"), "the address of another member");

    drop(process);
    assert!(succeeds(&join).contains("nothing to do"), "a node that was there before is left alone");
}
