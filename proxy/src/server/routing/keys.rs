//! The commands of Redis by name, for every command that passes: where its keys are, and whether it may go by a shared connection.
//!
//! A view of core's tables ([`NOT_RUN_HERE`] and [`table::ROWS`]), which are the one place that says where keys are. Keys are asked
//! for only where a route sends plain ones to Tier 2; names also where there is no Redis at all (to tell a command of Redis from
//! nonsense). What is in no table may have keys anywhere: [`super::plan`] asks the upstream Redis for its own table then.

use redfence_core::keyspace::key_spec::{KeySpec, NOT_RUN_HERE, ONE};
use redfence_core::keyspace::table;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::LazyLock;

/// Commands with keys that may wait, or that leave something behind on their connection, or are rare and slow. Those without
/// keys are never shared.
const NEVER_SHARED: &str =
    "BLMOVE BLMPOP BLPOP BRPOP BRPOPLPUSH BZMPOP BZPOPMAX BZPOPMIN MEMORY MIGRATE WATCH XREAD XREADGROUP";

/// Longer than any name in the table.
const NAME_BYTES_MAX: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlainCommand {
    keys: KeySpec,
    is_shared: bool,
}

/// By name in upper case. A walk over the tables would cost more than all the rest of passing a command on.
static BY_NAME: LazyLock<FxHashMap<Box<[u8]>, PlainCommand>> = LazyLock::new(|| {
    let run_here = table::ROWS.iter().map(|row| (row.name.to_ascii_uppercase(), row.keys));
    let not_run = NOT_RUN_HERE
        .iter()
        .flat_map(|(keys, names)| names.split_ascii_whitespace().map(move |name| (name.to_owned(), *keys)));
    let is_shared = |name: &str, keys: KeySpec| {
        keys != KeySpec::None && NEVER_SHARED.split_ascii_whitespace().all(|never| never != name)
    };
    let entry = |(name, keys): (String, KeySpec)| {
        let command = PlainCommand { keys, is_shared: is_shared(&name, keys) };
        (name.into_bytes().into_boxed_slice(), command)
    };
    run_here.chain(not_run).map(entry).collect()
});

fn find(name: &[u8]) -> Option<PlainCommand> {
    let mut upper = [0; NAME_BYTES_MAX];
    let upper = upper.get_mut(..name.len())?;
    upper.copy_from_slice(name);
    upper.make_ascii_uppercase();
    BY_NAME.get(&*upper).copied()
}

/// Whether the command may go by a connection that clients share: it answers at once, and leaves the connection as it was.
#[must_use]
pub fn may_share(name: &[u8]) -> bool {
    find(name).is_some_and(|command| command.is_shared)
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
    let shared = BY_NAME.iter().filter(|(_, command)| command.is_shared);
    let key_at = |keys: KeySpec| if keys == ONE { QuickKey::First } else { QuickKey::Elsewhere };
    shared.filter_map(|(name, command)| Some((packed(name)?, key_at(command.keys)))).collect()
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

/// Whether Redis has a command of this name (besides those the proxy answers itself).
#[must_use]
pub fn is_redis_command(name: &[u8]) -> bool {
    find(name).is_some()
}

pub type Keys<'a> = SmallVec<[&'a [u8]; 8]>;

/// Where a command has its keys. `None`: it is in no table.
#[must_use]
pub fn spec_of(name: &[u8]) -> Option<KeySpec> {
    find(name).map(|command| command.keys)
}

/// The keys among the words; `None` where the command is in no table. Malformed commands have fewer: whoever runs them will say so.
#[must_use]
pub fn of<'a>(argv: &[&'a [u8]]) -> Option<Keys<'a>> {
    spec_of(argv[0]).map(|spec| spec.keys_of(argv))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_the_tables_in_core() {
        let of = |line: &str| {
            let keys = of(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>());
            keys.map(|keys| String::from_utf8(keys.join(&b' ')).unwrap())
        };
        assert_eq!(of("get a").as_deref(), Some("a"));
        assert_eq!(of("ZunionStore d 2 a b").as_deref(), Some("d a b"));
        assert_eq!(of("MULTI").as_deref(), Some(""));
        assert_eq!(of("NOSUCH a b"), None, "it may have keys anywhere");
        for row in table::ROWS {
            assert_eq!(find(row.name.as_bytes()).map(|found| found.keys), Some(row.keys), "{}", row.name);
        }
        for (keys, names) in NOT_RUN_HERE {
            for name in names.split_ascii_whitespace() {
                assert_eq!(find(name.to_ascii_lowercase().as_bytes()).map(|found| found.keys), Some(*keys));
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
        for name in BY_NAME.keys().map(|name| &**name) {
            assert_eq!(quick(name).is_some(), may_share(name) && name.len() <= 8, "{name:?}");
            assert_eq!(
                quick(name) == Some(QuickKey::First),
                quick(name).is_some() && find(name).map(|found| found.keys) == Some(ONE)
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
        let are_all_seen = |name: &[u8], seen| spec_of(name).unwrap().are_within(seen);
        assert!(are_all_seen(b"SET", 2));
        assert!(!are_all_seen(b"SET", 1));
        assert!(!are_all_seen(b"MSET", 100));
        assert!(!are_all_seen(b"EVAL", 100));
    }
}
