//! Bad input over the wire: Redis's error or a clear one, the connection lives, and nothing else changes, on any node.

use redfence_tests::ask;
use redfence_tests::client::{Client, REPLY_WITHIN};
use redfence_tests::cluster::{Cluster, Options};
use redfence_tests::resp::Value;

/// Commands, each with the beginning of its error.
const COMMANDS: &[(&str, &str)] = &[
    ("NOSUCH a b", "ERR unknown command 'NOSUCH', with args beginning with: 'a' 'b' "),
    ("GEOADD key 1 2 m", "ERR "),
    ("GET", "ERR wrong number of arguments for 'get' command"),
    ("SET key", "ERR wrong number of arguments for 'set' command"),
    ("SET key v EX 0", "ERR invalid expire time in 'set' command"),
    ("SET key v BAD", "ERR syntax error"),
    ("INCR text", "ERR value is not an integer or out of range"),
    ("LPUSH text x", "WRONGTYPE "),
    ("HSET list f v", "WRONGTYPE "),
    ("ZADD hash 1 m", "WRONGTYPE "),
    ("GET list", "WRONGTYPE "),
    ("BLPOP text 0", "WRONGTYPE "),
    ("ZADD zset nan m", "ERR value is not a valid float"),
    ("SETRANGE text 2000000000 x", "ERR string exceeds maximum allowed size"),
    ("EVAL return", "ERR wrong number of arguments for 'eval' command"),
    ("EVAL return 99999 a", "ERR "),
    ("EVALSHA 0000000000000000000000000000000000000000 0", "NOSCRIPT "),
    ("SCRIPT NOSUCH", "ERR unknown subcommand 'NOSUCH'. Try SCRIPT HELP."),
    ("SELECT 99", "ERR DB index is out of range"),
    ("LOCK.ACQUIRE held", "ERR "),
    ("LOCK.RELEASE held x", "ERR "),
];

/// Scripts that come to a bad end without having been stopped for what they cost. What they wrote before would stay, so they do not.
const FAILING: &[(&str, &str)] = &[
    ("return (", "ERR Error compiling script (new function): "),
    ("x = 1", "ERR "),
    ("redis = nil", "ERR "),
    ("redis.call = nil", "ERR "),
    ("string.rep = nil", "ERR "),
    ("setmetatable(_G, {}) return 1", "ERR "),
    ("getmetatable('').__index = nil", "ERR "),
    ("rawset(_G, 'x', 1)", "ERR "),
    ("return loadstring('return 1')()", "ERR "),
    ("return os.exit(1)", "ERR "),
    ("return io.open('/etc/passwd')", "ERR "),
    ("return require('os')", "ERR "),
    ("error('on purpose')", "ERR "),
    ("return redis.call('nosuch')", "ERR "),
    ("return redis.call('lpush', 'text', 'x')", "WRONGTYPE "),
    ("return redis.call('subscribe', 'x')", "ERR "),
    ("return nil + 1", "ERR "),
    ("local function f(n) return f(n + 1) + 1 end return f(1)", "ERR "),
    ("return unpack({}, 1, 1e8)", "ERR "),
];

/// Scripts that would take everything there is. Each writes first; when it is stopped its writes are undone.
const GREEDY: &[&str] = &[
    "while true do end",
    "repeat local ok = pcall(function() while true do end end) until false",
    "return string.rep('x', 1024 * 1024 * 1024)",
    "local s = 'x' while true do s = s .. s end",
    "local s = 'x' while true do pcall(function() s = s .. s end) end",
    "local t = {} for i = 1, 1e9 do t[i] = i end return #t",
    "local t = {} for i = 1, 1e9 do t[i] = {t} end return #t",
    "while true do redis.call('rpush', 'list', 'x') end",
    "for i = 1, 1e9 do redis.call('set', 'many:' .. i, i) end",
    "return string.find(('a'):rep(20000), ('a*'):rep(30) .. 'b')",
    "return table.concat({string.rep('x', 1e8), string.rep('y', 1e8)})",
    "return cjson.encode({string.rep('x', 1e9)})",
    "local function f(n) return f(n + 1) + 1 end while true do pcall(f, 1) end",
    "local co = {} for i = 1, 1e9 do co[i] = coroutine.create(function() end) end",
];

