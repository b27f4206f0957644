//! Passwords and keys as settings: never shown, and read from a file or the environment as well as from a flag.

use serde::Deserialize;
use std::fmt;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A file with a secret. A larger one is none.
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// Permission bits of everybody but the owner and the group.
const OTHERS: u32 = 0o007;

/// A password. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text itself, for who sends or compares it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Secret {
        Secret(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(redacted)")
    }
}

/// A secret that is given as text or as a file, or not at all. The error is one line, without the secret.
pub fn resolve(name: &str, text: Option<Secret>, file: Option<&Path>) -> Result<Option<Secret>, String> {
    let secret = match (text, file) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            return Err(format!("both {name} and {name}-file are given: use one of them"));
        }
        (Some(text), None) if text.0.is_empty() => {
            return Err(format!("{name} is empty: leave it out, or give a {name} that is none to guess"));
        }
        (Some(text), None) => text,
        (None, Some(path)) => from_file(name, path)?,
    };
    Ok(Some(secret))
}

/// The first line of a file.
fn from_file(name: &str, path: &Path) -> Result<Secret, String> {
    let shown = path.display();
    let wrong = |what: String| format!("{name}-file {shown}: {what}");
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| wrong(error.to_string()))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(wrong(format!("more than {FILE_BYTES_MAX} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| wrong("not UTF-8 text".into()))?;
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    if first.is_empty() {
        return Err(wrong(format!("is empty: its first line is the {name}")));
    }
    if lines.any(|line| !line.is_empty()) {
        return Err(wrong(format!("has more than one line: its first line is the {name}")));
    }
    Ok(Secret(first.to_owned()))
}

/// Whether everybody on this machine may read or write a file. One that is missing is not.
#[must_use]
pub fn is_open_to_others(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.mode() & OTHERS != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_never_shown() {
        assert_eq!(format!("{:?}", Some(Secret::from("hunter2".to_string()))), "Some((redacted))");
    }

    #[test]
    fn a_file_is_its_first_line_and_never_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            resolve("password", None, Some(&path)).map(|secret| secret.unwrap().expose().to_owned())
        };
        assert_eq!(read("pass word\n").unwrap(), "pass word");
        assert_eq!(read("no newline").unwrap(), "no newline");
        assert!(read("").unwrap_err().contains("is empty"));
        assert!(read("\n\n").unwrap_err().contains("is empty"));
        assert!(read("one\ntwo\n").unwrap_err().contains("more than one line"));
        assert!(read(&"x".repeat(70_000)).unwrap_err().contains("more than 65536 bytes"));
        let both = resolve("password", Some(Secret::from("x".to_string())), Some(&path));
        assert!(both.unwrap_err().contains("use one of them"));
        assert!(resolve("password", Some(Secret::from(String::new())), None)
            .unwrap_err()
            .contains("is empty"));
        let missing = resolve("password", None, Some(&folder.path().join("missing")));
        assert!(missing.unwrap_err().contains("password-file"));
    }
}
