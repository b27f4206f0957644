//! Sessions of connections that are active, or blocked, live on: whatever their ttl, and however the commands fall between the batches in
//! which a node reports them.

mod support;

use std::io::Write;
use std::time::{Duration, Instant};
use support::{await_that, Client, Node};

/// On a busy machine a client may itself be too late; then the session ends by right, and the attempt says nothing.
const ATTEMPTS: usize = 20;
/// That a connection may have.
const SESSIONS_MAX: usize = 1_024;

fn open(client: &mut Client, ttl: &str) -> String {
    client.ask(&["LOCK.SESSION", "OPEN", ttl]).trim_matches('"').to_owned()
}

#[test]
fn commands_far_apart_keep_a_session_alive() {
    const TTL: Duration = Duration::from_millis(700);
    let node = Node::start(&[]);
    for _ in 0..ATTEMPTS {
        let mut client = node.connect();
        let mut began = Instant::now();
        let session = open(&mut client, "700");
        let mut in_time = true;
        for _ in 0..6 {
            std::thread::sleep(Duration::from_millis(550));
            client.ask(&["PING"]);
            in_time &= began.elapsed() < TTL;
            began = Instant::now();
        }
        let info = client.ask(&["LOCK.SESSION", "INFO", &session]);
        if in_time {
            assert!(info.contains(&session), "{info}");
            return;
        }
    }
    println!("left out: this machine is too busy for a ttl of {TTL:?}");
}

#[test]
fn a_session_shorter_than_a_batch_lives_while_its_client_is_active() {
    const TTL: Duration = Duration::from_millis(150);
    let node = Node::start(&[]);
    for _ in 0..ATTEMPTS {
        let mut client = node.connect();
        let mut began = Instant::now();
        let session = open(&mut client, "150");
        let mut in_time = true;
        for _ in 0..40 {
            std::thread::sleep(Duration::from_millis(30));
            client.ask(&["PING"]);
            // What the log takes is the node's business, within reason.
            in_time &= began.elapsed() < TTL / 2;
            began = Instant::now();
        }
        let info = client.ask(&["LOCK.SESSION", "INFO", &session]);
        if in_time {
            assert!(info.contains(&session), "{info}");
            return;
        }
    }
    println!("left out: this machine is too busy for a ttl of {TTL:?}");
}

#[test]
fn a_session_shorter_than_a_batch_lives_while_its_client_is_blocked() {
    let node = Node::start(&[]);
    let mut holder = node.connect();
    holder.acquire(&["held", "600000"]);
    let waits = || {
        let mut client = node.connect();
        let session = open(&mut client, "250");
        client.ask(&["LOCK.ACQUIRE", "held", "1000", "WAIT", "1500", "SESSION", &session])
    };
    let answers: Vec<String> = (0..ATTEMPTS).map(|_| waits()).take_while(|answer| answer != "nil").collect();
    assert!(answers.len() < ATTEMPTS, "never waited to the end: {answers:?}");
}

fn committed(client: &mut Client) -> u64 {
    let info = client.ask(&["INFO", "redfence"]);
    let (_, rest) = info.split_once("commit:").expect("INFO shows it");
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().expect("a number")
}

/// As many as a connection may open, all of them over at once. Others are not held up by its commands, and it may open more.
#[test]
fn ended_sessions_cost_nothing_and_are_forgotten() {
    const COMMANDS: usize = 20_000;
    let node = Node::start(&[]);
    let (mut client, mut other) = (node.connect(), node.connect());
    let opened = client.pipeline(&["LOCK.SESSION OPEN 1"; SESSIONS_MAX]);
    assert!(opened.iter().all(|reply| reply.starts_with('"')));
    await_that("they have ended", || other.ask(&["INFO", "redfence"]).contains("sessions:0"));
    let before = committed(&mut other);
    client.pipeline(&["PING"; COMMANDS]);
    let entries = committed(&mut other) - before;
    assert!(entries < COMMANDS as u64 / 4, "{entries} entries for {COMMANDS} commands");
    await_that("it may open one again", || client.ask(&["LOCK.SESSION", "OPEN", "600000"]).starts_with('"'));
    let opened = client.pipeline(&["LOCK.SESSION OPEN 600000"; SESSIONS_MAX - 1]);
    assert!(opened.iter().all(|reply| reply.starts_with('"')), "there is room for as many again");
}