/// What must not change.
fn state(client: &mut Client) -> Vec<Value> {
    vec![
        ask!(client, "DBSIZE"),
        ask!(client, "GET", "text"),
        ask!(client, "LRANGE", "list", 0, -1),
        ask!(client, "HGETALL", "hash"),
        ask!(client, "ZRANGE", "zset", 0, -1, "WITHSCORES"),
        // Fences, so that a key that was written and put back would show.
        Value::Integer(client.info("text").fence),
        Value::Integer(client.info("list").fence),
        Value::Integer(client.info("held").fence),
        Value::Integer(client.info("written").fence),
    ]
}

fn prepared(client: &mut Client) -> Vec<Value> {
    for line in [
        "SET text x",
        "RPUSH list a b",
        "HSET hash f v",
        "ZADD zset 1 m",
        "SET written before",
        "DEL written",
    ] {
        let argv: Vec<Vec<u8>> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        assert!(!client.ask(&argv).is_error(), "{line}");
    }
    client.acquire_as("held", 600_000, "holder");
    state(client)
}

fn begins_with(reply: &Value, beginning: &str, what: &str) {
    match reply {
        Value::Error(line) if line.starts_with(beginning) => {}
        other => panic!("{what}: expected -{beginning}…, got {other:?}"),
    }
}

#[test]
fn bad_commands_and_scripts_change_nothing() {
    let cluster = Cluster::start(&Options::nodes(3));
    let leader = cluster.wait_for_leader(REPLY_WITHIN);
    let (mut client, mut watcher) = (cluster.node(leader).client(), cluster.follower(leader).client());
    let before = prepared(&mut client);
    for (line, error) in COMMANDS {
        let argv: Vec<Vec<u8>> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        begins_with(&client.ask(&argv), error, line);
        assert_eq!(state(&mut client), before, "{line}");
    }
    for (script, error) in FAILING {
        begins_with(&ask!(client, "EVAL", script, 0), error, script);
        assert_eq!(state(&mut client), before, "{script}");
    }
    assert_eq!(state(&mut watcher), before, "another node");
    assert_eq!(ask!(client, "PING"), Value::Simple(b"PONG".to_vec()));
}

#[test]
fn scripts_that_run_over_are_stopped_and_undone() {
    let cluster = Cluster::start(&Options::nodes(3));
    let leader = cluster.wait_for_leader(REPLY_WITHIN);
    // Through a follower: whoever leads, and whether that changes while a script has all nodes busy, makes no difference.
    let follower = cluster.follower(leader);
    let (mut client, mut watcher) = (follower.client(), cluster.node(leader).client());
    let before = prepared(&mut client);
    for script in GREEDY {
        let writing = format!(
            "redis.call('set', 'written', '1') redis.call('del', 'text') redis.call('lpop', 'list')\n{script}"
        );
        begins_with(&ask!(client, "EVAL", &writing, 0), "ERR script stopped: ", script);
        assert_eq!(state(&mut client), before, "{script}");
    }
    // A transaction with a script runs as one: it is refused as a whole.
    ask!(client, "MULTI");
    ask!(client, "SET", "neighbour", 1);
    ask!(client, "EVAL", "redis.call('del', 'text') while true do end", 0);
    let reply = ask!(client, "EXEC");
    begins_with(&reply, "ERR script stopped: ", "in a transaction");
    assert_eq!(ask!(client, "DEL", "neighbour"), Value::Integer(0));
    assert_eq!(state(&mut client), before);
    assert_eq!(state(&mut watcher), before, "another node");
    cluster.wait_for_leader(REPLY_WITHIN);
}

#[test]
fn frames_beyond_the_limits_are_refused() {
    let cluster = Cluster::start(&Options::nodes(1));
    let leader = cluster.wait_for_leader(REPLY_WITHIN);
    let mut client = cluster.node(leader).client();
    let before = prepared(&mut client);
    for bytes in [
        &b"*1000000000\r\n$3\r\nSET\r\n"[..],
        b"*3\r\n$3\r\nSET\r\n$4\r\ntext\r\n$500000000\r\n",
        b"*2000\r\n$3\r\nDEL\r\n",
    ] {
        let mut hostile = cluster.node(leader).client();
        hostile.send_raw(bytes);
        begins_with(&hostile.receive(), "ERR a ", "a frame beyond the limits");
        assert_eq!(state(&mut client), before);
    }
    assert_eq!(ask!(client, "PING"), Value::Simple(b"PONG".to_vec()));
}
