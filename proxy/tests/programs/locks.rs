//! `redfence locks`, and what all programs have in common: addresses, passwords, TLS.

use super::support::tls::Certificates;
use super::support::{await_that, free_address, Node};
use super::{address, fails, json_lines, output, succeeds};
use tempfile::TempDir;

#[test]
fn holders_and_waiters_are_shown_in_their_order() {
    let node = Node::start(&[]);
    let at = address(&node);
    assert_eq!(succeeds(&at, &["locks"]), "", "nobody holds anything");
    let mut client = node.connect();
    let fence = client.acquire(&["wallet:7", "600000", "OWNER", "alice"]);
    client.acquire(&["other", "600000", "OWNER", "carol"]);
    let mut first = node.connect();
    first.send(&["LOCK.ACQUIRE", "wallet:7", "1000", "WAIT", "60000", "OWNER", "bob"]);
    await_that("bob is in line", || client.ask(&["LOCK.QUEUE", "wallet:7"]).contains("bob"));
    let mut second = node.connect();
    second.send(&["LOCK.ACQUIRE", "wallet:7", "1000", "WAIT", "60000", "OWNER", "dave"]);
    await_that("dave is in line", || client.ask(&["LOCK.QUEUE", "wallet:7"]).contains("dave"));

    let text = succeeds(&at, &["locks", "wallet:*"]);
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert_eq!(lines[0][..4], ["RESOURCE", "STATE", "MODE", "OWNER"]);
    assert_eq!(lines[1][..5], ["wallet:7", "held", "exclusive", "alice", &fence.to_string()]);
    assert_eq!((lines[2][1], lines[2][3], lines[3][3]), ("waits", "bob", "dave"));
    assert!(!text.contains('\u{1b}'), "no colour where it is no terminal");

    let locks = json_lines(&succeeds(&at, &["locks", "--json"]));
    assert_eq!(locks.len(), 2);
    assert_eq!(
        (locks[0]["resource"].as_str(), locks[1]["resource"].as_str()),
        (Some("other"), Some("wallet:7"))
    );
    assert_eq!(locks[1]["fence"].as_u64(), Some(fence));
    assert_eq!(locks[1]["queue"][1]["owner"], "dave");
    assert_eq!(locks[1]["holders"][0]["owner"], "alice");
    let waited_for = json_lines(&succeeds(&at, &["locks", "--json", "--waiting"]));
    assert_eq!(waited_for.len(), 1);
}

#[test]
fn several_holders_have_a_row_each_and_names_stay_in_their_line() {
    let node = Node::start(&[]);
    let mut client = node.connect();
    let reader = |owner: &'static str| ["report", "600000", "SHARED", "OWNER", owner];
    await_that("the cluster has version 2", || {
        client.ask(&[&["LOCK.ACQUIRE"][..], &reader("r1")].concat()).starts_with('(')
    });
    client.acquire(&reader("r2"));
    client.acquire(&["pool", "600000", "PERMITS", "2", "OF", "5", "OWNER", "p"]);
    client.acquire(&["two\nlines", "600000", "OWNER", "x\u{1b}[31m"]);
    let text = succeeds(&address(&node), &["locks"]);
    assert_eq!(text.lines().count(), 5, "{text}");
    assert!(text.contains("two\\nlines") && !text.contains('\u{1b}'), "{text}");
    assert!(text.contains("2 of 5"), "{text}");
    assert_eq!(text.matches("shared").count(), 2, "{text}");
}

#[test]
fn every_name_is_valid_json_and_told_apart() {
    let node = Node::start(&[]);
    let mut client = node.connect();
    let names: [&[u8]; 4] = [b"a\x01\x1b[31m\"\\\n", b"\x7f\xc2\x9b\xe2\x80\xae", b"\xff\xfe", b"\xff\xfd"];
    for name in names {
        client.send_words(&[b"LOCK.ACQUIRE", name, b"600000", b"OWNER", name]);
        assert!(client.receive().starts_with('('));
    }
    let text = succeeds(&address(&node), &["locks", "--json"]);
    assert!(!text.contains(|c: char| c.is_control() && c != '\n' || c == '\u{202e}'), "{text:?}");
    let locks = json_lines(&text);
    let shown: Vec<&str> = locks.iter().filter_map(|lock| lock["resource"].as_str()).collect();
    assert_eq!(
        shown,
        ["a\u{1}\u{1b}[31m\"\\\n", "\u{7f}\u{9b}\u{202e}", "\u{fffd}\u{fffd}", "\u{fffd}\u{fffd}"]
    );
    let keys: Vec<&str> = locks.iter().filter_map(|lock| lock["key"].as_str()).collect();
    assert_eq!(keys[2..], ["%FF%FD", "%FF%FE"]);
    assert_eq!(keys[0], "a%01%1B%5B31m%22%5C%0A");
}

