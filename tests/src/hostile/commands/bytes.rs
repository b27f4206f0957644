//! Bytes: values, collections and names at their limits and one past them, and more than a node may hold.

use super::{attack, quick, Attack};
use crate::hostile::attacker::Attacker;
use crate::words;

pub(super) const ATTACKS: &[Attack] = &[
    quick(2, "keys_of_60_kb_by_the_thousand", keys_of_60_kb),
    quick(2, "values_from_a_byte_to_a_megabyte_and_one_past", values).may_be_cut(),
    quick(2, "collections_to_sixteen_megabytes_and_one_past", collections),
    attack(3, "random_members_of_a_large_set", random_members),
    // A word past the limit is an error of the protocol, as in Redis: the connection goes.
    attack(2, "names_of_64_kib_and_one_past", names).may_be_cut(),
    attack(2, "setrange_and_append_to_the_limit", setrange_and_append),
    attack(2, "copies_of_a_large_collection", copies),
    attack(12, "sets_without_end", sets_without_end),
    quick(12, "large_commands_by_five_connections", five_connections),
    attack(12, "scripts_loaded_without_end", scripts_loaded),
    attack(12, "owners_and_waiters_of_the_largest_size", owners),
    attack(6, "absolute_times_at_both_ends", absolute_times),
    attack(6, "expiry_that_overflows", expiry),
];

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// What once stopped every node for good: more bytes in a few slots than a snapshot's piece was read with.
fn keys_of_60_kb(attacker: &mut Attacker) {
    let keys: Vec<String> = (0..1_300).map(|number| attacker.name(number)).collect();
    for node in 0..attacker.nodes() {
        let own = keys.iter().skip(node).step_by(attacker.nodes());
        let sets: Vec<_> = own.map(|key| words!["SET", key, vec![b'k'; 61_440]].to_vec()).collect();
        attacker.pipeline(node, sets);
    }
}

fn values(attacker: &mut Attacker) {
    for bytes in [1, 2, 255, 4096, 64 * KIB - 1, 64 * KIB] {
        let key = attacker.name(bytes);
        attacker.ask(&words!["SET", &key, vec![b'v'; bytes]]);
        attacker.ask(&words!["GETSET", &key, vec![b'w'; bytes]]);
    }
    for bytes in [64 * KIB + 1, 128 * KIB, MIB - 1, MIB, MIB + 1, MIB + 64 * KIB] {
        let key = attacker.name(bytes);
        attacker.store_string(&key, bytes);
        attacker.ask(&words!["STRLEN", &key]);
        attacker.ask(&words!["GET", &key]);
    }
    let key = attacker.name("word");
    attacker.ask(&words!["SET", &key, vec![b'v'; 64 * KIB + 1]]);
}

/// Adds elements of one size until the collection is refused or past the limit.
fn fill(attacker: &mut Attacker, command: &[&str], key: &str, element: usize, bytes: usize) {
    let per_command = (MIB / element).clamp(1, 400);
    let mut number = 0;
    for _ in 0..bytes.div_ceil(per_command * element) + 1 {
        let mut words = words![command[0], key].to_vec();
        for _ in 0..per_command {
            number += 1;
            for part in &command[1..] {
                words.push(match *part {
                    "element" => format!("{number:0>element$}").into_bytes(),
                    "score" => number.to_string().into_bytes(),
                    other => other.as_bytes().to_vec(),
                });
            }
        }
        attacker.ask(&words);
    }
}

fn collections(attacker: &mut Attacker) {
    let kinds: [(&str, &[&str]); 4] = [
        ("list", &["RPUSH", "element"]),
        ("set", &["SADD", "element"]),
        ("hash", &["HSET", "element", "x"]),
        ("zset", &["ZADD", "score", "element"]),
    ];
    for (kind, command) in kinds {
        let large = attacker.name(format!("{kind}:large"));
        fill(attacker, command, &large, 32 * KIB, 16 * MIB);
    }
    let small = attacker.name("list:small");
    fill(attacker, &["RPUSH", "element"], &small, 100, 2 * MIB);
    for (command, kind) in [("SMEMBERS", "set"), ("HGETALL", "hash"), ("HVALS", "hash"), ("HKEYS", "hash")] {
        let key = attacker.name(format!("{kind}:large"));
        attacker.ask(&words![command, &key]);
    }
    for (command, kind) in [("LRANGE", "list"), ("ZRANGE", "zset")] {
        let key = attacker.name(format!("{kind}:large"));
        attacker.ask(&words![command, &key, 0, -1]);
    }
    let (list, set) = (attacker.name("list:large"), attacker.name("set:large"));
    attacker.ask(&words!["LINSERT", &list, "BEFORE", "none", vec![b'x'; 60_000]]);
    attacker.ask(&words!["LSET", &list, 0, vec![b'x'; 64 * KIB]]);
    attacker.ask(&words!["SPOP", &set, 10]);
}

