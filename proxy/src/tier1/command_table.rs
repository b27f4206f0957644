//! Where the upstream Redis says that its commands have their keys, and their ACL categories: its `COMMAND`, asked for when it is
//! reached and when its modules change.
//!
//! For commands in none of our tables (modules, newer versions), where routes send keys to Tier 2: such a command passes by its keys,
//! as every other does, and is refused where they are not known. A `COMMAND` renamed or denied there, or larger than a reply
//! of our own errands may be, refuses all of them.

use super::client::UpstreamClient;
use super::upstream::Upstream;
use redfence_core::grammar::errors::shown;
use redfence_core::keyspace::errors::unknown_command;
use redfence_core::keyspace::key_spec::KeySpec;
use redfence_core::reply::{Refusal, Reply};
use rustc_hash::FxHashMap;
use std::time::Duration;

const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// `None`: its words must be looked at, by rules that only that Redis knows.
type Positions = Option<KeySpec>;

#[derive(Debug)]
struct Entry {
    keys: Positions,
    /// By name in lower case; empty where it has none.
    subcommands: FxHashMap<Vec<u8>, Positions>,
    /// ACL categories, without the `@`.
    categories: Vec<Box<[u8]>>,
}

/// A command of the table, for the check of rights.
#[derive(Clone, Copy, Debug)]
pub struct CommandRow<'a> {
    /// In lower case.
    pub name: &'a [u8],
    /// `None`: not in fixed places, or in other places for each subcommand.
    pub keys: Option<KeySpec>,
    pub categories: &'a [Box<[u8]>],
}

#[derive(Debug)]
pub enum CommandTable {
    Missing { reason: String },
    Known(CommandNames),
}

/// By name in lower case.
#[derive(Debug)]
pub struct CommandNames(FxHashMap<Vec<u8>, Entry>);

impl CommandTable {
    #[must_use]
    pub fn is_missing(&self) -> bool {
        match self {
            CommandTable::Missing { .. } => true,
            CommandTable::Known(_) => false,
        }
    }

    /// Asks on a connection of its own: a reply that is too large ends it.
    pub async fn fetch(upstream: &Upstream) -> CommandTable {
        let ask = async { UpstreamClient::open(upstream).await?.call_ok(&["COMMAND"]).await };
        let reason = match tokio::time::timeout(ANSWER_WITHIN, ask).await {
            Ok(Ok(reply)) => match CommandTable::parse(&reply) {
                Some(table) => return table,
                None => "its reply to COMMAND cannot be read".to_string(),
            },
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer to COMMAND in time".to_string(),
        };
        tracing::warn!(
            redis = %upstream.place,
            reason,
            "command table of the upstream Redis unknown: with correctness routes, commands of modules are refused"
        );
        CommandTable::Missing { reason }
    }

    /// `None` where the reply is not shaped as that of `COMMAND`.
    fn parse(reply: &Reply) -> Option<CommandTable> {
        let Reply::Array(rows) = reply else { return None };
        let names = rows.iter().map(entry).collect::<Option<_>>()?;
        Some(CommandTable::Known(CommandNames(names)))
    }

    /// Whether it has this command; `None` where the table is missing.
    #[must_use]
    pub fn has(&self, name: &str) -> Option<bool> {
        match self {
            CommandTable::Known(CommandNames(names)) => {
                Some(names.contains_key(name.to_ascii_lowercase().as_bytes()))
            }
            CommandTable::Missing { .. } => None,
        }
    }

    /// Every command; none where the table is missing.
    pub fn rows(&self) -> impl Iterator<Item = CommandRow<'_>> {
        let names = match self {
            CommandTable::Known(CommandNames(names)) => Some(names),
            CommandTable::Missing { .. } => None,
        };
        names.into_iter().flatten().map(|(name, entry)| CommandRow {
            name,
            keys: entry.positions(None),
            categories: &entry.categories,
        })
    }

    /// Where a command has its keys that is in no table of ours.
    pub fn key_spec(&self, argv: &[&[u8]]) -> Result<KeySpec, Refusal> {
        let names = match self {
            CommandTable::Known(CommandNames(names)) => names,
            CommandTable::Missing { reason } => {
                return Err(Refusal::new(format!(
                    "UNAVAILABLE the command table of the upstream Redis is not known ({reason}), so the keys of '{}' are not; nothing was done; retry, or let this node's user run COMMAND there",
                    shown(argv[0])
                )))
            }
        };
        // The Redis would answer the same.
        let entry = names.get(&argv[0].to_ascii_lowercase()).ok_or_else(|| unknown_command(argv))?;
        entry.positions(argv.get(1).copied()).ok_or_else(|| {
            Refusal::new(format!(
                "TIER routes send keys to the correctness tier, and the keys of '{}' are not at fixed positions by the command table of the upstream Redis; nothing was done; ask that Redis itself",
                shown(argv[0])
            ))
        })
    }
}