/// Closed by another connection.
#[test]
fn what_others_have_closed_makes_room() {
    let node = Node::start(&[]);
    let (mut client, mut other) = (node.connect(), node.connect());
    let opened = client.pipeline(&["LOCK.SESSION OPEN 600000"; SESSIONS_MAX]);
    let refused = client.ask(&["LOCK.SESSION", "OPEN", "600000"]);
    assert!(refused.starts_with("-ERR this connection has opened 1024 sessions"), "{refused}");
    let ids = opened.iter().map(|id| format!("LOCK.SESSION CLOSE {}", id.trim_matches('"')));
    let closes: Vec<String> = ids.take(10).collect();
    let closes: Vec<&str> = closes.iter().map(String::as_str).collect();
    assert_eq!(other.pipeline(&closes), ["0"; 10]);
    await_that("there is room", || client.ask(&["LOCK.SESSION", "OPEN", "600000"]).starts_with('"'));
}

fn is_there(asker: &mut Client, session: &str) -> bool {
    asker.ask(&["LOCK.SESSION", "INFO", session]).contains(session)
}

/// Frozen behind a large reply: that its wait is over it would never learn.
#[test]
fn who_reads_no_replies_is_not_blocked_for_ever() {
    let node = Node::start(&[]);
    let (mut other, mut frozen) = (node.connect(), node.connect());
    let value = "x".repeat(60_000);
    for _ in 0..250 {
        other.ask(&["RPUSH", "large", &value]);
    }
    other.acquire(&["busy", "600000"]);
    let session = open(&mut frozen, "1000");
    frozen.acquire(&["of frozen", "0", "SESSION", &session]);
    frozen.send(&["LRANGE", "large", "0", "-1"]);
    frozen.send(&["LOCK.ACQUIRE", "busy", "1000", "WAIT", "1"]);
    await_that("its session ends", || !is_there(&mut other, &session));
    other.acquire(&["of frozen", "1000"]);
}

/// Its end would be seen only behind all that it has sent, and the node does not read that while it waits.
#[test]
fn who_sent_too_much_behind_a_wait_is_not_blocked_for_ever() {
    let node = Node::start(&[]);
    let (mut other, mut gone) = (node.connect(), node.connect());
    other.acquire(&["busy", "600000"]);
    let session = open(&mut gone, "1000");
    gone.acquire(&["of gone", "0", "SESSION", &session]);
    gone.send(&["LOCK.ACQUIRE", "busy", "1000", "WAIT", "600000"]);
    gone.stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let pings = "PING\r\n".repeat(10_000);
    while gone.stream.write_all(pings.as_bytes()).is_ok() {}
    drop(gone);
    await_that("its session ends", || !is_there(&mut other, &session));
    other.acquire(&["of gone", "1000"]);
}

/// A host that has vanished sends no end: the system has to ask.
#[test]
#[cfg(target_os = "linux")]
fn the_system_asks_whether_a_silent_client_is_still_there() {
    const KEEPALIVE_TIMER: &str = "02:";
    let node = Node::start(&[]);
    let mut client = node.connect();
    client.ask(&["PING"]);
    let port = format!("{:04X}", node.address.port());
    let of_node = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words[1].ends_with(&format!(":{port}")) && words[3] == "01"
    };
    await_that("the connection has a timer", || {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let line = table.lines().skip(1).find(of_node).map(str::to_owned);
        line.is_some_and(|line| line.split_whitespace().nth(5).unwrap().starts_with(KEEPALIVE_TIMER))
    });
}

