//! Where the keys of Redis's own commands are: the router must know them to tell the tiers apart.
//!
//! KeyPositions are asked for only where a route sends plain ones to Tier 2; the names also where there is no Redis at all (to tell a command of
//! Redis from nonsense), and to know what may go by a connection that clients share. A command that is not in the table has no keys
//! we know of.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::LazyLock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyPositions {
    /// No key.
    None,
    /// From `first` to `last` (negative: counted from the end), `step` words apart.
    Range { first: usize, last: isize, step: usize },
    /// `at` holds their count; they follow. `lead`: words before it that are keys too.
    Counted { at: usize, lead: usize },
    /// Behind the word STREAMS: the first half of the rest.
    Streams,
}

const ONE: KeyPositions = KeyPositions::Range { first: 1, last: 1, step: 1 };
const TWO: KeyPositions = KeyPositions::Range { first: 1, last: 2, step: 1 };
const ALL: KeyPositions = KeyPositions::Range { first: 1, last: -1, step: 1 };
const ALL_BUT_LAST: KeyPositions = KeyPositions::Range { first: 1, last: -2, step: 1 };
const PAIRS: KeyPositions = KeyPositions::Range { first: 1, last: -1, step: 2 };
const SECOND: KeyPositions = KeyPositions::Range { first: 2, last: 2, step: 1 };

const TABLE: &[(KeyPositions, &str)] = &[
    (
        ONE,
        "APPEND BITCOUNT BITFIELD BITFIELD_RO BITPOS DECR DECRBY DELEX DUMP EXPIRE EXPIREAT EXPIRETIME GEOADD GEODIST GEOHASH \
         GEOPOS GEORADIUS GEORADIUSBYMEMBER GEORADIUSBYMEMBER_RO GEORADIUS_RO GEOSEARCH GET GETBIT GETDEL GETEX GETRANGE GETSET \
         HDEL HEXISTS HEXPIRE HGET HGETALL HINCRBY HINCRBYFLOAT HKEYS HLEN HMGET HMSET HPERSIST HPEXPIRE HPTTL HRANDFIELD HSCAN \
         HSET HSETNX HSTRLEN HTTL HVALS INCR INCRBY INCRBYFLOAT LINDEX LINSERT LLEN LPOP LPOS LPUSH LPUSHX LRANGE LREM LSET LTRIM \
         MOVE PERSIST PEXPIRE PEXPIREAT PEXPIRETIME PFADD PSETEX PTTL RESTORE RPOP RPUSH RPUSHX SADD SCARD SET SETBIT SETEX SETNX \
         SETRANGE SISMEMBER SMEMBERS SMISMEMBER SORT SORT_RO SPOP SRANDMEMBER SREM SSCAN STRLEN SUBSTR TTL TYPE XACK XADD \
         XAUTOCLAIM XCLAIM XDEL XLEN XPENDING XRANGE XREVRANGE XSETID XTRIM ZADD ZCARD ZCOUNT ZINCRBY ZLEXCOUNT ZMSCORE ZPOPMAX \
         ZPOPMIN ZRANDMEMBER ZRANGE ZRANGEBYLEX ZRANGEBYSCORE ZRANK ZREM ZREMRANGEBYLEX ZREMRANGEBYRANK ZREMRANGEBYSCORE ZREVRANGE \
         ZREVRANGEBYLEX ZREVRANGEBYSCORE ZREVRANK ZSCAN ZSCORE",
    ),
    (TWO, "BLMOVE BRPOPLPUSH COPY GEOSEARCHSTORE LCS LMOVE RENAME RENAMENX RPOPLPUSH SMOVE ZRANGESTORE"),
    (
        ALL,
        "DEL EXISTS MGET PFCOUNT PFMERGE SDIFF SDIFFSTORE SINTER SINTERSTORE SUNION SUNIONSTORE TOUCH UNLINK WATCH",
    ),
    (ALL_BUT_LAST, "BLPOP BRPOP BZPOPMAX BZPOPMIN"),
    (PAIRS, "MSET MSETNX"),
    (SECOND, "OBJECT XGROUP XINFO"),
    (KeyPositions::Range { first: 2, last: -1, step: 1 }, "BITOP"),
    (KeyPositions::Range { first: 3, last: 3, step: 1 }, "MIGRATE"),
    (KeyPositions::Counted { at: 2, lead: 0 }, "EVAL EVALSHA EVAL_RO EVALSHA_RO FCALL FCALL_RO BLMPOP BZMPOP"),
    (KeyPositions::Counted { at: 1, lead: 0 }, "LMPOP SINTERCARD ZDIFF ZINTER ZINTERCARD ZMPOP ZUNION"),
    (KeyPositions::Counted { at: 2, lead: 1 }, "ZDIFFSTORE ZINTERSTORE ZUNIONSTORE"),
    (KeyPositions::Streams, "XREAD XREADGROUP"),
    (
        KeyPositions::None,
        "ACL ASKING BGREWRITEAOF BGSAVE DBSIZE DEBUG DISCARD EXEC FAILOVER FLUSHALL FLUSHDB FUNCTION KEYS LASTSAVE LATENCY LOLWUT \
         MEMORY MODULE MULTI RANDOMKEY READONLY READWRITE REPLICAOF ROLE SAVE SCAN SCRIPT SHUTDOWN SLAVEOF SLOWLOG SPUBLISH SWAPDB \
         UNWATCH WAIT WAITAOF",
    ),
];

