//! Rights that travel with a script: the node of the client knows the user, the leader runs the script.
//!
//! The rights themselves are sent, not the user's name: the leader's file may be another one, or not have been read again yet.

use super::commands::OtherNames;
use super::selector::join_words;
use super::user::User;
use redfence_core::grammar::errors::shown;
use redfence_core::reply::Refusal;
use std::cell::RefCell;
use std::rc::Rc;

/// Bytes of rights that travel with a script. A user with more rules runs no scripts.
pub const RIGHTS_BYTES_MAX: usize = 16 * 1024;

/// How the refusal of a call begins.
pub const REFUSED: &str = "NOPERM ACL failure in script: ";

/// The rights of a user, for [`guard`].
pub fn rights_of(user: &User) -> Result<Vec<u8>, Refusal> {
    let text = user.describe_rights() + &user.describe_selectors();
    if text.len() > RIGHTS_BYTES_MAX {
        return Err(Refusal::new(format!(
            "NOPERM the rules of user '{}' exceed {RIGHTS_BYTES_MAX} bytes, the limit for users that run scripts; use fewer patterns",
            shown(&user.name)
        )));
    }
    Ok(text.into_bytes())
}

/// The text of some rights, and the user they make.
type ReadRights = (Box<[u8]>, Rc<User>);

thread_local! {
    /// The rights asked about last: a script makes many calls.
    static LAST: RefCell<Option<ReadRights>> = const { RefCell::new(None) };
}

/// Whether these rights allow a call of a script.
pub fn guard(rights: &[u8], argv: &[&[u8]]) -> Result<(), Refusal> {
    let user = LAST.with_borrow_mut(|last| match last {
        Some((text, user)) if **text == *rights => Ok(Rc::clone(user)),
        Some(_) | None => {
            let user = Rc::new(parse(rights)?);
            *last = Some((rights.into(), Rc::clone(&user)));
            Ok(user)
        }
    })?;
    user.check(argv, None).map_err(|denial| Refusal::new(format!("{REFUSED}{}", denial.text())))
}

fn parse(rights: &[u8]) -> Result<User, Refusal> {
    let bad = || Refusal::new("NOPERM the rights of this script's user cannot be read");
    if rights.len() > RIGHTS_BYTES_MAX {
        return Err(bad());
    }
    let mut user = User::new(b"");
    let words: Vec<&[u8]> = rights.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).collect();
    for word in join_words(&words).map_err(|_| bad())? {
        user.apply(&word, OtherNames::Any).map_err(|_| bad())?;
    }
    Ok(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_the_same_on_the_leader() {
        let mut user = User::new(b"u");
        for word in ["on", ">secret", "~app:*", "%R~seen", "&news", "+@all", "-@dangerous"] {
            user.apply(word.as_bytes(), OtherNames::None).unwrap();
        }
        user.apply(b"(~more +get)", OtherNames::None).unwrap();
        let rights = rights_of(&user).unwrap();
        let expected =
            "~app:* %R~seen resetchannels &news +@all -@dangerous (~more resetchannels -@all +get)";
        assert_eq!(rights, expected.as_bytes());
        let denied = |line: &str| {
            let argv: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            guard(&rights, &argv).err().map(|refusal| refusal.0.into_owned())
        };
        assert_eq!(denied("SET app:1 x"), None);
        assert_eq!(denied("GET seen"), None);
        assert_eq!(denied("GET more"), None);
        let key = "NOPERM ACL failure in script: this user has no permissions to access one of the keys used as arguments";
        assert_eq!(denied("SET seen x").as_deref(), Some(key));
        let command =
            "NOPERM ACL failure in script: this user has no permissions to run the 'flushall' command";
        assert_eq!(denied("FLUSHALL").as_deref(), Some(command));
        assert!(guard(b"rubbish", &[b"PING"]).is_err());
        assert!(guard(b"", &[b"PING"]).is_err());
    }
}
