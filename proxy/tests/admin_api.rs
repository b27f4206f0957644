//! `/api/v1/` and the dashboard's files on the admin listener: who may ask, what is answered, and what keeps others out.

mod support;

use serde_json::{json, Value};
use std::net::TcpStream;
use support::admin::{listen, next_line, start, Asker};
use support::await_that;
use tempfile::TempDir;

#[test]
fn files_and_probes_are_served_with_strict_headers() {
    let (_node, asker) = start(&[]);
    let page = asker.get("/");
    assert_eq!(page.status, 200);
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'self'") && !policy.contains("unsafe"));
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(page.header("referrer-policy"), Some("no-referrer"));
    assert_eq!(asker.get("/ui/index.html").body, page.body);
    for path in ["/ui/../Cargo.toml", "/ui/", "/ui/none.js", "/favicon.ico", "/metricz"] {
        assert_eq!(asker.get(path).status, 404, "{path}");
    }
    assert_eq!(asker.ask("POST", "/health", "", "").status, 405);
    let health = asker.get("/health");
    assert_eq!((health.status, health.body.as_str()), (200, "alive\n"));
    assert!(asker.get("/metrics").body.contains("redfence_build_info"));
    // A head or a body beyond the limit is refused, and the listener goes on.
    let long = asker.ask("GET", "/", &format!("X-Long: {}\r\n", "x".repeat(64 << 10)), "");
    assert_eq!(long.status, 431);
    let large = asker.post("/api/v1/login", &json!({ "user": "x".repeat(65 << 10) }));
    assert_eq!(large.code(), (413, "ERR".to_owned()));
    assert_eq!(asker.get("/health").status, 200);
}

#[test]
fn what_is_read_is_what_the_commands_answer() {
    let (node, asker) = start(&[]);
    let mut client = node.connect();
    let hostile = "<b>\u{202e}a/b c\u{7}";
    for name in ["wallet:1", "wallet:2", "other", hostile] {
        assert!(client.ask(&["LOCK.ACQUIRE", name, "60000", "OWNER", "me"]).starts_with('('));
    }
    let session = client.ask(&["LOCK.SESSION", "OPEN", "60000", "NAME", "worker"]);
    let session = session.trim_matches('"').to_owned();
    client.ask(&["LOCK.ACQUIRE", "shared", "0", "SHARED", "SESSION", &session, "OWNER", "reader"]);

    let overview = asker.get("/api/v1/overview").ok();
    assert_eq!(overview["health"]["ok"], true, "{overview}");
    await_that("figures are up to date", || {
        let overview = asker.get("/api/v1/overview").ok();
        overview["held"]["exclusive"] == 4 && overview["held"]["shared"] == 1 && overview["sessions"] == 1
    });
    assert_eq!(overview["nodes"].as_array().unwrap().len(), 1);

    let locks = asker.get("/api/v1/locks?match=wallet:*").ok();
    let names: Vec<&str> =
        locks["locks"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["wallet:1", "wallet:2"]);
    assert_eq!((&locks["cursor"], &locks["complete"]), (&json!("0"), &json!(true)));
    assert_eq!(locks["locks"][0]["owner"], "me");
    assert_eq!(locks["locks"][0]["mode"], "exclusive");
    // By pages, every lock once.
    let (mut cursor, mut all) = ("0".to_owned(), Vec::new());
    loop {
        let page = asker.get(&format!("/api/v1/locks?count=2&cursor={cursor}")).ok();
        all.extend(page["locks"].as_array().unwrap().iter().map(|row| row["key"].to_string()));
        cursor = page["cursor"].as_str().unwrap().to_owned();
        if cursor == "0" {
            break;
        }
    }
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 5);
    for sort in ["waiters", "age", "ttl"] {
        assert_eq!(
            asker.get(&format!("/api/v1/locks?sort={sort}")).ok()["locks"].as_array().unwrap().len(),
            5
        );
    }
    assert_eq!(asker.get("/api/v1/locks?sort=color").status, 400);
    assert_eq!(asker.get("/api/v1/locks?cursor=x").status, 400);

    // Hostile names are shown as text, and their keys lead back.
    let rows = asker.get("/api/v1/locks?match=%3Cb*").ok();
    let row = &rows["locks"][0];
    assert_eq!(row["name"], "<b>\u{202e}a/b c\\x07");
    let one = asker.get(&format!("/api/v1/locks/{}", row["key"].as_str().unwrap())).ok();
    assert_eq!(one["info"]["state"], "held");
    assert_eq!(one["info"]["holders"][0]["owner"], "me");

    // How holds of a name ended.
    let fence = one["info"]["fence"].to_string();
    assert!(client.ask(&["LOCK.RELEASE", hostile, &fence]).contains("ok"));
    let one = asker.get(&format!("/api/v1/locks/{}", row["key"].as_str().unwrap())).ok();
    assert_eq!(one["recent"][0]["ended"], "released", "{one}");
    assert_eq!(one["recent"][0]["fence"].to_string(), fence);

    let sessions = asker.get("/api/v1/sessions").ok();
    assert_eq!(sessions["sessions"][0]["id"], session.as_str());
    assert_eq!(sessions["sessions"][0]["label"], "worker");
    assert_eq!(sessions["sessions"][0]["user"], "default");
    assert_eq!(sessions["sessions"][0]["locks"], 1);

    let cluster = asker.get("/api/v1/cluster").ok();
    assert_eq!(cluster["info"]["role"], "leader");
    assert!(cluster["settings"]["max-memory"].is_string(), "{cluster}");
    let routes = asker.get("/api/v1/routes?name=wallet:1").ok();
    assert_eq!(routes["answer"]["tier"], "correctness", "{routes}");
    assert_eq!(asker.get("/api/v1/audit").ok(), json!({ "lines": [], "enabled": false }));
    assert_eq!(asker.get("/api/v1/nothing").code(), (404, "NOTFOUND".to_owned()));
    assert_eq!(asker.ask("DELETE", "/api/v1/locks", "", "").code(), (405, "METHOD".to_owned()));
}

