//! Users on running nodes: logging in, rules and their changes, scripts on the leader, guessing, the ACL file and the audit log.

mod support;

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;
use std::time::Instant;
use support::{await_that, behind, start_cluster, start_nodes_by, Client, Node};
use tempfile::TempDir;

const WRONG: &str = "-WRONGPASS invalid username-password pair or user is disabled.";
const NO_KEY: &str = "-NOPERM this user has no permissions to access one of the keys used as arguments";

fn as_user(node: &Node, user: &str) -> Client {
    let mut client = node.connect();
    assert_eq!(client.ask(&["AUTH", user, "pw"]), "OK");
    client
}

fn file(text: &str) -> (TempDir, String) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("users.acl");
    std::fs::write(&path, text).unwrap();
    let path = path.to_string_lossy().into_owned();
    (folder, path)
}

#[test]
fn users_are_made_shown_and_deleted() {
    let node = Node::start(&[]);
    let mut admin = node.connect();
    assert_eq!(admin.ask(&["ACL", "WHOAMI"]), "\"default\"");
    assert_eq!(admin.ask(&["ACL", "LIST"]), "(\"user default on nopass ~* &* +@all\")");
    let rules = "ACL SETUSER app on >pw ~app:* &app:* +@all -@dangerous +config|get";
    assert_eq!(admin.ask_all(&[rules]), ["OK"]);
    let hash = "30c952fab122c3f9759f02a6d95c3758b246b4fee239957b2d4fee46e26170c4";
    let shown = admin.ask(&["ACL", "GETUSER", "app"]);
    let expected = format!(
        "(\"flags\", (\"on\"), \"passwords\", (\"{hash}\"), \"commands\", \"+@all -@dangerous +config|get\", \"keys\", \"~app:*\", \
         \"channels\", \"&app:*\", \"selectors\", ())"
    );
    assert_eq!(shown, expected);
    let mut app = as_user(&node, "app");
    for (line, expected) in [
        ("ACL WHOAMI", "\"app\""),
        ("SET app:1 x", "OK"),
        ("GET app:1", "\"x\""),
        ("GET other", NO_KEY),
        ("LOCK.ACQUIRE other 1000", NO_KEY),
        ("KEYS *", "-NOPERM this user has no permissions to run the 'keys' command"),
        ("ACL SETUSER app +@all", "-NOPERM this user has no permissions to run the 'acl|setuser' command"),
        (
            "SUBSCRIBE other",
            "-NOPERM this user has no permissions to access one of the channels used as arguments",
        ),
        ("PUBLISH app:1 x", "0"),
        ("NOSUCH", "-ERR unknown command 'NOSUCH', with args beginning with: "),
    ] {
        assert_eq!(app.ask_all(&[line])[0], expected, "{line}");
    }
    assert!(admin.ask(&["CLIENT", "LIST"]).contains("user=app"));
    for (line, expected) in [
        ("ACL DRYRUN app GET x", "\"This user has no permissions to access the \\'x\\' key\""),
        ("ACL DRYRUN app KEYS x", "\"This user has no permissions to run the \\'keys\\' command\""),
        ("ACL DRYRUN app GET app:1", "OK"),
        ("ACL DRYRUN nope GET x", "-ERR User 'nope' not found"),
        ("ACL DRYRUN app nope", "-ERR Command 'nope' not found"),
        (
            "ACL SETUSER app +foo",
            "-ERR Error in ACL SETUSER modifier '+foo': Unknown command or category name in ACL",
        ),
        ("ACL SETUSER app ~* wat", "-ERR Error in ACL SETUSER modifier 'wat': Syntax error"),
        ("ACL DELUSER default", "-ERR The 'default' user cannot be removed"),
        ("ACL CAT nope", "-ERR Unknown category 'nope'"),
        ("ACL GETUSER nope", "nil"),
        ("ACL NOSUCH", "-ERR unknown subcommand 'NOSUCH'. Try ACL HELP."),
    ] {
        assert_eq!(admin.ask_all(&[line])[0], expected, "{line}");
    }
    assert!(admin
        .ask(&["ACL", "SAVE"])
        .starts_with("-ERR This Redis instance is not configured to use an ACL file"));
    assert!(admin.ask(&["ACL", "CAT", "lock"]).contains("\"lock.acquire\""));
    assert_eq!(admin.ask(&["ACL", "GENPASS", "5"]).len(), 4);
    assert_eq!(app.ask(&["GET", "other"]), NO_KEY, "a SETUSER with an error in it changed nothing");
    assert_eq!(admin.ask(&["ACL", "DELUSER", "app", "nope"]), "1");
    assert_eq!(app.receive(), "(closed)");
}

