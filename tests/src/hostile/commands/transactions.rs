//! Transactions: more watched, queued or answered than an entry, a frame or a reply may hold.

use super::{attack, quick, Attack};
use crate::hostile::attacker::{AttackConnection, Attacker};
use crate::words;

pub(super) const ATTACKS: &[Attack] = &[
    quick(5, "watch_of_300_names_of_60_kb", watch_of_large_names),
    quick(3, "multi_with_12_mgets_of_one_value", multi_with_mgets),
    quick(3, "multi_with_1024_mgets", multi_with_many_mgets),
    quick(5, "multi_full_of_big_sets", multi_of_big_sets),
    attack(5, "mset_of_two_megabytes_by_the_hundred", large_msets),
    attack(3, "multi_of_large_reads", multi_of_large_reads),
    attack(4, "multi_of_bombs", multi_of_bombs),
    attack(4, "multi_with_scripts", multi_with_scripts),
    attack(5, "multi_without_end", multi_without_end),
];

fn queue(attacker: &mut Attacker, conn: &mut AttackConnection, words: &[Vec<u8>]) {
    conn.send(words);
    if conn.due >= 50 {
        attacker.collect_all(conn);
    }
}

fn exec(attacker: &mut Attacker, conn: &mut AttackConnection) {
    attacker.collect_all(conn);
    attacker.ask_on(conn, &words!["EXEC"]);
}

/// The frame that no follower could take: `a frame of 18004877 bytes was built`.
fn watch_of_large_names(attacker: &mut Attacker) {
    for node in 0..attacker.nodes() {
        let Some(mut conn) = attacker.open(node) else { continue };
        for number in 0..300 {
            let name = attacker.name(format!("{number}{}", "w".repeat(60_000)));
            queue(attacker, &mut conn, &words!["WATCH", name]);
        }
        queue(attacker, &mut conn, &words!["MULTI"]);
        queue(attacker, &mut conn, &words!["SET", attacker.name("key"), node as u64]);
        exec(attacker, &mut conn);
    }
}

fn multi_with_mgets(attacker: &mut Attacker) {
    let key = attacker.name("value");
    attacker.store_string(&key, 1 << 20);
    let mut mget = words!["MGET"].to_vec();
    mget.extend((0..1_000).map(|_| key.clone().into_bytes()));
    for node in 0..attacker.nodes() {
        let Some(mut conn) = attacker.open(node) else { continue };
        queue(attacker, &mut conn, &words!["MULTI"]);
        for _ in 0..12 {
            queue(attacker, &mut conn, &mget);
        }
        exec(attacker, &mut conn);
    }
    attacker.ask(&mget);
}

fn multi_with_many_mgets(attacker: &mut Attacker) {
    let key = attacker.name("value");
    attacker.ask(&words!["SET", &key, vec![b'm'; 60_000]]);
    let mut mget = words!["MGET"].to_vec();
    mget.extend((0..40).map(|_| key.clone().into_bytes()));
    for node in 0..attacker.nodes() {
        let Some(mut conn) = attacker.open(node) else { continue };
        queue(attacker, &mut conn, &words!["MULTI"]);
        for _ in 0..1_023 {
            queue(attacker, &mut conn, &mget);
        }
        queue(attacker, &mut conn, &words!["SET", &key, "small"]);
        exec(attacker, &mut conn);
    }
}

fn multi_of_big_sets(attacker: &mut Attacker) {
    for node in 0..attacker.nodes() {
        let Some(mut conn) = attacker.open(node) else { continue };
        queue(attacker, &mut conn, &words!["MULTI"]);
        for number in 0..400 {
            queue(attacker, &mut conn, &words!["SET", attacker.name(number), vec![b'b'; 64 * 1024]]);
        }
        exec(attacker, &mut conn);
    }
    // As large as it may be, or nearly so: that one is taken.
    let Some(mut conn) = attacker.open(0) else { return };
    for sets in [28, 31, 32, 62, 64, 65] {
        queue(attacker, &mut conn, &words!["MULTI"]);
        for number in 0..sets {
            queue(attacker, &mut conn, &words!["SET", attacker.name(number), vec![b'b'; 64 * 1024]]);
        }
        exec(attacker, &mut conn);
    }
}

