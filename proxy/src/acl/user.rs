//! One user, and the words that change it: `on`, `>password`, `~pattern`, `+command` and the rest of `ACL SETUSER`.

use super::commands::OtherNames;
use super::rules::{CommandRules, RuleError};
use redfence_core::keyspace::acl_table::{R, RW, W};
use redfence_core::types::{UserTag, PATTERN_BYTES_MAX};
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// Passwords, key patterns and channel patterns of one user, each.
const ITEMS_MAX: usize = 1024;
pub const USER_NAME_BYTES_MAX: usize = 256;

pub type PasswordHash = [u8; 32];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPattern {
    pub pattern: Vec<u8>,
    /// Bits of [`R`] and [`W`].
    pub rights: u8,
}

#[derive(Clone, PartialEq, Eq)]
pub struct User {
    pub name: Vec<u8>,
    /// What the replicated machine knows of it.
    pub tag: UserTag,
    pub is_on: bool,
    /// Any password will do.
    pub nopass: bool,
    pub passwords: Vec<PasswordHash>,
    pub skips_sanitizing: bool,
    pub all_keys: bool,
    pub keys: Vec<KeyPattern>,
    pub all_channels: bool,
    pub channels: Vec<Vec<u8>>,
    pub commands: CommandRules,
    /// Further sets of rights: see [`super::selector`].
    pub selectors: Vec<User>,
    /// May do everything: kept up to date by [`User::apply`].
    is_unrestricted: bool,
}

/// Passwords stay out of logs, hashed or not.
impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("User").field("name", &String::from_utf8_lossy(&self.name)).finish_non_exhaustive()
    }
}

/// Why a word was refused, in Redis's own texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    Syntax,
    UnknownCommand,
    KeysAfterAll,
    ChannelsAfterAll,
    BadHash,
    NoSuchPassword,
    TooMany,
}

impl Problem {
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Problem::Syntax => "Syntax error",
            Problem::UnknownCommand => "Unknown command or category name in ACL",
            Problem::KeysAfterAll => {
                "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any effect. Try 'resetkeys' to \
                 start with an empty list of patterns"
            }
            Problem::ChannelsAfterAll => {
                "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any effect. Try \
                 'resetchannels' to start with an empty list of channels"
            }
            Problem::BadHash => "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters",
            Problem::NoSuchPassword => "The password you are trying to remove from the user does not exist",
            Problem::TooMany => "a user has at most 1024 passwords, key patterns, channel patterns and command rules each, and 128 selectors; patterns have at most 1024 bytes",
        }
    }
}

/// Any two names have different tags, but for a chance of one in 2^64: users with the same tag would share the grants of their owners.
fn tag_of(name: &[u8]) -> UserTag {
    if name == b"default" {
        return UserTag::DEFAULT;
    }
    let hash: [u8; 32] = Sha256::digest(name).into();
    let tag = hash.iter().take(8).fold(0, |tag, byte| tag << 8 | u64::from(*byte));
    UserTag(tag.max(1))
}

impl User {
    /// As `ACL SETUSER name` makes one: off, without any right.
    #[must_use]
    pub fn new(name: &[u8]) -> User {
        User {
            name: name.to_vec(),
            tag: tag_of(name),
            is_on: false,
            nopass: false,
            passwords: Vec::new(),
            skips_sanitizing: false,
            all_keys: false,
            keys: Vec::new(),
            all_channels: false,
            channels: Vec::new(),
            commands: CommandRules::default(),
            selectors: Vec::new(),
            is_unrestricted: false,
        }
    }

    /// The default user: may do everything. With a password it must be given.
    #[must_use]
    pub fn default_user(password: Option<&[u8]>) -> User {
        let mut user = User::new(b"default");
        user.is_on = true;
        user.all_keys = true;
        user.all_channels = true;
        user.commands.set_all(true);
        match password {
            Some(password) => user.passwords.push(hash(password)),
            None => user.nopass = true,
        }
        user.is_unrestricted = true;
        user
    }

