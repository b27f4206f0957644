//! Whatever command the upstream Redis has, its keys are seen: none on a key of a correctness route reaches that Redis.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use support::{await_that, behind, command, Client, Node, Redis};

const ROUTE: &[&str] = &["--route", "wallet:*=correctness"];

/// A shard channel is no key.
const NO_KEYS: &[&str] = &["spublish", "ssubscribe", "sunsubscribe"];

/// Name (`xgroup|create`), arity and position of the first key of every command of this Redis with keys at fixed positions.
fn commands_with_keys(direct: &mut Client) -> Vec<(String, i64, usize)> {
    let list = direct.ask(&["COMMAND", "LIST"]);
    let names = list.trim_matches(['(', ')']).split(", ").map(|name| name.trim_matches('"').to_string());
    let mut found = Vec::new();
    for name in names.collect::<Vec<_>>() {
        let info = direct.ask(&["COMMAND", "INFO", &name]);
        // ("get", 2, (readonly, fast), 1, 1, 1, …
        let fields = info.strip_prefix(&format!("((\"{name}\", ")).unwrap_or_else(|| panic!("{info}"));
        let (arity, rest) = fields.split_once(", (").unwrap();
        let (flags, rest) = rest.split_once("), ").unwrap();
        let first: usize = rest.split(", ").next().unwrap().parse().unwrap();
        if first > 0 && !flags.contains("movablekeys") && !NO_KEYS.contains(&name.as_str()) {
            found.push((name, arity.parse().unwrap(), first));
        }
    }
    found
}

/// The commands that Redis has run or refused.
fn run_by(direct: &mut Client) -> Vec<String> {
    let stats = direct.ask(&["INFO", "commandstats"]);
    let names = stats.split("cmdstat_").skip(1).map(|rest| rest.split(':').next().unwrap().to_string());
    names.collect()
}

#[test]
fn no_command_of_a_real_redis_passes_with_a_key_of_a_correctness_route() {
    let (redis, node) = behind(ROUTE);
    let mut direct = Client::connect(redis.address);
    let commands = commands_with_keys(&mut direct);
    assert!(commands.len() > 150, "only {} commands", commands.len());
    direct.ask(&["CONFIG", "RESETSTAT"]);
    let mut client = node.connect();
    for (name, arity, first) in &commands {
        let mut words: Vec<&str> = name.split('|').collect();
        let count = usize::try_from(arity.abs()).unwrap().max(first + 1);
        words.resize(count, "wallet:1");
        client.ask(&words);
        client.ask(&["UNWATCH"]);
        client.ask(&["MULTI"]);
        client.ask(&["EXISTS", "plain"]);
        let queued = client.ask(&words);
        assert!(queued.starts_with('-'), "{words:?} in MULTI: {queued}");
        client.ask(&["DISCARD"]);
        let mut guarded = vec!["FENCE.CALL", "r", "1"];
        guarded.extend_from_slice(&words);
        let called = client.ask(&guarded);
        assert!(called.starts_with('-'), "{guarded:?}: {called}");
    }
    let ran = run_by(&mut direct);
    let passed: Vec<_> = commands.iter().map(|(name, ..)| name).filter(|name| ran.contains(name)).collect();
    assert!(passed.is_empty(), "passed with a key of a correctness route: {passed:?}");
}

/// What `DUMP` answers, byte for byte.
fn dump(redis: SocketAddr, key: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(redis).unwrap();
    stream.write_all(&command(&[b"DUMP", key.as_bytes()])).unwrap();
    let mut received = Vec::new();
    loop {
        let mut piece = [0; 1024];
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "Redis closed the connection");
        received.extend_from_slice(&piece[..count]);
        let Some(end) = received.windows(2).position(|pair| pair == b"\r\n") else { continue };
        let len: usize = std::str::from_utf8(&received[1..end]).unwrap().parse().unwrap();
        if received.len() >= end + 2 + len + 2 {
            return received[end + 2..end + 2 + len].to_vec();
        }
    }
}