#[test]
fn the_owner_of_a_grant_is_a_retry_for_its_own_user_alone() {
    let nodes = start_cluster(3, &[]);
    for node in &nodes {
        let mut admin = node.connect();
        let made = ["ACL SETUSER alice on >pw ~* &* +@all", "ACL SETUSER bob on >pw ~* &* +@all"];
        assert_eq!(admin.ask_all(&made), ["OK", "OK"]);
    }
    let acquire = ["LOCK.ACQUIRE", "name", "60000", "OWNER", "attempt"];
    let (mut alice, mut bob) = (as_user(&nodes[0], "alice"), as_user(&nodes[1], "bob"));
    let mut granted = String::new();
    await_that("the cluster serves", || {
        granted = alice.ask(&acquire);
        granted.starts_with('(')
    });
    assert_eq!(bob.ask(&acquire), "nil", "the name of the owner is no secret: LOCK.INFO shows it");
    assert_eq!(nodes[2].connect().ask(&acquire), "nil");
    assert_eq!(bob.ask_all(&["MULTI", &acquire.join(" "), "EXEC"])[2], "(nil)");
    assert_eq!(bob.ask(&["LOCK.MACQUIRE", "2", "name", "more", "60000", "OWNER", "attempt"]), "nil");
    let fence = |reply: &str| reply.split(',').next().map(str::to_owned);
    let again = as_user(&nodes[2], "alice").ask(&acquire);
    assert_eq!(fence(&again), fence(&granted), "the same user gets the same grant at every node");
    assert_eq!(alice.ask_all(&["SET key attempt NX PX 60000"]), ["OK"]);
    assert_eq!(bob.ask(&["LOCK.ACQUIRE", "key", "60000", "OWNER", "attempt"]), "nil");
}