/// Commands with keys that may wait, or that leave something behind on their connection. Those without keys are rare, slow or both.
const NEVER_SHARED: &str =
    "BLMOVE BLMPOP BLPOP BRPOP BRPOPLPUSH BZMPOP BZPOPMAX BZPOPMIN MIGRATE WATCH XREAD XREADGROUP";

/// Longer than any name in the table.
const NAME_BYTES_MAX: usize = 24;

/// Asked for every command that passes: a walk over the table would cost more than all the rest of passing it on.
static BY_NAME: LazyLock<FxHashMap<&'static [u8], (KeyPositions, bool)>> = LazyLock::new(|| {
    let is_shared = |keys: KeyPositions, name: &str| {
        keys != KeyPositions::None && NEVER_SHARED.split_ascii_whitespace().all(|never| never != name)
    };
    let names = |(keys, names): &'static (KeyPositions, &'static str)| {
        names.split_ascii_whitespace().map(move |name| (name.as_bytes(), (*keys, is_shared(*keys, name))))
    };
    TABLE.iter().flat_map(names).collect()
});

fn find(name: &[u8]) -> Option<KeyPositions> {
    find_row(name).map(|(keys, _)| keys)
}

/// Whether the command may go by a connection that clients share: it answers at once, and leaves the connection as it was.
#[must_use]
pub fn may_share(name: &[u8]) -> bool {
    find_row(name).is_some_and(|(_, is_shared)| is_shared)
}

/// Where the key of a shared command is, for those who only look at the first word behind the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuickKey {
    /// It is that word, and there is no other.
    First,
    Elsewhere,
}

/// Names of up to eight bytes as one number: found without a walk over their bytes.
static QUICK: LazyLock<FxHashMap<u64, QuickKey>> = LazyLock::new(|| {
    let server = BY_NAME.iter().filter(|(_, (_, is_shared))| *is_shared);
    let row = |(name, (keys, _)): (&&'static [u8], &(KeyPositions, bool))| {
        Some((packed(name)?, if *keys == ONE { QuickKey::First } else { QuickKey::Elsewhere }))
    };
    server.filter_map(row).collect()
});

/// The same question as [`may_share`], and where the key is. `None` may also mean that the name is long.
#[must_use]
pub fn quick(name: &[u8]) -> Option<QuickKey> {
    QUICK.get(&packed(name)?).copied()
}

fn packed(name: &[u8]) -> Option<u64> {
    if name.last() == Some(&0) {
        // It would look like the name without it.
        return None;
    }
    let mut upper = [0; 8];
    upper.get_mut(..name.len())?.copy_from_slice(name);
    upper.make_ascii_uppercase();
    Some(u64::from_le_bytes(upper))
}

fn find_row(name: &[u8]) -> Option<(KeyPositions, bool)> {
    let mut upper = [0; NAME_BYTES_MAX];
    let upper = upper.get_mut(..name.len())?;
    upper.copy_from_slice(name);
    upper.make_ascii_uppercase();
    BY_NAME.get(&*upper).copied()
}

/// Whether Redis has a command of this name (besides those the proxy answers itself).
#[must_use]
pub fn is_redis_command(name: &[u8]) -> bool {
    find(name).is_some()
}