    /// Every command on every key and channel. The one question of the usual case.
    #[inline]
    #[must_use]
    pub fn is_unrestricted(&self) -> bool {
        self.is_unrestricted
    }

    /// One word of `ACL SETUSER`. `others`: see [`CommandRules::add`].
    pub fn apply(&mut self, word: &[u8], others: OtherNames<'_>) -> Result<(), Problem> {
        let outcome = self.apply_word(word, others);
        self.is_unrestricted = (self.all_keys && self.all_channels && self.commands.is_all())
            || self.selectors.iter().any(User::is_unrestricted);
        outcome
    }

    fn apply_word(&mut self, word: &[u8], others: OtherNames<'_>) -> Result<(), Problem> {
        match word.to_ascii_lowercase().as_slice() {
            b"on" => self.is_on = true,
            b"off" => self.is_on = false,
            b"nopass" => {
                self.nopass = true;
                self.passwords.clear();
            }
            b"resetpass" => {
                self.nopass = false;
                self.passwords.clear();
            }
            b"skip-sanitize-payload" => self.skips_sanitizing = true,
            b"sanitize-payload" => self.skips_sanitizing = false,
            b"allkeys" | b"~*" | b"%rw~*" => {
                self.all_keys = true;
                self.keys.clear();
            }
            b"resetkeys" => {
                self.all_keys = false;
                self.keys.clear();
            }
            b"allchannels" | b"&*" => {
                self.all_channels = true;
                self.channels.clear();
            }
            b"resetchannels" => {
                self.all_channels = false;
                self.channels.clear();
            }
            b"allcommands" => self.commands.set_all(true),
            b"nocommands" => self.commands.set_all(false),
            b"clearselectors" => self.selectors.clear(),
            b"reset" => *self = User::new(&self.name),
            _ => return self.apply_prefixed(word, others),
        }
        Ok(())
    }

    fn apply_prefixed(&mut self, word: &[u8], others: OtherNames<'_>) -> Result<(), Problem> {
        let Some((&prefix, rest)) = word.split_first() else { return Err(Problem::Syntax) };
        match prefix {
            b'>' => self.add_password(hash(rest)),
            b'#' => self.add_password(parse_hash(rest)?),
            b'<' => self.remove_password(hash(rest)),
            b'!' => self.remove_password(parse_hash(rest)?),
            b'~' => self.add_keys(RW, rest),
            b'%' => self.add_limited_keys(rest),
            b'&' => self.add_channel(rest),
            b'(' => self.add_selector(word, others),
            b'+' | b'-' => {
                let name = std::str::from_utf8(rest).map_err(|_| Problem::UnknownCommand)?;
                self.commands.add(prefix == b'+', name, others).map_err(|error| match error {
                    RuleError::Unknown => Problem::UnknownCommand,
                    RuleError::TooMany => Problem::TooMany,
                })
            }
            _ => Err(Problem::Syntax),
        }
    }

    fn add_password(&mut self, hash: PasswordHash) -> Result<(), Problem> {
        if self.passwords.len() >= ITEMS_MAX {
            return Err(Problem::TooMany);
        }
        if !self.passwords.contains(&hash) {
            self.passwords.push(hash);
        }
        self.nopass = false;
        Ok(())
    }

    fn remove_password(&mut self, hash: PasswordHash) -> Result<(), Problem> {
        let at = self.passwords.iter().position(|have| *have == hash).ok_or(Problem::NoSuchPassword)?;
        self.passwords.remove(at);
        Ok(())
    }

    /// `%R~`, `%W~`, `%RW~`.
    fn add_limited_keys(&mut self, word: &[u8]) -> Result<(), Problem> {
        let at = word.iter().position(|byte| *byte == b'~').ok_or(Problem::Syntax)?;
        let rights = word[..at].iter().try_fold(0, |rights, byte| match byte.to_ascii_uppercase() {
            b'R' if rights & R == 0 => Ok(rights | R),
            b'W' if rights & W == 0 => Ok(rights | W),
            _ => Err(Problem::Syntax),
        })?;
        if rights == 0 {
            return Err(Problem::Syntax);
        }
        self.add_keys(rights, &word[at + 1..])
    }

