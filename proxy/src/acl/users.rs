//! All users of a node, and the text of an ACL file: one line a user, as `ACL LIST` shows them.

use super::commands::OtherNames;
use super::selector;
use super::user::{User, USER_NAME_BYTES_MAX};
use std::collections::BTreeMap;
use std::sync::Arc;

pub const USERS_MAX: usize = 10_000;
pub const FILE_BYTES_MAX: usize = 16 * 1024 * 1024;
pub const DEFAULT: &[u8] = b"default";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Users {
    by_name: BTreeMap<Vec<u8>, Arc<User>>,
}

impl Users {
    /// The default user alone.
    #[must_use]
    pub fn new(password: Option<&[u8]>) -> Users {
        let default = Arc::new(User::default_user(password));
        Users { by_name: BTreeMap::from([(DEFAULT.to_vec(), default)]) }
    }

    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&Arc<User>> {
        self.by_name.get(name)
    }

    /// # Panics
    /// Never: the default user cannot be removed.
    #[must_use]
    pub fn default_user(&self) -> &Arc<User> {
        self.get(DEFAULT).expect("the default user is never removed")
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<User>> {
        self.by_name.values()
    }

    /// Whether there is room for one more.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.by_name.len() < USERS_MAX
    }

    pub fn put(&mut self, user: User) {
        self.by_name.insert(user.name.clone(), Arc::new(user));
    }

    /// A user that is as it was before is the same one: who holds it sees by that alone that it was not changed, not even there and back.
    pub fn keep_unchanged(&mut self, before: &Users) {
        for (name, user) in &mut self.by_name {
            if let Some(same) = before.get(name).filter(|same| *same == &*user) {
                *user = Arc::clone(same);
            }
        }
    }

    /// Whether there was one of that name.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        name != DEFAULT && self.by_name.remove(name).is_some()
    }

    /// Commands that rules name and that neither our tables nor `others` have, with the user.
    #[must_use]
    pub fn unknown_names(&self, others: OtherNames<'_>) -> Vec<(String, String)> {
        let sets = self.iter().flat_map(|user| {
            std::iter::once(&**user).chain(&user.selectors).map(move |rights| (user, rights))
        });
        let unknown = sets.flat_map(|(user, rights)| {
            let named = String::from_utf8_lossy(&user.name);
            let names: Vec<_> = rights.commands.unknown_names(others).collect();
            names.into_iter().map(move |name| (named.to_string(), name.to_owned())).collect::<Vec<_>>()
        });
        unknown.collect()
    }

    /// As a file holds them.
    #[must_use]
    pub fn text(&self) -> String {
        self.iter().map(|user| user.describe() + "\n").collect()
    }

    /// Reads a file. The error names the first line that is wrong; nothing of the file holds then.
    pub fn parse(text: &[u8], password: Option<&[u8]>, others: OtherNames<'_>) -> Result<Users, String> {
        let mut users = Users::new(password);
        let mut seen: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if is_comment(line) {
                continue;
            }
            let number = at + 1;
            let user = parse_line(line, others).map_err(|error| format!("line {number}: {error}"))?;
            if let Some(before) = seen.insert(user.name.clone(), number) {
                return Err(format!(
                    "line {number}: the user of line {before} again; give each user one line"
                ));
            }
            if seen.len() > USERS_MAX {
                return Err(format!("line {number}: more than {USERS_MAX} users"));
            }
            users.put(user);
        }
        Ok(users)
    }
}

/// Whether a line of a file names no user.
pub fn is_comment(line: &[u8]) -> bool {
    line.is_empty() || line.starts_with(b"#")
}

fn parse_line(line: &[u8], others: OtherNames<'_>) -> Result<User, String> {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    if words.next() != Some(b"user") {
        return Err("it should begin with 'user' and a name".into());
    }
    let name = words.next().ok_or("it has no user name")?;
    check_name(name).map_err(str::to_owned)?;
    let mut user = User::new(name);
    let words: Vec<&[u8]> = words.collect();
    for word in selector::join_words(&words).map_err(|word| selector::unmatched(&word))? {
        // Never the word itself: it may be a password.
        let kind = word.first().map_or(' ', |byte| char::from(*byte));
        let shown = match kind {
            '>' | '<' | '#' | '!' => format!("{kind}…"),
            '(' if word.contains(&b'>') => "(…)".to_owned(),
            _ => redfence_core::grammar::errors::shown(&word),
        };
        user.apply(&word, others)
            .map_err(|problem| format!("Error in applying operation '{shown}': {}", problem.text()))?;
    }
    Ok(user)
}

/// Redis's own text.
pub fn check_name(name: &[u8]) -> Result<(), &'static str> {
    if name.iter().any(|byte| byte.is_ascii_whitespace() || *byte == 0) || std::str::from_utf8(name).is_err()
    {
        return Err("Usernames can't contain spaces or null characters");
    }
    if name.is_empty() || name.len() > USER_NAME_BYTES_MAX {
        return Err("a user name has 1 to 256 bytes");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `ACL SAVE` of a Redis 7.0.15 wrote it.
    const FILE: &[u8] = b"user app on #30c952fab122c3f9759f02a6d95c3758b246b4fee239957b2d4fee46e26170c4 ~app:* resetchannels &app:* +@all -@dangerous +config|get\n\
        user app3 off resetchannels -@all +select|0 +client -client|kill\nuser default on nopass ~* &* +@all\n";

    #[test]
    fn a_file_of_redis_is_read_and_written_as_it_was() {
        let users = Users::parse(FILE, None, OtherNames::None).unwrap();
        assert_eq!(users.text().as_bytes(), FILE);
        assert!(users.get(b"app").unwrap().takes_password(b"pw"));
    }

    #[test]
    fn a_file_without_a_default_user_leaves_it_as_configured() {
        let users =
            Users::parse(b"# comment\n\nuser a on nopass\n", Some(b"secret"), OtherNames::None).unwrap();
        assert!(users.default_user().takes_password(b"secret") && !users.default_user().takes_password(b"x"));
        let open =
            Users::parse(b"user default on >x ~* &* +@all\n", Some(b"secret"), OtherNames::None).unwrap();
        assert!(open.default_user().takes_password(b"x") && !open.default_user().takes_password(b"secret"));
    }

    #[test]
    fn errors_name_the_line_and_no_secret() {
        for (text, expected) in [
            ("\nusr a on", "line 2: it should begin with 'user' and a name"),
            ("user a wat", "line 1: Error in applying operation 'wat': Syntax error"),
            ("user a on <secret", "line 1: Error in applying operation '<…': The password you are trying to remove from the user does not exist"),
            ("user a on\nuser a off", "line 2: the user of line 1 again; give each user one line"),
            ("user", "line 1: it has no user name"),
        ] {
            assert_eq!(Users::parse(text.as_bytes(), None, OtherNames::None).unwrap_err(), expected);
        }
    }

    #[test]
    fn the_default_user_stays() {
        let mut users = Users::new(None);
        assert!(!users.remove(b"default") && !users.remove(b"nosuch"));
        users.put(User::new(b"a"));
        assert!(users.remove(b"a") && users.get(b"a").is_none());
    }
}