/// The same few members again and again: a reply far larger than the set.
fn random_members(attacker: &mut Attacker) {
    let (set, hash) = (attacker.name("set"), attacker.name("hash"));
    fill(attacker, &["SADD", "element"], &set, 32 * KIB, 4 * MIB);
    fill(attacker, &["HSET", "element", "x"], &hash, 32 * KIB, 4 * MIB);
    for node in 0..attacker.nodes() {
        attacker.ask_node(node, &words!["SRANDMEMBER", &set, -1_000_000_000]);
        attacker.ask_node(node, &words!["SRANDMEMBER", &set, -100_000]);
        attacker.ask_node(node, &words!["HRANDFIELD", &hash, -100_000, "WITHVALUES"]);
    }
}

fn names(attacker: &mut Attacker) {
    for bytes in [511, 512, 513, 60_000, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1] {
        let name = attacker.name("n".repeat(bytes.saturating_sub(attacker.prefix.len())));
        attacker.ask(&words!["SET", &name, "v"]);
        attacker.ask(&words!["RPUSH", format!("{name}l"), "v"]);
        attacker.ask(&words!["LOCK.ACQUIRE", &name, 1_000]);
        attacker.ask(&words!["LOCK.INFO", &name]);
        attacker.ask(&words!["RENAME", &name, format!("{name}r")]);
    }
    attacker.ask(&words!["SET", "", "empty"]);
    attacker.ask(&words!["LOCK.ACQUIRE", "", 1_000]);
}

fn setrange_and_append(attacker: &mut Attacker) {
    let key = attacker.name("range");
    for offset in
        [0i64, 1, 65_535, 1_048_574, 1_048_575, 1_048_576, 536_870_911, i64::from(i32::MAX), i64::MAX, -1]
    {
        attacker.ask(&words!["SETRANGE", &key, offset, "x"]);
    }
    let grown = attacker.name("grown");
    for _ in 0..20 {
        attacker.ask(&words!["APPEND", &grown, vec![b'a'; 64 * KIB]]);
    }
    attacker.ask(&words!["GETRANGE", &grown, i64::MIN, i64::MAX]);
    for number in 0..40 {
        attacker.ask(&words!["SETRANGE", attacker.name(number), 1_048_575, "x"]);
    }
}

/// A collection of a few megabytes, copied until there is no room.
fn copies(attacker: &mut Attacker) {
    let from = attacker.name("from");
    fill(attacker, &["RPUSH", "element"], &from, 16 * KIB, 8 * MIB);
    for number in 0..60 {
        attacker.ask(&words!["COPY", &from, attacker.name(number)]);
    }
    let set = attacker.name("set");
    fill(attacker, &["SADD", "element"], &set, KIB, 2 * MIB);
    for number in 0..60 {
        attacker.ask(&words!["SUNIONSTORE", attacker.name(format!("u{number}")), &set, &set]);
    }
    for number in 0..60 {
        attacker.ask(&words!["DEL", attacker.name(number), attacker.name(format!("u{number}"))]);
    }
}

/// 360 MB that nobody needs. Deleted at the end, so that others have room.
fn sets_without_end(attacker: &mut Attacker) {
    let key = |attacker: &Attacker, number: usize| attacker.name(number);
    for node in 0..attacker.nodes() {
        let sets: Vec<String> = (0..2_000).map(|number| key(attacker, node * 2_000 + number)).collect();
        attacker.pipeline(node, sets.into_iter().map(|key| words!["SET", key, vec![b's'; 60_000]].to_vec()));
    }
    for first in (0..6_000).step_by(500) {
        let mut words = words!["DEL"].to_vec();
        words.extend((first..first + 500).map(|number| key(attacker, number).into_bytes()));
        attacker.ask(&words);
    }
}

