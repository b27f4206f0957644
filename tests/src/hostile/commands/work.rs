//! Work: commands whose cost is far beyond their bytes.

use super::{attack, quick, Attack};
use crate::hostile::attacker::Attacker;
use crate::words;
use std::time::Duration;

pub(super) const ATTACKS: &[Attack] = &[
    quick(4, "glob_bombs_in_keys_and_scan", glob_bombs),
    quick(4, "glob_bombs_in_psubscribe", psubscribe_bombs),
    attack(4, "glob_bombs_in_lock_scan_and_tracking", lock_scan_bombs),
    quick(4, "keys_over_many_keys", keys_over_many),
    quick(4, "flushdb_of_many_keys", flushdb).flushes(),
    attack(4, "flushall_while_locks_are_held", flushall).flushes(),
    quick(4, "unions_of_large_sets", unions),
    attack(4, "searches_in_long_lists", long_lists),
    attack(4, "ranges_of_long_sorted_sets", sorted_sets),
    quick(4, "herd_of_blocked_pops", blocked_pops).may_be_cut(),
    attack(4, "blocked_pops_of_many_keys_by_many_connections", crowd_of_blocked_pops).may_be_cut(),
    attack(4, "msets_of_many_keys_by_many_connections", crowd_of_msets).may_be_cut(),
    attack(4, "one_pipeline_of_large_msets", pipeline_of_msets),
    attack(4, "many_subscriptions", subscriptions).may_be_cut(),
    attack(4, "pops_and_random_members_with_huge_counts", huge_counts),
    attack(4, "many_keys_that_end_at_once", ends_at_once),
    attack(4, "rename_in_circles", renames),
];

/// A name that nearly fits the patterns below, so that each looks at all of it.
fn bait(attacker: &mut Attacker) -> String {
    let key = attacker.name("a".repeat(30_000));
    attacker.ask(&words!["SET", &key, "v"]);
    attacker.ask(&words!["SET", attacker.name("a".repeat(500)), "v"]);
    key
}

fn patterns() -> Vec<String> {
    vec![
        format!("*{}b", "a".repeat(30_000)),
        format!("{}b", "*a".repeat(15_000)),
        format!("{}b", "*a".repeat(500)),
        format!("{}b", "?*".repeat(500)),
        format!("*{}b", "[a-z]*".repeat(150)),
        format!("{}\\", "*\\a".repeat(300)),
        format!("[{}", "a-z".repeat(300)),
        "*".repeat(1_025),
    ]
}

fn glob_bombs(attacker: &mut Attacker) {
    bait(attacker);
    for pattern in patterns() {
        attacker.ask(&words!["KEYS", &pattern]);
        attacker.ask(&words!["SCAN", 0, "MATCH", &pattern, "COUNT", 1_000_000_000u64]);
    }
}

fn psubscribe_bombs(attacker: &mut Attacker) {
    let channel = "a".repeat(30_000);
    let mut conns = Vec::new();
    for node in 0..attacker.nodes() {
        let Some(mut conn) = attacker.open(node) else { continue };
        for pattern in patterns() {
            attacker.ask_on(&mut conn, &words!["PSUBSCRIBE", &pattern]);
        }
        conns.push(conn);
    }
    for _ in 0..20 {
        attacker.ask(&words!["PUBLISH", &channel, "x"]);
        attacker.ask(&words!["PUBLISH", "a".repeat(1_024), "x"]);
    }
    attacker.ask(&words!["LOCK.ACQUIRE", attacker.name("a".repeat(400)), 1_000]);
}

fn lock_scan_bombs(attacker: &mut Attacker) {
    for number in 0..300 {
        attacker.ask(&words!["LOCK.ACQUIRE", attacker.name(format!("{}{number}", "a".repeat(400))), 20_000]);
    }
    for pattern in patterns() {
        attacker.ask(&words!["LOCK.SCAN", 0, "MATCH", &pattern, "COUNT", 10_000]);
        attacker.ask(&words!["LOCK.SCAN", 0, "MATCH", &pattern, "COUNT", u64::MAX]);
        attacker.ask(&words!["HSCAN", attacker.name("none"), 0, "MATCH", &pattern]);
        let Some(mut conn) = attacker.open(0) else { continue };
        attacker.ask_on(&mut conn, &words!["HELLO", 3]);
        attacker.ask_on(&mut conn, &words!["CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", &pattern]);
    }
}

