//! What drivers, pools and monitors say besides locking, to a node with no upstream Redis: it answers as Redis does.
//!
//! [`SAME_AS_REDIS`] and [`TRACKING`] are said to a real Redis 7.0 beside, and the answers compared, in both protocols. What newer
//! Redis knows and 7.0 does not, and what cannot be equal, is in [`OURS`].

mod support;

use std::net::SocketAddr;
use std::process::Command;
use support::{await_that, free_address, Client, Node, Process};
use tempfile::TempDir;

/// `~` stands for a space inside a word, `''` for an empty word.
const SAME_AS_REDIS: &[&str] = &[
    "PING",
    "PING hi",
    "PING a b",
    "ECHO hi",
    "ECHO",
    "HELLO 4",
    "HELLO x",
    "HELLO 2 NONSENSE",
    "HELLO 2 AUTH",
    "HELLO 2 SETNAME a~b",
    "AUTH",
    "AUTH x",
    "AUTH default x",
    "AUTH a b",
    "AUTH a b c",
    "CLIENT",
    "CLIENT SETNAME me",
    "CLIENT GETNAME",
    "CLIENT SETNAME a~b",
    "CLIENT SETNAME ''",
    "CLIENT GETNAME",
    "CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type none",
    "CLIENT NO-EVICT on",
    "CLIENT NO-EVICT maybe",
    "CLIENT NONSENSE",
    "CLIENT ID x",
    "CLIENT KILL",
    "CLIENT KILL ID 0",
    "CLIENT KILL ID 99999",
    "CLIENT KILL 1.2.3.4:5",
    "CLIENT KILL NONSENSE x",
    "CLIENT KILL TYPE nonsense",
    "CLIENT KILL TYPE replica",
    "CLIENT KILL USER nosuch",
    "CLIENT LIST TYPE replica",
    "CLIENT LIST TYPE nonsense",
    "CLIENT LIST ID x",
    "CLIENT LIST NONSENSE",
    "CLIENT REPLY ON",
    "CLIENT REPLY MAYBE",
    "SELECT 15",
    "SELECT 16",
    "SELECT -1",
    "SELECT x",
    "SELECT",
    "SELECT 99999999999999999999",
    "SELECT 0",
    "CONFIG GET timeout",
    "CONFIG GET databases",
    "CONFIG GET replica-read-only",
    "CONFIG GET slave-read-only",
    "CONFIG GET save",
    "CONFIG GET maxmemory-polic?",
    "CONFIG GET notify-keyspace-events",
    "CONFIG GET nosuch",
    "CONFIG GET",
    "CONFIG",
    "CONFIG NONSENSE",
    "SENTINEL MASTERS",
    "SENTINEL get-master-addr-by-name x",
    "CLUSTER SLOTS",
    "CLUSTER SHARDS",
    "CLUSTER NODES",
    "CLUSTER INFO",
    "CLUSTER",
    "READONLY",
    "READWRITE",
    "ASKING",
    "COMMAND COUNT x",
    "COMMAND NONSENSE",
    "COMMAND GETKEYS SET a b",
    "COMMAND GETKEYS MSET a 1 b 2",
    "COMMAND GETKEYS EVAL x 2 a b c",
    "COMMAND GETKEYS NOSUCH",
    "COMMAND GETKEYS NOSUCH x",
    "COMMAND GETKEYS",
    "COMMAND INFO nosuch",
    "COMMAND DOCS nosuch",
    "WAIT 0 0",
    "WAIT x 0",
    "WAIT 0 x",
    "WAIT 0 -1",
    "WAIT 0",
    "ROLE",
    "ROLE x",
    "FLUSHALL",
    "DBSIZE",
    "DBSIZE x",
    "OBJECT ENCODING nosuch",
    "OBJECT FREQ nosuch",
    "OBJECT NONSENSE k",
    "OBJECT ENCODING",
    "OBJECT",
    "SET s 12",
    "SET t hello",
    "SET u xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "RPUSH l a",
    "HSET h a b",
    "SADD set a",
    "SADD numbers 1",
    "ZADD z 1 a",
    "OBJECT ENCODING s",
    "OBJECT ENCODING t",
    "OBJECT ENCODING u",
    "OBJECT ENCODING l",
    "OBJECT ENCODING h",
    "OBJECT ENCODING set",
    "OBJECT ENCODING numbers",
    "OBJECT ENCODING z",
    "OBJECT REFCOUNT t",
    "OBJECT FREQ t",
    "MEMORY USAGE nosuch",
    "MEMORY USAGE",
    "MEMORY NONSENSE",
    "DEBUG SLEEP 0",
    "LATENCY LATEST",
    "LATENCY RESET",
    "LATENCY HISTORY x",
    "SLOWLOG GET",
    "SLOWLOG GET 10",
    "SLOWLOG LEN",
    "SLOWLOG RESET",
    "SAVE",
    "TIME x",
    "LASTSAVE x",
    "MODULE LIST",
    "ACL WHOAMI",
    "ACL USERS",
    "PUBSUB CHANNELS",
    "PUBSUB NUMSUB",
    "PUBSUB NUMSUB a",
    "PUBSUB NUMPAT",
    "PUBSUB NONSENSE",
    "PUBSUB",
    "PUBLISH a",
    "PUBLISH a b",
    "NOSUCH a b c",
    "nosuch",
    "INFO nosuch",
    "RESET",
];