fn large_msets(attacker: &mut Attacker) {
    let mut words = words!["MSET"].to_vec();
    for number in 0..31 {
        words.extend(words![attacker.name(number), vec![b'm'; 64 * 1024]]);
    }
    for node in 0..attacker.nodes() {
        let words = words.clone();
        attacker.pipeline(node, (0..40).map(move |_| words.clone()));
    }
}

fn multi_of_large_reads(attacker: &mut Attacker) {
    let (list, hash) = (attacker.name("list"), attacker.name("hash"));
    for number in 0..100u64 {
        attacker.ask(&words!["RPUSH", &list, vec![b'l'; 30_000]]);
        attacker.ask(&words!["HSET", &hash, number, vec![b'h'; 30_000]]);
    }
    for node in 0..attacker.nodes() {
        let Some(mut conn) = attacker.open(node) else { continue };
        queue(attacker, &mut conn, &words!["MULTI"]);
        for _ in 0..250 {
            queue(attacker, &mut conn, &words!["LRANGE", &list, 0, -1]);
            queue(attacker, &mut conn, &words!["HGETALL", &hash]);
            queue(attacker, &mut conn, &words!["SRANDMEMBER", &list, -1_000_000]);
            queue(attacker, &mut conn, &words!["HRANDFIELD", &hash, -100_000, "WITHVALUES"]);
        }
        exec(attacker, &mut conn);
    }
}

fn multi_of_bombs(attacker: &mut Attacker) {
    let (list, set) = (attacker.name("list"), attacker.name("set"));
    for number in 0..30 {
        let mut push = words!["RPUSH", &list].to_vec();
        let mut add = words!["SADD", &set].to_vec();
        for element in 0..1_000 {
            push.push(b"same".to_vec());
            add.push(format!("{number}:{element}").into_bytes());
        }
        attacker.ask(&push);
        attacker.ask(&add);
    }
    for node in 0..attacker.nodes() {
        let Some(mut conn) = attacker.open(node) else { continue };
        queue(attacker, &mut conn, &words!["MULTI"]);
        for number in 0..200 {
            queue(attacker, &mut conn, &words!["SUNIONSTORE", attacker.name("to"), &set, &set, &set]);
            queue(attacker, &mut conn, &words!["LREM", &list, 0, "none"]);
            queue(attacker, &mut conn, &words!["LINSERT", &list, "BEFORE", "none", number]);
            queue(attacker, &mut conn, &words!["KEYS", "*a*b*c*d*e*f*"]);
            queue(attacker, &mut conn, &words!["COPY", &list, attacker.name("copy"), "REPLACE"]);
        }
        exec(attacker, &mut conn);
    }
}

fn multi_with_scripts(attacker: &mut Attacker) {
    for body in ["while true do end", "return redis.call('SET', KEYS[1], 'x')", "local t={} t[1]=t return t"]
    {
        for node in 0..attacker.nodes() {
            let Some(mut conn) = attacker.open(node) else { continue };
            queue(attacker, &mut conn, &words!["MULTI"]);
            for number in 0..30 {
                queue(attacker, &mut conn, &words!["EVAL", body, 1, attacker.name(number)]);
                queue(attacker, &mut conn, &words!["SET", attacker.name(number), "plain"]);
            }
            queue(attacker, &mut conn, &words!["LOCK.ACQUIRE", attacker.name("lock"), 1_000]);
            exec(attacker, &mut conn);
        }
    }
}

fn multi_without_end(attacker: &mut Attacker) {
    for node in 0..attacker.nodes() {
        let Some(mut conn) = attacker.open(node) else { continue };
        queue(attacker, &mut conn, &words!["MULTI"]);
        for number in 0..3_000 {
            queue(attacker, &mut conn, &words!["INCR", attacker.name(number % 7)]);
        }
        exec(attacker, &mut conn);
        attacker.ask_on(&mut conn, &words!["MULTI"]);
        attacker.ask_on(&mut conn, &words!["MULTI"]);
        attacker.ask_on(&mut conn, &words!["WATCH", "x"]);
        attacker.ask_on(&mut conn, &words!["SUBSCRIBE", "x"]);
        attacker.ask_on(&mut conn, &words!["DISCARD"]);
    }
}