/// Keys by the thousand, in few commands.
fn many_keys(attacker: &mut Attacker, database: u64, keys: usize) {
    for node in 0..attacker.nodes() {
        let Some(mut conn) = attacker.open(node) else { continue };
        attacker.ask_on(&mut conn, &words!["SELECT", database]);
        let share = keys / attacker.nodes();
        for first in (0..share).step_by(400) {
            let mut words = words!["MSET"].to_vec();
            for number in first..(first + 400).min(share) {
                words.extend(words![attacker.name(format!("{node}:{number}")), "v"]);
            }
            attacker.ask_on(&mut conn, &words);
        }
    }
}

fn keys_over_many(attacker: &mut Attacker) {
    many_keys(attacker, 2, 60_000);
    for node in 0..attacker.nodes() {
        let Some(mut conn) = attacker.open(node) else { continue };
        attacker.ask_on(&mut conn, &words!["SELECT", 2]);
        for pattern in ["*", "*z*", "*[0-9]*[0-9]*z", "hostile:keys_over_many_keys:*7"] {
            attacker.ask_on(&mut conn, &words!["KEYS", pattern]);
        }
        for _ in 0..50 {
            attacker.ask_on(&mut conn, &words!["DBSIZE"]);
            attacker.ask_on(&mut conn, &words!["RANDOMKEY"]);
            attacker.ask_on(&mut conn, &words!["SCAN", 0, "COUNT", 1_000_000_000u64, "MATCH", "*z"]);
        }
    }
    let Some(mut conn) = attacker.open(0) else { return };
    attacker.ask_on(&mut conn, &words!["SELECT", 2]);
    attacker.ask_on(&mut conn, &words!["FLUSHDB"]);
}

fn flushdb(attacker: &mut Attacker) {
    for _ in 0..3 {
        many_keys(attacker, 1, 30_000);
        let Some(mut conn) = attacker.open(0) else { return };
        attacker.ask_on(&mut conn, &words!["SELECT", 1]);
        attacker.ask_on(&mut conn, &words!["FLUSHDB"]);
        attacker.ask_on(&mut conn, &words!["DBSIZE"]);
    }
}

fn flushall(attacker: &mut Attacker) {
    for number in 0..500 {
        attacker.ask(&words!["LOCK.ACQUIRE", attacker.name(number), 600_000]);
    }
    many_keys(attacker, 0, 30_000);
    for _ in 0..5 {
        attacker.ask(&words!["FLUSHALL"]);
        attacker.ask(&words!["FLUSHALL", "ASYNC"]);
    }
    attacker.ask(&words!["DBSIZE"]);
}

fn add_members(attacker: &mut Attacker, command: &str, key: &str, members: usize) {
    for first in (0..members).step_by(500) {
        let mut words = words![command, key].to_vec();
        for number in first..first + 500 {
            match command {
                "ZADD" | "HSET" => words.extend(words![number, format!("member:{number}")]),
                _ => words.push(format!("member:{number}").into_bytes()),
            }
        }
        attacker.ask(&words);
    }
}

fn unions(attacker: &mut Attacker) {
    let set = attacker.name("set");
    add_members(attacker, "SADD", &set, 50_000);
    for command in ["SUNIONSTORE", "SINTERSTORE", "SDIFFSTORE"] {
        let mut words = words![command, attacker.name("to")].to_vec();
        words.extend((0..1_000).map(|_| set.clone().into_bytes()));
        for _ in 0..5 {
            attacker.ask(&words);
        }
    }
    for command in ["SUNION", "SINTER", "SDIFF"] {
        let mut words = words![command].to_vec();
        words.extend((0..1_000).map(|_| set.clone().into_bytes()));
        attacker.ask(&words);
    }
    attacker.ask(&words!["DEL", &set, attacker.name("to")]);
}