const TRACKING: &[&str] = &[
    "CLIENT TRACKINGINFO",
    "CLIENT GETREDIR",
    "CLIENT CACHING YES",
    "CLIENT TRACKING MAYBE",
    "CLIENT TRACKING ON NONSENSE",
    "CLIENT TRACKING ON REDIRECT",
    "CLIENT TRACKING ON REDIRECT x",
    "CLIENT TRACKING ON REDIRECT 99999",
    "CLIENT TRACKING ON PREFIX a",
    "CLIENT TRACKING ON BCAST OPTIN",
    "CLIENT TRACKING ON OPTIN OPTOUT",
    "CLIENT TRACKING ON BCAST PREFIX a PREFIX ab",
    "CLIENT TRACKING ON BCAST PREFIX a PREFIX b NOLOOP",
    "CLIENT TRACKINGINFO",
    "CLIENT TRACKING ON BCAST PREFIX ax",
    "CLIENT TRACKING ON BCAST PREFIX c",
    "CLIENT TRACKINGINFO",
    "CLIENT TRACKING ON",
    "CLIENT CACHING YES",
    "CLIENT TRACKING OFF",
    "CLIENT TRACKING ON OPTIN",
    "CLIENT TRACKING ON OPTOUT",
    "CLIENT CACHING NO",
    "CLIENT CACHING MAYBE",
    "CLIENT CACHING YES",
    "CLIENT TRACKINGINFO",
    "CLIENT GETREDIR",
    "CLIENT TRACKING OFF",
    "CLIENT TRACKING ON OPTOUT NOLOOP",
    "CLIENT CACHING YES",
    "CLIENT CACHING NO",
    "CLIENT TRACKINGINFO",
    "CLIENT TRACKING",
    "CLIENT CACHING",
    "CLIENT TRACKINGINFO x",
    "CLIENT TRACKING OFF",
    "CLIENT GETREDIR",
];

const OURS: &[(&str, &str)] = &[
    ("CLIENT SETINFO LIB-NAME x", "OK"),
    ("CLIENT SETINFO LIB-VER 1.2", "OK"),
    ("CLIENT SETINFO NONSENSE 1", "-ERR Unrecognized option 'NONSENSE'"),
    ("CLIENT NO-TOUCH ON", "OK"),
    ("WAITAOF 1 0 0", "(1, 0)"),
    ("SET k v", "OK"),
    ("WAIT 2 10", "0"),
];

/// A plain Redis, for as long as the process is kept.
fn start_redis(folder: &TempDir) -> (Process, SocketAddr) {
    let address = free_address();
    let mut command = Command::new("redis-server");
    command.args(["--port", &address.port().to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]);
    // A busy machine makes a command slow; the log of those is not compared.
    command.arg(folder.path()).args(["--slowlog-log-slower-than", "-1"]);
    let process = Process::start(command, folder, "redis");
    await_that("Redis answers", || {
        std::net::TcpStream::connect(address).is_ok() && Client::connect(address).ask(&["PING"]) == "PONG"
    });
    (process, address)
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(|word| if word == "''" { String::new() } else { word.replace('~', " ") }).collect()
}

