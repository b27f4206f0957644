//! What dashboards, and whoever else comes to the admin listener, may cost a node: bytes, time and turns.

mod support;

use serde_json::{json, Value};
use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;
use support::admin::{listen, next_line, stalled, start, Asker};
use support::{await_that, Client, Node};

/// Sends all, then reads all replies.
fn pipelined(client: &mut Client, commands: &[Vec<&str>]) {
    for batch in commands.chunks(200) {
        batch.iter().for_each(|words| client.send(words));
        batch.iter().for_each(|_| drop(client.receive()));
    }
}

fn event(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn events_of_names_longer_than_a_lock_has_are_counted_and_not_sent() {
    let (node, asker) = start(&[]);
    let mut reader = listen(&asker, "/api/v1/events");
    let unread: Vec<TcpStream> = (0..48).map(|_| stalled(&asker, "/api/v1/events")).collect();
    let mut client = node.connect();
    let (name, value) = ("n".repeat(60_000), "v".repeat(60_000));
    client.ask(&["SET", &name, &value]);
    client.ask(&["LOCK.ACQUIRE", "small", "60000", "OWNER", "me"]);
    assert_eq!(event(&next_line(&mut reader, "data: "))["name"], "small");
    next_line(&mut reader, "event: gap");
    assert!(event(&next_line(&mut reader, "data: "))["lost"].as_u64().unwrap() > 0);
    let before = node.process.memory_kib();
    for _ in 0..200 {
        client.ask(&["PEXPIRE", &name, "600000"]);
    }
    client.ask(&["LOCK.ACQUIRE", "last", "60000"]);
    while event(&next_line(&mut reader, "data: "))["name"] != "last" {}
    let grown = node.process.memory_kib().saturating_sub(before);
    assert!(grown < 64 << 10, "{grown} KiB");
    drop(unread);
}

#[test]
fn streams_that_nobody_reads_hold_little() {
    let (node, asker) = start(&[]);
    let unread: Vec<TcpStream> = (0..200).map(|_| stalled(&asker, "/api/v1/events")).collect();
    let mut client = node.connect();
    await_that("all are open", || {
        asker.get("/health").status == 200 && client.ask(&["PUBSUB", "NUMPAT"]) == "1"
    });
    let before = node.process.memory_kib();
    let (names, value): (Vec<String>, _) =
        ((0..4_000).map(|number| format!("{number}:{}", "n".repeat(400))).collect(), "\u{1}".repeat(1_000));
    let acquire = |name| vec!["LOCK.ACQUIRE", name, "60000", "OWNER", "me", "VALUE", &value];
    let commands: Vec<Vec<&str>> = names.iter().map(|name| acquire(name)).collect();
    pipelined(&mut client, &commands);
    // The locks themselves take some of it: 4,000 of 2 KB and their log. Without bounds it was 560 MiB.
    let grown = node.process.memory_kib().saturating_sub(before);
    assert!(grown < 300 << 10, "{grown} KiB");
    drop(unread);
}

#[test]
fn a_page_ends_at_about_a_mebibyte_and_goes_on_with_its_cursor() {
    let (node, asker) = start(&[]);
    let mut client = node.connect();
    let names: Vec<String> =
        (0..300).map(|number| format!("{number:03}{}", "\u{1}".repeat(60_000))).collect();
    let commands: Vec<Vec<&str>> = names.iter().map(|name| vec!["SET", name, "owner"]).collect();
    pipelined(&mut client, &commands);
    let (mut cursor, mut seen) = ("0".to_owned(), 0);
    loop {
        let answer = asker.get(&format!("/api/v1/locks?count=300&cursor={cursor}"));
        assert!(answer.body.len() < 2 << 20, "{} bytes", answer.body.len());
        let page = answer.ok();
        for row in page["locks"].as_array().unwrap() {
            assert_eq!((&row["key"], &row["name_bytes"]), (&Value::Null, &json!(60_003)));
            seen += 1;
        }
        cursor = page["cursor"].as_str().unwrap().to_owned();
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen, 300);
    let long = asker.get(&format!("/api/v1/locks/{}", "a".repeat(513)));
    assert_eq!(long.status, 400);
    // Names of locks at their limit, 1,000 on a page.
    let names: Vec<String> = (0..1_000).map(|number| format!("{number:04}{}", "\u{2}".repeat(500))).collect();
    let commands: Vec<Vec<&str>> = names.iter().map(|name| vec!["LOCK.ACQUIRE", name, "600000"]).collect();
    pipelined(&mut client, &commands);
    let answer = asker.get("/api/v1/locks?count=1000&match=*%02");
    assert!(answer.body.len() < 2 << 20, "{} bytes", answer.body.len());
    assert_ne!(answer.ok()["cursor"], "0");
    // A large value is not the owner's name.
    client.ask(&["SET", "plain", &"v".repeat(500_000)]);
    assert!(asker.get("/api/v1/locks?match=plain").body.len() < 10_000);
}

fn with_holders(node: &Node, names: &[String], holders: usize) {
    let mut client = node.connect();
    let value = "\u{1}".repeat(1_000);
    let owners: Vec<String> = (0..holders).map(|number| format!("owner-{number}")).collect();
    let mut commands: Vec<Vec<&str>> = Vec::new();
    for name in names {
        for owner in &owners {
            commands.push(vec!["LOCK.ACQUIRE", name, "600000", "SHARED", "OWNER", owner, "VALUE", &value]);
        }
    }
    pipelined(&mut client, &commands);
}

#[test]
fn holders_are_listed_once_and_not_without_end() {
    let (node, asker) = start(&[]);
    with_holders(&node, &["shared".to_owned()], 1_100);
    let answer = asker.get("/api/v1/locks/shared");
    assert!(answer.body.len() < 1 << 20, "{} bytes", answer.body.len());
    let one = answer.ok();
    assert_eq!(one["info"]["holders_total"], 1_000, "that is all that LOCK.INFO tells");
    assert_eq!(one["info"]["holders_more"], true);
    assert!(!one["info"]["holders"].as_array().unwrap().is_empty());
    assert_eq!(one["explain"]["holders"], Value::Null);
    let row = &asker.get("/api/v1/locks").ok()["locks"][0];
    assert_eq!((&row["holders"], &row["holders_more"]), (&json!(1_000), &json!(true)));
}

#[test]
fn a_page_takes_what_its_rows_take_not_what_the_locks_have() {
    let (node, asker) = start(&[]);
    let names: Vec<String> = (0..40).map(|number| format!("many:{number}")).collect();
    with_holders(&node, &names, 250);
    let before = node.process.memory_kib();
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                await_that("a page", || {
                    let answer = asker.get("/api/v1/locks?count=100");
                    answer.status == 200 && answer.ok()["locks"].as_array().unwrap().len() == 40
                });
            });
        }
    });
    let grown = node.process.memory_kib().saturating_sub(before);
    assert!(grown < 96 << 10, "{grown} KiB");
}