impl Entry {
    fn positions(&self, subcommand: Option<&[u8]>) -> Positions {
        match subcommand.and_then(|word| self.subcommands.get(&word.to_ascii_lowercase())) {
            Some(positions) => *positions,
            // A subcommand we do not know may have keys where its siblings do.
            None if self.subcommands.values().any(|positions| *positions != Some(KeySpec::None)) => None,
            None => self.keys,
        }
    }
}

/// `[name, arity, flags, first, last, step, categories, tips, key specs, subcommands]`; before Redis 7 there are fewer.
fn entry(row: &Reply) -> Option<(Vec<u8>, Entry)> {
    let Reply::Array(fields) = row else { return None };
    let rows = if let Some(Reply::Array(rows)) = fields.get(9) { &rows[..] } else { &[] };
    let subcommands = rows.iter().map(|row| {
        let Reply::Array(fields) = row else { return None };
        let name = name(fields)?;
        // `xgroup|create`
        let short = name.iter().position(|byte| *byte == b'|').map_or(&name[..], |at| &name[at + 1..]);
        Some((short.to_vec(), positions(fields)?))
    });
    let mut categories: Vec<Box<[u8]>> = categories_of(fields).into_iter().map(Box::from).collect();
    // Rights are checked for the command as a whole: it is as dangerous as its most dangerous subcommand.
    let of_subcommands =
        rows.iter()
            .flat_map(|row| if let Reply::Array(fields) = row { categories_of(fields) } else { Vec::new() });
    for category in of_subcommands.filter(|name| matches!(*name, b"admin" | b"dangerous")) {
        if !categories.iter().any(|have| **have == *category) {
            categories.push(category.into());
        }
    }
    let (keys, subcommands) = (positions(fields)?, subcommands.collect::<Option<_>>()?);
    Some((name(fields)?, Entry { keys, subcommands, categories }))
}

/// Without the `@`.
fn categories_of(fields: &[Reply]) -> Vec<&[u8]> {
    let words = if let Some(Reply::Array(words)) = fields.get(6) { &words[..] } else { &[] };
    words.iter().filter_map(|item| word(item)?.strip_prefix(b"@")).collect()
}

/// A word, as a simple or a bulk string.
fn word(reply: &Reply) -> Option<&[u8]> {
    if let Reply::Bulk(word) = reply {
        return Some(word);
    }
    let Reply::Status(word) = reply else { return None };
    Some(word.as_bytes())
}

fn name(fields: &[Reply]) -> Option<Vec<u8>> {
    Some(word(fields.first()?)?.to_ascii_lowercase())
}

fn positions(fields: &[Reply]) -> Option<Positions> {
    let [_, _, Reply::Array(flags), Reply::Int(first), Reply::Int(last), Reply::Int(step), ..] = fields
    else {
        return None;
    };
    let is_movable = |flag| word(flag).is_some_and(|flag| flag.eq_ignore_ascii_case(b"movablekeys"));
    if flags.iter().any(is_movable) {
        return Some(None);
    }
    Some(span(*first, *last, *step))
}