#[test]
fn contention_is_counted_by_name_and_by_prefix() {
    let (node, asker) = start(&[]);
    let mut holder = node.connect();
    let granted = holder.ask(&["LOCK.ACQUIRE", "queue:1", "60000"]);
    let fence = granted.trim_matches(['(', ')']).split(',').next().unwrap().to_owned();
    let mut waiter = node.connect();
    waiter.send(&["LOCK.ACQUIRE", "queue:1", "60000", "WAIT", "60000", "OWNER", "second"]);
    let path = "/api/v1/locks/queue%3A1";
    await_that("it waits", || asker.get(path).ok()["explain"]["queue"][0]["owner"] == "second");
    let waiters = asker.get("/api/v1/locks?sort=waiters").ok();
    assert_eq!(waiters["locks"][0]["waiters"], 1);
    assert!(holder.ask(&["LOCK.RELEASE", "queue:1", &fence]).contains("ok"));
    waiter.receive();
    await_that("it is counted", || asker.get("/api/v1/contention").ok()["rows"][0]["name"] == "queue:1");
    assert_eq!(asker.get("/api/v1/contention?by=prefix").ok()["rows"][0]["name"], "queue:");
    assert_eq!(asker.get("/api/v1/overview").ok()["contended"][0]["key"], "queue%3A1");
    assert_eq!(asker.get("/api/v1/contention?by=color").status, 400);
}

