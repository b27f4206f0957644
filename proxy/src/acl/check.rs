//! Whether a user may run a command: the command itself, then each of its keys, then its channels.

use super::commands::{self, KeyLocation, KnownCommand, UpstreamCommands};
use super::user::User;
use redfence_core::glob;
use redfence_core::grammar::fence::FenceCall;
use redfence_core::grammar::table::KeyPlaces;
use redfence_core::grammar::words::decimal;
use redfence_core::keyspace::acl_table::{NO, R, RW, W};
use redfence_core::keyspace::key_spec::KeySpec;
use redfence_core::reply::Refusal;
use redfence_core::types::SessionScope;

/// Channels on which this node tells of locks: what is behind the prefix is a resource.
const LOCK_CHANNELS: [&[u8]; 2] = [b"__lock__:", b"__lost__:"];

/// Commands that need no right, because they are how a client says who it is.
const FOR_EVERYBODY: [&str; 4] = ["auth", "hello", "quit", "reset"];

/// What a user may not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The whole name of the command.
    Command(String),
    Key(Vec<u8>),
    Channel(Vec<u8>),
}

impl Denial {
    /// Redis 7.0's texts.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Denial::Command(name) => format!("this user has no permissions to run the '{name}' command"),
            Denial::Key(_) => {
                "this user has no permissions to access one of the keys used as arguments".into()
            }
            Denial::Channel(_) => {
                "this user has no permissions to access one of the channels used as arguments".into()
            }
        }
    }

    #[must_use]
    pub fn refusal(&self) -> Refusal {
        Refusal::new(format!("NOPERM {}", self.text()))
    }

    /// How much of a command was allowed before.
    fn depth(&self) -> u8 {
        match self {
            Denial::Command(_) => 0,
            Denial::Key(_) => 1,
            Denial::Channel(_) => 2,
        }
    }

    /// What `ACL LOG` calls it, and what it is about.
    #[must_use]
    pub fn reason(&self) -> (&'static str, &[u8]) {
        match self {
            Denial::Command(name) => ("command", name.as_bytes()),
            Denial::Key(key) => ("key", key),
            Denial::Channel(channel) => ("channel", channel),
        }
    }
}

impl User {
    /// Whether the user may run this. `upstream`: commands that only the upstream Redis knows.
    pub fn check(&self, argv: &[&[u8]], upstream: Option<&UpstreamCommands>) -> Result<(), Denial> {
        if self.is_unrestricted() {
            return Ok(());
        }
        // Refused in any case, so no rights are looked at: each level would look at all of them again.
        if is_nested_fence_call(argv) {
            return Err(Denial::Command("fence.call".to_owned()));
        }
        let mut denied = match self.check_own(argv, upstream) {
            Ok(()) => return Ok(()),
            Err(denial) => denial,
        };
        for selector in &self.selectors {
            match selector.check_own(argv, upstream) {
                Ok(()) => return Ok(()),
                // As in Redis the one that came closest is told.
                Err(denial) if denial.depth() > denied.depth() => denied = denial,
                Err(_) => {}
            }
        }
        Err(denied)
    }