fn long_lists(attacker: &mut Attacker) {
    let list = attacker.name("list");
    add_members(attacker, "RPUSH", &list, 100_000);
    for _ in 0..30 {
        attacker.ask(&words!["LPOS", &list, "none", "COUNT", 0, "MAXLEN", 0]);
        attacker.ask(&words!["LREM", &list, 0, "none"]);
        attacker.ask(&words!["LREM", &list, -1_000_000_000, "none"]);
        attacker.ask(&words!["LINSERT", &list, "AFTER", "none", "x"]);
        attacker.ask(&words!["LINDEX", &list, 50_000]);
        attacker.ask(&words!["LMOVE", &list, &list, "LEFT", "RIGHT"]);
    }
    attacker.ask(&words!["LRANGE", &list, i64::MIN, i64::MAX]);
    attacker.ask(&words!["LTRIM", &list, 10, 20]);
}

fn sorted_sets(attacker: &mut Attacker) {
    let zset = attacker.name("zset");
    add_members(attacker, "ZADD", &zset, 50_000);
    for _ in 0..20 {
        attacker.ask(&words!["ZRANGESTORE", attacker.name("to"), &zset, 0, -1]);
        attacker.ask(&words!["ZCOUNT", &zset, "-inf", "+inf"]);
        attacker.ask(&words!["ZRANGEBYSCORE", &zset, "-inf", "+inf", "LIMIT", 49_990, 10]);
        attacker.ask(&words!["ZRANGEBYLEX", &zset, "-", "+", "LIMIT", 0, 5]);
        attacker.ask(&words!["ZRANGE", &zset, "(1", "(2", "BYSCORE", "LIMIT", i64::MAX, i64::MAX]);
    }
    attacker.ask(&words!["ZREMRANGEBYRANK", &zset, 0, -2]);
    attacker.ask(&words!["ZREMRANGEBYSCORE", attacker.name("to"), "-inf", "+inf"]);
}

/// Clients blocked on many keys each, and pushes of which each serves one, or none.
fn blocked_pops(attacker: &mut Attacker) {
    let keys: Vec<String> = (0..200).map(|number| attacker.name(number)).collect();
    let mut conns = Vec::new();
    for number in 0..300 {
        let Some(mut conn) = attacker.open(number) else { break };
        let mut words = words![if number % 3 == 0 { "BZPOPMIN" } else { "BLPOP" }].to_vec();
        words.extend(keys.iter().map(|key| key.clone().into_bytes()));
        words.push(b"0".to_vec());
        conn.send(&words);
        conns.push(conn);
    }
    for key in &keys {
        attacker.ask(&words!["SADD", key, "of another type"]);
        attacker.ask(&words!["DEL", key]);
        attacker.ask(&words!["RPUSH", key, "a", "b", "c"]);
        attacker.ask(&words!["DEL", key]);
        attacker.ask(&words!["ZADD", key, 1, "m"]);
    }
    // The rest go without a word.
    for mut conn in conns {
        attacker.collect_within(&mut conn, Duration::from_millis(2));
    }
    attacker.tally.silent = 0;
    let mut words = words!["DEL"].to_vec();
    words.extend(keys.into_iter().map(String::into_bytes));
    attacker.ask(&words);
}

/// As many connections as send an expensive command each at one time.
const CROWD: usize = 3_000;

/// All are open before the first one sends; then nobody waits for anybody.
fn crowd(attacker: &mut Attacker, command: impl Fn(&Attacker, usize) -> Vec<Vec<u8>>) {
    let mut conns = Vec::new();
    for number in 0..CROWD {
        let Some(conn) = attacker.open(number) else { break };
        conns.push(conn);
    }
    for (number, conn) in conns.iter_mut().enumerate() {
        conn.send(&command(attacker, number));
    }
    for mut conn in conns {
        attacker.collect_all(&mut conn);
    }
}

fn crowd_of_blocked_pops(attacker: &mut Attacker) {
    crowd(attacker, |attacker, number| {
        let mut words = words!["BLPOP"].to_vec();
        words.extend((0..200).map(|key| attacker.name(format!("{number}:{key}")).into_bytes()));
        words.push(b"0.5".to_vec());
        words
    });
}

fn crowd_of_msets(attacker: &mut Attacker) {
    // Few names, so that the nodes hold them and can go on to the next attack.
    crowd(attacker, |attacker, number| mset(attacker, number % 50, 200));
}