/// Commands of 1.9 MB, as fast as five connections can send them, to one node, with nobody reading.
fn five_connections(attacker: &mut Attacker) {
    let mut words = words!["MSET"].to_vec();
    for number in 0..30 {
        words.extend(words![attacker.name(number), vec![b'm'; 62_000]]);
    }
    let mut conns: Vec<_> = (0..5).filter_map(|_| attacker.open(0)).collect();
    std::thread::scope(|scope| {
        for conn in &mut conns {
            let words = &words;
            scope.spawn(move || (0..60).all(|_| conn.send(words)));
        }
    });
    for mut conn in conns {
        attacker.collect_all(&mut conn);
    }
}

fn scripts_loaded(attacker: &mut Attacker) {
    for number in 0..300 {
        let body = format!("return '{number}{}'", "s".repeat(200_000));
        attacker.ask(&words!["SCRIPT", "LOAD", body]);
    }
    attacker.ask(&words!["SCRIPT", "FLUSH"]);
}

fn owners(attacker: &mut Attacker) {
    let name = |attacker: &Attacker, number: usize| attacker.name(format!("{number:0>440}"));
    for number in 0..400 {
        let owner = format!("{number:0>256}");
        attacker.ask(&words!["LOCK.ACQUIRE", name(attacker, number), 600_000, "OWNER", owner]);
    }
    attacker.ask(&words!["LOCK.ACQUIRE", name(attacker, 1), 1_000, "OWNER", "o".repeat(257)]);
    attacker.ask(&words!["LOCK.ACQUIRE", "n".repeat(513), 1_000]);
    for number in 0..400 {
        attacker.ask(&words!["LOCK.FORCERELEASE", name(attacker, number)]);
    }
}

fn absolute_times(attacker: &mut Attacker) {
    let key = attacker.name("key");
    for at in [i64::MIN, -1, 0, 1, 1_000, 253_402_300_799_000, i64::MAX / 1_000, i64::MAX - 1, i64::MAX] {
        attacker.ask(&words!["SET", &key, "A", "NX", "PXAT", at]);
        attacker.ask(&words!["SET", &key, "B", "EXAT", at]);
        attacker.ask(&words!["SET", &key, "C"]);
        attacker.ask(&words!["PEXPIREAT", &key, at]);
        attacker.ask(&words!["EXPIREAT", &key, at]);
        attacker.ask(&words!["GETEX", &key, "PXAT", at]);
        attacker.ask(&words!["PTTL", &key]);
        attacker.ask(&words!["PEXPIRETIME", &key]);
    }
    attacker.ask(&words!["DEL", &key]);
}

fn expiry(attacker: &mut Attacker) {
    let key = attacker.name("key");
    for ttl in [i64::MIN, -1, 0, 1, i64::MAX / 1_000, i64::MAX / 1_000 + 1, i64::MAX - 1, i64::MAX] {
        attacker.ask(&words!["SET", &key, "v"]);
        attacker.ask(&words!["EXPIRE", &key, ttl]);
        attacker.ask(&words!["SET", &key, "v"]);
        attacker.ask(&words!["PEXPIRE", &key, ttl]);
        attacker.ask(&words!["SET", &key, "v", "EX", ttl]);
        attacker.ask(&words!["PSETEX", &key, ttl, "v"]);
        attacker.ask(&words!["LOCK.ACQUIRE", attacker.name("lock"), ttl]);
        attacker.ask(&words!["LOCK.ACQUIRE", attacker.name("lock"), 1, "WAIT", ttl]);
        attacker.ask(&words!["LOCK.SESSION", "OPEN", ttl]);
        attacker.ask(&words!["INCRBY", attacker.name("number"), ttl]);
        attacker.ask(&words!["INCRBYFLOAT", attacker.name("float"), ttl]);
        attacker.ask(&words!["ZADD", attacker.name("scores"), ttl, "m"]);
    }
    for number in ["nan", "inf", "-inf", "1e400", "0x10", "1e-400", ""] {
        attacker.ask(&words!["INCRBYFLOAT", attacker.name("float"), number]);
        attacker.ask(&words!["ZADD", attacker.name("scores"), number, "m"]);
        attacker.ask(&words!["ZINCRBY", attacker.name("scores"), number, "m"]);
    }
    attacker.ask(&words!["DEL", &key]);
}