#[test]
fn an_answer_that_nobody_reads_is_given_up() {
    let (node, asker) = start(&[]);
    let names: Vec<String> = (0..1_000).map(|number| format!("{number:04}{}", "\u{2}".repeat(500))).collect();
    let commands: Vec<Vec<&str>> = names.iter().map(|name| vec!["LOCK.ACQUIRE", name, "600000"]).collect();
    pipelined(&mut node.connect(), &commands);
    let mut stream = stalled(&asker, "/api/v1/locks?count=1000");
    // Ten seconds without progress, on a busy machine.
    std::thread::sleep(Duration::from_secs(13));
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    assert!(bytes.len() < 1 << 20, "{} bytes", bytes.len());
}

#[test]
fn a_stream_that_waited_for_its_reader_hears_nothing_after_its_user_is_gone() {
    let (node, mut asker) = start(&["--password", "secret"]);
    let mut client = node.connect();
    client.ask(&["AUTH", "secret"]);
    let viewer = "ACL SETUSER viewer on >look ~* &* -@all +subscribe";
    assert_eq!(client.ask(&viewer.split(' ').collect::<Vec<_>>()), "OK");
    asker.log_in("viewer", "look").ok();
    let streams: Vec<TcpStream> = (0..8).map(|_| stalled(&asker, "/api/v1/events")).collect();
    let value = "\u{1}".repeat(1_000);
    let names: Vec<String> = (0..2_000).map(|number| format!("{number}:{}", "n".repeat(400))).collect();
    let commands: Vec<Vec<&str>> =
        names.iter().map(|name| vec!["LOCK.ACQUIRE", name, "60000", "VALUE", &value]).collect();
    pipelined(&mut client, &commands);
    assert_eq!(client.ask(&["ACL", "DELUSER", "viewer"]), "1");
    client.ask(&["LOCK.ACQUIRE", "not-for-it", "60000"]);
    for mut stream in streams {
        let mut bytes = Vec::new();
        // Ends: a deleted user has no stream.
        stream.read_to_end(&mut bytes).unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains("not-for-it"));
    }
}