fn pipeline_of_msets(attacker: &mut Attacker) {
    let Some(mut conn) = attacker.open(0) else { return };
    let command = mset(attacker, 0, 500);
    for _ in 0..3_000 {
        conn.send(&command);
    }
    attacker.collect_all(&mut conn);
}

fn mset(attacker: &Attacker, block: usize, keys: usize) -> Vec<Vec<u8>> {
    let mut words = words!["MSET"].to_vec();
    for key in 0..keys {
        words.extend(words![attacker.name(format!("{block}:{key}")), "v"]);
    }
    words
}

fn subscriptions(attacker: &mut Attacker) {
    let mut conns = Vec::new();
    for number in 0..30 {
        let Some(mut conn) = attacker.open(number) else { break };
        for first in 0..12 {
            let mut words = words![if number % 2 == 0 { "SUBSCRIBE" } else { "PSUBSCRIBE" }].to_vec();
            words.extend((0..1_000).map(|channel| format!("hostile:*{first}*{channel}*").into_bytes()));
            conn.send(&words);
        }
        conns.push(conn);
    }
    for number in 0..200 {
        attacker.ask(&words!["PUBLISH", format!("hostile:{number}:1:2:3"), vec![b'p'; 10_000]]);
    }
    attacker.ask(&words!["PUBSUB", "CHANNELS", "*"]);
    attacker.ask(&words!["PUBSUB", "NUMPAT"]);
}

fn huge_counts(attacker: &mut Attacker) {
    let (set, hash, list, zset) =
        (attacker.name("set"), attacker.name("hash"), attacker.name("list"), attacker.name("zset"));
    add_members(attacker, "SADD", &set, 1_000);
    add_members(attacker, "HSET", &hash, 1_000);
    add_members(attacker, "RPUSH", &list, 1_000);
    add_members(attacker, "ZADD", &zset, 1_000);
    for count in [i64::MIN, i64::MIN + 1, -4_294_967_296, -1_000_000_000, 1_000_000_000, i64::MAX] {
        attacker.ask(&words!["SRANDMEMBER", &set, count]);
        attacker.ask(&words!["HRANDFIELD", &hash, count, "WITHVALUES"]);
        attacker.ask(&words!["SPOP", &set, count]);
        attacker.ask(&words!["LPOP", &list, count]);
        attacker.ask(&words!["ZPOPMIN", &zset, count]);
        attacker.ask(&words!["LMPOP", 1, &list, "LEFT", "COUNT", count]);
        attacker.ask(&words!["LPOS", &list, "x", "RANK", count]);
        attacker.ask(&words!["LREM", &list, count, "x"]);
        attacker.ask(&words!["LINDEX", &list, count]);
        attacker.ask(&words!["ZRANGE", &zset, count, count]);
        attacker.ask(&words!["SCAN", count]);
        attacker.ask(&words!["SELECT", count]);
    }
}

/// Locks and keys by the thousand, all with the same deadline.
fn ends_at_once(attacker: &mut Attacker) {
    for node in 0..attacker.nodes() {
        let locks: Vec<String> = (0..3_000).map(|number| attacker.name(format!("{node}:{number}"))).collect();
        attacker.pipeline(node, locks.iter().map(|lock| words!["LOCK.ACQUIRE", lock, 2_500].to_vec()));
        attacker.pipeline(
            node,
            locks.iter().map(|lock| words!["SET", format!("{lock}k"), "v", "PX", 1_500].to_vec()),
        );
    }
    let last = attacker.name(format!("{}:2999", attacker.nodes() - 1));
    attacker.ask(&words!["LOCK.ACQUIRE", &last, 1_000, "WAIT", 10_000]);
    attacker.ask(&words!["DBSIZE"]);
}

fn renames(attacker: &mut Attacker) {
    let (one, two) = (attacker.name("one"), attacker.name("two"));
    add_members(attacker, "RPUSH", &one, 20_000);
    for _ in 0..200 {
        attacker.ask(&words!["RENAME", &one, &two]);
        attacker.ask(&words!["RENAME", &two, &one]);
        attacker.ask(&words!["RENAMENX", &one, &one]);
        attacker.ask(&words!["SMOVE", &one, &two, "x"]);
    }
}