fn span(first: i64, last: i64, step: i64) -> Positions {
    if (first, last) == (0, 0) {
        return Some(KeySpec::None);
    }
    let is_sound = first > 0 && step > 0 && (last < 0 || last >= first);
    let (first, last, step) =
        (usize::try_from(first).ok()?, i32::try_from(last).ok()?, usize::try_from(step).ok()?);
    is_sound.then_some(KeySpec::Span { first, last, step })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, flags: &[&'static str], range: [i64; 3], subcommands: Vec<Reply>) -> Reply {
        let empty = || Reply::Array(vec![]);
        Reply::Array(vec![
            Reply::bulk(name),
            Reply::Int(-2),
            Reply::Array(flags.iter().map(|flag| Reply::Status((*flag).into())).collect()),
            Reply::Int(range[0]),
            Reply::Int(range[1]),
            Reply::Int(range[2]),
            Reply::Array(vec![Reply::Status("@read".into()), Reply::bulk("@of_a_module")]),
            empty(),
            empty(),
            Reply::Array(subcommands),
        ])
    }

    fn table() -> CommandTable {
        let rows = vec![
            row("json.set", &["write"], [1, 1, 1], vec![]),
            row("json.mget", &["readonly"], [1, -2, 1], vec![]),
            row("newer.call", &["write", "movablekeys"], [1, 1, 1], vec![]),
            row("newer.ping", &[], [0, 0, 0], vec![]),
            row("newer.odd", &[], [1, 1, 0], vec![]),
            row(
                "newer.group",
                &[],
                [0, 0, 0],
                vec![
                    row("newer.group|help", &[], [0, 0, 0], vec![]),
                    row("newer.group|create", &[], [2, 2, 1], vec![]),
                    row("newer.group|eval", &["movablekeys"], [0, 0, 0], vec![]),
                ],
            ),
            // Redis 6
            Reply::Array(match row("older", &[], [2, 2, 1], vec![]) {
                Reply::Array(fields) => fields[..6].to_vec(),
                other => panic!("{other:?}"),
            }),
        ];
        CommandTable::parse(&Reply::Array(rows)).unwrap()
    }

    #[test]
    fn rows_tell_categories_and_keys() {
        let table = table();
        let row = |name: &str| table.rows().find(|row| row.name == name.as_bytes()).unwrap();
        assert_eq!(row("json.mget").keys, Some(KeySpec::Span { first: 1, last: -2, step: 1 }));
        assert_eq!(row("json.mget").categories.concat(), b"readof_a_module");
        assert_eq!(row("newer.call").keys, None);
        assert_eq!(row("newer.group").keys, None, "each subcommand has its own");
        assert!(row("older").categories.is_empty());
        assert_eq!(CommandTable::Missing { reason: String::new() }.rows().count(), 0);
    }

    fn keys(table: &CommandTable, line: &str) -> String {
        let argv: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        match table.key_spec(&argv) {
            Ok(spec) => String::from_utf8(spec.keys_of(&argv).join(&b' ')).unwrap(),
            Err(refusal) => format!("-{}", refusal.0),
        }
    }

    #[test]
    fn keys_are_where_the_upstream_says() {
        let table = table();
        for (line, expected) in [
            ("JSON.SET a $ 1", "a"),
            ("json.mget a b $", "a b"),
            ("NEWER.PING x", ""),
            ("NEWER.GROUP CREATE a g", "a"),
            ("newer.group help", ""),
            ("OLDER x a", "a"),
        ] {
            assert_eq!(keys(&table, line), expected, "{line}");
        }
    }

    #[test]
    fn what_cannot_be_told_is_refused() {
        let table = table();
        for line in
            ["NEWER.CALL a", "NEWER.ODD a", "NEWER.GROUP", "NEWER.GROUP nosuch a", "NEWER.GROUP EVAL a"]
        {
            assert!(
                keys(&table, line).starts_with("-TIER routes send keys"),
                "{line}: {}",
                keys(&table, line)
            );
        }
        let unknown = "-ERR unknown command 'NEWER.GROUP|CREATE', with args beginning with: 'a' ";
        assert_eq!(keys(&table, "NEWER.GROUP|CREATE a"), unknown);
        let missing = CommandTable::Missing { reason: "it answered 'NOPERM'".into() };
        assert!(missing.is_missing() && !table.is_missing());
        assert!(keys(&missing, "JSON.SET a $ 1").starts_with("-UNAVAILABLE the command table"));
    }

    #[test]
    fn a_reply_of_another_shape_is_no_table() {
        let cut = Reply::Array(vec![Reply::bulk("get"), Reply::Int(2)]);
        for reply in [Reply::OK, Reply::Array(vec![Reply::Int(1)]), Reply::Array(vec![cut])] {
            assert!(CommandTable::parse(&reply).is_none(), "{reply:?}");
        }
    }
}