#[test]
fn users_log_in_and_have_their_own_rights() {
    let folder = TempDir::new().unwrap();
    let audit = folder.path().join("audit.log");
    let (node, mut asker) = start(&["--password", "secret", "--audit-log", audit.to_str().unwrap()]);
    let mut client = node.connect();
    assert_eq!(client.ask(&["AUTH", "secret"]), "OK");
    let reader = "ACL SETUSER reader on >look ~app:* &* +lock.scan +lock.info +lock.explain +lock.cluster|info +subscribe";
    assert_eq!(client.ask(&reader.split(' ').collect::<Vec<_>>()), "OK");
    client.ask(&["LOCK.ACQUIRE", "app:1", "60000", "OWNER", "me"]);
    client.ask(&["LOCK.ACQUIRE", "hidden", "60000", "OWNER", "me"]);

    assert_eq!(asker.get("/api/v1/overview").code(), (401, "NOAUTH".to_owned()));
    assert_eq!(asker.get("/api/v1/events").code(), (401, "NOAUTH".to_owned()));
    let me = asker.get("/api/v1/whoami").ok();
    assert_eq!((&me["user"], &me["login_needed"]), (&Value::Null, &json!(true)));
    assert_eq!(me["logged_in"], false);
    assert_eq!(asker.log_in("reader", "wrong").code(), (401, "WRONGPASS".to_owned()));
    assert_eq!(asker.log_in("nobody", "wrong").code(), (401, "WRONGPASS".to_owned()));
    let answer = asker.log_in("reader", "look");
    assert_eq!(answer.ok()["user"], "reader");
    let cookie = answer.header("set-cookie").unwrap();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict") && !cookie.contains("Secure"));

    let me = asker.get("/api/v1/whoami").ok();
    assert_eq!(me["logged_in"], true);
    assert_eq!(
        me["may"],
        json!({ "force_release": false, "close_session": false, "transfer": false, "audit": false })
    );
    // What it may not ask about is a bare name.
    let locks = asker.get("/api/v1/locks").ok();
    let owner = |name: &str| {
        let rows = locks["locks"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap()["owner"].clone()
    };
    assert_eq!((owner("app:1"), owner("hidden")), (json!("me"), Value::Null));
    assert_eq!(asker.get("/api/v1/locks/hidden").code(), (403, "NOPERM".to_owned()));
    let reason = json!({ "reason": "because" });
    for path in ["/api/v1/locks/app%3A1/force-release", "/api/v1/sessions/1/close"] {
        assert_eq!(asker.post(path, &reason).code(), (403, "NOPERM".to_owned()), "{path}");
    }
    let transfer = asker.post("/api/v1/cluster/transfer", &json!({ "reason": "because", "to": 1 }));
    assert_eq!(transfer.code(), (403, "NOPERM".to_owned()));
    assert_eq!(asker.get("/api/v1/audit").code(), (403, "NOPERM".to_owned()));
    assert_eq!(asker.get("/api/v1/sessions").code(), (403, "NOPERM".to_owned()));

    // The operator acts, with a reason.
    let mut operator = Asker { admin: asker.admin, cookie: None };
    operator.log_in("default", "secret").ok();
    for body in
        [json!({}), json!({ "reason": " " }), json!({ "reason": "x".repeat(257) }), json!({ "reason": 7 })]
    {
        assert_eq!(operator.post("/api/v1/locks/hidden/force-release", &body).status, 400, "{body}");
    }
    let stale = json!({ "reason": "late", "fence": 1 });
    assert_eq!(
        operator.post("/api/v1/locks/hidden/force-release", &stale).code(),
        (409, "CHANGED".to_owned())
    );
    let fence = operator.get("/api/v1/locks/hidden").ok()["info"]["fence"].clone();
    let body = json!({ "reason": "owner crashed", "fence": fence });
    assert_eq!(operator.post("/api/v1/locks/hidden/force-release", &body).ok()["released"], 1);
    assert_eq!(operator.get("/api/v1/locks/hidden").ok()["info"]["state"], "free");
    let session = client.ask(&["LOCK.SESSION", "OPEN", "60000"]);
    let session = session.trim_matches('"').to_owned();
    client.ask(&["LOCK.ACQUIRE", "of session", "0", "SESSION", &session]);
    let closed = operator.post(&format!("/api/v1/sessions/{session}/close"), &json!({ "reason": "stuck" }));
    assert_eq!(closed.ok()["released"], 1);
    let gone = operator.post(&format!("/api/v1/sessions/{session}/close"), &json!({ "reason": "stuck" }));
    assert_eq!(gone.code(), (404, "NOSESSION".to_owned()));
    let lines = || operator.get("/api/v1/audit?count=1000").ok()["lines"].as_array().unwrap().clone();
    let has = |command: &str, reason: &str, result: &str| {
        let is_meant = |line: &Value| {
            line["command"] == command
                && line["reason"] == reason
                && line["result"] == result
                && line["user"] == "default"
        };
        lines().iter().any(is_meant)
    };
    await_that("the reasons are in the audit log", || {
        has("lock.forcerelease", "owner crashed", "ok") && has("lock.session", "stuck", "ok")
    });
    await_that("refusals are in the audit log", || {
        lines().iter().any(|line| line["event"] == "denied" && line["user"] == "reader")
    });
    await_that("they are in the file", || {
        std::fs::read_to_string(&audit).is_ok_and(|text| text.contains("\"reason\":\"owner crashed\""))
    });

    // A login ends with a change of its user, and with a logout.
    assert_eq!(client.ask(&["ACL", "SETUSER", "reader", "+lock.queue"]), "OK");
    assert_eq!(asker.get("/api/v1/locks").status, 401);
    assert_eq!(
        operator.ask("POST", "/api/v1/logout", "Content-Type: application/json\r\n", "{}").status,
        200
    );
    assert_eq!(operator.get("/api/v1/overview").status, 401);
}

#[test]
fn pages_of_other_sites_are_kept_out() {
    let (_node, asker) = start(&[]);
    // DNS rebinding: a foreign name that points here.
    let host = |name: &str| asker.ask("GET", "/api/v1/overview", &format!("Host: {name}\r\n"), "").status;
    assert_eq!(host("evil.example"), 421);
    assert_eq!((host("localhost"), host("127.0.0.1:1"), host("[::1]:9")), (200, 200, 200));
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(host(machine.trim()), 200);
    let action = |headers: &str| {
        let path = "/api/v1/locks/x/force-release";
        asker.ask("POST", path, headers, "{\"reason\":\"r\"}").status
    };
    let json = "Content-Type: application/json\r\n";
    assert_eq!(action("Content-Type: text/plain\r\n"), 415);
    assert_eq!(action(""), 415);
    assert_eq!(action(&format!("{json}Origin: http://evil.example\r\n")), 403);
    assert_eq!(action(&format!("{json}Sec-Fetch-Site: cross-site\r\n")), 403);
    assert_eq!(action(&format!("{json}Origin: http://{}\r\n", asker.admin)), 200);
    assert_eq!(action(json), 200);
}

#[test]
fn live_events_reach_every_stream_and_gaps_are_told() {
    let (node, asker) = start(&[]);
    let mut all = listen(&asker, "/api/v1/events");
    let mut few: Vec<_> = (0..20).map(|_| listen(&asker, "/api/v1/events?match=wanted:*")).collect();
    let mut client = node.connect();
    client.ask(&["LOCK.ACQUIRE", "other", "60000", "OWNER", "me"]);
    client.ask(&["LOCK.ACQUIRE", "wanted:<1>", "60000", "OWNER", "me"]);
    let event: Value = serde_json::from_str(&next_line(&mut all, "data: ")).unwrap();
    assert_eq!((&event["event"], &event["name"]), (&json!("acquired"), &json!("other")), "{event}");
    for stream in &mut few {
        let event: Value = serde_json::from_str(&next_line(stream, "data: ")).unwrap();
        assert_eq!((&event["name"], &event["key"]), (&json!("wanted:<1>"), &json!("wanted%3A%3C1%3E")));
        assert!(event["fence"].as_u64().unwrap() > 0);
    }
    // One feed, however many streams there are.
    assert_eq!(client.ask(&["PUBSUB", "NUMPAT"]), "1");
    // More than a stream is sent in a second.
    for number in 0..3_000 {
        let name = format!("many:{number}");
        client.send(&["LOCK.ACQUIRE", &name, "60000"]);
    }
    (0..3_000).for_each(|_| drop(client.receive()));
    next_line(&mut all, "event: gap");
    let gap: Value = serde_json::from_str(&next_line(&mut all, "data: ")).unwrap();
    assert!(gap["lost"].as_u64().unwrap() > 0);
    // Probes are answered meanwhile.
    assert_eq!(asker.get("/health").body, "alive\n");
    drop((all, few));
    await_that("the feed ends with its last listener", || client.ask(&["PUBSUB", "NUMPAT"]) == "0");
}

#[test]
fn a_logout_ends_the_streams_of_its_login_alone() {
    let (node, mut asker) = start(&["--password", "secret"]);
    let mut other = Asker { admin: asker.admin, cookie: None };
    asker.log_in("default", "secret").ok();
    other.log_in("default", "secret").ok();
    let mut ended = [listen(&asker, "/api/v1/events"), listen(&asker, "/api/v1/events?match=a*")];
    let mut stays = listen(&other, "/api/v1/events");
    asker.post("/api/v1/logout", &json!({})).ok();
    for stream in &mut ended {
        // The last piece of the answer has no bytes.
        assert_eq!(next_line(stream, "0"), "");
    }
    let mut client = node.connect();
    client.ask(&["AUTH", "secret"]);
    client.ask(&["LOCK.ACQUIRE", "after", "60000"]);
    let event: Value = serde_json::from_str(&next_line(&mut stays, "data: ")).unwrap();
    assert_eq!(event["name"], "after");
}

/// Where a path has them, browsers and other URL libraries take them for folders before they ask.
#[test]
fn locks_named_by_dots_alone_are_reached_by_the_query() {
    let (node, asker) = start(&[]);
    let mut client = node.connect();
    for (name, key) in [(".", "%2E"), ("..", "%2E%2E"), ("a b", "a%20b")] {
        client.ask(&["LOCK.ACQUIRE", name, "60000", "OWNER", "me"]);
        let path = format!("/api/v1/lock?name={key}");
        assert_eq!(asker.get(&path).ok()["info"]["resource"], name);
        let path = format!("/api/v1/lock/force-release?name={key}");
        assert_eq!(asker.post(&path, &json!({ "reason": "test" })).ok()["released"], 1);
        assert!(client.ask(&["LOCK.INFO", name]).contains("\"free\""));
    }
    assert_eq!(asker.get("/api/v1/lock").status, 400);
    assert_eq!(asker.get("/api/v1/lock?name=").status, 400);
}

#[test]
fn open_streams_and_idle_dashboards_do_not_delay_probes() {
    let (_node, asker) = start(&[]);
    let streams: Vec<_> = (0..200).map(|_| listen(&asker, "/api/v1/events")).collect();
    let silent: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(asker.admin).unwrap()).collect();
    assert_eq!(asker.get("/health").body, "alive\n");
    assert_eq!(asker.get("/ready").body, "ready\n");
    let more: Vec<_> = (0..56).map(|_| listen(&asker, "/api/v1/events")).collect();
    assert_eq!(asker.get("/api/v1/events").code(), (503, "UNAVAILABLE".to_owned()));
    assert_eq!(asker.get("/api/v1/overview").status, 200);
    drop((streams, silent, more));
}