#[test]
fn restore_asking_does_not_pass_while_raft_holds_the_key() {
    let (redis, node) = behind(ROUTE);
    let (mut client, mut direct) = (node.connect(), Client::connect(redis.address));
    assert_eq!(client.ask(&["SET", "wallet:a", "me", "NX", "PX", "600000"]), "OK");
    assert_eq!(direct.ask(&["SET", "other", "thief"]), "OK");
    let dump = dump(redis.address, "other");
    let restore: [&[u8]; 4] = [b"RESTORE-ASKING", b"wallet:a", b"0", &dump];
    client.send_words(&restore);
    let refused = client.receive();
    assert!(refused.starts_with("-ERR 'restore-asking' on keys of the correctness tier"), "{refused}");
    let mut guarded: Vec<&[u8]> = vec![b"FENCE.CALL", b"r", b"1"];
    guarded.extend(restore);
    client.send_words(&guarded);
    let refused = client.receive();
    assert!(refused.starts_with("-CROSSTIER "), "{refused}");
    assert_eq!(client.ask_all(&["MULTI", "SET x 1"]), ["OK", "QUEUED"]);
    client.send_words(&restore);
    let refused = client.receive();
    assert!(refused.starts_with("-CROSSTIER "), "{refused}");
    assert!(client.ask(&["EXEC"]).starts_with("-EXECABORT "));
    assert_eq!(direct.ask(&["EXISTS", "wallet:a"]), "0");
    assert_eq!(client.ask(&["GET", "wallet:a"]), "\"me\"");
    // On a key of that Redis it passes.
    client.send_words(&[b"RESTORE-ASKING", b"plain", b"0", &dump]);
    assert_eq!(client.receive(), "OK");
}

#[test]
fn a_group_called_streams_hides_no_key() {
    let (redis, node) = behind(ROUTE);
    let (mut client, mut direct) = (node.connect(), Client::connect(redis.address));
    for key in ["wallet:s", "plain"] {
        direct.ask(&["XADD", key, "1-1", "f", "v"]);
        direct.ask(&["XGROUP", "CREATE", key, "streams", "0"]);
    }
    let read = |key| ["XREADGROUP", "GROUP", "streams", "c", "STREAMS", key, ">"];
    let refused = client.ask(&read("wallet:s"));
    assert!(refused.starts_with("-ERR 'xreadgroup' on keys of the correctness tier"), "{refused}");
    assert!(direct.ask(&["XPENDING", "wallet:s", "streams"]).starts_with("(0,"));
    assert_eq!(client.ask(&read("plain")), "((\"plain\", ((\"1-1\", (\"f\", \"v\")))))");
}

#[test]
fn the_listed_keys_of_migrate_are_seen() {
    let (redis, node) = behind(ROUTE);
    let (mut client, mut direct) = (node.connect(), Client::connect(redis.address));
    direct.ask(&["SET", "wallet:a", "1"]);
    let target = Redis::start();
    let port = target.address.port().to_string();
    let mut migrate = |keys: &[&str]| {
        let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        words.extend_from_slice(keys);
        client.ask(&words)
    };
    let refused = migrate(&["wallet:a"]);
    assert!(refused.starts_with("-ERR 'migrate' on keys of the correctness tier"), "{refused}");
    let refused = migrate(&["plain", "wallet:a"]);
    assert!(refused.starts_with("-CROSSTIER "), "{refused}");
    assert_eq!(direct.ask(&["EXISTS", "wallet:a"]), "1");
    assert_eq!(migrate(&["plain"]), "NOKEY");
}

/// Stands before a Redis, answers `COMMAND` and `INFO modules` in its place, and keeps all else that passes.
struct Relay {
    address: SocketAddr,
    table: Arc<Mutex<Vec<u8>>>,
    modules: Arc<Mutex<String>>,
    passed: Arc<Mutex<Vec<u8>>>,
    redis: Redis,
}

