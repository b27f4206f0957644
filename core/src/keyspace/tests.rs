//! Each family against what Redis 7.0.15 answers. The random comparison with a real server is `core/tests/differential`.

use super::*;
use crate::reply::Sink;

/// Replies as text: `:1`, `$word`, `+OK`, `-ERR …`, `nil`, `nil*`, `,1.5`, `[a b]`, `%[k v]`, `~[m]`.
#[derive(Default)]
struct Shown {
    text: Vec<String>,
}

impl Sink for Shown {
    fn nil(&mut self) {
        self.text.push("nil".into());
    }
    fn nil_array(&mut self) {
        self.text.push("nil*".into());
    }
    fn int(&mut self, value: i64) {
        self.text.push(format!(":{value}"));
    }
    fn double(&mut self, value: f64) {
        self.text.push(format!(",{}", numbers::format_g(value, 17)));
    }
    fn boolean(&mut self, value: bool) {
        self.text.push(format!("#{value}"));
    }
    fn bulk(&mut self, value: &[u8]) {
        self.text.push(format!("${}", String::from_utf8_lossy(value)));
    }
    fn status(&mut self, value: &str) {
        self.text.push(format!("+{value}"));
    }
    fn error(&mut self, line: &str) {
        self.text.push(format!("-{line}"));
    }
    fn verbatim(&mut self, value: &[u8]) {
        self.text.push(format!("={}", String::from_utf8_lossy(value)));
    }
    fn array(&mut self, len: usize) {
        self.text.push(format!("*{len}"));
    }
    fn map(&mut self, pairs: usize) {
        self.text.push(format!("%{pairs}"));
    }
    fn set(&mut self, len: usize) {
        self.text.push(format!("~{len}"));
    }
}

pub(crate) fn shown(reply: &Reply) -> String {
    let mut shown = Shown::default();
    reply.render(&mut shown);
    shown.text.join(" ")
}

fn run(keys: &mut MemoryKeys, resp: Resp, line: &str) -> String {
    let argv: Vec<&[u8]> =
        line.split(' ').map(|word| if word == "''" { "" } else { word }.as_bytes()).collect();
    let mut cx = Context::new(keys, 0, resp);
    shown(&execute(&mut cx, &argv))
}

/// Lines of `command => reply`, on one keyspace from empty.
fn check(script: &str) {
    let mut keys = MemoryKeys::default();
    keys.now = Clock { logical_ms: 5_000, wall_us: 1_700_000_000_000_000 };
    for line in script.lines().map(str::trim_start).filter(|line| !line.is_empty()) {
        let (command, expected) = line.split_once(" => ").expect("a line is `command => reply`");
        if let Some(ms) = command.strip_prefix("WAIT ") {
            let ms: u64 = ms.parse().expect("milliseconds");
            keys.now.logical_ms += ms;
            keys.now.wall_us += ms * 1000;
            continue;
        }
        let (resp, command) = match command.strip_prefix("3> ") {
            Some(rest) => (Resp::Three, rest),
            None => (Resp::Two, command),
        };
        assert_eq!(run(&mut keys, resp, command), expected, "{command}");
    }
}

