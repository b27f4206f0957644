//! Locks, sessions and fences at their limits.

use super::{attack, quick, Attack};
use crate::hostile::attacker::Attacker;
use crate::resp::Value;
use crate::words;
use std::time::Duration;

pub(super) const ATTACKS: &[Attack] = &[
    quick(4, "multi_locks_at_their_limits", multi_locks),
    quick(4, "a_session_with_ten_thousand_locks", session),
    attack(10, "sessions_opened_and_left", sessions_left),
    attack(4, "waiters_that_come_and_go", waiters).may_be_cut(),
    attack(14, "multi_locks_in_circles", circles),
    attack(7, "fences_from_the_future", fences),
    attack(15, "settings_out_of_bounds", settings),
    attack(4, "members_that_are_not_there", members),
];

fn multi_locks(attacker: &mut Attacker) {
    for count in [0usize, 1, 255, 256, 257, 1_000] {
        let mut words = words!["LOCK.MACQUIRE", count].to_vec();
        words.extend((0..count).map(|number| attacker.name(number).into_bytes()));
        words.extend(words![60_000, "OWNER", format!("multi-{count}")]);
        if let Some(Value::Array(granted)) = attacker.ask(&words) {
            let fences: Vec<i64> = granted[0].array().iter().map(Value::integer).collect();
            let mut words = words!["LOCK.MRELEASE", count].to_vec();
            for (number, fence) in fences.iter().enumerate() {
                words.extend(words![attacker.name(number), *fence]);
            }
            attacker.ask(&words);
        }
    }
    let long = |number: usize| format!("{number:0>512}");
    let mut words = words!["LOCK.MACQUIRE", 256].to_vec();
    words.extend((0..256).map(|number| long(number).into_bytes()));
    words.extend(words![1_000, "OWNER", "o".repeat(256)]);
    attacker.ask(&words);
    attacker.ask(&words!["LOCK.MACQUIRE", 2, "same", "same", 1_000]);
    attacker.ask(&words!["LOCK.MACQUIRE", -1, "a", 1_000]);
    attacker.ask(&words!["LOCK.MACQUIRE", i64::MAX, "a", 1_000]);
}

fn session(attacker: &mut Attacker) {
    let Some(mut conn) = attacker.open(0) else { return };
    let Some(Value::Bulk(id)) = attacker.ask_on(&mut conn, &words!["LOCK.SESSION", "OPEN", 60_000]) else {
        return;
    };
    for number in 0..10_100 {
        conn.send(&words!["LOCK.ACQUIRE", attacker.name(number), 0, "SESSION", &id]);
        if conn.due >= 200 {
            attacker.collect_all(&mut conn);
        }
    }
    attacker.collect_all(&mut conn);
    attacker.ask(&words!["LOCK.SESSION", "INFO", &id]);
    attacker.ask(&words!["LOCK.SESSION", "CLOSE", &id]);
    // And once more, left to die with its connection.
    if let Some(Value::Bulk(id)) = attacker.ask_on(&mut conn, &words!["LOCK.SESSION", "OPEN", 1_000]) {
        for number in 0..2_000 {
            conn.send(&words!["LOCK.ACQUIRE", attacker.name(number), 0, "SESSION", &id]);
            if conn.due >= 200 {
                attacker.collect_all(&mut conn);
            }
        }
        attacker.collect_all(&mut conn);
    }
}

fn sessions_left(attacker: &mut Attacker) {
    for round in 0..10 {
        let mut conns = Vec::new();
        for node in 0..30 {
            let Some(mut conn) = attacker.open(node + round) else { continue };
            for _ in 0..20 {
                conn.send(&words!["LOCK.SESSION", "OPEN", 60_000, "NAME", "l".repeat(256)]);
            }
            attacker.collect_all(&mut conn);
            conn.send(&words!["LOCK.SESSION", "KEEPALIVE", "0123456789abcdef"]);
            conns.push(conn);
        }
    }
    let Some(mut conn) = attacker.open(0) else { return };
    for _ in 0..1_100 {
        attacker.ask_on(&mut conn, &words!["LOCK.SESSION", "OPEN", 1_000]);
    }
}