/// Who may look at a lock must not learn what ends it, and who knows a session's id must not use it.
#[test]
fn a_session_belongs_to_the_user_that_opened_it() {
    let nodes = start_cluster(3, &[]);
    for node in &nodes {
        let made = [
            "ACL SETUSER pay on >pw ~pay:* ~shared:* +@all -@admin -@dangerous",
            "ACL SETUSER app on >pw ~app:* %R~shared:* +@all -@admin -@dangerous",
            "ACL SETUSER operator on >pw ~* +@all -@scripting -flushall -acl",
        ];
        assert_eq!(node.connect().ask_all(&made), ["OK", "OK", "OK"]);
    }
    let (mut pay, mut app) = (as_user(&nodes[0], "pay"), as_user(&nodes[1], "app"));
    let mut id = String::new();
    await_that("the cluster serves", || {
        id = pay.ask(&["LOCK.SESSION", "OPEN", "600000"]).replace('"', "");
        id.len() == 16
    });
    for name in ["pay:wallet", "shared:x"] {
        assert!(pay.ask(&["LOCK.ACQUIRE", name, "0", "SESSION", &id]).starts_with('('), "{name}");
    }
    let shows_id = |client: &mut Client| client.ask(&["LOCK.INFO", "shared:x"]).contains(&id);
    assert!(!shows_id(&mut app), "it may read the lock, but the session is another user's");
    assert!(app.ask(&["LOCK.INFO", "shared:x"]).contains("\"session\", nil"));
    let info = app.ask_all(&["MULTI", "LOCK.INFO shared:x", "EXEC"]);
    assert!(info[2].contains("\"held\"") && !info[2].contains(&id), "{info:?}");
    let by_script = app.ask(&["EVAL", "return redis.call('LOCK.INFO', 'shared:x')", "0"]);
    assert!(by_script.contains("held") && !by_script.contains(&id), "{by_script}");
    for line in [
        format!("LOCK.SESSION INFO {id}"),
        format!("LOCK.SESSION KEEPALIVE {id}"),
        format!("LOCK.SESSION CLOSE {id}"),
        format!("LOCK.ACQUIRE app:1 0 SESSION {id}"),
        format!("LOCK.MACQUIRE 2 app:1 app:2 0 SESSION {id}"),
    ] {
        assert!(app.ask_all(&[&line])[0].starts_with("-NOSESSION"), "{line}");
    }
    assert!(pay.ask(&["LOCK.INFO", "pay:wallet"]).contains("\"held\""));
    let mut elsewhere = as_user(&nodes[2], "pay");
    assert_eq!(elsewhere.ask(&["LOCK.SESSION", "KEEPALIVE", &id]), "600000", "its user, at any node");
    assert!(shows_id(&mut elsewhere));
    // Who may release every lock by force may see and close every session, but not use it.
    let mut operator = as_user(&nodes[1], "operator");
    assert!(shows_id(&mut operator) && shows_id(&mut nodes[1].connect()));
    assert!(operator.ask(&["LOCK.SESSION", "INFO", &id]).contains("\"locks\", 2"));
    assert!(operator.ask(&["LOCK.ACQUIRE", "any", "0", "SESSION", &id]).starts_with("-NOSESSION"));
    assert!(operator.ask(&["LOCK.SESSION", "KEEPALIVE", &id]).starts_with("-NOSESSION"));
    assert_eq!(operator.ask(&["LOCK.SESSION", "CLOSE", &id]), "2");
    assert!(pay.ask(&["LOCK.SESSION", "INFO", &id]).starts_with("-NOSESSION"));
}

#[test]
fn rights_that_are_taken_are_gone_at_once() {
    let node = Node::start(&[]);
    let mut admin = node.connect();
    admin.ask_all(&["ACL SETUSER app on >pw ~app:* &* +@all"]);
    let mut app = as_user(&node, "app");
    assert_eq!(app.ask_all(&["MULTI", "SET app:1 x", "INCR app:2"]), ["OK", "QUEUED", "QUEUED"]);
    let mut alone = as_user(&node, "app");
    assert_eq!(alone.ask_all(&["MULTI", "SET app:1 x"]), ["OK", "QUEUED"]);
    let mut listener = as_user(&node, "app");
    assert!(listener.ask(&["SUBSCRIBE", "news"]).starts_with('('));
    assert_eq!(admin.ask_all(&["ACL SETUSER app -set resetchannels &other"]), ["OK"]);
    let executed = app.ask(&["EXEC"]);
    assert!(executed.starts_with("(-NOPERM ACLs rules changed"), "queued while it was allowed: {executed}");
    assert!(executed.ends_with(", 1)"), "as in Redis what it still may do is done: {executed}");
    assert!(alone.ask(&["EXEC"]).starts_with("(-NOPERM ACLs rules changed"));
    assert_eq!(app.ask(&["GET", "app:1"]), "nil");
    assert_eq!(
        app.ask_all(&["SET app:1 x"]),
        ["-NOPERM this user has no permissions to run the 'set' command"]
    );
    admin.ask(&["PUBLISH", "news", "secret"]);
    assert_eq!(listener.receive(), "(closed)", "no message of a channel it lost");
}