#[test]
fn set_and_its_options() {
    check(
        "SET k a NX PX 100 => +OK
         SET k b NX PX 100 => nil
         SET k b nx get => $a
         PTTL k => :100
         SET k a XX KEEPTTL => +OK
         PTTL k => :100
         SET k c IFEQ b => nil
         SET k c IFEQ a PX 500 => +OK
         SET n c IFEQ a => nil
         SET n c IFNE a => +OK
         SET n d IFNE c => nil
         GET k => $c
         SET k c EX 1 PX 1 => -ERR syntax error
         SET k c NX XX => -ERR syntax error
         SET k c EX => -ERR syntax error
         SET k c EX 0 => -ERR invalid expire time in 'set' command
         SET k c EX x => -ERR value is not an integer or out of range
         SET k c EX 9223372036854775807 => -ERR invalid expire time in 'set' command
         SET k c PX 9223372036854775807 => -ERR invalid expire time in 'set' command
         SET k c KEEPTTL EX 1 => -ERR syntax error
         SET k => -ERR wrong number of arguments for 'set' command
         SET k v PXAT 1700000000250 => +OK
         PTTL k => :250
         PEXPIRETIME k => :1700000000250
         SET k v PXAT 1 => +OK
         GET k => nil
         SETNX k a => :1
         SETNX k b => :0
         TTL k => :-1
         SETEX k 10 v => +OK
         TTL k => :10
         PSETEX k 0 v => -ERR invalid expire time in 'psetex' command
         GETEX k PERSIST => $v
         TTL k => :-1
         GETEX k PX 40 => $v
         WAIT 41 => now
         GET k => nil
         GETDEL k => nil",
    );
}

#[test]
fn conditional_deletes() {
    check(
        "SET k a => +OK
         DELEX k IFEQ b => :0
         DELEX k IFNE a => :0
         DELEX k IFEQ a => :1
         DELEX k => :0
         DELEX k IFEQ => -ERR wrong number of arguments for 'delex' command
         SET k a => +OK
         DELIFEQ k b => :0
         DELIFEQ k a => :1
         HSET h f v => :1
         DELEX h IFEQ v => -WRONGTYPE Operation against a key holding the wrong kind of value
         DELEX h => :1",
    );
}

#[test]
fn strings_and_numbers() {
    check(
        "INCR c => :1
         INCRBY c 41 => :42
         DECRBY c -9223372036854775808 => -ERR decrement would overflow
         INCRBY c 9223372036854775807 => -ERR increment or decrement would overflow
         APPEND c x => :3
         INCR c => -ERR value is not an integer or out of range
         GETRANGE c 0 -2 => $42
         GETRANGE c -100 -50 => $4
         SETRANGE c 4 yz => :6
         STRLEN c => :6
         SETRANGE c -1 a => -ERR offset is out of range
         SETRANGE c 99999999999 a => -ERR string exceeds maximum allowed size (proto-max-bulk-len)
         INCRBYFLOAT f 0.1 => $0.1
         INCRBYFLOAT f 0.2 => $0.3
         INCRBYFLOAT f abc => -ERR value is not a valid float
         MSET a 1 b 2 => +OK
         MSETNX b 1 z 1 => :0
         MGET a b z => *3 $1 $2 nil
         MSET a => -ERR wrong number of arguments for 'mset' command
         MSET a 1 b => -ERR wrong number of arguments for 'mset' command
         NOSUCH a b => -ERR unknown command 'NOSUCH', with args beginning with: 'a' 'b' ",
    );
}

#[test]
fn keys_and_times() {
    check(
        "SET k v => +OK
         EXPIRE k 10 GT => :0
         EXPIRE k 10 LT => :1
         EXPIRE k 20 NX => :0
         EXPIRE k 20 GT => :1
         TTL k => :20
         EXPIRE k 5 GT LT => -ERR GT and LT options at the same time are not compatible
         EXPIRE k 5 ZZ => -ERR Unsupported option ZZ
         PERSIST k => :1
         PERSIST k => :0
         PEXPIRE k -1 => :1
         EXISTS k k => :0
         TTL k => :-2
         SET a 1 PX 1500 => +OK
         TTL a => :2
         WAIT 1500 => now
         EXISTS a => :1
         PTTL a => :0
         WAIT 1 => now
         EXISTS a => :0
         RENAME a b => -ERR no such key
         SET a 1 PX 50 => +OK
         SET b 2 => +OK
         RENAMENX a b => :0
         RENAME a b => +OK
         PTTL b => :50
         TYPE b => +string
         TYPE a => +none
         COPY b b => -ERR source and destination objects are the same
         COPY b d => :1
         PTTL d => :50
         DBSIZE => :2
         UNLINK b d x => :2
         TIME => *2 $1700000001 $501000
         FLUSHALL NOW => -ERR syntax error
         FLUSHALL => +OK",
    );
}

