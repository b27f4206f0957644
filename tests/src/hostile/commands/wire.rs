//! The wire: bytes that are no RESP, lengths that lie, replies that nobody reads, strangers at the peers' port.

use super::{attack, quick, Attack};
use crate::hostile::attacker::Attacker;
use crate::resp::encode;
use crate::rng::Rng;
use crate::words;
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

pub(super) const ATTACKS: &[Attack] = &[
    quick(12, "pipelines_without_reading", without_reading).may_be_cut(),
    quick(12, "large_replies_without_reading", large_without_reading).may_be_cut(),
    attack(4, "lengths_that_lie", lengths).may_be_cut(),
    attack(4, "noise_at_every_door", noise).may_be_cut(),
    attack(4, "subscribers_that_do_not_read", slow_subscribers).may_be_cut(),
    attack(12, "half_commands_that_never_end", half_commands).may_be_cut(),
];

const READS_WITHIN: Duration = Duration::from_millis(200);

fn without_reading(attacker: &mut Attacker) {
    let get = encode(&words!["SET", attacker.name("key"), vec![b'p'; 1_000]]);
    let batch = get.repeat(500);
    for node in 0..attacker.nodes() {
        let Some(mut conn) = attacker.open(node) else { continue };
        for _ in 0..40 {
            if !conn.send_raw(&batch) {
                break;
            }
        }
        attacker.collect_within(&mut conn, READS_WITHIN);
    }
    attacker.tally.silent = 0;
}

fn large_without_reading(attacker: &mut Attacker) {
    let key = attacker.name("value");
    attacker.store_string(&key, 1 << 20);
    let batch = encode(&words!["GET", &key]).repeat(200);
    let mut conns = Vec::new();
    for number in 0..20 {
        let Some(mut conn) = attacker.open(number) else { continue };
        conn.send_raw(&batch);
        conns.push(conn);
    }
    // While they lie there unread, somebody else asks.
    for _ in 0..50 {
        attacker.ask(&words!["LOCK.INFO", &key]);
    }
    for mut conn in conns {
        attacker.collect_within(&mut conn, READS_WITHIN);
    }
    attacker.tally.silent = 0;
}

fn lengths(attacker: &mut Attacker) {
    let lies: [&[u8]; 14] = [
        b"*1000000000\r\n",
        b"*-1\r\n*0\r\n*1\r\n$-1\r\n",
        b"*3\r\n$3\r\nSET\r\n$1000000000\r\n",
        b"*3\r\n$3\r\nSET\r\n$65537\r\n",
        b"*2\r\n*1\r\n$4\r\nPING\r\n$1\r\nx\r\n",
        b"*1\r\n$99999999999999999999\r\n",
        b"*99999999999999999999\r\n",
        b"*2\r\n$4\r\nPING\r\n$1\r\nxyz\r\n",
        b"$5\r\nhello\r\n+OK\r\n:1\r\n-ERR\r\n",
        b"*1\r\n$4\r\nPI\0G\r\n",
        b"*1025\r\n$4\r\nMGET\r\n",
        b"\r\n\r\n\r\n PING \r\n",
        b"GET \"unbalanced\r\n",
        b"%1\r\n$1\r\na\r\n$1\r\nb\r\n",
    ];
    for lie in lies {
        for node in 0..attacker.nodes() {
            let Some(mut conn) = attacker.open(node) else { continue };
            conn.send_raw(lie);
            attacker.collect_within(&mut conn, READS_WITHIN / 4);
        }
    }
    let Some(mut conn) = attacker.open(0) else { return };
    for _ in 0..200 {
        if !conn.send_raw(&vec![b'x'; 10_000]) {
            break;
        }
    }
    attacker.collect_within(&mut conn, READS_WITHIN);
    attacker.tally.silent = 0;
}

/// Random bytes at the clients' ports and the peers'.
fn noise(attacker: &mut Attacker) {
    let mut rng = Rng::new(11);
    let ports = attacker.peers.clone();
    for round in 0..60u64 {
        let mut bytes: Vec<u8> = (0..rng.between(1, 4_000)).map(|_| rng.draw() as u8).collect();
        match round % 4 {
            0 => bytes.splice(0..0, *b"*3\r\n$12\r\nLOCK.ACQUIRE\r\n").for_each(drop),
            1 => bytes.splice(0..0, *b"\x40\0\0\0\x01\0\0RFPEER\r\n\x01\0").for_each(drop),
            2 => bytes.splice(0..0, *b"\xff\xff\xff\xff").for_each(drop),
            _ => {}
        }
        for node in 0..attacker.nodes() {
            if let Some(mut conn) = attacker.open(node) {
                conn.send_raw(&bytes);
            }
        }
        for port in &ports {
            if let Ok(mut stream) = TcpStream::connect_timeout(port, READS_WITHIN) {
                // It may be thrown out at the first byte.
                let _ = stream.write_all(&bytes);
            }
        }
    }
    attacker.ask(&words!["PING"]);
}

fn slow_subscribers(attacker: &mut Attacker) {
    let mut conns = Vec::new();
    for node in 0..30 {
        let Some(mut conn) = attacker.open(node) else { continue };
        conn.send(&words!["SUBSCRIBE", "hostile"]);
        conn.send(&words!["PSUBSCRIBE", "__lock__:*"]);
        conns.push(conn);
    }
    for _ in 0..300 {
        attacker.ask(&words!["PUBLISH", "hostile", vec![b'p'; 60_000]]);
    }
}

fn half_commands(attacker: &mut Attacker) {
    let mut half = b"*1024\r\n$4\r\nMGET\r\n".to_vec();
    for _ in 0..28 {
        half.extend_from_slice(b"$65536\r\n");
        half.extend_from_slice(&vec![b'h'; 65_536]);
        half.extend_from_slice(b"\r\n");
    }
    let mut conns = Vec::new();
    for node in 0..60 {
        let Some(mut conn) = attacker.open(node) else { continue };
        conn.send_raw(&half);
        conns.push(conn);
    }
    for _ in 0..20 {
        attacker.ask(&words!["PING"]);
    }
}