/// `NOSESSION` may mean that it belongs to the user that this connection was before.
#[test]
fn a_session_of_the_user_before_ends_with_its_connection() {
    let node = Node::start(&[]);
    let (mut other, mut client) = (node.connect(), node.connect());
    for user in ["one", "two"] {
        assert_eq!(
            other.ask(&["ACL", "SETUSER", user, "on", ">secret", "~*", "&*", "+@all", "-@admin"]),
            "OK"
        );
    }
    assert_eq!(client.ask(&["AUTH", "one", "secret"]), "OK");
    let session = open(&mut client, "3600000");
    assert_eq!(client.ask(&["AUTH", "two", "secret"]), "OK");
    assert!(client.ask(&["LOCK.SESSION", "CLOSE", &session]).starts_with("-NOSESSION"));
    assert!(is_there(&mut other, &session));
    drop(client);
    await_that("it ends in the grace time", || !is_there(&mut other, &session));
}

/// As many active sessions as a few connections may have: those of others live, and their locks are served.
#[test]
fn connections_with_many_active_sessions_end_none_of_others() {
    let node = Node::start(&[]);
    let mut heavy: Vec<Client> = (0..24).map(|_| node.connect()).collect();
    for client in &mut heavy {
        client.pipeline(&["LOCK.SESSION OPEN 3600000"; SESSIONS_MAX]);
    }
    let mut honest = node.connect();
    let before = committed(&mut honest);
    let (began, session) = (Instant::now(), open(&mut honest, "3000"));
    let mut rounds = 0;
    while began.elapsed() < Duration::from_secs(4) {
        heavy.iter_mut().for_each(|client| drop(client.ask(&["PING"])));
        honest.ask(&["PING"]);
        rounds += 1;
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(is_there(&mut honest, &session), "after {rounds} rounds");
    let entries = committed(&mut honest) - before;
    assert!(
        entries < 400,
        "{entries} entries for {rounds} rounds of PINGs: no session is reported again and again"
    );
}

/// A session that is taken over lives on; one that is not ends soon after its connection.
fn is_alive_after(client: &mut Client, session: &str) -> bool {
    std::thread::sleep(Duration::from_millis(1_500));
    client.ask(&["LOCK.SESSION", "INFO", session]).contains(session)
}

/// The client reads that its connection has ended before the node is through with it.
#[test]
fn a_session_that_is_taken_over_after_quit_lives_on() {
    let node = Node::start(&[]);
    let mut other = node.connect();
    await_that("cluster version 2", || other.ask(&["LOCK.CLUSTER", "VERSION"]).contains('2'));
    let mut client = node.connect();
    let session = open(&mut client, "60000");
    client.ask(&["QUIT"]);
    assert_eq!(other.ask(&["LOCK.SESSION", "KEEPALIVE", &session]), "60000");
    // Our side stays open, and the node lingers.
    assert!(is_alive_after(&mut other, &session));
    drop(client);
    assert!(is_alive_after(&mut other, &session));
}

#[test]
fn a_session_is_taken_over_by_another_connection_alone_and_after_the_last_command() {
    let node = Node::start(&[]);
    let mut other = node.connect();
    await_that("cluster version 2", || other.ask(&["LOCK.CLUSTER", "VERSION"]).contains('2'));
    for (by_itself, then_active, is_taken_over) in
        [(true, false, false), (true, true, false), (false, false, true), (false, true, false)]
    {
        let mut client = node.connect();
        let session = open(&mut client, "60000");
        // Its last words are those before.
        std::thread::sleep(Duration::from_millis(300));
        let by = if by_itself { &mut client } else { &mut other };
        assert_eq!(by.ask(&["LOCK.SESSION", "KEEPALIVE", &session]), "60000");
        if then_active {
            // For longer than the last second, which says nothing.
            for _ in 0..30 {
                client.ask(&["PING"]);
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        drop(client);
        let name = format!("by itself {by_itself}, then active {then_active}");
        assert_eq!(is_alive_after(&mut other, &session), is_taken_over, "{name}");
    }
}