#[test]
fn hashes() {
    check(
        "HSET h a 1 b 2 => :2
         HSET h a 3 c 4 => :1
         HGETALL h => %3 $a $3 $b $2 $c $4
         HINCRBY h a 5 => :8
         HINCRBY h n 1 => :1
         HSET h s x => :1
         HINCRBY h s 1 => -ERR hash value is not an integer
         HINCRBYFLOAT h s 1 => -ERR hash value is not a float
         HINCRBYFLOAT h a 0.5 => $8.5
         HSETNX h a 1 => :0
         HMGET h a z => *2 $8.5 nil
         HDEL h a b c n => :4
         HEXISTS h s => :1
         HSET h s => -ERR wrong number of arguments for 'hset' command
         GET h => -WRONGTYPE Operation against a key holding the wrong kind of value
         HDEL h s => :1
         EXISTS h => :0",
    );
}

#[test]
fn lists() {
    check(
        "RPUSH l a b c => :3
         LPUSH l z => :4
         LRANGE l 0 -1 => *4 $z $a $b $c
         LINDEX l -1 => $c
         LPOP l 2 => *2 $z $a
         LPOP l 0 => *0
         LPOP l -1 => -ERR value is out of range, must be positive
         LPOP x => nil
         LPOP x 1 => nil*
         LPUSHX x a => :0
         LINSERT l BEFORE c b2 => :3
         LINSERT l AFTER q b2 => :-1
         LSET l 0 B => +OK
         LSET l 9 B => -ERR index out of range
         LSET x 0 B => -ERR no such key
         RPUSH l B => :4
         LPOS l B RANK -1 => :3
         LPOS l B COUNT 0 => *2 :0 :3
         LREM l -1 B => :1
         LRANGE l 0 -1 => *3 $B $b2 $c
         RPOPLPUSH l m => $c
         LMOVE m l LEFT RIGHT => $c
         EXISTS m => :0
         LTRIM l 1 1 => +OK
         LRANGE l 0 -1 => *1 $b2
         LTRIM l 5 9 => +OK
         EXISTS l => :0
         BLPOP l -1 => -ERR timeout is negative
         BLPOP l x => -ERR timeout is not a float or out of range
         BLPOP l 0 => nil*
         BRPOPLPUSH l m 0 => nil
         RPUSH l a => :1
         BLPOP x l 0 => *2 $l $a
         LMPOP 1 l LEFT => nil*
         LMPOP 0 l LEFT => -ERR numkeys should be greater than 0",
    );
}

#[test]
fn waiting_is_told_apart() {
    let mut keys = MemoryKeys::default();
    let mut cx = Context::new(&mut keys, 0, Resp::Two);
    let reply = execute(&mut cx, &[b"BLPOP", b"a", b"b", b"0.5"]);
    assert_eq!(reply, Reply::NilArray);
    let block = cx.would_block.take().expect("nothing to pop");
    assert_eq!((block.keys, block.timeout_ms), (vec!["a".into(), "b".into()], Some(500)));
    execute(&mut cx, &[b"RPUSH", b"b", b"x"]);
    execute(&mut cx, &[b"BLPOP", b"a", b"b", b"0.5"]);
    assert_eq!(cx.would_block, None);
}

