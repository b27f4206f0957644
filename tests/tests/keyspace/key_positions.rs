//! Where keys are, by core's tables, against what a real redis-server says of its commands.

use redfence_core::keyspace::key_spec::{KeySpec, NOT_RUN_HERE};
use redfence_core::keyspace::table;
use redfence_tests::artifacts;
use redfence_tests::left_out;
use redfence_tests::redis::{Options, Redis};
use redfence_tests::resp::Value;

/// `COMMAND INFO` of Redis tells something else of these, with the reason.
const DIFFERS: &[(&str, &str)] = &[
    ("memory", "its keys are told by its subcommands; compared by COMMAND GETKEYS"),
    ("object", "its keys are told by its subcommands; compared by COMMAND GETKEYS"),
    ("xgroup", "its keys are told by its subcommands; compared by COMMAND GETKEYS"),
    ("xinfo", "its keys are told by its subcommands; compared by COMMAND GETKEYS"),
    ("spublish", "a shard channel is no key, and SSUBSCRIBE is not supported"),
    ("ssubscribe", "a shard channel is no key, and SSUBSCRIBE is not supported"),
    ("sunsubscribe", "a shard channel is no key, and SSUBSCRIBE is not supported"),
];

/// Every command whose keys are not in one fixed range, in a form that Redis accepts.
const LINES: &[&str] = &[
    "MEMORY USAGE a",
    "OBJECT ENCODING a",
    "XGROUP CREATE a g 0",
    "XINFO STREAM a",
    "EVAL body 2 a b c",
    "EVAL_RO body 1 a b",
    "EVALSHA sha 2 a b",
    "EVALSHA_RO sha 1 a",
    "FCALL f 2 a b c",
    "FCALL_RO f 1 a",
    "BLMPOP 0 2 a b LEFT",
    "BZMPOP 0 2 a b MIN",
    "LMPOP 2 a b LEFT",
    "ZMPOP 1 a MIN",
    "SINTERCARD 2 a b LIMIT 1",
    "ZDIFF 2 a b",
    "ZINTER 2 a b",
    "ZINTERCARD 2 a b",
    "ZUNION 2 a b WEIGHTS 1 2",
    "ZDIFFSTORE d 2 a b",
    "ZINTERSTORE d 2 a b",
    "ZUNIONSTORE d 2 a b",
    "SORT a BY store GET store LIMIT 0 1",
    "SORT a LIMIT 0 1 STORE b",
    "GEORADIUS a 1 2 3 km",
    "GEORADIUS a 1 2 3 km ASC STORE b",
    "GEORADIUSBYMEMBER a m 3 km STOREDIST b",
    "XREAD COUNT 2 STREAMS a b 0 0",
    "XREADGROUP GROUP g c STREAMS a b > >",
    "XREADGROUP GROUP streams c STREAMS a >",
    "XREADGROUP GROUP g streams COUNT 1 BLOCK 5 NOACK STREAMS a b > >",
    "MIGRATE host 6379 a 0 1000",
    "MIGRATE host 6379  0 1000 COPY AUTH2 user keys KEYS a b",
    "MSETEX 2 a 1 b 2",
    "BITOP AND d a b",
];

fn redis() -> Option<Redis> {
    match artifacts::redis_server() {
        Ok(_) => Some(Redis::start(&Options::plain())),
        Err(missing) => {
            left_out::or_fail(&format!("positions of keys against Redis: {missing}"));
            None
        }
    }
}

fn all_commands() -> impl Iterator<Item = (String, KeySpec)> {
    let run_here = table::ROWS.iter().map(|row| (row.name.to_owned(), row.keys));
    let not_run = NOT_RUN_HERE.iter().flat_map(|(keys, names)| {
        names.split_ascii_whitespace().map(|name| (name.to_ascii_lowercase(), *keys))
    });
    run_here.chain(not_run)
}

#[test]
fn fixed_positions_are_those_redis_tells() {
    let Some(redis) = redis() else { return };
    let mut compared = 0;
    for (name, keys) in all_commands() {
        let Value::Array(infos) = redis.ask(&["COMMAND", "INFO", &name]) else { panic!("no array: {name}") };
        // A newer Redis has it, or Valkey.
        let Some(Value::Array(info)) = infos.first() else { continue };
        let range = |at: usize| match info[at] {
            Value::Integer(value) => value,
            ref other => panic!("{name}: {other:?}"),
        };
        let told = (range(3), range(4), range(5));
        if DIFFERS.iter().any(|(differs, _)| *differs == name) {
            assert_ne!(told, keys.range(), "{name} does not differ any more");
            continue;
        }
        assert_eq!(keys.range(), told, "{name}");
        compared += 1;
    }
    assert!(compared > 200, "only {compared} commands are known to this redis-server");
}

/// Newer versions and modules tell their own: `proxy/tests/keys_of_all_commands.rs`.
#[test]
fn every_command_of_redis_7_0_is_in_a_table() {
    let Some(redis) = redis() else { return };
    let Value::Bulk(info) = redis.ask(&["INFO", "server"]) else { panic!("no INFO") };
    if !String::from_utf8_lossy(&info).contains("redis_version:7.0.") {
        return;
    }
    let Value::Array(rows) = redis.ask(&["COMMAND"]) else { panic!("no array") };
    let known: Vec<String> = all_commands().map(|(name, _)| name).collect();
    let names = rows.iter().map(|row| match row {
        Value::Array(fields) => match &fields[0] {
            Value::Bulk(name) => String::from_utf8_lossy(name).into_owned(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    });
    let missing: Vec<String> = names.filter(|name| !known.contains(name)).collect();
    assert_eq!(missing, [""; 0], "in no table");
}

#[test]
fn movable_keys_are_those_redis_finds() {
    let Some(redis) = redis() else { return };
    for (name, keys) in all_commands().filter(|(_, keys)| keys.is_movable()) {
        let has_line = LINES.iter().any(|line| line.to_ascii_lowercase().split(' ').next() == Some(&name));
        assert!(has_line, "{name} has its keys in {keys:?} and no line to compare");
    }
    for line in LINES {
        let words: Vec<&str> = line.split(' ').collect();
        let name = words[0].to_ascii_lowercase();
        let (_, keys) = all_commands().find(|(known, _)| *known == name).unwrap();
        let argv: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let mut ours: Vec<Vec<u8>> = keys.keys_of(&argv).iter().map(|key| key.to_vec()).collect();
        let question: Vec<&str> = ["COMMAND", "GETKEYS"].into_iter().chain(words).collect();
        let answer = redis.ask(&question);
        if matches!(&answer, Value::Error(text) if text.contains("Invalid command specified")) {
            // A newer Redis has it.
            assert_eq!(name, "msetex", "{line}");
            continue;
        }
        let Value::Array(told) = answer else { panic!("{line}: {answer:?}") };
        let mut told: Vec<Vec<u8>> = told
            .into_iter()
            .map(|key| match key {
                Value::Bulk(key) => key,
                other => panic!("{line}: {other:?}"),
            })
            .collect();
        // Redis tells the key that is written last, or first.
        ours.sort();
        told.sort();
        assert_eq!(ours, told, "{line}");
    }
}