    /// By its own rights alone, or by those of one selector.
    fn check_own(&self, argv: &[&[u8]], upstream: Option<&UpstreamCommands>) -> Result<(), Denial> {
        let Some(command) = commands::find(argv) else { return self.check_unknown(argv, upstream) };
        if FOR_EVERYBODY.contains(&command.name.as_str()) {
            return Ok(());
        }
        if !self.commands.allows(command, argv) {
            return Err(Denial::Command(command.name.clone()));
        }
        self.check_keys(command, argv)?;
        self.check_channels(command, argv)?;
        match command.name.as_str() {
            "fence.call" => match argv.get(FenceCall::COMMAND_AT..) {
                Some(guarded) if !guarded.is_empty() => self.check(guarded, upstream),
                Some(_) | None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// A command of a module of the upstream Redis, or of nobody.
    fn check_unknown(&self, argv: &[&[u8]], upstream: Option<&UpstreamCommands>) -> Result<(), Denial> {
        let name = String::from_utf8_lossy(argv.first().copied().unwrap_or_default()).to_ascii_lowercase();
        let denied = || Denial::Command(redfence_core::grammar::errors::shown(name.as_bytes()));
        let Some(known) = upstream.and_then(|known| known.get(name.as_bytes())) else {
            return if self.commands.allows_unknown(&name) && self.all_keys { Ok(()) } else { Err(denied()) };
        };
        if !self.commands.allows_upstream(&name, known.categories) {
            return Err(denied());
        }
        match known.keys {
            Some(keys) => self.check_each(keys.keys_of(argv).iter().copied(), RW, RW),
            None if self.all_keys => Ok(()),
            None => Err(Denial::Key(name.into_bytes())),
        }
    }

    /// Whose sessions it may see and close: its own; of every user where it may release any lock by force.
    #[must_use]
    pub fn session_scope(&self) -> SessionScope {
        let may_force =
            |rights: &User| rights.all_keys && rights.check_own(&[b"LOCK.FORCERELEASE", b""], None).is_ok();
        if self.is_unrestricted() || may_force(self) || self.selectors.iter().any(may_force) {
            SessionScope::All
        } else {
            SessionScope::Of(self.tag)
        }
    }

    // ---- keys ----

    fn check_keys(&self, command: &KnownCommand, argv: &[&[u8]]) -> Result<(), Denial> {
        if self.all_keys {
            return Ok(());
        }
        let (first, others) = key_rights(command, argv);
        match command.keys {
            KeyLocation::Plain(KeySpec::None) | KeyLocation::Lock(KeyPlaces::None) => Ok(()),
            KeyLocation::Plain(keys) => {
                if names_keys_elsewhere(command, argv) {
                    // As in Redis for SORT: only for who may use them all.
                    return Err(Denial::Key(argv.get(1).map(|key| key.to_vec()).unwrap_or_default()));
                }
                self.check_each(keys.keys_of(argv).iter().copied(), first, others)
            }
            KeyLocation::Lock(KeyPlaces::First) => {
                self.check_each(argv.get(1).copied().into_iter(), first, others)
            }
            KeyLocation::Lock(KeyPlaces::Counted { step }) => {
                let count = argv.get(1).and_then(|word| decimal(word)).unwrap_or(0);
                let keys = argv.iter().skip(2).step_by(usize::from(step)).copied();
                self.check_each(keys.take(usize::try_from(count).unwrap_or(usize::MAX)), first, others)
            }
            KeyLocation::Unknown => Err(Denial::Key(argv.get(1).map(|key| key.to_vec()).unwrap_or_default())),
        }
    }

    fn check_each<'a>(
        &self,
        keys: impl Iterator<Item = &'a [u8]>,
        first: u8,
        others: u8,
    ) -> Result<(), Denial> {
        for (at, key) in keys.enumerate() {
            if !self.may_use_key(key, if at == 0 { first } else { others }) {
                return Err(Denial::Key(key.to_vec()));
            }
        }
        Ok(())
    }

    /// With no right asked for, any right on the key will do.
    #[must_use]
    pub fn may_use_key(&self, key: &[u8], rights: u8) -> bool {
        let matches = |have: &super::user::KeyPattern| {
            have.rights & rights == rights && glob::matches(&have.pattern, key)
        };
        self.all_keys || self.keys.iter().any(matches)
    }

    /// Of the loss of its own lock a client hears with any right on the key.
    #[must_use]
    pub fn may_hear_of_loss(&self, key: &[u8]) -> bool {
        self.may_use_key(key, NO) || self.selectors.iter().any(|selector| selector.may_use_key(key, NO))
    }

    /// Whether it may read a key, by its own rights or by those of one selector.
    #[must_use]
    pub fn may_read_key(&self, key: &[u8]) -> bool {
        self.may_use_key(key, R) || self.selectors.iter().any(|selector| selector.may_use_key(key, R))
    }

    // ---- channels ----

    fn check_channels(&self, command: &KnownCommand, argv: &[&[u8]]) -> Result<(), Denial> {
        if self.all_channels && self.all_keys {
            return Ok(());
        }
        let names = argv.get(1..).unwrap_or_default();
        let check = |names: &[&[u8]], is_pattern: bool| {
            names.iter().try_for_each(|name| match self.may_use_channel_itself(name, is_pattern) {
                true => Ok(()),
                false => Err(Denial::Channel(name.to_vec())),
            })
        };
        match command.name.as_str() {
            "subscribe" | "ssubscribe" => check(names, false),
            "psubscribe" => check(names, true),
            "publish" | "spublish" => check(&names[..names.len().min(1)], false),
            _ => Ok(()),
        }
    }

    /// As in Redis a pattern must be one of the user's own. Channels about locks need the right to read the resource as well.
    #[must_use]
    pub fn may_use_channel(&self, name: &[u8], is_pattern: bool) -> bool {
        self.may_use_channel_itself(name, is_pattern)
            || self.selectors.iter().any(|selector| selector.may_use_channel_itself(name, is_pattern))
    }

    fn may_use_channel_itself(&self, name: &[u8], is_pattern: bool) -> bool {
        let has_right = self.all_channels
            || self
                .channels
                .iter()
                .any(|have| if is_pattern { have == name } else { glob::matches(have, name) });
        has_right && LOCK_CHANNELS.iter().all(|prefix| self.may_hear_of_locks(prefix, name, is_pattern))
    }

    fn may_hear_of_locks(&self, prefix: &[u8], name: &[u8], is_pattern: bool) -> bool {
        if self.all_keys {
            return true;
        }
        if let Some(resource) = name.strip_prefix(prefix) {
            let is_own = |have: &super::user::KeyPattern| have.rights & R != 0 && have.pattern == resource;
            return if is_pattern { self.keys.iter().any(is_own) } else { self.may_use_key(resource, R) };
        }
        // A pattern that could match such a channel in another way would tell of every lock.
        let literal = name.iter().position(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'));
        !is_pattern || !literal.is_some_and(|end| prefix.starts_with(&name[..end]))
    }
}

/// Rights on the first key and on the others, where the words decide.
fn key_rights(command: &KnownCommand, argv: &[&[u8]]) -> (u8, u8) {
    match command.name.as_str() {
        "set" if argv.iter().skip(3).any(|word| is_any(word, &["GET"])) => (RW, NO),
        "set" => (W, NO),
        "bitfield" if argv.iter().skip(2).any(|word| is_any(word, &["SET", "INCRBY"])) => (RW, NO),
        "bitfield" => (R, NO),
        _ => (command.first_key, command.other_keys),
    }
}

/// Whether options name keys in places that no [`KeySpec`] tells of.
fn names_keys_elsewhere(command: &KnownCommand, argv: &[&[u8]]) -> bool {
    match command.name.as_str() {
        "sort" | "sort_ro" => argv.iter().skip(2).any(|word| is_any(word, &["BY", "GET"])),
        "migrate" => argv.iter().skip(6).any(|word| is_any(word, &["KEYS"])),
        _ => false,
    }
}

fn is_any(word: &[u8], known: &[&str]) -> bool {
    known.iter().any(|known| word.eq_ignore_ascii_case(known.as_bytes()))
}

/// Whether this is a `FENCE.CALL` of a `FENCE.CALL`, which nobody runs.
#[must_use]
pub fn is_nested_fence_call(argv: &[&[u8]]) -> bool {
    let is_call = |at: usize| argv.get(at).is_some_and(|name| name.eq_ignore_ascii_case(b"FENCE.CALL"));
    is_call(0) && is_call(FenceCall::COMMAND_AT)
}

/// Whether a command runs a script, by itself or within a `FENCE.CALL`.
#[must_use]
pub fn runs_script(argv: &[&[u8]]) -> bool {
    let Some(name) = argv.first() else { return false };
    if name.eq_ignore_ascii_case(b"FENCE.CALL") {
        return argv.get(FenceCall::COMMAND_AT..).is_some_and(|guarded| {
            guarded.first().is_some_and(|name| !name.eq_ignore_ascii_case(b"FENCE.CALL"))
                && runs_script(guarded)
        });
    }
    is_any(name, &["EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::commands::{OtherNames, UpstreamCommand};

    fn denied(words: &str, line: &str) -> &'static str {
        let mut user = User::new(b"u");
        for word in words.split_ascii_whitespace() {
            user.apply(word.as_bytes(), OtherNames::None)
                .unwrap_or_else(|problem| panic!("{word}: {problem:?}"));
        }
        let argv: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        match user.check(&argv, None) {
            Ok(()) => "",
            Err(denial) => denial.reason().0,
        }
    }

    #[test]
    fn who_may_force_any_lock_may_see_any_session() {
        for (words, sees_all) in [
            ("~* &* +@all", true),
            ("~* +@all", true),
            ("~* &* +@all -@scripting -flushall -acl", true),
            ("~* +lock.forcerelease", true),
            ("~app:* (~* +lock.forcerelease)", true),
            ("~* &* +@all -@admin", false),
            ("~* &* +@all -lock.forcerelease", false),
            ("~* +@all -@dangerous (~app:* +@all)", false),
            ("~app:* &* +@all", false),
            ("%R~* &* +@all", false),
            ("", false),
        ] {
            let mut user = User::new(b"u");
            let split: Vec<&[u8]> = words.split_ascii_whitespace().map(str::as_bytes).collect();
            for word in crate::acl::selector::join_words(&split).unwrap() {
                user.apply(&word, OtherNames::None).unwrap_or_else(|problem| panic!("{words}: {problem:?}"));
            }
            let expected = if sees_all { SessionScope::All } else { SessionScope::Of(user.tag) };
            assert_eq!(user.session_scope(), expected, "{words}");
        }
    }

    #[test]
    fn keys_need_their_rights() {
        for (words, line, expected) in [
            ("+@all ~app:*", "GET app:1", ""),
            ("+@all ~app:*", "GET other", "key"),
            ("+@all ~app:*", "MSET app:1 x other y", "key"),
            ("+@all %R~app:*", "GET app:1", ""),
            ("+@all %R~app:*", "SET app:1 x", "key"),
            ("+@all %W~app:*", "SET app:1 x", ""),
            ("+@all %W~app:*", "SET app:1 x GET", "key"),
            ("+@all %W~app:*", "INCR app:1", "key"),
            ("+@all %W~app:*", "EXISTS app:1", ""),
            ("+@all %R~src %W~dst", "COPY src dst", ""),
            ("+@all %R~src %W~dst", "COPY dst src", "key"),
            ("+@all %R~a %R~b %W~dst", "SINTERSTORE dst a b", ""),
            ("+@all %R~a %W~dst", "SORT a STORE dst", ""),
            ("+@all ~a", "SORT a BY w_*", "key"),
            ("+@all ~a", "MIGRATE host 1 a 0 10", ""),
            ("+@all ~a", "MIGRATE host 1 a 0 10 KEYS b", "key"),
            ("+@all ~a", "OBJECT ENCODING a", ""),
            ("+@all ~a", "OBJECT ENCODING b", "key"),
            ("+@all ~a", "EVAL x 1 b", "key"),
            ("+@all", "PING", ""),
            ("", "PING", "command"),
            ("", "AUTH x", ""),
        ] {
            assert_eq!(denied(words, line), expected, "{words}: {line}");
        }
    }

    #[test]
    fn locks_and_fences_are_keys() {
        for (words, line, expected) in [
            ("+@lock ~app:*", "LOCK.ACQUIRE app:1 100", ""),
            ("+@lock ~app:*", "LOCK.ACQUIRE x 100", "key"),
            ("+@lock %R~app:*", "LOCK.ACQUIRE app:1 100", "key"),
            ("+@lock %R~app:*", "LOCK.INFO app:1", ""),
            ("+@lock %W~app:*", "LOCK.INFO app:1", "key"),
            ("+@lock ~a ~b", "LOCK.MACQUIRE 2 a b 100", ""),
            ("+@lock ~a", "LOCK.MACQUIRE 2 a b 100", "key"),
            ("+@lock ~a", "LOCK.MRELEASE 2 a 1 b 2", "key"),
            ("+@lock ~a", "LOCK.MRELEASE 1 a b", ""),
            ("+@lock ~*", "LOCK.CLUSTER ADD 4 x:1", "command"),
            ("+@lock ~*", "LOCK.CLUSTER SET max-memory 1gb", "command"),
            ("+@lock ~*", "LOCK.CLUSTER BACKUP BEGIN", "command"),
            ("+@lock ~app:*", "LOCK.FORCERELEASE app:1", "command"),
            ("+@lock +lock.forcerelease ~app:*", "LOCK.FORCERELEASE app:1", ""),
            ("+@lock -@admin ~*", "LOCK.CLUSTER INFO", ""),
            ("+@fence ~a", "FENCE.CALL a 1 SET a x", "command"),
            ("+@fence +set ~a", "FENCE.CALL a 1 SET a x", ""),
            ("+@fence +set ~a", "FENCE.CALL a 1 SET b x", "key"),
            ("+@fence +set ~b", "FENCE.CALL a 1 SET b x", "key"),
            ("+@fence +set ~a", "FENCE.CALL a 1 fence.call a 1 SET a x", "command"),
        ] {
            assert_eq!(denied(words, line), expected, "{words}: {line}");
        }
    }

    #[test]
    fn a_selector_may_give_the_right_to_read_a_key() {
        let mut user = User::new(b"u");
        for word in ["%W~own:*", "(%R~seen:* +get)"] {
            user.apply(word.as_bytes(), OtherNames::None).unwrap();
        }
        let may = |key: &str| user.may_read_key(key.as_bytes());
        assert!(may("seen:1") && !may("own:1") && !may("other"));
    }

    #[test]
    fn channels_need_theirs_and_locks_the_key_too() {
        for (words, line, expected) in [
            ("+@all &news:*", "SUBSCRIBE news:1", ""),
            ("+@all &news:*", "SUBSCRIBE news:1 other", "channel"),
            ("+@all &news:*", "PSUBSCRIBE news:*", ""),
            ("+@all &news:*", "PSUBSCRIBE news:1*", "channel"),
            ("+@all &news:*", "PUBLISH news:1 x", ""),
            ("+@all &news:*", "PUBLISH x news:1", "channel"),
            ("+@all &*", "SUBSCRIBE __lock__:a", "channel"),
            ("+@all &* ~a", "SUBSCRIBE __lock__:a", ""),
            ("+@all &* %W~a", "SUBSCRIBE __lost__:a", "channel"),
            ("+@all &* ~app:*", "PSUBSCRIBE __lock__:app:*", ""),
            ("+@all &* ~app:*", "PSUBSCRIBE __lock__:*", "channel"),
            ("+@all &* ~app:*", "PSUBSCRIBE *", "channel"),
            ("+@all &* ~app:*", "PSUBSCRIBE __lo[cs]*", "channel"),
            ("+@all &* ~app:*", "PSUBSCRIBE \\__lock__:*", "channel"),
            ("+@all &* ~app:*", "PSUBSCRIBE news*", ""),
            ("+@all ~* &__lock__:*", "PSUBSCRIBE __lock__:*", ""),
        ] {
            assert_eq!(denied(words, line), expected, "{words}: {line}");
        }
    }

    #[test]
    fn the_upstream_tells_of_its_own_commands() {
        let mut known = UpstreamCommands::default();
        let keys = Some(redfence_core::keyspace::key_spec::ONE);
        let categories = redfence_core::keyspace::acl_table::READ;
        known.insert((*b"json.get").into(), UpstreamCommand { categories, keys });
        known.insert((*b"odd").into(), UpstreamCommand { categories, keys: None });
        let check = |words: &str, line: &str| {
            let mut user = User::new(b"u");
            words.split(' ').for_each(|word| user.apply(word.as_bytes(), OtherNames::Any).unwrap());
            user.check(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>(), Some(&known)).is_ok()
        };
        assert!(
            check("+@read ~a", "JSON.GET a")
                && !check("+@read ~a", "JSON.GET b")
                && !check("+@write ~a", "JSON.GET a")
        );
        assert!(check("+json.get ~a", "JSON.GET a"));
        assert!(!check("+@read ~a", "ODD a") && check("+@read ~*", "ODD a"));
        assert!(!check("+@all -@dangerous ~*", "NOSUCH a") && check("+@all ~*", "NOSUCH a"));
    }
}