    fn add_keys(&mut self, rights: u8, pattern: &[u8]) -> Result<(), Problem> {
        if self.all_keys {
            return Err(Problem::KeysAfterAll);
        }
        check_pattern(pattern, self.keys.len())?;
        match self.keys.iter_mut().find(|have| have.pattern == pattern) {
            Some(have) => have.rights |= rights,
            None => self.keys.push(KeyPattern { pattern: pattern.to_vec(), rights }),
        }
        Ok(())
    }

    fn add_channel(&mut self, pattern: &[u8]) -> Result<(), Problem> {
        if self.all_channels {
            return Err(Problem::ChannelsAfterAll);
        }
        check_pattern(pattern, self.channels.len())?;
        if !self.channels.iter().any(|have| have == pattern) {
            self.channels.push(pattern.to_vec());
        }
        Ok(())
    }

    /// Whether the password is one of its own. The time it takes tells nothing about which bytes differ.
    #[must_use]
    pub fn takes_password(&self, password: &[u8]) -> bool {
        let given = hash(password);
        let is_same = |have: &PasswordHash| {
            have.iter().zip(&given).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
        };
        // All are compared, whichever fits.
        let fits = self.passwords.iter().fold(false, |fits, have| is_same(have) | fits);
        self.is_on && (self.nopass || fits)
    }

    #[must_use]
    pub fn describe_keys(&self) -> String {
        if self.all_keys {
            return "~*".into();
        }
        let shown = |key: &KeyPattern| {
            let prefix = match key.rights {
                R => "%R",
                W => "%W",
                _ => "",
            };
            format!("{prefix}~{}", String::from_utf8_lossy(&key.pattern))
        };
        self.keys.iter().map(shown).collect::<Vec<_>>().join(" ")
    }

    #[must_use]
    pub fn describe_channels(&self) -> String {
        if self.all_channels {
            return "&*".into();
        }
        let shown = |channel: &Vec<u8>| format!("&{}", String::from_utf8_lossy(channel));
        self.channels.iter().map(shown).collect::<Vec<_>>().join(" ")
    }

    /// What it may do but for its selectors, in words that [`User::apply`] takes.
    #[must_use]
    pub fn describe_rights(&self) -> String {
        let mut text = self.describe_keys();
        let mut add = |part: &str| {
            if !text.is_empty() && !part.is_empty() {
                text.push(' ');
            }
            text.push_str(part);
        };
        if !self.all_channels {
            add("resetchannels");
        }
        add(&self.describe_channels());
        add(&self.commands.describe());
        text
    }

    /// The flags, as `ACL GETUSER` shows them.
    #[must_use]
    pub fn flags(&self) -> Vec<&'static str> {
        let mut flags = vec![if self.is_on { "on" } else { "off" }];
        flags.extend(self.nopass.then_some("nopass"));
        flags.extend(self.skips_sanitizing.then_some("skip-sanitize-payload"));
        flags
    }

    /// One line of `ACL LIST` and of the file.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = format!("user {} {}", String::from_utf8_lossy(&self.name), self.flags().join(" "));
        for password in &self.passwords {
            let _ = write!(text, " #{}", hex(password));
        }
        let _ = write!(text, " {}{}", self.describe_rights(), self.describe_selectors());
        text
    }
}

fn check_pattern(pattern: &[u8], have: usize) -> Result<(), Problem> {
    if pattern.iter().any(|byte| byte.is_ascii_whitespace() || *byte == 0)
        || std::str::from_utf8(pattern).is_err()
    {
        return Err(Problem::Syntax);
    }
    if have >= ITEMS_MAX || pattern.len() > PATTERN_BYTES_MAX {
        return Err(Problem::TooMany);
    }
    Ok(())
}

fn hash(password: &[u8]) -> PasswordHash {
    Sha256::digest(password).into()
}