impl Relay {
    fn start(table: Vec<u8>) -> Relay {
        let redis = Redis::start();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Relay {
            address: listener.local_addr().unwrap(),
            table: Arc::new(Mutex::new(table)),
            modules: Arc::default(),
            passed: Arc::default(),
            redis,
        };
        let behind = relay.redis.address;
        let (table, modules) = (Arc::clone(&relay.table), Arc::clone(&relay.modules));
        let passed = Arc::clone(&relay.passed);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(redis) = TcpStream::connect(behind) else { continue };
                let (mut from, mut to) = (redis.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || {
                    // Ends with either of them.
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
                let shared = (Arc::clone(&table), Arc::clone(&modules), Arc::clone(&passed));
                std::thread::spawn(move || {
                    let (table, modules, passed) = shared;
                    let _ = pass(client, redis, &table, &modules, &passed);
                });
            }
        });
        relay
    }

    fn node(&self, flags: &[&str]) -> Node {
        let address = self.address.to_string();
        let mut all = vec!["--redis", &address];
        all.extend_from_slice(flags);
        Node::start(&all)
    }

    fn has_passed(&self, text: &str) -> bool {
        let passed = self.passed.lock().unwrap();
        passed.windows(text.len()).any(|window| window == text.as_bytes())
    }
}

/// The node asks for itself one command at a time: each comes as one piece.
fn pass(
    mut client: TcpStream,
    mut redis: TcpStream,
    table: &Mutex<Vec<u8>>,
    modules: &Mutex<String>,
    passed: &Mutex<Vec<u8>>,
) -> std::io::Result<()> {
    let mut piece = vec![0; 65_536];
    loop {
        let count = client.read(&mut piece)?;
        let piece = &piece[..count];
        if count == 0 {
            return redis.shutdown(std::net::Shutdown::Both);
        } else if piece == command(&[b"COMMAND"]) {
            let table = table.lock().unwrap().clone();
            client.write_all(&table)?;
        } else if piece == command(&[b"INFO", b"modules"]) {
            let modules = modules.lock().unwrap().clone();
            client.write_all(format!("${}\r\n{modules}\r\n", modules.len()).as_bytes())?;
        } else {
            passed.lock().unwrap().extend_from_slice(piece);
            redis.write_all(piece)?;
        }
    }
}

/// A reply to `COMMAND`: name, flag, first, last and step of each.
fn table(rows: &[(&str, &str, [i64; 3])]) -> Vec<u8> {
    let mut reply = format!("*{}\r\n", rows.len());
    for (name, flag, [first, last, step]) in rows {
        reply += &format!(
            "*6\r\n${}\r\n{name}\r\n:-2\r\n*1\r\n+{flag}\r\n:{first}\r\n:{last}\r\n:{step}\r\n",
            name.len()
        );
    }
    reply.into_bytes()
}

#[test]
fn commands_that_only_the_upstream_knows_pass_by_their_keys() {
    let rows = [
        ("newer.set", "write", [1, 1, 1]),
        ("newer.call", "movablekeys", [0, 0, 0]),
        ("newer.ping", "fast", [0, 0, 0]),
    ];
    let relay = Relay::start(table(&rows));
    let node = relay.node(ROUTE);
    let mut client = node.connect();
    assert_eq!(client.ask(&["SET", "plain", "v"]), "OK");
    // The upstream Redis does not really have them, and says so.
    for words in [&["NEWER.SET", "plain", "v"][..], &["NEWER.PING", "x"]] {
        let answer = client.ask(words);
        assert!(answer.starts_with("-ERR unknown command"), "{words:?}: {answer}");
        assert!(relay.has_passed(words[0]), "{words:?}");
    }
    let large = "v".repeat(200_000);
    for (words, expected) in [
        (&["NEWER.SET", "wallet:1", "v"][..], "-ERR 'newer.set' on keys of the correctness tier"),
        (&["NEWER.SET", "wallet:1", &large], "-ERR a word of this command may have 65536 bytes, and one has"),
        (&["FENCE.CALL", "r", "1", "NEWER.SET", "wallet:1", "v"], "-CROSSTIER "),
        (&["FENCE.CALL", "r", "1", "NEWER.CALL", "x"], "-TIER "),
        (&["NEWER.CALL", "wallet:1"], "-TIER "),
        (&["NEWER.CALL", "plain"], "-TIER "),
        (&["NEWER.CALL", &large], "-TIER "),
        (&["NOSUCH", "wallet:1"], "-ERR unknown command 'NOSUCH', with args beginning with: 'wallet:1'"),
    ] {
        let answer = client.ask(words);
        assert!(answer.starts_with(expected), "{:.60} … {answer}", words.join(" "));
    }
    assert_eq!(client.ask_all(&["MULTI", "SET x 1"]), ["OK", "QUEUED"]);
    assert!(client.ask(&["NEWER.SET", "wallet:1", "v"]).starts_with("-CROSSTIER "));
    assert!(client.ask(&["EXEC"]).starts_with("-EXECABORT "));
    for never in ["wallet:1", "NEWER.CALL", "NOSUCH"] {
        assert!(!relay.has_passed(never), "{never} has passed");
    }
    // A module that is loaded later is seen.
    let refused = client.ask(&["MOD.SET", "plain", "v"]);
    assert!(refused.starts_with("-ERR unknown command 'MOD.SET'"), "{refused}");
    assert!(!relay.has_passed("MOD.SET"));
    *relay.table.lock().unwrap() = table(&[("mod.set", "write", [1, 1, 1])]);
    *relay.modules.lock().unwrap() = "module:name=mod,ver=1\r\n".to_string();
    await_that("the new command passes", || {
        client.ask(&["MOD.SET", "plain", "v"]);
        relay.has_passed("MOD.SET")
    });
    assert!(client.ask(&["MOD.SET", "wallet:1", "v"]).starts_with("-ERR 'mod.set' on keys"));
    assert!(!relay.has_passed("wallet:1"));
}