fn ask(client: &mut Client, line: &str) -> String {
    let words = words(line);
    client.ask(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn a_node_alone_has_the_manners_of_redis() {
    let folder = TempDir::new().unwrap();
    let (_redis, redis) = start_redis(&folder);
    let node = Node::start(&[]);
    for protocol in ["HELLO 2", "HELLO 3"] {
        for table in [SAME_AS_REDIS, TRACKING] {
            let (mut ours, mut theirs) = (node.connect(), Client::connect(redis));
            ask(&mut ours, protocol);
            ask(&mut theirs, protocol);
            for line in table {
                assert_eq!(ask(&mut ours, line), ask(&mut theirs, line), "{line} behind {protocol}");
            }
            // It counts the seconds of a clock: another may begin between the two commands.
            await_that("OBJECT IDLETIME is the same", || {
                [&mut ours, &mut theirs].map(|client| {
                    ask(client, "SET t hello");
                    ask(client, "OBJECT IDLETIME t")
                }) == ["0", "0"]
            });
        }
    }
}

#[test]
fn a_node_alone_knows_what_newer_drivers_say() {
    let node = Node::start(&[]);
    let mut client = node.connect();
    for (line, expected) in OURS {
        assert_eq!(ask(&mut client, line), *expected, "{line}");
    }
    client.send_words(&[b"ECHO", b"\x00\xff\r\n\x7f binary"]);
    assert_eq!(client.receive(), "\"\\x00\\xff\\r\\n\\x7f binary\"");
    let info = ask(&mut client, "COMMAND INFO get lock.acquire");
    assert!(info.starts_with("((\"get\", 2, (readonly, fast), 1, 1, 1,"), "{info}");
    assert!(info.contains("\"lock.acquire\""), "{info}");
    let count: usize = ask(&mut client, "COMMAND COUNT").parse().unwrap();
    assert!(count > 150, "{count}");
    assert_eq!(ask(&mut client, "COMMAND LIST").split(", ").count(), count);
}

/// The main listener's keys are those of the upstream Redis; what comes in by the correctness listener is told to everybody.
#[test]
fn with_a_redis_behind_both_listeners_track_and_hear_messages() {
    let folder = TempDir::new().unwrap();
    let (_redis, redis) = start_redis(&folder);
    let (redis, correctness_address) = (redis.to_string(), free_address());
    let node = Node::start(&["--redis", &redis, "--correctness-listen", &correctness_address.to_string()]);
    let (mut main, mut inner) = (node.connect(), Client::connect(correctness_address));
    assert_eq!(ask(&mut main, "CLIENT TRACKING ON"), "OK");
    assert_eq!(ask(&mut main, "CLIENT TRACKING OFF"), "OK");
    assert_eq!(ask(&mut inner, "CLIENT TRACKING ON"), "OK");
    assert_eq!(ask(&mut main, "SUBSCRIBE c"), "(\"subscribe\", \"c\", 1)");
    assert_eq!(ask(&mut inner, "PUBLISH c inside"), "1");
    assert_eq!(main.receive(), "(\"message\", \"c\", \"inside\")");
    assert_eq!(ask(&mut node.connect(), "PUBLISH c behind"), "1");
    assert_eq!(main.receive(), "(\"message\", \"c\", \"behind\")");
    assert_eq!(ask(&mut inner, "PUBSUB NUMSUB c"), "(\"c\", 1)");
}

/// The fields of the line of `CLIENT LIST` that has this name.
fn listed(client: &mut Client, filter: &str, name: &str) -> Vec<(String, String)> {
    let list = ask(client, filter).replace("\\n", "\n");
    let line =
        list.lines().find(|line| line.contains(&format!("name={name} "))).unwrap_or_default().to_owned();
    let fields = line.trim_matches('"').split(' ').filter_map(|field| field.split_once('='));
    fields.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn field(client: &mut Client, name: &str, key: &str) -> String {
    let fields = listed(client, "CLIENT LIST", name);
    let found = fields.into_iter().find(|(known, _)| known == key);
    found.map(|(_, value)| value).unwrap_or_default()
}

#[test]
fn client_list_tells_what_each_client_does() {
    let node = Node::start(&[]);
    let mut admin = node.connect();
    let named = |name: &str| {
        let mut client = node.connect();
        assert_eq!(client.ask(&["CLIENT", "SETNAME", name]), "OK");
        client
    };
    let mut plain = named("plain");
    assert_eq!(field(&mut admin, "plain", "cmd"), "client|setname");
    assert_eq!(field(&mut admin, "plain", "flags"), "N");
    assert_eq!(field(&mut admin, "plain", "multi"), "-1");
    ask(&mut plain, "LOCK.ACQUIRE lock 60000");
    assert_eq!(field(&mut admin, "plain", "cmd"), "lock.acquire");
    plain.ask(&["NOSUCHCOMMAND", "secret"]);
    assert_eq!(field(&mut admin, "plain", "cmd"), "NULL");
    ask(&mut plain, "MULTI");
    ask(&mut plain, "GET a");
    ask(&mut plain, "GET b");
    assert_eq!(field(&mut admin, "plain", "flags"), "x");
    assert_eq!(field(&mut admin, "plain", "multi"), "2");
    ask(&mut plain, "EXEC");
    assert_eq!(field(&mut admin, "plain", "flags"), "N");
    ask(&mut plain, "CLIENT TRACKING ON BCAST");
    assert_eq!(field(&mut admin, "plain", "flags"), "tB");
    assert!(ask(&mut plain, "CLIENT INFO").contains(" cmd=client|info "));

    let mut waits = named("waits");
    waits.send(&["LOCK.ACQUIRE", "lock", "1000", "WAIT", "60000"]);
    await_that("it is blocked", || field(&mut admin, "waits", "flags") == "b");
    assert_eq!(field(&mut admin, "waits", "cmd"), "lock.acquire");

    let mut listens = named("listens");
    ask(&mut listens, "SUBSCRIBE c");
    ask(&mut listens, "PSUBSCRIBE p*");
    assert_eq!(field(&mut admin, "listens", "flags"), "P");
    assert_eq!(field(&mut admin, "listens", "sub") + &field(&mut admin, "listens", "psub"), "11");
    assert!(!listed(&mut admin, "CLIENT LIST TYPE pubsub", "listens").is_empty());
    assert!(listed(&mut admin, "CLIENT LIST TYPE pubsub", "plain").is_empty());
    assert!(listed(&mut admin, "CLIENT LIST TYPE normal", "listens").is_empty());
    assert!(!listed(&mut admin, "CLIENT LIST TYPE normal", "plain").is_empty());
    assert_eq!(ask(&mut admin, "CLIENT KILL TYPE pubsub"), "1");
    await_that("it is gone", || listed(&mut admin, "CLIENT LIST", "listens").is_empty());
}

#[test]
fn command_list_is_filtered_and_agrees_with_the_others() {
    let node = Node::start(&[]);
    let mut client = node.connect();
    let mut list = |line: &str| -> Vec<String> {
        let answer = ask(&mut client, line);
        let inner = answer.trim_start_matches('(').trim_end_matches(')');
        inner
            .split(", ")
            .filter(|name| !name.is_empty())
            .map(|name| name.trim_matches('"').to_owned())
            .collect()
    };
    let all = list("COMMAND LIST");
    assert!(all.iter().any(|name| name == "wait") && all.iter().any(|name| name == "get"));
    let locks = list("COMMAND LIST FILTERBY PATTERN lock*");
    assert!(locks.len() > 5 && locks.iter().all(|name| name.starts_with("lock.")), "{locks:?}");
    let ours = list("COMMAND LIST FILTERBY MODULE redfence");
    assert!(ours.contains(&"fence.check".to_owned()) && !ours.contains(&"get".to_owned()), "{ours:?}");
    assert!(list("COMMAND LIST FILTERBY MODULE nosuch").is_empty());
    let dangerous = list("COMMAND LIST FILTERBY ACLCAT dangerous");
    assert!(dangerous.contains(&"lock.forcerelease".to_owned()), "{dangerous:?}");
    assert!(!dangerous.contains(&"get".to_owned()));
    assert!(list("COMMAND LIST FILTERBY ACLCAT nosuch").is_empty());
    for line in ["COMMAND LIST FILTERBY", "COMMAND LIST FILTERBY NONSENSE x", "COMMAND LIST x"] {
        assert_eq!(ask(&mut client, line), "-ERR syntax error", "{line}");
    }
    assert_eq!(ask(&mut client, "COMMAND COUNT"), all.len().to_string());
    client.ask(&["HELLO", "3"]);
    for name in &all {
        let docs = client.ask(&["COMMAND", "DOCS", name]);
        assert!(docs.contains("summary"), "{name}: {docs}");
        assert!(!client.ask(&["COMMAND", "INFO", name]).contains("nil"), "{name}");
    }
    assert_eq!(ask(&mut client, "COMMAND GETKEYS INFO server"), "-ERR The command has no key arguments");
    assert_eq!(ask(&mut client, "COMMAND GETKEYS NOSUCH a"), "-ERR Invalid command specified");
}

#[test]
fn info_counts_keys_and_help_is_there_for_whoever_is_sent_to_it() {
    let node = Node::start(&[]);
    let mut client = node.connect();
    assert_eq!(ask(&mut client, "INFO keyspace"), "\"# Keyspace\\r\\n\"");
    ask(&mut client, "SET a v");
    ask(&mut client, "SET b v PX 60000");
    ask(&mut client, "SELECT 2");
    ask(&mut client, "SET a v");
    let expected =
        "\"# Keyspace\\r\\ndb0:keys=2,expires=1,avg_ttl=0\\r\\ndb2:keys=1,expires=0,avg_ttl=0\\r\\n\"";
    await_that("the figures are published", || ask(&mut client, "INFO keyspace") == expected);
    for command in ["ACL", "CLIENT", "COMMAND", "CONFIG", "LATENCY", "MODULE", "PUBSUB", "SLOWLOG"] {
        let unknown = ask(&mut client, &format!("{command} NOSUCH"));
        assert!(unknown.contains(&format!("Try {command} HELP")), "{unknown}");
        let help = ask(&mut client, &format!("{command} HELP"));
        assert!(help.starts_with(&format!("({command} <subcommand> ")), "{help}");
    }
}