/// The keys among the words. Malformed commands have fewer: whoever runs them will say so.
#[must_use]
pub fn of<'a>(argv: &[&'a [u8]]) -> SmallVec<[&'a [u8]; 8]> {
    match find(argv[0]).unwrap_or(KeyPositions::None) {
        KeyPositions::None => SmallVec::new(),
        KeyPositions::Range { first, last, step } => {
            let end = if last < 0 { argv.len().saturating_add_signed(last) } else { last.unsigned_abs() };
            if (first, end, step) == (1, 1, 1) {
                return argv.iter().skip(1).take(1).copied().collect();
            }
            argv.iter()
                .enumerate()
                .skip(first)
                .take_while(|(at, _)| *at <= end)
                .step_by(step)
                .map(|(_, word)| *word)
                .collect()
        }
        KeyPositions::Counted { at, lead } => {
            let count =
                argv.get(at).and_then(|word| redfence_core::grammar::words::decimal(word)).unwrap_or(0);
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            let leading = argv.iter().skip(1).take(lead);
            leading.chain(argv.iter().skip(at + 1).take(count)).copied().collect()
        }
        KeyPositions::Streams => {
            let streams = argv.iter().position(|word| word.eq_ignore_ascii_case(b"STREAMS"));
            let rest = streams.map_or(&[][..], |at| &argv[at + 1..]);
            rest[..rest.len() / 2].iter().copied().collect()
        }
    }
}

/// Whether the keys of a command are all among its first `seen` words, however many more there are.
#[must_use]
pub fn are_all_seen(name: &[u8], seen: usize) -> bool {
    match find(name) {
        None | Some(KeyPositions::None) => true,
        Some(KeyPositions::Range { last, .. }) => last >= 0 && seen > last.unsigned_abs(),
        Some(KeyPositions::Counted { .. } | KeyPositions::Streams) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(line: &str) -> String {
        let argv: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        of(&argv).iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn finds_keys() {
        for (line, expected) in [
            ("get a", "a"),
            ("SET a b NX", "a"),
            ("DEL a b c", "a b c"),
            ("MSET a 1 b 2", "a b"),
            ("BLPOP a b 5", "a b"),
            ("EVAL script 2 a b c", "a b"),
            ("EVALSHA sha 0 x", ""),
            ("ZUNIONSTORE d 2 a b", "d a b"),
            ("XREAD COUNT 2 STREAMS a b 0 0", "a b"),
            ("RENAME a b", "a b"),
            ("OBJECT ENCODING a", "a"),
            ("MULTI", ""),
            ("GET", ""),
            ("EVAL script 99999999999 a", "a"),
            ("NOSUCH a b", ""),
        ] {
            assert_eq!(keys(line), expected, "{line}");
        }
    }

    #[test]
    fn every_name_of_the_table_is_found_in_any_case() {
        for (keys, names) in TABLE {
            for name in names.split_ascii_whitespace() {
                assert_eq!(find(name.to_ascii_lowercase().as_bytes()), Some(*keys), "{name}");
            }
        }
        assert_eq!(find(&[b'x'; NAME_BYTES_MAX + 1]), None);
    }

    #[test]
    fn only_what_answers_at_once_is_shared() {
        for name in ["GET", "set", "MGET", "EVALSHA", "ZADD", "DEL"] {
            assert!(may_share(name.as_bytes()), "{name}");
        }
        for name in NEVER_SHARED.split_ascii_whitespace() {
            assert!(find(name.as_bytes()).is_some() && !may_share(name.as_bytes()), "{name}");
        }
        for name in ["WAIT", "WAITAOF", "MULTI", "EXEC", "DEBUG", "KEYS", "nosuch"] {
            assert!(!may_share(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn quick_names_are_shared_ones_that_nobody_else_answers() {
        use crate::server::commands::Local;
        let names = TABLE.iter().flat_map(|(_, names)| names.split_ascii_whitespace());
        for name in names.map(str::as_bytes) {
            assert_eq!(quick(name).is_some(), may_share(name) && name.len() <= 8, "{name:?}");
            assert_eq!(
                quick(name) == Some(QuickKey::First),
                quick(name).is_some() && find(name) == Some(ONE)
            );
            if quick(name).is_some() {
                assert!(Local::find(name).is_none() && !redfence_core::grammar::is_ours(name), "{name:?}");
                assert_eq!(quick(&name.to_ascii_lowercase()), quick(name));
            }
        }
        for name in [&b""[..], b"GET\0", b"\0GET", b"NOSUCH", b"GETGETGET", b"LOCK.ACQUIRE"] {
            assert_eq!(quick(name), None, "{name:?}");
        }
    }

    #[test]
    fn knows_when_all_keys_are_seen() {
        assert!(are_all_seen(b"SET", 2));
        assert!(!are_all_seen(b"SET", 1));
        assert!(!are_all_seen(b"MSET", 100));
        assert!(!are_all_seen(b"EVAL", 100));
    }
}