#[test]
fn a_login_ended_by_the_limit_ends_its_streams() {
    let (_node, mut asker) = start(&["--password", "secret"]);
    asker.log_in("default", "secret").ok();
    let mut stream = listen(&asker, "/api/v1/events");
    for _ in 0..100 {
        Asker { admin: asker.admin, cookie: None }.log_in("default", "secret").ok();
    }
    assert_eq!(next_line(&mut stream, "0"), "");
    assert_eq!(asker.get("/api/v1/overview").status, 401);
}

#[test]
fn a_pattern_that_is_slow_to_match_has_a_budget() {
    let (node, asker) = start(&[]);
    let pattern = "*a".repeat(250) + "b";
    let mut stream = listen(&asker, &format!("/api/v1/events?match={pattern}"));
    let names: Vec<String> = (0..600).map(|number| format!("{number:04}{}", "a".repeat(500))).collect();
    let commands: Vec<Vec<&str>> = names.iter().map(|name| vec!["LOCK.ACQUIRE", name, "600000"]).collect();
    pipelined(&mut node.connect(), &commands);
    next_line(&mut stream, "event: gap");
}

#[test]
fn whoever_may_publish_does_not_make_events() {
    let (node, asker) = start(&[]);
    let mut stream = listen(&asker, "/api/v1/events");
    let mut client = node.connect();
    let forged = r#"{"event":"acquired","name":"wallet:7","key":"wallet%3A7","owner":"nobody","fence":1}"#;
    for payload in [forged, "{<script>", r#"{"owner":{"toString":1}}"#] {
        client.ask(&["PUBLISH", "__lock__:x", payload]);
    }
    client.ask(&["LOCK.ACQUIRE", "real", "60000"]);
    assert_eq!(event(&next_line(&mut stream, "data: "))["name"], "real");
}

#[test]
fn searches_do_not_keep_operators_from_acting() {
    let (node, asker) = start(&[]);
    let names: Vec<String> = (0..4_000).map(|number| format!("held:{number}")).collect();
    let commands: Vec<Vec<&str>> = names.iter().map(|name| vec!["LOCK.ACQUIRE", name, "600000"]).collect();
    pipelined(&mut node.connect(), &commands);
    let searches: Vec<TcpStream> = (0..90).map(|_| stalled(&asker, "/api/v1/locks?sort=age")).collect();
    for name in &names[..5] {
        let path = format!("/api/v1/locks/{}/force-release", name.replace(':', "%3A"));
        assert_eq!(asker.post(&path, &json!({ "reason": "test" })).ok()["released"], 1);
    }
    drop(searches);
}

#[test]
fn guesses_do_not_keep_operators_from_logging_in() {
    let (_node, asker) = start(&["--password", "secret"]);
    std::thread::scope(|scope| {
        for number in 0..60 {
            let asker = Asker { admin: asker.admin, cookie: None };
            scope.spawn(move || {
                for _ in 0..3 {
                    let mut guesser = Asker { admin: asker.admin, cookie: None };
                    let answer = guesser.log_in(&format!("nobody-{number}"), "guess");
                    assert!(matches!(answer.status, 401 | 429), "{answer:?}");
                }
            });
        }
        for _ in 0..5 {
            let mut operator = Asker { admin: asker.admin, cookie: None };
            operator.log_in("default", "secret").ok();
        }
    });
}

