//! Selectors, as in Redis 7: further sets of rights of one user, `(~key:* +get)`. A command is allowed where the user's own rights or
//! one selector allow all of it.
//!
//! A selector is kept as a user without a name, which nobody can log in as.

use super::commands::OtherNames;
use super::user::{Problem, User};
use std::borrow::Cow;

/// Selectors of one user.
pub const SELECTORS_MAX: usize = 128;

/// Joins the words of each selector into one: `(~a`, `+get)` come as two arguments or as one. The error is the word that begins
/// a selector without an end.
pub fn join_words<'a>(words: &[&'a [u8]]) -> Result<Vec<Cow<'a, [u8]>>, Vec<u8>> {
    let mut joined = Vec::with_capacity(words.len());
    let mut open: Option<Vec<u8>> = None;
    for &word in words {
        let is_end = word.ends_with(b")");
        match &mut open {
            None if word.starts_with(b"(") && !is_end => open = Some(word.to_vec()),
            None => joined.push(Cow::Borrowed(word)),
            Some(selector) => {
                selector.push(b' ');
                selector.extend_from_slice(word);
                if is_end {
                    joined.extend(open.take().map(Cow::Owned));
                }
            }
        }
    }
    match open {
        Some(selector) => Err(selector.split(|byte| *byte == b' ').next().unwrap_or_default().to_vec()),
        None => Ok(joined),
    }
}

/// Redis's own text.
#[must_use]
pub fn unmatched(word: &[u8]) -> String {
    let word = redfence_core::grammar::errors::shown(word);
    format!("Unmatched parenthesis in acl selector starting at '{word}'.")
}

impl User {
    /// `(…)`: one more set of rights.
    pub(super) fn add_selector(&mut self, word: &[u8], others: OtherNames<'_>) -> Result<(), Problem> {
        let inner = word.strip_prefix(b"(").and_then(|word| word.strip_suffix(b")"));
        let words = inner.ok_or(Problem::Syntax)?.split(u8::is_ascii_whitespace);
        if self.selectors.len() >= SELECTORS_MAX {
            return Err(Problem::TooMany);
        }
        let mut selector = User::new(b"");
        for word in words.filter(|word| !word.is_empty()) {
            if !is_right(word) {
                return Err(Problem::Syntax);
            }
            selector.apply(word, others)?;
        }
        self.selectors.push(selector);
        Ok(())
    }

    /// The selectors as a line of the file has them, each behind a space.
    pub(super) fn describe_selectors(&self) -> String {
        self.selectors.iter().map(|selector| format!(" ({})", selector.describe_rights())).collect()
    }
}

/// Whether a word is about keys, channels or commands: a selector has nothing else.
fn is_right(word: &[u8]) -> bool {
    let words = ["allkeys", "resetkeys", "allchannels", "resetchannels", "allcommands", "nocommands"];
    matches!(word.first(), Some(b'~' | b'%' | b'&' | b'+' | b'-'))
        || words.iter().any(|known| word.eq_ignore_ascii_case(known.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(line: &str) -> Result<User, String> {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let mut user = User::new(b"u");
        for word in join_words(&words).map_err(|word| unmatched(&word))? {
            user.apply(&word, OtherNames::None).map_err(|problem| problem.text().to_owned())?;
        }
        Ok(user)
    }

    #[test]
    fn one_set_of_rights_must_allow_all_of_a_command() {
        let user = user("on ~own:* +set (~read:* +get) (%R~from +copy %W~to) (&news +subscribe)").unwrap();
        let denied = |line: &str| {
            let argv: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            user.check(&argv, None).err().map_or("", |denial| denial.reason().0)
        };
        for (line, expected) in [
            ("SET own:1 x", ""),
            ("GET read:1", ""),
            ("SET read:1 x", "key"),
            ("GET own:1", "key"),
            ("MSET own:1 x read:1 y", "command"),
            ("COPY from to", ""),
            ("COPY to from", "key"),
            ("SUBSCRIBE news", ""),
            ("SUBSCRIBE other", "channel"),
            ("DEL own:1", "command"),
        ] {
            assert_eq!(denied(line), expected, "{line}");
        }
        assert!(user.may_use_channel(b"news", false) && !user.may_use_channel(b"other", false));
    }

    /// The line is the one a Redis 7.0.15 showed for the same words.
    #[test]
    fn selectors_are_shown_as_redis_shows_them() {
        let shown = "user u on nopass ~own:* resetchannels -@all +set (~read:* resetchannels -@all +get) (~* &* +@all)";
        let made = user("on nopass ~own:* +set (~read:* +get) (allkeys allchannels +@all)").unwrap();
        assert_eq!(made.describe(), shown);
        let again = user(shown.strip_prefix("user u ").unwrap()).unwrap();
        assert_eq!(again, made);
        assert!(made.is_unrestricted());
        assert_eq!(user("on (+get ~a) clearselectors").unwrap(), user("on").unwrap());
    }

    #[test]
    fn bad_selectors_are_refused() {
        for (line, expected) in [
            ("(+get ~a", "Unmatched parenthesis in acl selector starting at '(+get'."),
            ("(on)", "Syntax error"),
            ("(>secret)", "Syntax error"),
            ("(+get (~a))", "Syntax error"),
            ("(+nosuch)", "Unknown command or category name in ACL"),
        ] {
            assert_eq!(user(line).unwrap_err(), expected, "{line}");
        }
        let mut many = User::new(b"u");
        (0..SELECTORS_MAX).for_each(|_| many.apply(b"(+get)", OtherNames::None).unwrap());
        assert_eq!(many.apply(b"(+get)", OtherNames::None), Err(Problem::TooMany));
    }
}
