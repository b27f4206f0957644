//! Random commands from templates. A placeholder in braces stands for zero or more words.

/// xorshift64*: the seed is all there is to know about a run.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % sides
    }

    pub(crate) fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.roll(from.len())]
    }
}

/// Families repeat so that keys fill up before they are emptied.
pub(crate) const TEMPLATES: &[&str] = &[
    "SET {s} {v} {set}",
    "SET {s} {v} {set} {set}",
    "SET {s} {v}",
    "SET {k} {v} NX PX 900000",
    "SETNX {s} {v}",
    "SETEX {s} {t} {v}",
    "PSETEX {s} {t} {v}",
    "GET {s}",
    "GET {k}",
    "GETSET {s} {v}",
    "GETDEL {s}",
    "GETEX {s} {getex}",
    "MGET {s} {k} {s}",
    "MSET {s} {v} {s} {v}",
    "MSETNX {s} {v} {s} {v}",
    "MSET {s} {v} {s}",
    "APPEND {s} {v}",
    "STRLEN {s}",
    "GETRANGE {s} {i} {i}",
    "SUBSTR {s} {i} {i}",
    "SETRANGE {s} {i} {v}",
    "INCR {s}",
    "DECR {s}",
    "INCRBY {s} {n}",
    "DECRBY {s} {n}",
    "INCRBYFLOAT {fl} {dec}",
    "SET {fl} {dec}",
    "INCRBYFLOAT {h} 1",
    "DEL {k}",
    "DEL {s} {k}",
    "UNLINK {k} {k}",
    "EXISTS {k} {k} {k}",
    "TOUCH {k} {k}",
    "TYPE {k}",
    "TTL {k}",
    "PTTL {k}",
    "EXPIRETIME {k}",
    "PEXPIRETIME {k}",
    "EXPIRE {k} {t} {cond}",
    "PEXPIRE {k} {t} {cond}",
    "EXPIREAT {k} {at} {cond}",
    "PEXPIREAT {k} {pat} {cond}",
    "EXPIRE {k} {t} {cond} {cond}",
    "PERSIST {k}",
    "RENAME {k} {k}",
    "RENAMENX {k} {k}",
    "COPY {k} {k} {copy}",
    "KEYS *",
    "KEYS {glob}",
    "SCAN 0 COUNT 1000",
    "SCAN 0 MATCH {glob} COUNT 1000",
    "SCAN 0 COUNT 1000 TYPE {type}",
    "SCAN x COUNT {i}",
    "SCAN 0 COUNT x",
    "HSET {h} {f} {v}",
    "HSET {h} {f} {v} {f} {v}",
    "HSET {h} {f} {v} {f} {v} {f} {n}",
    "HMSET {h} {f} {v} {f}",
    "HMSET {h} {f} {v}",
    "HSETNX {h} {f} {v}",
    "HGET {h} {f}",
    "HMGET {h} {f} {f}",
    "HDEL {h} {f}",
    "HDEL {h} {f} {f}",
    "HEXISTS {h} {f}",
    "HLEN {h}",
    "HSTRLEN {h} {f}",
    "HKEYS {h}",
    "HVALS {h}",
    "HGETALL {h}",
    "HGETALL {k}",
    "HINCRBY {h} {f} {n}",
    "HINCRBYFLOAT {fh} {f} {dec}",
    "HSCAN {h} 0 MATCH {glob}",
    "HSCAN {h} {i}",
    "LPUSH {l} {v} {v}",
    "RPUSH {l} {v} {v} {v}",
    "LPUSH {l} {m}",
    "RPUSH {l} {m} {m}",
    "LPUSHX {l} {v}",
    "RPUSHX {l} {v}",
    "LPOP {l} {popn}",
    "RPOP {l} {popn}",
    "LPOP {k}",
    "LLEN {l}",
    "LINDEX {l} {i}",
    "LRANGE {l} {i} {i}",
    "LRANGE {l} 0 -1",
    "LREM {l} {i} {m}",
    "LSET {l} {i} {v}",
    "LTRIM {l} {i} {i}",
    "LINSERT {l} {where} {m} {v}",
    "LPOS {l} {m} {lpos}",
    "LPOS {l} {m} {lpos} {lpos}",
    "RPOPLPUSH {l} {l}",
    "RPOPLPUSH {l} {k}",
    "LMOVE {l} {l} {side} {side}",
    "LMPOP {i} {l} {l} {side}",
    "LMPOP 2 {l} {l} {side} COUNT {i}",
    "BLPOP {l} {l} 0.001",
    "BRPOP {l} {dec}x",
    "BLMOVE {l} {l} {side} {side} 0.001",
    "BRPOPLPUSH {l} {l} 0.001",
    "ZADD {z} {d} {m}",
    "ZADD {z} {d} {m} {d} {m} {d} {m}",
    "ZADD {z} {zadd} {d} {m}",
    "ZADD {z} {zadd} {zadd} {d} {m}",
    "ZADD {z} {zadd} {zadd} {d} {m} {d} {m}",
    "ZINCRBY {z} {d} {m}",
    "ZREM {z} {m}",
    "ZREM {z} {m} {m}",
    "ZSCORE {z} {m}",
    "ZMSCORE {z} {m} {m}",
    "ZCARD {z}",
    "ZCOUNT {z} {b} {b}",
    "ZLEXCOUNT {z} {lex} {lex}",
    "ZRANK {z} {m}",
    "ZREVRANK {z} {m}",
    "ZRANGE {z} {i} {i}",
    "ZRANGE {z} {i} {i} {zr}",
    "ZRANGE {z} {b} {b} BYSCORE {zr}",
    "ZRANGE {z} {b} {b} BYSCORE {zr} {zr}",
    "ZRANGE {z} {lex} {lex} BYLEX {zr}",
    "ZRANGE {z} 0 -1 WITHSCORES",
    "ZREVRANGE {z} {i} {i} {ws}",
    "ZRANGEBYSCORE {z} {b} {b} {ws} {lim}",
    "ZREVRANGEBYSCORE {z} {b} {b} {lim} {ws}",
    "ZRANGEBYLEX {z} {lex} {lex} {lim}",
    "ZREVRANGEBYLEX {z} {lex} {lex}",
    "ZRANGESTORE {z} {z} {i} {i}",
    "ZRANGESTORE {z} {z} {b} {b} BYSCORE",
    "ZREMRANGEBYSCORE {z} {b} {b}",
    "ZREMRANGEBYRANK {z} {i} {i}",
    "ZREMRANGEBYLEX {z} {lex} {lex}",
    "ZPOPMIN {z} {popn}",
    "ZPOPMAX {z} {popn}",
    "BZPOPMIN {z} {z} 0.001",
    "ZMPOP {i} {z} {z} {minmax}",
    "ZMPOP 2 {z} {z} {minmax} COUNT {i}",
    "BZMPOP 0.001 1 {z} {minmax}",
    "ZSCAN {z} 0",
    "SADD {t_} {m} {m} {m}",
    "SREM {t_} {m} {m}",
    "SISMEMBER {t_} {m}",
    "SMISMEMBER {t_} {m} {m}",
    "SMEMBERS {t_}",
    "SCARD {t_}",
    "SPOP nokey {popn}",
    "SRANDMEMBER nokey {popn}",
    "SMOVE {t_} {t_} {m}",
    "SUNION {t_} {t_}",
    "SINTER {t_} {t_}",
    "SDIFF {t_} {k}",
    "SUNIONSTORE {t_} {t_} {t_}",
    "SINTERSTORE {t_} {t_} {t_}",
    "SDIFFSTORE {t_} {t_} {t_}",
    "SSCAN {t_} 0",
    "PUBLISH {v} {v}",
    "ECHO {v}",
    "NOSUCH {v} {v}",
    "GET",
    "SET {s}",
    "HSET {h} {f}",
    "ZADD {z} {d}",
];

