//! Users on running nodes: logging in, rules and their changes, scripts on the leader, guessing, the ACL file and the audit log.

#[path = "../support/mod.rs"]
mod support;

mod audit;
mod files;

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;
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

/// Who knows a session's id must not hear what becomes of its locks.
#[test]
fn losses_are_told_to_the_user_whose_they_were() {
    let node = Node::start(&[]);
    let made = [
        "ACL SETUSER pay on >pw ~pay:* ~shared:* %W~drop:* +@all -@admin -@dangerous",
        "ACL SETUSER app on >pw ~* +@all -@admin -@dangerous",
    ];
    let mut admin = node.connect();
    assert_eq!(admin.ask_all(&made), ["OK", "OK"]);
    let (mut pay, mut app) = (as_user(&node, "pay"), as_user(&node, "app"));
    let mut id = String::new();
    await_that("the node serves", || {
        id = pay.ask(&["LOCK.SESSION", "OPEN", "600000"]).replace('"', "");
        id.len() == 16
    });
    for client in [&mut pay, &mut app] {
        assert!(client.ask(&["HELLO", "3"]).starts_with('{'));
        assert_eq!(client.ask(&["LOCK.NOTIFY", "ON"]), "OK");
    }
    let mut fence = |name: &str| {
        let granted = pay.ask(&["LOCK.ACQUIRE", name, "0", "SESSION", &id]);
        granted.trim_matches('(').split(',').next().map(str::to_owned).expect("granted")
    };
    let (first, second, third) = (fence("pay:wallet"), fence("shared:x"), fence("drop:y"));
    let watch = ["LOCK.NOTIFY", "ON", "SESSION", &id];
    assert!(app.ask(&watch).starts_with("-NOSESSION"), "it is another user's");
    let held = format!("((\"pay:wallet\", {first}), (\"shared:x\", {second}), (\"drop:y\", {third}))");
    assert_eq!(pay.ask(&watch), held);
    assert_eq!(admin.ask(&["LOCK.FORCERELEASE", "pay:wallet"]), "1");
    assert_eq!(pay.receive(), format!(">(\"lock-lost\", \"pay:wallet\", {first}, \"forced\", nil)"));
    // Without the right to read it hears that its lock is lost, and not who has it now.
    let mut waiting = as_user(&node, "app");
    waiting.send(&["LOCK.ACQUIRE", "drop:y", "60000", "WAIT", "60000"]);
    await_that("it waits", || admin.ask(&["LOCK.QUEUE", "drop:y"]).contains('"'));
    assert_eq!(admin.ask(&["LOCK.FORCERELEASE", "drop:y"]), "1");
    assert_eq!(pay.receive(), format!(">(\"lock-lost\", \"drop:y\", {third}, \"forced\", nil)"));
    assert!(waiting.receive().starts_with('('));
    // A right that is taken is gone: it does not hear of that name any more.
    assert_eq!(admin.ask_all(&["ACL SETUSER pay resetkeys ~pay:*"]), ["OK"]);
    assert_eq!(admin.ask(&["LOCK.FORCERELEASE", "shared:x"]), "1");
    let fence = pay.ask(&["LOCK.ACQUIRE", "pay:wallet", "0", "SESSION", &id]);
    assert_eq!(admin.ask(&["LOCK.FORCERELEASE", "pay:wallet"]), "1");
    let push = pay.receive();
    assert!(fence.starts_with('(') && push.starts_with(">(\"lock-lost\", \"pay:wallet\","), "{push}");
    assert!(app.hears_nothing_for(std::time::Duration::from_millis(150)), "none of them was its own");
}

/// The chain behind a lock leads to names that were not asked for: it ends before one that may not be read.
#[test]
fn an_explanation_shows_no_lock_that_may_not_be_read() {
    let node = Node::start(&[]);
    let mut admin = node.connect();
    let made = ["ACL SETUSER pay on >pw ~pay:* %W~drop:* +@all -@admin -@dangerous"];
    assert_eq!(admin.ask_all(&made), ["OK"]);
    let (mut pay, mut waiting) = (as_user(&node, "pay"), as_user(&node, "pay"));
    let mut id = String::new();
    await_that("the node serves", || {
        id = pay.ask(&["LOCK.SESSION", "OPEN", "600000"]).replace('"', "");
        id.len() == 16
    });
    assert!(pay.ask(&["LOCK.ACQUIRE", "pay:1", "0", "SESSION", &id]).starts_with('('));
    for name in ["drop:1", "pay:2"] {
        assert!(admin.ask(&["LOCK.ACQUIRE", name, "600000", "OWNER", "whose-is-it"]).starts_with('('));
        waiting.send(&["LOCK.ACQUIRE", name, "0", "SESSION", &id, "WAIT", "600000"]);
        await_that("it waits", || admin.ask(&["LOCK.EXPLAIN", "pay:1"]).contains(name));
        let explained = pay.ask(&["LOCK.EXPLAIN", "pay:1"]);
        let may_read = name == "pay:2";
        assert_eq!(explained.contains("whose-is-it") && explained.contains(name), may_read, "{explained}");
        assert_eq!(explained.contains("\"blocked_by\", ()"), !may_read, "{explained}");
        let foreign = pay.ask(&["LOCK.EXPLAIN", "drop:1"]);
        assert!(foreign.starts_with("-NOPERM"), "{foreign}");
        assert_eq!(admin.ask(&["LOCK.FORCERELEASE", name]), "1");
        assert!(waiting.receive().starts_with('('));
    }
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
