//! The command table: name, arity, flags, where the keys are, and what runs it.
//!
//! The router asks it for a command's keys (tier, `CROSSTIER`, `WATCH`), `COMMAND INFO` for its face, scripts for what they
//! may call.

use super::context::{CommandResult, Context};
use super::key_spec::{KeySpec, ALL, BUT_LAST, ONE, PAIRS, SECOND, TWO};
use super::{
    counters, expire, generic, hashes, lists, lists_moving, object, scan, server, sets, strings, zset_ranges,
    zsets,
};
use smallvec::SmallVec;

pub type Handler = fn(&mut Context<'_>, &[&[u8]]) -> CommandResult;

/// Who runs a command.
#[derive(Clone, Copy)]
pub enum Run {
    /// The keyspace.
    Here(Handler),
    /// The script engine or the client's session: this table only knows its face.
    Elsewhere,
}

/// Flags of a row.
pub const W: u16 = 1;
pub const R: u16 = 2;
pub const FAST: u16 = 4;
/// Refused when memory is short.
pub const OOM: u16 = 8;
pub const BLOCK: u16 = 16;
pub const NOSCRIPT: u16 = 32;
pub const DANGER: u16 = 64;
pub const PUBSUB: u16 = 128;
/// Runs a script, or manages scripts.
pub const SCRIPT: u16 = 256;

/// One command. Arity as in Redis: the name counts, negative means "at least".
#[derive(Clone, Copy)]
pub struct Row {
    /// Lower case, as Redis shows it.
    pub name: &'static str,
    pub arity: i32,
    pub flags: u16,
    pub keys: KeySpec,
    pub run: Run,
}

const fn row(name: &'static str, arity: i32, flags: u16, keys: KeySpec, run: Run) -> Row {
    Row { name, arity, flags, keys, run }
}

/// Every command, by name.
#[rustfmt::skip]
pub const ROWS: &[Row] = &[
    row("append", 3, W | OOM | FAST, ONE, Run::Here(strings::append)),
    row("auth", -2, NOSCRIPT | FAST, KeySpec::None, Run::Elsewhere),
    row("blmove", 6, W | OOM | BLOCK | NOSCRIPT, TWO, Run::Here(lists_moving::blmove)),
    row("blmpop", -5, W | BLOCK, KeySpec::Counted { count_at: 2 }, Run::Here(lists_moving::blmpop)),
    row("blpop", -3, W | BLOCK | NOSCRIPT, BUT_LAST, Run::Here(lists_moving::blpop)),
    row("brpop", -3, W | BLOCK | NOSCRIPT, BUT_LAST, Run::Here(lists_moving::brpop)),
    row("brpoplpush", 4, W | OOM | BLOCK | NOSCRIPT, TWO, Run::Here(lists_moving::brpoplpush)),
    row("bzmpop", -5, W | BLOCK, KeySpec::Counted { count_at: 2 }, Run::Here(zsets::bzmpop)),
    row("bzpopmax", -3, W | FAST | BLOCK | NOSCRIPT, BUT_LAST, Run::Here(zsets::bzpopmax)),
    row("bzpopmin", -3, W | FAST | BLOCK | NOSCRIPT, BUT_LAST, Run::Here(zsets::bzpopmin)),
    row("client", -2, NOSCRIPT, KeySpec::None, Run::Elsewhere),
    row("copy", -3, W | OOM, TWO, Run::Here(generic::copy)),
    row("dbsize", 1, R | FAST, KeySpec::None, Run::Here(generic::dbsize)),
    row("decr", 2, W | OOM | FAST, ONE, Run::Here(counters::decr)),
    row("decrby", 3, W | OOM | FAST, ONE, Run::Here(counters::decrby)),
    row("del", -2, W, ALL, Run::Here(generic::del)),
    row("delex", -2, W | FAST, ONE, Run::Here(strings::delex)),
    row("delifeq", 3, W | FAST, ONE, Run::Here(strings::delifeq)),
    row("discard", 1, NOSCRIPT | FAST, KeySpec::None, Run::Elsewhere),
    row("echo", 2, FAST, KeySpec::None, Run::Here(server::echo)),
    row("eval", -3, NOSCRIPT | W | SCRIPT, KeySpec::Counted { count_at: 2 }, Run::Elsewhere),
    row("eval_ro", -3, NOSCRIPT | R | SCRIPT, KeySpec::Counted { count_at: 2 }, Run::Elsewhere),
    row("evalsha", -3, NOSCRIPT | W | SCRIPT, KeySpec::Counted { count_at: 2 }, Run::Elsewhere),
    row("evalsha_ro", -3, NOSCRIPT | R | SCRIPT, KeySpec::Counted { count_at: 2 }, Run::Elsewhere),
    row("exec", 1, NOSCRIPT, KeySpec::None, Run::Elsewhere),
    row("exists", -2, R | FAST, ALL, Run::Here(generic::exists)),
    row("expire", -3, W | FAST, ONE, Run::Here(expire::expire)),
    row("expireat", -3, W | FAST, ONE, Run::Here(expire::expireat)),
    row("expiretime", 2, R | FAST, ONE, Run::Here(expire::expiretime)),
    row("flushall", -1, W | DANGER, KeySpec::None, Run::Here(generic::flushall)),
    row("flushdb", -1, W | DANGER, KeySpec::None, Run::Here(generic::flushdb)),
    row("get", 2, R | FAST, ONE, Run::Here(strings::get)),
    row("getdel", 2, W | FAST, ONE, Run::Here(strings::getdel)),
    row("getex", -2, W | FAST, ONE, Run::Here(strings::getex)),
    row("getrange", 4, R, ONE, Run::Here(strings::getrange)),
    row("getset", 3, W | OOM | FAST, ONE, Run::Here(strings::getset)),
    row("hdel", -3, W | FAST, ONE, Run::Here(hashes::hdel)),
    row("hello", -1, NOSCRIPT | FAST, KeySpec::None, Run::Elsewhere),
    row("hexists", 3, R | FAST, ONE, Run::Here(hashes::hexists)),
    row("hget", 3, R | FAST, ONE, Run::Here(hashes::hget)),
    row("hgetall", 2, R, ONE, Run::Here(hashes::hgetall)),
    row("hincrby", 4, W | OOM | FAST, ONE, Run::Here(hashes::hincrby)),
    row("hincrbyfloat", 4, W | OOM | FAST, ONE, Run::Here(hashes::hincrbyfloat)),
    row("hkeys", 2, R, ONE, Run::Here(hashes::hkeys)),
    row("hlen", 2, R | FAST, ONE, Run::Here(hashes::hlen)),
    row("hmget", -3, R | FAST, ONE, Run::Here(hashes::hmget)),
    row("hmset", -4, W | OOM | FAST, ONE, Run::Here(hashes::hmset)),
    row("hrandfield", -2, R, ONE, Run::Here(hashes::hrandfield)),
    row("hscan", -3, R, ONE, Run::Here(scan::hscan)),
    row("hset", -4, W | OOM | FAST, ONE, Run::Here(hashes::hset)),
    row("hsetnx", 4, W | OOM | FAST, ONE, Run::Here(hashes::hsetnx)),
    row("hstrlen", 3, R | FAST, ONE, Run::Here(hashes::hstrlen)),
    row("hvals", 2, R, ONE, Run::Here(hashes::hvals)),
    row("incr", 2, W | OOM | FAST, ONE, Run::Here(counters::incr)),
    row("incrby", 3, W | OOM | FAST, ONE, Run::Here(counters::incrby)),
    row("incrbyfloat", 3, W | OOM | FAST, ONE, Run::Here(counters::incrbyfloat)),
    row("keys", 2, R | DANGER, KeySpec::None, Run::Here(scan::keys)),
    row("lindex", 3, R, ONE, Run::Here(lists::lindex)),
    row("linsert", 5, W | OOM, ONE, Run::Here(lists::linsert)),
    row("llen", 2, R | FAST, ONE, Run::Here(lists::llen)),
    row("lmove", 5, W | OOM, TWO, Run::Here(lists_moving::lmove)),
    row("lmpop", -4, W, KeySpec::Counted { count_at: 1 }, Run::Here(lists_moving::lmpop)),
    row("lpop", -2, W | FAST, ONE, Run::Here(lists::lpop)),
    row("lpos", -3, R, ONE, Run::Here(lists::lpos)),
    row("lpush", -3, W | OOM | FAST, ONE, Run::Here(lists::lpush)),
    row("lpushx", -3, W | OOM | FAST, ONE, Run::Here(lists::lpushx)),
    row("lrange", 4, R, ONE, Run::Here(lists::lrange)),
    row("lrem", 4, W, ONE, Run::Here(lists::lrem)),
    row("lset", 4, W | OOM, ONE, Run::Here(lists::lset)),
    row("ltrim", 4, W, ONE, Run::Here(lists::ltrim)),
    row("memory", -2, R, SECOND, Run::Here(object::memory)),
    row("mget", -2, R | FAST, ALL, Run::Here(strings::mget)),
    row("mset", -3, W | OOM, PAIRS, Run::Here(strings::mset)),
    row("msetnx", -3, W | OOM, PAIRS, Run::Here(strings::msetnx)),
    row("multi", 1, NOSCRIPT | FAST, KeySpec::None, Run::Elsewhere),
    row("object", -2, R, SECOND, Run::Here(object::object)),
    row("persist", 2, W | FAST, ONE, Run::Here(expire::persist)),
    row("pexpire", -3, W | FAST, ONE, Run::Here(expire::pexpire)),
    row("pexpireat", -3, W | FAST, ONE, Run::Here(expire::pexpireat)),
    row("pexpiretime", 2, R | FAST, ONE, Run::Here(expire::pexpiretime)),
    row("ping", -1, FAST, KeySpec::None, Run::Here(server::ping)),
    row("psetex", 4, W | OOM, ONE, Run::Here(strings::psetex)),
    row("psubscribe", -2, NOSCRIPT | PUBSUB, KeySpec::None, Run::Elsewhere),
    row("pttl", 2, R | FAST, ONE, Run::Here(expire::pttl)),
    row("publish", 3, PUBSUB | FAST, KeySpec::None, Run::Here(server::publish)),
    row("punsubscribe", -1, NOSCRIPT | PUBSUB, KeySpec::None, Run::Elsewhere),
    row("quit", -1, NOSCRIPT | FAST, KeySpec::None, Run::Elsewhere),
    row("randomkey", 1, R, KeySpec::None, Run::Here(scan::randomkey)),
    row("rename", 3, W, TWO, Run::Here(generic::rename)),
    row("renamenx", 3, W | FAST, TWO, Run::Here(generic::renamenx)),
    row("reset", 1, NOSCRIPT | FAST, KeySpec::None, Run::Elsewhere),
    row("rpop", -2, W | FAST, ONE, Run::Here(lists::rpop)),
    row("rpoplpush", 3, W | OOM, TWO, Run::Here(lists_moving::rpoplpush)),
    row("rpush", -3, W | OOM | FAST, ONE, Run::Here(lists::rpush)),
    row("rpushx", -3, W | OOM | FAST, ONE, Run::Here(lists::rpushx)),
    row("sadd", -3, W | OOM | FAST, ONE, Run::Here(sets::sadd)),
    row("scan", -2, R, KeySpec::None, Run::Here(scan::scan)),
    row("scard", 2, R | FAST, ONE, Run::Here(sets::scard)),
    row("script", -2, NOSCRIPT | SCRIPT, KeySpec::None, Run::Elsewhere),
    row("sdiff", -2, R, ALL, Run::Here(sets::sdiff)),
    row("sdiffstore", -3, W | OOM, ALL, Run::Here(sets::sdiffstore)),
    row("select", 2, FAST, KeySpec::None, Run::Here(server::select)),
    row("set", -3, W | OOM, ONE, Run::Here(strings::set)),
    row("setex", 4, W | OOM, ONE, Run::Here(strings::setex)),
    row("setnx", 3, W | OOM | FAST, ONE, Run::Here(strings::setnx)),
    row("setrange", 4, W | OOM, ONE, Run::Here(strings::setrange)),
    row("sinter", -2, R, ALL, Run::Here(sets::sinter)),
    row("sinterstore", -3, W | OOM, ALL, Run::Here(sets::sinterstore)),
    row("sismember", 3, R | FAST, ONE, Run::Here(sets::sismember)),
    row("smembers", 2, R, ONE, Run::Here(sets::smembers)),
    row("smismember", -3, R | FAST, ONE, Run::Here(sets::smismember)),
    row("smove", 4, W | FAST, TWO, Run::Here(sets::smove)),
    row("spop", -2, W | FAST, ONE, Run::Here(sets::spop)),
    row("srandmember", -2, R, ONE, Run::Here(sets::srandmember)),
    row("srem", -3, W | FAST, ONE, Run::Here(sets::srem)),
    row("sscan", -3, R, ONE, Run::Here(scan::sscan)),
    row("strlen", 2, R | FAST, ONE, Run::Here(strings::strlen)),
    row("subscribe", -2, NOSCRIPT | PUBSUB, KeySpec::None, Run::Elsewhere),
    row("substr", 4, R, ONE, Run::Here(strings::getrange)),
    row("sunion", -2, R, ALL, Run::Here(sets::sunion)),
    row("sunionstore", -3, W | OOM, ALL, Run::Here(sets::sunionstore)),
    row("time", 1, R | FAST, KeySpec::None, Run::Here(scan::time)),
    row("touch", -2, R | FAST, ALL, Run::Here(generic::exists)),
    row("ttl", 2, R | FAST, ONE, Run::Here(expire::ttl)),
    row("type", 2, R | FAST, ONE, Run::Here(generic::key_type)),
    row("unlink", -2, W | FAST, ALL, Run::Here(generic::del)),
    row("unsubscribe", -1, NOSCRIPT | PUBSUB, KeySpec::None, Run::Elsewhere),
    row("unwatch", 1, NOSCRIPT | FAST, KeySpec::None, Run::Here(server::unwatch)),
    row("watch", -2, NOSCRIPT | FAST, ALL, Run::Elsewhere),
    row("zadd", -4, W | OOM | FAST, ONE, Run::Here(zsets::zadd)),
    row("zcard", 2, R | FAST, ONE, Run::Here(zsets::zcard)),
    row("zcount", 4, R | FAST, ONE, Run::Here(zset_ranges::zcount)),
    row("zincrby", 4, W | OOM | FAST, ONE, Run::Here(zsets::zincrby)),
    row("zlexcount", 4, R | FAST, ONE, Run::Here(zset_ranges::zlexcount)),
    row("zmpop", -4, W, KeySpec::Counted { count_at: 1 }, Run::Here(zsets::zmpop)),
    row("zmscore", -3, R | FAST, ONE, Run::Here(zsets::zmscore)),
    row("zpopmax", -2, W | FAST, ONE, Run::Here(zsets::zpopmax)),
    row("zpopmin", -2, W | FAST, ONE, Run::Here(zsets::zpopmin)),
    row("zrange", -4, R, ONE, Run::Here(zset_ranges::zrange)),
    row("zrangebylex", -4, R, ONE, Run::Here(zset_ranges::zrangebylex)),
    row("zrangebyscore", -4, R, ONE, Run::Here(zset_ranges::zrangebyscore)),
    row("zrangestore", -5, W | OOM, TWO, Run::Here(zset_ranges::zrangestore)),
    row("zrank", 3, R | FAST, ONE, Run::Here(zsets::zrank)),
    row("zrem", -3, W | FAST, ONE, Run::Here(zsets::zrem)),
    row("zremrangebylex", 4, W, ONE, Run::Here(zset_ranges::zremrangebylex)),
    row("zremrangebyrank", 4, W, ONE, Run::Here(zset_ranges::zremrangebyrank)),
    row("zremrangebyscore", 4, W, ONE, Run::Here(zset_ranges::zremrangebyscore)),
    row("zrevrange", -4, R, ONE, Run::Here(zset_ranges::zrevrange)),
    row("zrevrangebylex", -4, R, ONE, Run::Here(zset_ranges::zrevrangebylex)),
    row("zrevrangebyscore", -4, R, ONE, Run::Here(zset_ranges::zrevrangebyscore)),
    row("zrevrank", 3, R | FAST, ONE, Run::Here(zsets::zrevrank)),
    row("zscan", -3, R, ONE, Run::Here(scan::zscan)),
    row("zscore", 3, R | FAST, ONE, Run::Here(zsets::zscore)),
];

/// Longest name in the table.
const NAME_BYTES_MAX: usize = 16;

/// Looks a name up, whatever its case.
#[must_use]
pub fn find(name: &[u8]) -> Option<&'static Row> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let mut lower = [0; NAME_BYTES_MAX];
    let lower = &mut lower[..name.len()];
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    ROWS.binary_search_by(|row| row.name.as_bytes().cmp(lower)).ok().map(|at| &ROWS[at])
}

impl Row {
    #[must_use]
    pub fn is(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Whether a command of `words` words, its name included, is neither too short nor too long.
    #[must_use]
    pub fn takes(&self, words: usize) -> bool {
        let arity = self.arity.unsigned_abs() as usize;
        if self.arity < 0 {
            words >= arity
        } else {
            words == arity
        }
    }

    /// The keys a command names: see [`KeySpec::keys_of`].
    #[must_use]
    pub fn keys_of<'a>(&self, argv: &[&'a [u8]]) -> SmallVec<[&'a [u8]; 8]> {
        self.keys.keys_of(argv)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_by_its_name() {
        assert!(
            ROWS.windows(2).all(|pair| pair[0].name < pair[1].name),
            "the table is searched by bisection"
        );
        for row in ROWS {
            assert!(row.name.len() <= NAME_BYTES_MAX);
            assert_eq!(
                find(row.name.to_ascii_uppercase().as_bytes()).map(|found| found.name),
                Some(row.name)
            );
        }
        assert!(find(b"nosuch").is_none());
        assert!(find(b"averyveryverylongname").is_none());
    }
}