/// Both stores have it or neither; and the limit that was met is named, whoever would have answered.
#[test]
fn what_is_too_large_for_one_store_is_done_in_neither() {
    let (redis, node) = behind(ROUTE);
    let mut client = node.connect();
    await_that("the Redis is reached", || client.ask(&["SET", "plain", "v"]) == "OK");
    await_that("the cluster serves", || client.ask(&["SET", "wallet:1", "v"]) == "OK");
    let mut direct = Client::connect(redis.address);
    let script = format!("return 1 --{}", "x".repeat(1024 * 1024));
    let refused = client.ask(&["SCRIPT", "LOAD", &script]);
    let text = format!(
        "-ERR a word of this command may have 1048576 bytes, and one has {}; nothing was done",
        script.len()
    );
    assert_eq!(refused, text);
    let alone = Node::start(&[]);
    assert_eq!(alone.connect().ask(&["SCRIPT", "LOAD", &script]), text);
    let info = direct.ask(&["INFO", "memory"]);
    assert!(info.contains("number_of_cached_scripts:0"), "{info}");
    let name = format!("wallet:{}", "n".repeat(64 * 1024));
    let refused = client.ask(&["SET", &name, "v"]);
    assert!(refused.starts_with("-ERR a word of this command may have 65536 bytes"), "{refused}");
    let many = vec!["wallet:1"; 1_100];
    let refused = client.ask(&[&["DEL"], &many[..]].concat());
    assert!(refused.starts_with("-ERR a command may have 1024 words, and this one has 1101"), "{refused}");
    assert_eq!(client.ask(&["GET", "wallet:1"]), "\"v\"");
}

