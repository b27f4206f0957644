//! The ACL file: read at the start, again when it changes, and never so that a mistake in it opens a node or empties it.

use super::support::{self, await_that, Node};
use super::{as_user, file, NO_KEY};
use std::os::unix::fs::PermissionsExt;

#[test]
fn the_file_is_read_again_when_it_changes() {
    let (folder, path) =
        file("user default on nopass ~* &* +@all\nuser app on >pw ~app:* +@all\nuser gone on >pw +@all\n");
    let node = Node::start(&["--acl-file", &path]);
    let (mut admin, mut app, mut gone) = (node.connect(), as_user(&node, "app"), as_user(&node, "gone"));
    assert_eq!(app.ask(&["GET", "other"]), NO_KEY);
    std::fs::write(&path, "user app on >pw nonsense\n").unwrap();
    await_that("the error is logged", || node.process.log().contains("nonsense"));
    assert_eq!(app.ask(&["GET", "other"]), NO_KEY, "a file with an error changes nothing");
    assert!(admin.ask(&["ACL", "LOAD"]).contains("line 1"));
    std::fs::write(&path, "user app on >pw ~* +@all\n").unwrap();
    await_that("the change is seen", || app.ask(&["GET", "other"]) == "nil");
    assert_eq!(gone.receive(), "(closed)");
    assert_eq!(admin.ask_all(&["ACL SETUSER late on >pw ~x +get", "ACL SAVE"]), ["OK", "OK"]);
    let saved = std::fs::read_to_string(&path).unwrap();
    assert!(saved.contains("user late on #") && !saved.contains(">pw"), "{saved}");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    assert_eq!(admin.ask(&["ACL", "LOAD"]), "OK");
    let mut late = as_user(&node, "late");
    assert_eq!(late.ask(&["GET", "x"]), "nil");
    assert_eq!(late.ask(&["SET", "x", "y"]), "-NOPERM this user has no permissions to run the 'set' command");
}

#[test]
fn a_node_does_not_start_with_a_bad_file() {
    let (folder, path) = file("user app on wat\n");
    let mut process =
        support::Process::start(support::redfence(&folder, &["--acl-file", &path]), &folder, "node");
    assert!(!process.await_exit().success());
    assert!(
        process.log().contains("line 1: Error in applying operation 'wat': Syntax error"),
        "{}",
        process.log()
    );
}

#[test]
fn a_file_that_lets_everybody_in_does_not_start_beyond_loopback() {
    for (text, refusal) in [
        ("user app on >pw ~* +@all\n", "the default user of the ACL file needs no password"),
        ("user default off\nuser x on > ~* +@all\n", "user 'x' of the ACL file has the empty password"),
    ] {
        let (folder, path) = file(text);
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let certificates = support::tls::Certificates::new();
        let flags = certificates.flags(&["--listen", "0.0.0.0:0", "--acl-file", &path]);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let mut process = support::Process::start(support::redfence(&folder, &flags), &folder, "node");
        assert!(!process.await_exit().success());
        assert!(process.log().contains(refusal), "{}", process.log());
    }
}

#[test]
fn a_file_that_is_emptied_or_half_written_lets_nobody_in() {
    let text = "user default off\nuser admin on >pw ~* &* +@all\n";
    let (_folder, path) = file(text);
    let node = Node::start(&["--acl-file", &path]);
    let mut admin = as_user(&node, "admin");
    for opened in ["", "user admin on >pw ~* &* +@all\n"] {
        let told = || node.process.log().matches("everybody would be let in").count();
        let before = told();
        std::fs::write(&path, opened).unwrap();
        await_that("the refusal is logged", || told() > before);
        assert_eq!(node.connect().ask(&["GET", "x"]), "-NOAUTH Authentication required.");
        assert_eq!(admin.ask(&["PING"]), "PONG");
    }
    std::fs::write(&path, format!("{text}user late on >pw ~x +get\n")).unwrap();
    await_that("the change is seen", || node.connect().ask(&["AUTH", "late", "pw"]) == "OK");
}

/// With a password of its own for `default` nobody would be let in, but all users would be gone.
#[test]
fn a_file_that_loses_all_its_users_is_refused_until_it_is_asked_for() {
    let (_folder, path) = file("user app on >pw ~* &* +@all\n");
    let node = Node::start(&["--acl-file", &path, "--password", "secret"]);
    let mut app = as_user(&node, "app");
    for emptied in ["", "# nobody\n\n"] {
        let refusals = || node.process.log().matches("it names no user").count();
        let before = refusals();
        std::fs::write(&path, emptied).unwrap();
        await_that("the refusal is logged", || refusals() > before);
        assert_eq!(app.ask(&["PING"]), "PONG");
        assert_eq!(node.connect().ask(&["AUTH", "app", "pw"]), "OK");
    }
    let mut default = node.connect();
    assert_eq!(default.ask_all(&["AUTH secret", "ACL LOAD"]), ["OK", "OK"]);
    assert!(node.connect().ask(&["AUTH", "app", "pw"]).starts_with("-WRONGPASS"));
}