#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn parse_hash(text: &[u8]) -> Result<PasswordHash, Problem> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Ok(byte - b'0'),
        b'a'..=b'f' => Ok(byte - b'a' + 10),
        _ => Err(Problem::BadHash),
    };
    let mut hash = [0; 32];
    if text.len() != 2 * hash.len() {
        return Err(Problem::BadHash);
    }
    for (byte, pair) in hash.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(words: &str) -> User {
        let mut user = User::new(b"u");
        for word in words.split_ascii_whitespace() {
            user.apply(word.as_bytes(), OtherNames::None)
                .unwrap_or_else(|problem| panic!("{word}: {problem:?}"));
        }
        user
    }

    fn problem(words: &str) -> Problem {
        let mut user = User::new(b"u");
        words
            .split_ascii_whitespace()
            .find_map(|word| user.apply(word.as_bytes(), OtherNames::None).err())
            .expect("a problem")
    }

    /// The lines are those a Redis 7.0.15 showed for the same words.
    #[test]
    fn users_are_shown_as_redis_shows_them() {
        for (words, line) in [
            ("", "user u off resetchannels -@all"),
            (
                "on >pw ~app:* &app:* +@all -@dangerous +config|get",
                "user u on #30c952fab122c3f9759f02a6d95c3758b246b4fee239957b2d4fee46e26170c4 ~app:* resetchannels &app:* +@all -@dangerous \
                 +config|get",
            ),
            ("on nopass allkeys allchannels allcommands", "user u on nopass ~* &* +@all"),
            ("%R~a %W~b %RW~c ~d", "user u off %R~a %W~b ~c ~d resetchannels -@all"),
            ("%R~a %W~a", "user u off ~a resetchannels -@all"),
            ("on nopass ~* reset", "user u off resetchannels -@all"),
        ] {
            assert_eq!(user(words).describe(), line, "{words}");
        }
    }

    #[test]
    fn what_is_shown_makes_the_same_user() {
        for words in [
            "on >a >b ~x* %R~y &c +@read -get +config|get",
            "on nopass allkeys allchannels +@all",
            "off nopass +select|0",
        ] {
            let user = user(words);
            let line = user.describe();
            let again = line.split(' ').skip(2).collect::<Vec<_>>().join(" ");
            assert_eq!(self::user(&again), user, "{line}");
        }
    }

    #[test]
    fn passwords_come_and_go() {
        let user = user("on >one >two <one");
        assert!(user.takes_password(b"two") && !user.takes_password(b"one") && !user.takes_password(b""));
        let hash = "#30c952fab122c3f9759f02a6d95c3758b246b4fee239957b2d4fee46e26170c4";
        assert!(self::user(&format!("on {hash}")).takes_password(b"pw"));
        assert!(!self::user(&format!("on {hash} !{}", &hash[1..])).takes_password(b"pw"));
        assert!(
            self::user("on nopass").takes_password(b"anything") && !self::user("nopass").takes_password(b"x")
        );
        assert!(!self::user("on nopass resetpass").takes_password(b"x"));
        assert!(!self::user("on nopass >pw").takes_password(b"x"));
    }

    #[test]
    fn bad_words_are_refused_in_redis_words() {
        for (words, expected) in [
            ("wat", Problem::Syntax),
            ("%X~a", Problem::Syntax),
            ("%~a", Problem::Syntax),
            ("+nosuch", Problem::UnknownCommand),
            ("+@nosuch", Problem::UnknownCommand),
            ("-select|0", Problem::UnknownCommand),
            ("~* ~x", Problem::KeysAfterAll),
            ("allchannels &x", Problem::ChannelsAfterAll),
            ("<nosuch", Problem::NoSuchPassword),
            ("#zz", Problem::BadHash),
            ("!zz", Problem::BadHash),
            ("(+get", Problem::Syntax),
        ] {
            assert_eq!(problem(words), expected, "{words}");
        }
    }

    #[test]
    fn who_may_do_everything_is_known() {
        assert!(user("~* &* +@all").is_unrestricted() && User::default_user(None).is_unrestricted());
        for words in
            ["~* +@all", "&* +@all", "~* &* +@all -get", "~* &* +@all resetkeys", "~* &* +@all reset"]
        {
            assert!(!user(words).is_unrestricted(), "{words}");
        }
    }
}