#[test]
fn lock_channels_need_the_right_to_read_the_lock() {
    let node = Node::start(&[]);
    let mut admin = node.connect();
    admin.ask_all(&["ACL SETUSER app on >pw ~app:* &* +@all"]);
    let mut app = as_user(&node, "app");
    for line in
        ["SUBSCRIBE __lock__:other", "PSUBSCRIBE __lock__:*", "PSUBSCRIBE *", "SUBSCRIBE __lost__:other"]
    {
        assert!(app.ask_all(&[line])[0].starts_with("-NOPERM"), "{line}");
    }
    assert!(app.ask(&["SUBSCRIBE", "__lock__:app:1"]).starts_with('('));
    admin.acquire(&["app:1", "10000"]);
    assert!(app.receive().contains("acquired"));
}

/// The user is known on the node of the client alone: its rights go with the script to the leader.
#[test]
fn scripts_have_the_rights_of_their_user_on_every_node() {
    let nodes = start_cluster(3, &[]);
    for node in &nodes {
        let mut admin = node.connect();
        assert_eq!(admin.ask_all(&["ACL SETUSER app on >pw ~app:* +@all -@dangerous"]), ["OK"]);
        admin.ask_all(&["SET other 1", "SET app:1 1"]);
        let mut app = as_user(node, "app");
        let refused = "NOPERM ACL failure in script: this user has no permissions to access one of the keys used as arguments";
        let caught = format!("\"{refused}\"");
        for (body, expected) in [
            ("return redis.call('get', 'app:1')", "\"1\""),
            ("return redis.pcall('get', 'other').err", caught.as_str()),
            ("redis.call('set', 'app:2', 'x') return redis.call('get', 'app:2')", "\"x\""),
            ("return redis.pcall('flushall').err", "\"NOPERM ACL failure in script: this user has no permissions to run the \\'flushall\\' command\""),
        ] {
            assert_eq!(app.ask(&["EVAL", body, "0"]), expected, "{body}");
        }
        let failed = app.ask(&["EVAL", "return redis.call('del', 'other')", "0"]);
        assert!(failed.starts_with(&format!("-{refused}")), "{failed}");
        let compare = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
        assert_eq!(app.ask(&["EVAL", compare, "1", "other", "1"]), NO_KEY);
        assert_eq!(app.ask(&["EVAL", compare, "1", "app:1", "1"]), "1");
        assert_eq!(
            app.ask(&["EVAL_RO", "return redis.pcall('get', 'other').err", "0"]),
            format!("\"{refused}\"")
        );
        let queued = app.pipeline(&["MULTI", "SET app:3 x", "PING"]);
        assert_eq!(queued[1], "QUEUED");
        assert_eq!(app.ask(&["EVAL", "return redis.pcall('get', 'other').err", "0"]), "QUEUED");
        assert!(app.ask(&["EXEC"]).contains("NOPERM ACL failure"));
        assert_eq!(admin.ask(&["GET", "other"]), "\"1\"");
    }
}

