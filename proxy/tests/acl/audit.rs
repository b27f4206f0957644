//! The audit log: every administrative act, refusal and failed login, by whatever way it comes.

use super::support::{self, await_that, behind, Client, Node};
use super::{as_user, NO_KEY, WRONG};
use std::time::Instant;
use tempfile::TempDir;

/// A file for `--audit-log`.
struct AuditLog {
    _folder: TempDir,
    path: String,
}

impl AuditLog {
    fn new() -> AuditLog {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("audit.log").to_string_lossy().into_owned();
        AuditLog { _folder: folder, path }
    }

    fn path(&self) -> &str {
        &self.path
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.path).unwrap()
    }
}

#[test]
fn guessing_is_slow_counted_and_written_down() {
    let audit = AuditLog::new();
    let node = Node::start(&["--password", "secret", "--audit-log", audit.path()]);
    let mut guesser = node.connect();
    let begun = Instant::now();
    for guess in ["a", "b", "c"] {
        assert_eq!(guesser.ask(&["AUTH", guess]), WRONG);
    }
    assert!(begun.elapsed().as_millis() >= 700, "100, 200 and 400 ms");
    assert_eq!(guesser.ask(&["AUTH", "ev\nil", "secret"]), WRONG);
    assert_eq!(guesser.ask(&["AUTH", "secret"]), "OK");
    let info = guesser.ask(&["INFO", "stats"]);
    assert!(info.contains("acl_access_denied_auth:4"), "{info}");
    let log = guesser.ask(&["ACL", "LOG"]);
    assert!(log.contains("\"reason\", \"auth\"") && log.contains("\"username\", \"default\""), "{log}");
    assert_eq!(guesser.ask(&["ACL", "LOG", "RESET"]), "OK");
    assert_eq!(guesser.ask(&["ACL", "LOG"]), "()");
    guesser.ask_all(&["ACL SETUSER app on >hidden ~app:* +@all", "LOCK.FORCERELEASE x", "FLUSHALL"]);
    assert!(guesser.ask(&["LOCK.CLUSTER", "REMOVE", "77"]).starts_with("-ERR"));
    assert!(guesser.ask(&["ACL", "DELUSER", "default"]).starts_with("-ERR"));
    assert_eq!(guesser.ask_all(&["MULTI", "FLUSHDB", "DISCARD"]), ["OK", "QUEUED", "OK"]);
    assert_eq!(guesser.ask(&["AUTH", "app", "hidden"]), "OK");
    assert_eq!(guesser.ask(&["GET", "other"]), NO_KEY);
    let lines = || audit.text();
    await_that("all is written down", || lines().contains("\"event\":\"denied\""));
    let text = lines();
    assert!(!text.contains("hidden") && !text.contains("secret"), "{text}");
    for expected in [
        "\"command\":\"acl|setuser\"",
        "\"command\":\"lock.forcerelease\",\"event\":\"admin\",\"object\":\"\",\"result\":\"ok\"",
        "\"command\":\"flushall\"",
        "\"command\":\"lock.cluster|remove\",\"event\":\"admin\",\"object\":\"\",\"result\":\"ERR\"",
        "\"command\":\"acl|deluser\",\"event\":\"admin\",\"object\":\"\",\"result\":\"ERR\"",
        "\"command\":\"flushdb\",\"event\":\"admin\",\"object\":\"\",\"result\":\"queued\"",
        "\"event\":\"login_failed\"",
        "\"event\":\"denied\",\"object\":\"other\",\"result\":\"NOPERM\"",
        "\"user\":\"ev\\nil\"",
    ] {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
    assert!(node.process.log().contains("login failed"));
}

/// Whatever way a command of operators takes, it is in the audit log with its outcome.
#[test]
fn administrative_acts_are_written_down_by_whatever_way() {
    let audit = AuditLog::new();
    let node = Node::start(&["--audit-log", audit.path()]);
    let mut admin = node.connect();
    await_that("the node serves", || admin.ask(&["SET", "key", "1"]) == "OK");
    let admin_lines = || {
        let text = audit.text();
        text.lines()
            .filter(|line| line.contains("\"event\":\"admin\""))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let grant = admin.ask(&["LOCK.ACQUIRE", "fenced", "60000"]);
    let fence = grant.trim_start_matches('(').split(',').next().unwrap().to_owned();
    let flush = "return redis.call('flush' .. 'all')";
    admin.ask(&["EVAL", "return redis.call('set', 'key', '2')", "0"]);
    for (argv, expected) in [
        (&["EVAL", flush, "0"][..], "\"arguments\":[\"flushall\"]"),
        (&["FENCE.CALL", "fenced", &fence, "FLUSHALL"][..], "\"command\":\"flushall\""),
        (&["CONFIG", "NOSUCHVERB", "x"][..], "\"command\":\"config\""),
    ] {
        let before = admin_lines().len();
        admin.ask(argv);
        await_that("it is written down", || admin_lines().len() > before);
        let line = admin_lines().pop().unwrap();
        assert!(line.contains(expected) && line.contains("\"result\":"), "{argv:?}: {line}");
    }
    let before = admin_lines().len();
    assert_eq!(admin.ask_all(&["MULTI", "FLUSHALL", "EXEC"]), ["OK", "QUEUED", "(OK)"]);
    await_that("both are written down", || admin_lines().len() == before + 2);
    let lines = admin_lines();
    assert!(lines[before].contains("\"result\":\"queued\""), "{lines:?}");
    let exec = "\"arguments\":[\"flushall\"],\"client\"";
    assert!(
        lines[before + 1].contains(exec) && lines[before + 1].contains("\"command\":\"exec\""),
        "{lines:?}"
    );
    assert!(lines[before + 1].contains("\"result\":\"ok\""), "{lines:?}");
    // What was queued by name and what a script did are told together.
    admin.ask_all(&["MULTI", "FLUSHDB"]);
    admin.ask(&["EVAL", flush, "0"]);
    admin.ask(&["EXEC"]);
    await_that("both are in one line", || {
        admin_lines().iter().any(|line| line.contains("\"arguments\":[\"flushdb\",\"flushall\"]"))
    });
    // A session that another connection has opened; its own is no administrative act.
    let (mut other, mut own) = (node.connect(), node.connect());
    let opened = |client: &mut Client| client.ask(&["LOCK.SESSION", "OPEN", "60000"]).replace('"', "");
    let (id, own_id) = (opened(&mut other), opened(&mut own));
    assert_eq!(own.ask(&["LOCK.SESSION", "CLOSE", &own_id]), "0");
    assert_eq!(own.ask(&["LOCK.SESSION", "CLOSE", &id]), "0");
    let told = |id: &str| admin_lines().iter().any(|line| line.contains(&format!("[\"CLOSE\",\"{id}\"]")));
    await_that("it is written down", || told(&id));
    assert!(!told(&own_id));
}

/// What passes to the upstream Redis, however large, and with what the upstream answered.
#[test]
fn administrative_acts_at_the_upstream_are_written_down_with_their_outcome() {
    let audit = AuditLog::new();
    let flags = ["--default-tier", "efficiency", "--audit-log", audit.path()];
    let (_redis, node) = behind(&flags);
    let mut admin = node.connect();
    await_that("the Redis is reached", || admin.ask(&["SET", "key", "1"]) == "OK");
    let lines = || audit.text();
    let large = "x".repeat(70_000);
    for (words, command, result) in [
        (&["CONFIG", "SET", "maxmemory-samples", "6"][..], "config|set", "ok"),
        (&["CONFIG", "SET", "maxmemory-samples", "6", "nosuch", &large][..], "config|set", "ERR"),
        (&["DEBUG", "NOSUCH"][..], "debug", "ERR"),
    ] {
        let before = lines().lines().count();
        let answer = admin.ask(words);
        assert_eq!(answer.starts_with('-'), result == "ERR", "{command}: {answer:.200}");
        await_that("it is written down", || lines().lines().count() > before);
        let line = lines().lines().last().unwrap().to_owned();
        assert!(line.contains(&format!("\"command\":\"{command}\"")), "{line}");
        assert!(line.contains(&format!("\"result\":\"{result}\"")), "{line}");
    }
    admin.ask(&["EVAL", "return redis.call('flushall')", "0"]);
    await_that("the script is written down", || lines().contains("\"event\":\"script\""));
}

/// The reply of another command is awaited on the shared connection, and acts without a reply come behind it.
#[test]
fn administrative_acts_whose_replies_are_not_wanted_are_written_down() {
    let audit = AuditLog::new();
    let flags = ["--default-tier", "efficiency", "--audit-log", audit.path()];
    let (_redis, node) = behind(&flags);
    let mut admin = node.connect();
    await_that("the Redis is reached", || admin.ask(&["SET", "key", "1"]) == "OK");
    for _ in 0..64 {
        assert_eq!(admin.ask(&["GET", "key"]), "\"1\"");
    }
    let mut bytes = Vec::new();
    let lines =
        ["GET key", "CLIENT REPLY OFF", "CLIENT KILL ID 901", "CLIENT KILL ID 902", "CLIENT KILL ID 903"];
    for line in lines.into_iter().chain(["CLIENT REPLY ON"]) {
        bytes.extend(support::command(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>()));
    }
    admin.send_bytes(&bytes);
    assert_eq!([admin.receive(), admin.receive()], ["\"1\"", "OK"]);
    let text = || audit.text();
    await_that("all are written down", || {
        ["901", "902", "903"].iter().all(|id| text().contains(&format!("[\"ID\",\"{id}\"]")))
    });
}

/// Who may not act as an administrator cannot fill the queue of administrative acts either.
#[test]
fn scripts_of_users_without_administrative_rights_are_no_acts_whatever_becomes_of_them() {
    let audit = AuditLog::new();
    let node = Node::start(&["--audit-log", audit.path()]);
    let mut admin = node.connect();
    await_that("the node serves", || admin.ask(&["SET", "key", "1"]) == "OK");
    assert_eq!(admin.ask_all(&["ACL SETUSER app on >pw ~app:* +@all -@admin -@dangerous"]), ["OK"]);
    for _ in 0..10 {
        let mut app = as_user(&node, "app");
        let eval = support::command(&[b"EVAL", b"return redis.call('incr', KEYS[1])", b"1", b"app:1"]);
        app.send_bytes(&eval.repeat(200));
    }
    assert_eq!(admin.ask(&["FLUSHALL"]), "OK");
    let mut process = node.process;
    process.signal("TERM");
    assert!(process.await_exit().success());
    let text = audit.text();
    assert!(text.contains("\"command\":\"flushall\"") && !text.contains("\"eval\""), "{text}");
}

/// How many each of the lines stands for that have this in them.
fn counts(audit: &AuditLog, text: &str) -> Vec<u64> {
    let count = |line: &str| {
        let rest = line.split("\"count\":").nth(1)?;
        rest.split(|byte: char| !byte.is_ascii_digit()).next()?.parse::<u64>().ok()
    };
    let lines = audit.text();
    let lines = lines.lines().filter(|line| line.contains(text));
    lines.map(|line| count(line).expect("a count")).collect()
}

/// A node that keeps an audit log, and a connection of a user who may do nothing.
fn with_a_user_without_rights() -> (AuditLog, Node, Client) {
    let audit = AuditLog::new();
    let node = Node::start(&["--audit-log", audit.path()]);
    assert_eq!(node.connect().ask_all(&["ACL SETUSER nobody on >pw"]), ["OK"]);
    let nobody = as_user(&node, "nobody");
    (audit, node, nobody)
}

#[test]
fn every_refusal_and_failed_login_has_its_line() {
    let (audit, node, mut nobody) = with_a_user_without_rights();
    for _ in 0..30 {
        assert!(nobody.ask(&["SAVE"]).starts_with("-NOPERM"));
    }
    for _ in 0..3 {
        assert_eq!(node.connect().ask(&["AUTH", "nobody", "guess"]), WRONG);
    }
    await_that("each is written down", || {
        counts(&audit, "\"event\":\"denied\"") == [1; 30]
            && counts(&audit, "\"event\":\"login_failed\"") == [1; 3]
    });
    let text = audit.text();
    let time = |line: &str| line.split("\"time\":").nth(1).map(str::to_owned);
    assert!(text.lines().map(time).is_sorted(), "{text}");
}

#[test]
fn refusals_beyond_so_many_a_second_share_a_line() {
    let (audit, _node, mut nobody) = with_a_user_without_rights();
    let begun = Instant::now();
    for _ in 0..20 {
        nobody.send_bytes(&b"*1\r\n$4\r\nSAVE\r\n".repeat(200));
        for _ in 0..200 {
            assert!(nobody.receive().starts_with("-NOPERM"));
        }
    }
    let seconds = begun.elapsed().as_secs() as usize + 2;
    let counts = || counts(&audit, "\"event\":\"denied\"");
    await_that("all are counted", || counts().iter().sum::<u64>() == 4_000);
    assert!(counts().len() <= 101 * seconds + 1, "{:?}", counts());
}

/// What a user may not do is told with what it was, and also where a script in a transaction tried it.
#[test]
fn a_refusal_says_what_was_refused() {
    let audit = AuditLog::new();
    let node = Node::start(&["--audit-log", audit.path()]);
    let mut admin = node.connect();
    await_that("the node serves", || admin.ask(&["SET", "key", "1"]) == "OK");
    let rules = "ACL SETUSER app on >pw ~app:* +@all -@admin -@dangerous";
    assert_eq!(admin.ask(&rules.split(' ').collect::<Vec<_>>()), "OK");
    let mut app = node.connect();
    assert_eq!(app.ask(&["AUTH", "app", "pw"]), "OK");
    assert!(app.ask(&["LOCK.FORCERELEASE", "app:7"]).starts_with("-NOPERM"));
    let denied = |part: &str| {
        audit.text().lines().any(|line| line.contains("\"event\":\"denied\"") && line.contains(part))
    };
    await_that("the lock is named", || denied("\"arguments\":[\"app:7\"]"));
    app.ask(&["MULTI"]);
    app.ask(&["EVAL", "return redis.call('GET', 'other')", "0"]);
    assert!(app.ask(&["EXEC"]).contains("NOPERM ACL failure in script"));
    await_that("so is the script's try", || denied("\"command\":\"script\""));
    assert!(admin.ask(&["ACL", "LOG"]).contains("\"lua\""));
}