/// One command, as words.
pub(crate) fn command(dice: &mut Dice, now_ms: u64) -> Vec<Vec<u8>> {
    let template = dice.pick(TEMPLATES);
    fill(dice, template, now_ms)
}

pub(crate) fn fill(dice: &mut Dice, template: &str, now_ms: u64) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    for word in template.split(' ') {
        match word.strip_prefix('{').and_then(|word| word.split_once('}')) {
            None => words.push(word.as_bytes().to_vec()),
            Some((name, suffix)) => {
                for mut value in placeholder(dice, name, now_ms) {
                    value.extend_from_slice(suffix.as_bytes());
                    words.push(value);
                }
            }
        }
    }
    words
}

/// A name that commands use.
pub(crate) fn key(dice: &mut Dice) -> Vec<u8> {
    format!("{}{}", dice.pick(&["s", "h", "l", "z", "t"]), dice.roll(3)).into_bytes()
}

fn placeholder(dice: &mut Dice, name: &str, now_ms: u64) -> Vec<Vec<u8>> {
    let split = |text: &str| {
        text.split(' ').filter(|word| !word.is_empty()).map(|word| word.as_bytes().to_vec()).collect()
    };
    match name {
        // Mostly a key of the right type, now and then another.
        "s" | "h" | "l" | "z" | "t_" => {
            let family = if dice.roll(20) == 0 { dice.pick(&["s", "h", "l", "z", "t"]) } else { &name[..1] };
            vec![format!("{family}{}", dice.roll(3)).into_bytes()]
        }
        "k" => vec![key(dice)],
        // Apart, because Redis adds 80-bit floats: only numbers that both hold exactly come here.
        "fl" => vec![format!("float{}", dice.roll(2)).into_bytes()],
        "fh" => vec![format!("floats{}", dice.roll(2)).into_bytes()],
        "v" => vec![value(dice)],
        "f" => vec![dice.pick(&["f1", "f2", "f3", "f4", "", "n1", "n2"]).as_bytes().to_vec()],
        "m" => vec![dice.pick(&["a", "b", "c", "d", "e", "", "aa", "10", "9"]).as_bytes().to_vec()],
        "n" => split(dice.pick(&[
            "1",
            "-1",
            "10",
            "5",
            "0",
            "9223372036854775807",
            "-9223372036854775808",
            "x",
            "1.5",
            "01",
            "+3",
        ])),
        "i" => split(dice.pick(&[
            "0",
            "1",
            "2",
            "3",
            "-1",
            "-2",
            "-3",
            "100",
            "-100",
            "4",
            "x",
            "9223372036854775807",
        ])),
        "d" => split(dice.pick(&[
            "1",
            "2",
            "3",
            "1.5",
            "-1",
            "0",
            "inf",
            "-inf",
            "1e3",
            "3.14159",
            "0.1",
            "nan",
            "x",
            "1700000000123",
            "-0",
        ])),
        "dec" => split(dice.pick(&["1", "0.5", "-1.25", "3.0e3", "0.0625", "10", "x", "1e2", ""])),
        "b" => {
            split(dice.pick(&["1", "(1", "2", "(2", "-inf", "+inf", "inf", "0", "3.5", "(3", "x", "1000"]))
        }
        "lex" => split(dice.pick(&["-", "+", "[a", "(a", "[b", "(c", "[", "(", "x", "[aa"])),
        // Seconds or milliseconds: as either long enough that nothing ends during a run, or over at once. Hardly ever the same twice: with
        // `GT` the answer would depend on whether a millisecond has passed, here and at the Redis, which has a clock of its own.
        "t" => match dice.roll(8) {
            rolled @ 0..=2 => {
                let ttl = [1_000_000, 5_000_000, 2_000_000][rolled] + 7 * dice.roll(100_000);
                vec![ttl.to_string().into_bytes()]
            }
            rolled => split(["-1", "0", "x", "9223372036854775807", "9223372036854775"][rolled - 3]),
        },
        "at" => vec![(now_ms / 1000 + [2000, 9000, 100_000][dice.roll(3)]).to_string().into_bytes()],
        "pat" => match dice.roll(6) {
            0 => split("1"),
            1 => split("-5"),
            _ => vec![(now_ms + [2_000_000, 9_000_000][dice.roll(2)]).to_string().into_bytes()],
        },
        "set" => {
            let at = (now_ms + 3_000_000).to_string();
            let options = [
                "NX",
                "XX",
                "GET",
                "KEEPTTL",
                "EX 5000",
                "PX 4000000",
                "nx",
                "get",
                "EX",
                "PX x",
                "EX -1",
                "PXAT 1",
                "BAD",
                "",
                &format!("PXAT {at}"),
                &format!("EXAT {}", &at[..at.len() - 3]),
                "EX 9223372036854775807",
            ];
            split(options[dice.roll(options.len())])
        }
        "getex" => split(dice.pick(&[
            "",
            "PERSIST",
            "EX 5000",
            "PX 4000000",
            "PXAT 1",
            "EX 0",
            "NX",
            "EX 10 PERSIST",
        ])),
        "cond" => split(dice.pick(&["", "", "NX", "XX", "GT", "LT", "gt", "BAD"])),
        "copy" => split(dice.pick(&["", "REPLACE", "DB 0", "DB 1", "DB 1 REPLACE", "DB 99", "BAD"])),
        "glob" => split(dice.pick(&["s*", "*1", "?2", "[hl]*", "[^s]?", "f*", "\\*", "x"])),
        "type" => split(dice.pick(&["string", "hash", "list", "zset", "set", "bad"])),
        "popn" => split(dice.pick(&["", "", "1", "2", "0", "-1", "x", "1 2"])),
        "where" => split(dice.pick(&["BEFORE", "AFTER", "before", "ON"])),
        "lpos" => split(dice.pick(&[
            "",
            "RANK 1",
            "RANK 2",
            "RANK -1",
            "RANK 0",
            "COUNT 0",
            "COUNT 2",
            "COUNT -1",
            "MAXLEN 2",
            "MAXLEN -1",
            "COUNT x",
            "RANK",
        ])),
        "side" => split(dice.pick(&["LEFT", "RIGHT", "left", "UP"])),
        "minmax" => split(dice.pick(&["MIN", "MAX", "min", "LOW"])),
        "zadd" => split(dice.pick(&["NX", "XX", "GT", "LT", "CH", "INCR", "nx"])),
        "zr" => split(dice.pick(&[
            "",
            "REV",
            "WITHSCORES",
            "LIMIT 1 2",
            "LIMIT 0 -1",
            "LIMIT -1 1",
            "LIMIT 0",
            "BYSCORE",
            "BAD",
        ])),
        "ws" => split(dice.pick(&["", "WITHSCORES", "withscores", "BAD"])),
        "lim" => split(dice.pick(&["", "LIMIT 0 2", "LIMIT 1 -1", "LIMIT 5 1", "LIMIT x 1"])),
        other => panic!("no such placeholder: {other}"),
    }
}

fn value(dice: &mut Dice) -> Vec<u8> {
    match dice.roll(8) {
        0 => b"10".to_vec(),
        1 => b"-3".to_vec(),
        2 => b"3.5".to_vec(),
        3 => Vec::new(),
        4 => vec![0, 255, b'\r', b'\n', b'"', dice.roll(256) as u8],
        5 => b"a".to_vec(),
        _ => format!("v{}", dice.roll(50)).into_bytes(),
    }
}