#[test]
fn a_user_sees_the_locks_it_may_read_and_how_many_others_there_are() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    };
    let users =
        file("users.acl", "user default on nopass allkeys allcommands\nuser reader on >pw ~mine:* +@lock\n");
    let password = file("password", "pw\n");
    let node = Node::start(&["--acl-file", &users]);
    let mut client = node.connect();
    for name in ["mine:1", "theirs:1", "theirs:2"] {
        client.acquire(&[name, "600000"]);
    }
    let output = output(&address(&node), &["locks", "--user", "reader", "--password-file", &password]);
    let (text, notes) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{notes}");
    assert!(text.contains("mine:1") && !text.contains("theirs"), "{text}");
    assert!(notes.contains("2 locks are not shown"), "{notes}");
}

#[test]
fn each_database_has_its_locks() {
    let node = Node::start(&[]);
    let mut client = node.connect();
    assert_eq!(client.ask(&["SELECT", "3"]), "OK");
    client.acquire(&["in-three", "600000"]);
    let at = address(&node);
    assert_eq!(succeeds(&at, &["locks"]), "");
    assert!(succeeds(&at, &["locks", "--db", "3"]).contains("in-three"));
    let (_, line) = fails(&at, &["locks", "--db", "99999"]);
    assert!(line.contains("ERR"), "{line}");
}

/// By `script`, which gives a program a terminal.
#[test]
fn there_is_colour_on_a_terminal_alone() {
    let node = Node::start(&[]);
    node.connect().acquire(&["held", "600000"]);
    let on_terminal = |environment: &str| {
        let line =
            format!("{environment} {} locks --addr {}", env!("CARGO_BIN_EXE_redfence"), address(&node));
        let output = std::process::Command::new("script").args(["-qec", &line, "/dev/null"]).output();
        String::from_utf8_lossy(&output.expect("script is part of every Debian").stdout).into_owned()
    };
    assert!(on_terminal("").contains("\u{1b}[32mheld\u{1b}[0m"), "{:?}", on_terminal(""));
    let plain = on_terminal("NO_COLOR=1");
    assert!(plain.contains("held") && !plain.contains('\u{1b}'), "{plain:?}");
}

#[test]
fn more_locks_than_the_limit_are_cut_and_that_is_said() {
    let node = Node::start(&[]);
    let mut client = node.connect();
    for number in 0..250 {
        client.acquire(&[&format!("lock:{number:03}"), "600000"]);
    }
    assert_eq!(succeeds(&address(&node), &["locks", "--json"]).lines().count(), 250);
    let output = output(&address(&node), &["locks", "--limit", "10"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 11);
    assert!(String::from_utf8_lossy(&output.stderr).contains("only the first 10 locks"));
}

#[test]
fn the_next_address_is_asked_where_a_node_is_down() {
    let node = Node::start(&[]);
    node.connect().acquire(&["held", "600000"]);
    let nobody = free_address().to_string();
    let addresses = format!("{nobody},{}", address(&node));
    assert!(succeeds(&addresses, &["locks"]).contains("held"));
    let (code, line) = fails(&nobody, &["locks"]);
    assert_eq!(code, 1);
    assert!(line.contains(&format!("cannot reach {nobody}")), "{line}");
    let (_, line) = fails(&nobody, &["locks", "--addr", "no-port"]);
    assert!(line.contains("no-port is no address"), "a flag wins over the environment: {line}");
}

#[test]
fn users_passwords_and_tls_are_those_of_the_backup() {
    let certificates = Certificates::new();
    let folder = TempDir::new().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    };
    let users = file(
        "users.acl",
        "user default off\nuser op on >pw allcommands allkeys allchannels\nuser app on >pw ~* +ping\nuser cron on >pw ~job:* +lock.acquire +lock.renew +lock.release\n",
    );
    let (right, wrong) = (file("right", "pw\n"), file("wrong", "guess\n"));
    let flags = certificates.flags(&["--acl-file", &users]);
    let node = Node::start(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    let at = format!("localhost:{}", node.address.port());
    let ca = certificates.file("ca.crt");
    let with = |user: &'static str, password: &str| {
        let words = ["locks", "--user", user, "--password-file", password, "--tls-ca", &ca];
        output(&at, &words)
    };
    assert!(with("op", &right).status.success(), "{:?}", with("op", &right));
    let said = |output: std::process::Output| String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said(with("op", &wrong)).contains("refuses the password"));
    assert!(said(with("app", &right)).contains("NOPERM"));
    // The rights that the docs name for a cron job.
    let job = |name: &'static str| {
        let words = ["run", name, "--user", "cron", "--password-file", &right, "--tls-ca", &ca, "--", "true"];
        output(&at, &words).status.code()
    };
    assert_eq!((job("job:1"), job("other")), (Some(0), Some(69)));
    let (_, line) = fails(&at, &["locks", "--user", "op", "--password-file", &right]);
    assert!(line.contains("the node speaks TLS: give --tls-ca"), "{line}");
    let (_, line) = fails(&at, &["locks", "--user", "op", "--tls-ca", &ca]);
    assert!(line.contains("--user needs a password"), "{line}");
}