/// Keys that a script does not declare: where it runs in the cluster, one of the Redis behind stops it.
#[test]
fn a_script_in_the_cluster_touches_no_key_of_the_redis_behind() {
    let correctness = support::free_address().to_string();
    let flags = [ROUTE, &["--route", "eff:*=efficiency", "--correctness-listen", &correctness]].concat();
    let (redis, node) = behind(&flags);
    let mut client = node.connect();
    await_that("the Redis is reached", || client.ask(&["SET", "plain", "real"]) == "OK");
    await_that("the cluster serves", || client.ask(&["SET", "wallet:1", "v"]) == "OK");
    let version = |client: &mut Client| client.ask(&["LOCK.CLUSTER", "VERSION"]);
    await_that("version 2", || version(&mut client).contains("\"cluster_version\", 2"));
    let mut limited = node.connect();
    assert_eq!(client.ask(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-flushall"]), "OK");
    assert_eq!(limited.ask(&["AUTH", "app", "pw"]), "OK");
    for body in [
        "return redis.call('get', 'plain')",
        "return redis.call('set', 'plain2', '1')",
        "redis.call('set', KEYS[1], 'changed') return redis.call('set', 'plain2', '1')",
        "redis.call('set', KEYS[1], 'changed') redis.pcall('set', 'plain2', '1') return 1",
        "redis.call('set', KEYS[1], 'changed') pcall(redis.call, 'mset', 'wallet:2', 1, 'plain2', '1') return 1",
        "return redis.call('LOCK.INFO', 'eff:1')",
    ] {
        for client in [&mut client, &mut limited] {
            let refused = client.ask(&["EVAL", body, "1", "wallet:1"]);
            assert!(refused.starts_with("-CROSSTIER "), "{body}: {refused}");
            assert_eq!(client.ask_all(&["MULTI", "SET wallet:1 changed"]), ["OK", "QUEUED"]);
            assert_eq!(client.ask(&["EVAL", body, "1", "wallet:1"]), "QUEUED");
            let refused = client.ask(&["EXEC"]);
            assert!(refused.starts_with("-CROSSTIER "), "{body}: {refused}");
        }
    }
    let read = "return redis.call('get', 'plain')";
    let refused = client.ask(&["EVAL_RO", read, "1", "wallet:1"]);
    assert!(refused.starts_with("-CROSSTIER the script touches 'plain'"), "{refused}");
    assert_eq!(client.ask(&["GET", "wallet:1"]), "\"v\"", "nothing was changed");
    let mut direct = Client::connect(redis.address);
    assert_eq!(direct.ask(&["EXISTS", "plain2"]), "0");
    // What it may do: keys of its tier, declared or not; and a user without the right is told so.
    let body = "redis.call('set', 'wallet:2', ARGV[1]) return redis.call('get', KEYS[1])";
    assert_eq!(client.ask(&["EVAL", body, "1", "wallet:1", "two"]), "\"v\"");
    assert_eq!(client.ask(&["EVAL_RO", "return redis.call('get', 'wallet:2')", "1", "wallet:1"]), "\"two\"");
    assert_eq!(limited.ask(&["EVAL", body, "1", "wallet:1", "three"]), "\"v\"");
    let refused = limited.ask(&["EVAL", "return redis.call('flushall')", "1", "wallet:1"]);
    assert!(refused.starts_with("-NOPERM "), "{refused}");
    let compare =
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
    assert_eq!(client.ask(&["EVAL", compare, "1", "wallet:2", "three"]), "1");
    // Of the correctness listener every key is the cluster's.
    let mut other = Client::connect(correctness.parse().unwrap());
    assert_eq!(other.ask(&["EVAL", "return redis.call('set', 'plain2', '1')", "1", "wallet:1"]), "OK");
}

#[test]
fn without_correctness_routes_every_command_passes() {
    let relay = Relay::start(table(&[("newer.call", "movablekeys", [0, 0, 0])]));
    let node = relay.node(&["--default-tier", "correctness"]);
    let mut client = node.connect();
    for name in ["NEWER.CALL", "NOSUCH"] {
        let answer = client.ask(&[name, "wallet:1"]);
        assert!(answer.starts_with("-ERR unknown command"), "{name}: {answer}");
        assert!(relay.has_passed(name), "{name}");
    }
}

#[test]
fn a_redis_that_does_not_tell_its_commands_gets_those_we_know() {
    let relay =
        Relay::start(b"-NOPERM this user has no permissions to run the 'command' command\r\n".to_vec());
    let node = relay.node(ROUTE);
    let mut client = node.connect();
    assert_eq!(client.ask(&["SET", "plain", "v"]), "OK");
    assert_eq!(client.ask(&["CONFIG", "GET", "maxmemory"]), "(\"maxmemory\", \"0\")");
    let refused = client.ask(&["NEWER.SET", "plain", "v"]);
    assert!(
        refused.starts_with("-UNAVAILABLE the command table of the upstream Redis is not known"),
        "{refused}"
    );
    assert!(!relay.has_passed("NEWER.SET"));
}