/// Waiters by the hundred that hang up before their turn, and some that stay.
fn waiters(attacker: &mut Attacker) {
    let lock = attacker.name("lock");
    let Some(Value::Array(granted)) = attacker.ask(&words!["LOCK.ACQUIRE", &lock, 60_000]) else { return };
    let mut conns = Vec::new();
    for round in 0..3 {
        for number in 0..200 {
            let Some(mut conn) = attacker.open(number) else { break };
            conn.send(&words![
                "LOCK.ACQUIRE",
                &lock,
                60_000,
                "WAIT",
                3_600_000,
                "OWNER",
                format!("{round}-{number}")
            ]);
            conns.push(conn);
        }
        let half = conns.len() / 2;
        conns.drain(..half);
    }
    attacker.ask(&words!["LOCK.QUEUE", &lock]);
    attacker.ask(&words!["LOCK.RELEASE", &lock, granted[0].integer()]);
    for mut conn in conns {
        attacker.collect_within(&mut conn, Duration::from_millis(2));
    }
    attacker.tally.silent = 0;
    attacker.ask(&words!["LOCK.FORCERELEASE", &lock]);
}

fn circles(attacker: &mut Attacker) {
    let locks: Vec<String> = (0..40).map(|number| attacker.name(number)).collect();
    let mut conns = Vec::new();
    for number in 0..40 {
        let Some(mut conn) = attacker.open(number) else { break };
        let Some(Value::Bulk(id)) = attacker.ask_on(&mut conn, &words!["LOCK.SESSION", "OPEN", 20_000])
        else {
            continue;
        };
        attacker.ask_on(&mut conn, &words!["LOCK.ACQUIRE", &locks[number], 20_000, "SESSION", &id]);
        let (next, after) = (&locks[(number + 1) % 40], &locks[(number + 7) % 40]);
        conn.send(&words!["LOCK.MACQUIRE", 2, next, after, 1_000, "WAIT", 300, "SESSION", &id]);
        conns.push(conn);
    }
    for mut conn in conns {
        attacker.collect_all(&mut conn);
    }
}

fn fences(attacker: &mut Attacker) {
    let name = attacker.name("resource");
    for fence in [i64::MIN, -1, 0, 1, 1 << 52, (1 << 53) - 1, 1 << 53, i64::MAX] {
        attacker.ask(&words!["FENCE.CHECK", &name, fence]);
        attacker.ask(&words!["FENCE.GET", &name]);
        attacker.ask(&words!["FENCE.CALL", &name, fence, "SET", &name, "v"]);
        attacker.ask(&words!["LOCK.RELEASE", &name, fence]);
        attacker.ask(&words!["LOCK.RENEW", &name, fence, 1_000]);
    }
    for number in 0..2_000 {
        attacker.ask(&words!["FENCE.CHECK", attacker.name(number), 1]);
    }
    attacker.ask(&words!["FENCE.CALL", &name, 1, "FENCE.CALL", &name, 1, "FLUSHALL"]);
    attacker.ask(&words!["FENCE.CALL", &name, 1, "EVAL", "while true do end", 0]);
}

fn settings(attacker: &mut Attacker) {
    for value in ["", "-1", "0", "1", "18446744073709551616", "nan", "*=correctness", "a"] {
        for setting in ["max-memory", "route", "default-tier", "nosuch", ""] {
            // What the cluster would take is left out: these are all to be refused or harmless.
            let harmless = setting != "route" && !(setting == "max-memory" && ["0", "1"].contains(&value));
            if harmless {
                attacker.ask(&words!["LOCK.CLUSTER", "SET", setting, value]);
            }
        }
    }
    attacker.ask(&words!["LOCK.CLUSTER", "SET", "route", "x".repeat(60_000)]);
    attacker.ask(&words!["LOCK.CLUSTER", "SET", "idle-retention-ms", u64::MAX]);
    attacker.ask(&words!["LOCK.CLUSTER", "GET", "max-memory"]);
    attacker.ask(&words!["LOCK.CLUSTER", "GET", "x".repeat(60_000)]);
}

fn members(attacker: &mut Attacker) {
    for id in ["0", "77", "65535", "65536", "18446744073709551615", "-1", "x"] {
        attacker.ask(&words!["LOCK.CLUSTER", "REMOVE", id]);
        attacker.ask(&words!["LOCK.CLUSTER", "TRANSFER", id]);
    }
    attacker.ask(&words!["LOCK.CLUSTER", "ADD", 77, "127.0.0.1:1"]);
    attacker.ask(&words!["LOCK.CLUSTER", "ADD", 77, "x".repeat(60_000)]);
    attacker.ask(&words!["LOCK.CLUSTER", "ADD", 1, "127.0.0.1:1"]);
    attacker.ask(&words!["LOCK.CLUSTER", "TRANSFER", 77]);
    attacker.ask(&words!["LOCK.CLUSTER", "REMOVE", 77]);
}
