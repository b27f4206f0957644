//! Five example users and what each may do with every command: the table in `docs/users.md`, and what tests try on running nodes.

use super::commands::{self, KeyLocation, KnownCommand, OtherNames};
use super::user::User;
use redfence_core::grammar::table::KeyPlaces;
use redfence_core::keyspace::key_spec::KeySpec;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Name and rules.
pub const USERS: [(&str, &str); 5] = [
    ("nobody", "on nopass"),
    ("reader", "on nopass %R~* &* +@read +@connection +@pubsub -@dangerous"),
    ("app", "on nopass ~app:* &app:* +@all -@admin -@dangerous"),
    ("operator", "on nopass ~* &* +@all -@scripting -flushall -flushdb -acl +acl|whoami"),
    ("admin", "on nopass ~* &* +@all"),
];

const KEY: &str = "app:1";
/// Fits nowhere: a command that is allowed is refused for its words, and waits for nothing.
const OTHER_WORD: &str = "x";

/// The lines of an ACL file with all of them.
#[must_use]
pub fn acl_file() -> String {
    let line = |(name, rules): &(&str, &str)| format!("user {name} {rules}\n");
    USERS.iter().map(line).chain(["user default on nopass ~* &* +@all\n".to_owned()]).collect()
}

/// # Panics
/// Where a rule above is wrong.
#[must_use]
pub fn users() -> Vec<User> {
    let make = |(name, rules): &(&str, &str)| {
        let mut user = User::new(name.as_bytes());
        for word in rules.split(' ') {
            user.apply(word.as_bytes(), OtherNames::None).expect("a rule");
        }
        user
    };
    USERS.iter().map(make).collect()
}

/// The words of one call on the key `app:1`.
#[must_use]
pub fn sample(command: &KnownCommand) -> Vec<String> {
    let mut words: Vec<String> = command.name.split('|').map(str::to_ascii_uppercase).collect();
    let mut put = |at: usize, word: &str| {
        while words.len() <= at {
            words.push(OTHER_WORD.into());
        }
        words[at] = word.into();
    };
    match command.keys {
        KeyLocation::Plain(KeySpec::None) | KeyLocation::Lock(KeyPlaces::None) => {}
        KeyLocation::Plain(KeySpec::Span { first, last, .. }) => {
            put(first, KEY);
            match usize::try_from(last) {
                Ok(last) => put(last, KEY),
                Err(_) if last < -1 => put(first + last.unsigned_abs() as usize - 1, OTHER_WORD),
                Err(_) => {}
            }
        }
        KeyLocation::Plain(KeySpec::Counted { count_at }) => {
            put(count_at, "1");
            put(count_at + 1, KEY);
        }
        KeyLocation::Plain(KeySpec::StoredCounted { count_at }) => {
            put(1, KEY);
            put(count_at, "1");
            put(count_at + 1, KEY);
        }
        KeyLocation::Plain(KeySpec::CountedPairs { count_at }) => {
            put(count_at, "1");
            put(count_at + 1, KEY);
            put(count_at + 2, OTHER_WORD);
        }
        KeyLocation::Plain(KeySpec::OneOrListed { at, .. }) => put(at, KEY),
        KeyLocation::Plain(KeySpec::Streams) => {
            put(1, "STREAMS");
            put(2, KEY);
            put(3, OTHER_WORD);
        }
        KeyLocation::Plain(KeySpec::FirstAndStored { .. })
        | KeyLocation::Lock(KeyPlaces::First)
        | KeyLocation::Unknown => put(1, KEY),
        KeyLocation::Lock(KeyPlaces::Counted { .. }) => {
            put(1, "1");
            put(2, KEY);
        }
    }
    match command.name.as_str() {
        "subscribe" | "ssubscribe" | "publish" | "spublish" => put(1, KEY),
        "psubscribe" => put(1, "app:*"),
        "fence.call" => {
            put(3, "GET");
            put(4, KEY);
        }
        _ => {}
    }
    words
}

/// Whether each of [`USERS`] may.
#[must_use]
pub fn allowed(users: &[User], words: &[String]) -> Vec<bool> {
    let argv: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
    users.iter().map(|user| user.check(&argv, None).is_ok()).collect()
}

/// The table of the docs: commands with the same rights share a row.
#[must_use]
pub fn table() -> String {
    let users = users();
    let mut rows: BTreeMap<Vec<bool>, Vec<String>> = BTreeMap::new();
    for command in commands::all() {
        let name = format!("`{}`", command.name.to_ascii_uppercase().replace('|', " "));
        rows.entry(allowed(&users, &sample(command))).or_default().push(name);
    }
    let names: Vec<&str> = USERS.iter().map(|(name, _)| *name).collect();
    let mut text = format!("| {} | commands |\n|{} --- |\n", names.join(" | "), " --- |".repeat(names.len()));
    for (allowed, mut names) in rows {
        names.sort();
        let marks: Vec<&str> = allowed.iter().map(|is| if *is { "yes" } else { "no" }).collect();
        let _ = writeln!(text, "| {} | {} |", marks.join(" | "), names.join(" "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_grow_from_nobody_to_admin() {
        let users = users();
        for (line, expected) in [
            ("GET app:1", "no yes yes yes yes"),
            ("SET app:1 x", "no no yes yes yes"),
            ("LOCK.ACQUIRE app:1 10", "no no yes yes yes"),
            ("LOCK.INFO app:1", "no yes yes yes yes"),
            ("LOCK.FORCERELEASE app:1", "no no no yes yes"),
            ("LOCK.CLUSTER ADD 4 x:1", "no no no yes yes"),
            ("LOCK.CLUSTER INFO", "no yes yes yes yes"),
            ("FLUSHALL", "no no no no yes"),
            ("EVAL x 1 app:1", "no no yes no yes"),
            ("ACL SETUSER x", "no no no no yes"),
            ("CONFIG SET a b", "no no no yes yes"),
            ("AUTH x", "yes yes yes yes yes"),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let marks = allowed(&users, &words)
                .iter()
                .map(|is| if *is { "yes" } else { "no" })
                .collect::<Vec<_>>()
                .join(" ");
            assert_eq!(marks, expected, "{line}");
        }
    }

    #[test]
    fn every_command_with_a_key_is_tried_on_it() {
        for command in commands::all() {
            let words = sample(command);
            let argv: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
            assert_eq!(commands::find(&argv).map(|found| found.id), Some(command.id), "{words:?}");
        }
    }
}
