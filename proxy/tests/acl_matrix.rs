//! Every command × five users: allowed or `NOPERM` as `docs/users.md` says, alone, in `MULTI`, in scripts and through an upstream Redis.

mod support;

use redfence::acl::{commands, matrix};
use support::{behind, Client, Node};
use tempfile::TempDir;

fn acl_file() -> (TempDir, String) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("users.acl");
    std::fs::write(&path, matrix::acl_file()).unwrap();
    let path = path.to_string_lossy().into_owned();
    (folder, path)
}

fn client(node: &Node, user: &str) -> Client {
    let mut client = node.connect();
    assert_eq!(client.ask(&["AUTH", user, "any"]), "OK");
    client
}

/// Each command with whether each user may run it.
fn cases() -> Vec<(Vec<String>, Vec<bool>)> {
    let users = matrix::users();
    let samples = commands::all().iter().map(matrix::sample);
    samples.map(|words| (words.clone(), matrix::allowed(&users, &words))).collect()
}

fn words(case: &[String]) -> Vec<&str> {
    case.iter().map(String::as_str).collect()
}

fn check(user: &str, case: &[String], may: bool, reply: &str, wrong: &mut Vec<String>) {
    if reply.starts_with("-NOPERM") == may {
        wrong.push(format!("{user} {}: {reply}", case.join(" ")));
    }
}

#[test]
fn alone_and_in_transactions() {
    let (_folder, path) = acl_file();
    let node = Node::start(&["--acl-file", &path]);
    let mut wrong = Vec::new();
    for (at, (user, _)) in matrix::USERS.iter().enumerate() {
        for (case, allowed) in cases() {
            let mut alone = client(&node, user);
            check(user, &case, allowed[at], &alone.ask(&words(&case)), &mut wrong);
            let mut queuing = client(&node, user);
            if queuing.ask(&["MULTI"]) == "OK" {
                check(user, &case, allowed[at], &queuing.ask(&words(&case)), &mut wrong);
                if !allowed[at] {
                    assert!(queuing.ask(&["EXEC"]).starts_with("-EXECABORT"), "{case:?}");
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn in_scripts() {
    let (_folder, path) = acl_file();
    let node = Node::start(&["--acl-file", &path]);
    let script = "local r = redis.pcall(unpack(ARGV)) if type(r) == 'table' and r.err then return {err = r.err} end return 'ok'";
    let mut wrong = Vec::new();
    let app = matrix::USERS.iter().position(|(name, _)| *name == "app").unwrap();
    let mut client = client(&node, "app");
    for (case, allowed) in cases() {
        let mut call = vec!["EVAL", script, "0"];
        call.extend(words(&case));
        check("app", &case, allowed[app], &client.ask(&call), &mut wrong);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn through_a_redis_behind() {
    let (_folder, path) = acl_file();
    let (_redis, node) = behind(&["--acl-file", &path]);
    let mut wrong = Vec::new();
    for (at, (user, _)) in matrix::USERS.iter().enumerate() {
        for (case, allowed) in cases().into_iter().filter(|(_, allowed)| !allowed[at]) {
            let mut client = client(&node, user);
            check(user, &case, allowed[at], &client.ask(&words(&case)), &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let mut app = client(&node, "app");
    let large = "v".repeat(200_000);
    assert_eq!(app.ask(&["SET", "app:1", &large]), "OK");
    assert_eq!(app.ask(&["GET", "app:1"]).len(), large.len() + 2);
    assert!(
        app.ask(&["SET", "other", &large]).starts_with("-NOPERM"),
        "a command too large to hold is checked too"
    );
    assert!(app.ask(&["EVAL", "return redis.call('get', 'other')", "0"]).starts_with("-NOPERM"));
    assert_eq!(app.pipeline(&["GET app:2", "GET other", "SET app:2 x"])[0], "nil");
    let replies = app.pipeline(&["MULTI", "SET app:2 y", "GET other", "EXEC"]);
    assert!(replies[2].starts_with("-NOPERM") && replies[3].starts_with("-EXECABORT"), "{replies:?}");
    assert!(app.ask(&["SHUTDOWN", "NOSAVE"]).starts_with("-NOPERM"));
    // Functions run with the rights of the proxy, and the Lua library of Tier 1 is one of them.
    let library =
        "#!lua name=redfence\nredis.register_function('x', function() return redis.call('get', 'other') end)";
    let large_library = format!("{library} --{}", "x".repeat(200_000));
    for call in [
        &["FUNCTION", "LOAD", "REPLACE", library][..],
        &["function", "load", "REPLACE", &large_library],
        &["FUNCTION", "DELETE", "redfence"],
        &["FUNCTION", "FLUSH"],
        &["FUNCTION", "RESTORE", "x"],
    ] {
        assert!(app.ask(call).starts_with("-NOPERM"), "{}", call[1]);
    }
    assert!(!app.ask(&["FUNCTION", "LIST"]).starts_with("-NOPERM"));
    let mut admin = client(&node, "admin");
    assert_eq!(admin.ask(&["EVAL", "return redis.call('get', KEYS[1])", "1", "nothing"]), "nil");
}