#[test]
fn sorted_sets() {
    check(
        "ZADD z 1 a 2 b 3 c => :3
         ZADD z XX CH 5 a 9 q => :1
         ZADD z NX 0 a 4 d => :1
         ZADD z GT 4 a => :0
         ZADD z INCR 2.5 a => ,7.5
         ZADD z LT INCR 1 a => nil
         ZADD z NX XX 1 a => -ERR XX and NX options at the same time are not compatible
         ZADD z INCR 1 a 2 b => -ERR INCR option supports a single increment-element pair
         ZADD z x a => -ERR value is not a valid float
         ZADD z 1 => -ERR wrong number of arguments for 'zadd' command
         ZRANGE z 0 -1 WITHSCORES => *8 $b ,2 $c ,3 $d ,4 $a ,7.5
         3> ZRANGE z 0 0 WITHSCORES => *1 *2 $b ,2
         ZREVRANGE z 0 1 => *2 $a $d
         ZRANGE z (2 4 BYSCORE => *2 $c $d
         ZRANGE z 4 (2 BYSCORE REV LIMIT 1 5 => *1 $c
         ZRANGE z 0 1 LIMIT 0 1 => -ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX
         ZRANGEBYSCORE z -inf +inf LIMIT 1 1 => *1 $c
         ZREVRANGEBYSCORE z +inf (4 => *1 $a
         ZCOUNT z (2 inf => :3
         ZCOUNT z x y => -ERR min or max is not a float
         ZRANK z a => :3
         ZREVRANK z a => :0
         ZRANK z q => nil
         ZMSCORE z a q => *2 ,7.5 nil
         ZINCRBY z 1 new => ,1
         ZPOPMIN z => *2 $new ,1
         3> ZPOPMIN z 1 => *1 *2 $b ,2
         ZREMRANGEBYSCORE z 3 4 => :2
         ZREM z a a => :1
         EXISTS z => :0
         ZADD l 0 a 0 b 0 c => :3
         ZRANGEBYLEX l [a (c => *2 $a $b
         ZRANGE l + - BYLEX REV => *3 $c $b $a
         ZRANGEBYLEX l a c => -ERR min or max not valid string range item
         ZRANGESTORE d l 0 1 => :2
         ZREMRANGEBYRANK l 0 -2 => :2
         BZPOPMIN x l 0 => *3 $l $c ,0",
    );
}

#[test]
fn sets() {
    check(
        "SADD s b a b => :2
         SMISMEMBER s a z => *2 :1 :0
         SMEMBERS s => ~2 $b $a
         SRANDMEMBER s -3 => *3 $b $a $b
         SPOP s => $b
         SMOVE s t a => :1
         SCARD s => :0
         SADD u a c => :2
         SUNION t u => ~2 $a $c
         SINTERSTORE d t u => :1
         SDIFF u t => ~1 $c
         SDIFFSTORE d t u => :0
         EXISTS d => :0
         SREM u a c => :2
         EXISTS u => :0",
    );
}

#[test]
fn walks() {
    check(
        "SCAN 0 => *2 $0 *0
         SCAN x => -ERR invalid cursor
         SCAN 0 COUNT 0 => -ERR syntax error
         SET one 1 => +OK
         SCAN 0 MATCH o* TYPE string => *2 $0 *1 $one
         SCAN 0 TYPE list => *2 $0 *0
         RANDOMKEY => $one
         KEYS *n* => *1 $one
         HSET h f v => :1
         HSCAN h 0 => *2 $0 *2 $f $v
         ZADD z 1.5 m => :1
         ZSCAN z 0 => *2 $0 *2 $m $1.5",
    );
}

#[test]
fn a_scan_sees_every_key_that_stays() {
    let mut keys = MemoryKeys::default();
    for number in 0..500 {
        run(&mut keys, Resp::Two, &format!("SET key{number} v"));
    }
    let mut seen = std::collections::BTreeSet::new();
    let mut cursor = 0;
    loop {
        cursor = keys.scan(0, cursor, 7, &mut |key, _| {
            seen.insert(key.to_vec());
        });
        // Odd ones go while the walk is on.
        let gone = seen.len() % 500;
        run(&mut keys, Resp::Two, &format!("DEL key{}", gone | 1));
        if cursor == 0 {
            break;
        }
    }
    for number in (0..500).step_by(2) {
        assert!(seen.contains(format!("key{number}").as_bytes()));
    }
}