#[test]
fn guessing_is_slow_counted_and_written_down() {
    let folder = TempDir::new().unwrap();
    let audit = folder.path().join("audit.log");
    let node = Node::start(&["--password", "secret", "--audit-log", &audit.to_string_lossy()]);
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
    let lines = || std::fs::read_to_string(&audit).unwrap();
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
    let folder = TempDir::new().unwrap();
    let audit = folder.path().join("audit.log");
    let node = Node::start(&["--audit-log", &audit.to_string_lossy()]);
    let mut admin = node.connect();
    await_that("the node serves", || admin.ask(&["SET", "key", "1"]) == "OK");
    let admin_lines = || {
        let text = std::fs::read_to_string(&audit).unwrap();
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
    let folder = TempDir::new().unwrap();
    let audit = folder.path().join("audit.log");
    let flags = ["--default-tier", "efficiency", "--audit-log", &audit.to_string_lossy()];
    let (_redis, node) = behind(&flags);
    let mut admin = node.connect();
    await_that("the Redis is reached", || admin.ask(&["SET", "key", "1"]) == "OK");
    let lines = || std::fs::read_to_string(&audit).unwrap();
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
    let folder = TempDir::new().unwrap();
    let audit = folder.path().join("audit.log");
    let flags = ["--default-tier", "efficiency", "--audit-log", &audit.to_string_lossy()];
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
    let text = || std::fs::read_to_string(&audit).unwrap();
    await_that("all are written down", || {
        ["901", "902", "903"].iter().all(|id| text().contains(&format!("[\"ID\",\"{id}\"]")))
    });
}

/// Who may not act as an administrator cannot fill the queue of administrative acts either.
#[test]
fn scripts_of_users_without_administrative_rights_are_no_acts_whatever_becomes_of_them() {
    let folder = TempDir::new().unwrap();
    let audit = folder.path().join("audit.log");
    let node = Node::start(&["--audit-log", &audit.to_string_lossy()]);
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
    let text = std::fs::read_to_string(&audit).unwrap();
    assert!(text.contains("\"command\":\"flushall\"") && !text.contains("\"eval\""), "{text}");
}

#[test]
fn rules_name_commands_that_somebody_has() {
    let (_redis, node) = behind(&["--default-tier", "efficiency"]);
    let mut admin = node.connect();
    await_that("the Redis is reached", || admin.ask(&["SET", "key", "1"]) == "OK");
    for name in ["-flushal", "-config|sett", "-flushall|x", "-nosuch|sub", "+json.nosuch"] {
        let answer = admin.ask(&["ACL", "SETUSER", "u", "on", "nopass", "~*", "&*", "+@all", name]);
        assert!(answer.contains("Unknown command or category name in ACL"), "{name}: {answer}");
    }
    assert_eq!(admin.ask(&["ACL", "SETUSER", "app", "on", "~app:*", "+@all", "-@admin"]), "OK");
    for line in ["ACL DRYRUN app CONFIG NEWVERB x", "ACL DRYRUN app MODULE NEWVERB"] {
        assert!(admin.ask_all(&[line])[0].contains("no permissions to run"), "{line}");
    }
    assert_eq!(admin.ask_all(&["ACL DRYRUN app CLIENT NO-TOUCH ON"]), ["OK"]);
}

#[test]
fn refusals_that_repeat_are_one_line_with_a_count() {
    let folder = TempDir::new().unwrap();
    let audit = folder.path().join("audit.log");
    let node = Node::start(&["--audit-log", &audit.to_string_lossy()]);
    let mut admin = node.connect();
    assert_eq!(admin.ask_all(&["ACL SETUSER nobody on >pw"]), ["OK"]);
    let mut nobody = as_user(&node, "nobody");
    for _ in 0..500 {
        assert!(nobody.ask(&["SAVE"]).starts_with("-NOPERM"));
    }
    let counts = || {
        let text = std::fs::read_to_string(&audit).unwrap();
        let lines = text.lines().filter(|line| line.contains("\"event\":\"denied\""));
        let count = |line: &str| {
            let rest = line.split("\"count\":").nth(1)?;
            rest.split(|byte: char| !byte.is_ascii_digit()).next()?.parse::<u64>().ok()
        };
        lines.map(|line| count(line).expect("a count")).collect::<Vec<_>>()
    };
    await_that("all are counted", || counts().iter().sum::<u64>() == 500);
    assert!(counts().len() < 250, "{:?}", counts());
}

#[test]
fn a_user_with_many_rules_may_use_transactions_without_scripts() {
    let node = Node::start(&[]);
    let mut admin = node.connect();
    let patterns: Vec<String> = (0..900).map(|at| format!("~tenant-{at:04}-project-{at:04}:*")).collect();
    let mut words = vec!["ACL", "SETUSER", "many", "on", ">pw", "+@all", "-@admin", "-@dangerous"];
    words.extend(patterns.iter().map(String::as_str));
    assert_eq!(admin.ask(&words), "OK");
    let mut many = as_user(&node, "many");
    let set = "SET tenant-0001-project-0001:a 1";
    await_that("the node serves", || many.ask_all(&[set])[0] == "OK");
    assert_eq!(many.ask_all(&["MULTI", set, "EXEC"]), ["OK", "QUEUED", "(OK)"]);
    assert_eq!(many.ask_all(&["MULTI", "EVAL x 0"]), ["OK", "QUEUED"]);
    let refused = many.ask(&["EXEC"]);
    assert!(refused.starts_with("-NOPERM the rules of user 'many' exceed"), "{refused}");
}

/// The names of keys and locks are told to nobody who may not read them.
#[test]
fn tracking_by_broadcast_tells_of_readable_keys_alone() {
    let node = Node::start(&[]);
    let mut admin = node.connect();
    let made = ["ACL SETUSER app on >pw ~app:* %R~shared:* +@all -@admin -@dangerous"];
    assert_eq!(admin.ask_all(&made), ["OK"]);
    await_that("the node serves", || admin.ask(&["SET", "first", "1"]) == "OK");
    let mut app = as_user(&node, "app");
    app.ask(&["HELLO", "3"]);
    assert_eq!(app.ask(&["CLIENT", "TRACKING", "ON", "BCAST"]), "OK");
    admin.ask(&["SET", "pay:secret", "1"]);
    admin.ask(&["LOCK.ACQUIRE", "pay:lock", "60000"]);
    admin.ask(&["SET", "shared:1", "1"]);
    let heard = app.receive();
    assert!(heard.contains("shared:1") && !heard.contains("pay:"), "{heard}");
    admin.ask(&["ACL", "SETUSER", "app", "resetkeys", "~app:*"]);
    admin.ask(&["SET", "shared:1", "2"]);
    admin.ask(&["SET", "app:1", "1"]);
    let heard = app.receive();
    assert!(heard.contains("app:1") && !heard.contains("shared"), "{heard}");
}

#[test]
fn guesses_do_not_keep_out_who_has_logged_in_before() {
    let node = Node::start(&["--password", "secret"]);
    let mut watch = node.connect();
    assert_eq!(watch.ask(&["AUTH", "secret"]), "OK");
    let mut guessers: Vec<Client> = (0..100).map(|_| node.connect()).collect();
    for (at, guesser) in guessers.iter_mut().enumerate() {
        guesser.send(&["AUTH", &format!("nosuch{at}"), "x"]);
    }
    // More wait for their answers than one address was once allowed in all.
    await_that("all have guessed", || watch.ask(&["INFO", "stats"]).contains("acl_access_denied_auth:100"));
    assert_eq!(node.connect().ask(&["AUTH", "secret"]), "OK");
    drop(guessers);
}

#[test]
fn nodes_with_other_users_say_so() {
    let nodes = start_cluster(3, &[]);
    let differ = |node: &Node| {
        let info = node.connect().ask(&["INFO", "redfence"]);
        info.split("acl_users_differ:").nth(1).and_then(|rest| rest.chars().next()).unwrap_or('?')
    };
    let warns = |node: &Node| node.process.log().contains("ACL users differ");
    assert_eq!(nodes[0].connect().ask_all(&["ACL SETUSER app on >pw ~* +@all"]), ["OK"]);
    await_that("all see the difference", || {
        differ(&nodes[0]) == '2' && differ(&nodes[1]) == '1' && differ(&nodes[2]) == '1'
    });
    await_that("all warn", || nodes.iter().all(warns));
    for node in &nodes[1..] {
        assert_eq!(node.connect().ask_all(&["ACL SETUSER app on >pw ~* +@all"]), ["OK"]);
    }
    await_that("the same users are no difference", || nodes.iter().all(|node| differ(node) == '0'));
}

#[test]
fn who_does_not_log_in_is_disconnected() {
    let node = Node::start(&["--password", "secret"]);
    let (mut idle, mut user) = (node.connect(), node.connect());
    assert_eq!(user.ask(&["AUTH", "secret"]), "OK");
    idle.stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    assert_eq!(idle.receive(), "(closed)");
    assert_eq!(user.ask(&["PING"]), "PONG");
}

/// Logs in anew for every lock it takes, and takes one on a connection that it keeps. Every operation must succeed.
fn rotate_load(
    address: SocketAddr,
    name: &str,
    password: &Mutex<&str>,
    rounds: &AtomicU64,
    stop: &AtomicBool,
) {
    let mut kept = Client::connect(address);
    assert_eq!(kept.ask(&["AUTH", "app", "old"]), "OK");
    while !stop.load(Ordering::Relaxed) {
        let mut fresh = Client::connect(address);
        let password = *password.lock().unwrap();
        assert_eq!(fresh.ask(&["AUTH", "app", password]), "OK", "{password}");
        for client in [&mut kept, &mut fresh] {
            let granted = client.ask(&["LOCK.ACQUIRE", name, "60000"]);
            let fence = granted.trim_matches(['(', ')']).split(',').next().unwrap().to_owned();
            assert_eq!(client.ask(&["LOCK.RELEASE", name, &fence]), "(1, \"ok\")", "{granted}");
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

/// The steps of "Rotate a password" in docs/users.md.
#[test]
fn a_password_is_rotated_under_load_without_a_failed_operation() {
    let line = |passwords: &str| format!("user default off\nuser app on {passwords} ~* &* +@all\n");
    let (_folder, path) = file(&line(">old"));
    let login = |client: &mut Client| client.ask(&["AUTH", "app", "old"]) == "OK";
    let nodes = start_nodes_by(3, &["--acl-file", &path], login);
    let (password, stop) = (Mutex::new("old"), AtomicBool::new(false));
    let rounds: Vec<AtomicU64> = nodes.iter().map(|_| AtomicU64::new(0)).collect();
    let replace = |passwords: &str, times: usize| {
        std::fs::write(&path, line(passwords)).unwrap();
        let reread = |node: &Node| node.process.log().matches("was read again").count() >= times;
        await_that("every node reads the file again", || nodes.iter().all(reread));
    };
    let more_rounds = || {
        let before: Vec<u64> = rounds.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        await_that("all go on", || {
            rounds.iter().zip(&before).all(|(count, before)| count.load(Ordering::Relaxed) > before + 1)
        });
    };
    std::thread::scope(|scope| {
        let loads: Vec<_> = nodes
            .iter()
            .zip(&rounds)
            .map(|(node, rounds)| {
                let (password, stop, name) = (&password, &stop, format!("lock-{}", node.address));
                scope.spawn(move || rotate_load(node.address, &name, password, rounds, stop))
            })
            .collect();
        let steps = std::panic::catch_unwind(AssertUnwindSafe(|| {
            replace(">old >new", 1);
            more_rounds();
            *password.lock().unwrap() = "new";
            more_rounds();
            replace(">new", 2);
            more_rounds();
        }));
        stop.store(true, Ordering::Relaxed);
        loads.into_iter().for_each(|load| load.join().expect("no operation failed"));
        steps.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    for node in &nodes {
        assert_eq!(node.connect().ask(&["AUTH", "app", "old"]), WRONG);
    }
}

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
    let (folder, path) = file("user app on >pw ~* +@all\n");
    let certificates = support::tls::Certificates::new();
    let flags = certificates.flags(&["--listen", "0.0.0.0:0", "--acl-file", &path]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut process = support::Process::start(support::redfence(&folder, &flags), &folder, "node");
    assert!(!process.await_exit().success());
    assert!(
        process.log().contains("the default user of the ACL file needs no password"),
        "{}",
        process.log()
    );
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