#[test]
fn refusals_are_in_the_audit_log_and_not_in_the_nodes_log() {
    let folder = tempfile::TempDir::new().unwrap();
    let audit = folder.path().join("audit.log");
    let (node, mut asker) = start(&["--password", "secret", "--audit-log", audit.to_str().unwrap()]);
    let mut client = node.connect();
    client.ask(&["AUTH", "secret"]);
    assert_eq!(client.ask(&["ACL", "SETUSER", "nobody", "on", ">look", "-@all"]), "OK");
    asker.log_in("nobody", "look").ok();
    let reads = ["audit", "overview", "sessions", "events", "contention"];
    for path in reads {
        assert_eq!(asker.get(&format!("/api/v1/{path}")).code(), (403, "NOPERM".to_owned()), "{path}");
    }
    let commands = ["acl|log", "lock.cluster|info", "lock.session|info", "subscribe", "lock.explain"];
    let log = client.ask(&["ACL", "LOG"]);
    await_that("all are in the audit log", || {
        let text = std::fs::read_to_string(&audit).unwrap_or_default();
        let has = |command: &&str| {
            let name = command.split('|').next().unwrap();
            text.lines()
                .any(|line| line.contains("\"denied\"") && line.contains(name) && line.contains("nobody"))
        };
        commands.iter().all(has)
    });
    for command in commands {
        assert!(log.contains(command.split('|').next().unwrap()), "{command}: {log}");
    }
    let before = node.process.log().len();
    let path = format!("/api/v1/locks/{}/force-release", "%01".repeat(500));
    for _ in 0..50 {
        assert_eq!(asker.post(&path, &json!({ "reason": "r" })).code(), (403, "NOPERM".to_owned()));
    }
    assert!(node.process.log().len() - before < 1_000);
}

#[test]
fn what_an_action_is_given_is_what_it_says() {
    let (node, asker) = start(&[]);
    let mut client = node.connect();
    client.ask(&["LOCK.ACQUIRE", "kept", "600000"]);
    for body in [
        json!({ "reason": "r", "tier": 5 }),
        json!({ "reason": "r", "tier": null }),
        json!({ "reason": "r", "fence": null }),
        json!({ "reason": "r", "fence": "7" }),
    ] {
        assert_eq!(asker.post("/api/v1/locks/kept/force-release", &body).status, 400, "{body}");
    }
    assert_eq!(asker.get("/api/v1/locks/kept").ok()["info"]["state"], "held");
    for count in ["0", "1001", "x"] {
        assert_eq!(asker.get(&format!("/api/v1/sessions?count={count}")).status, 400, "{count}");
    }
    // Without a Redis the Raft cluster serves every lock, whatever was asked for.
    assert_eq!(asker.get("/api/v1/locks?tier=efficiency").ok()["locks"][0]["tier"], "correctness");
    // What another site's page asks for costs nothing.
    let foreign = "Sec-Fetch-Site: cross-site\r\n";
    for path in ["/api/v1/locks?sort=age", "/api/v1/events", "/api/v1/overview"] {
        assert_eq!(asker.ask("GET", path, foreign, "").code(), (403, "ORIGIN".to_owned()), "{path}");
    }
}

#[test]
fn a_user_changed_there_and_back_has_to_log_in_again() {
    let (node, mut asker) = start(&["--password", "secret"]);
    let mut client = node.connect();
    client.ask(&["AUTH", "secret"]);
    let rules = "ACL SETUSER one reset on >look ~* &* +@all".split(' ').collect::<Vec<_>>();
    client.ask(&rules);
    let answer = asker.log_in("one", "look");
    let port = format!("_{}=", asker.admin.port());
    assert!(answer.header("set-cookie").unwrap().contains(&port), "nodes of one machine have their own");
    // Written anew as it is, and others changed: nothing is changed for it.
    client.ask(&rules);
    client.ask(&["ACL", "SETUSER", "other", "on"]);
    assert_eq!(asker.get("/api/v1/overview").status, 200);
    let first = asker.cookie.clone();
    client.ask(&["ACL", "DELUSER", "one"]);
    client.ask(&rules);
    assert_eq!(asker.get("/api/v1/overview").status, 401);
    asker.log_in("one", "look").ok();
    client.ask(&["ACL", "SETUSER", "one", ">other", "<look"]);
    client.ask(&["ACL", "SETUSER", "one", ">look", "<other"]);
    assert_eq!(asker.get("/api/v1/overview").status, 401);
    asker.cookie = first;
    assert_eq!(asker.get("/api/v1/overview").status, 401);
}
