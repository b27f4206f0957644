//! The peer secret: 32 random bytes that every node of a cluster has in a file. Several lines serve its rotation: a node dials with
//! the first and accepts all.
//!
//! The file is read again once a second. A file that cannot be used is logged once, and the secrets in use stay.

use sha2::{Digest, Sha256};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

pub const SECRET_BYTES: usize = 32;
/// Secrets in one file: the one in use, the next, and a few left over.
pub const SECRETS_MAX: usize = 8;
const FILE_BYTES_MAX: u64 = 4_096;
/// 32 random bytes have fewer different values than this once in 10^30 times.
const DIFFERENT_BYTES_MIN: usize = 8;

/// One secret. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct PeerSecret([u8; SECRET_BYTES]);

/// Tells secrets apart without showing them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecretId(u64);

impl fmt::Debug for PeerSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerSecret(redacted)")
    }
}

impl PeerSecret {
    /// From 64 hexadecimal digits, or base64 of 32 bytes.
    pub fn parse(text: &str) -> Result<PeerSecret, String> {
        let bytes = match text.len() {
            64 => decode_hex(text),
            43 | 44 => decode_base64(text),
            _ => None,
        };
        let bytes = bytes.ok_or("a peer secret is 32 random bytes, as 64 hexadecimal digits or in base64")?;
        let mut values = bytes;
        values.sort_unstable();
        let different = 1 + values.windows(2).filter(|pair| pair[0] != pair[1]).count();
        if different < DIFFERENT_BYTES_MIN {
            return Err("this peer secret is not random; make one with: openssl rand -hex 32".to_string());
        }
        Ok(PeerSecret(bytes))
    }

    pub(super) fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }

    pub(super) fn id(&self) -> SecretId {
        let digest = Sha256::digest(self.0);
        let (first, _) = digest.split_first_chunk().expect("a digest has 32 bytes");
        SecretId(u64::from_le_bytes(*first))
    }
}

fn decode_hex(text: &str) -> Option<[u8; SECRET_BYTES]> {
    let mut bytes = [0; SECRET_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = u8::try_from(digit(0)? * 16 + digit(1)?).ok()?;
    }
    Some(bytes)
}

/// With or without padding, in the alphabet of files or of URLs.
fn decode_base64(text: &str) -> Option<[u8; SECRET_BYTES]> {
    let digits = text.strip_suffix('=').unwrap_or(text);
    if digits.len() != 43 {
        return None;
    }
    let (mut bytes, mut at) = ([0; SECRET_BYTES], 0);
    let (mut held, mut bits) = (0u32, 0);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        held = (held << 6) | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            *bytes.get_mut(at)? = (held >> bits) as u8;
            at += 1;
            held &= (1 << bits) - 1;
        }
    }
    // Bits left over that are not zero belong to no encoding of 32 bytes.
    (at == SECRET_BYTES && held == 0).then_some(bytes)
}

/// The secrets of one file, as they were last read.
#[derive(Debug)]
pub struct SecretFile {
    path: PathBuf,
    secrets: Mutex<Arc<[PeerSecret]>>,
}

impl SecretFile {
    /// Reads the file. The error is one line.
    pub fn open(path: &Path) -> Result<SecretFile, String> {
        let secrets = read(path)?;
        Ok(SecretFile { path: path.to_path_buf(), secrets: Mutex::new(secrets) })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// At least one. The first is dialled with.
    pub(super) fn secrets(&self) -> Arc<[PeerSecret]> {
        self.secrets.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the file again. Answers the ids of secrets that are no longer in it, where it has changed.
    pub(super) fn reread(&self) -> Result<Option<Vec<SecretId>>, String> {
        let fresh = read(&self.path)?;
        let mut secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        if *secrets == fresh {
            return Ok(None);
        }
        let before = std::mem::replace(&mut *secrets, fresh.clone());
        let gone = before.iter().filter(|secret| !fresh.contains(secret));
        Ok(Some(gone.map(PeerSecret::id).collect()))
    }
}

fn read(path: &Path) -> Result<Arc<[PeerSecret]>, String> {
    let shown = path.display();
    let wrong = |what: &str| format!("peer-secret-file {shown}: {what}");
    let size = std::fs::metadata(path).map_err(|error| wrong(&error.to_string()))?.len();
    if size > FILE_BYTES_MAX {
        return Err(wrong(&format!("{size} bytes; {FILE_BYTES_MAX} at most")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| wrong(&error.to_string()))?;
    let mut secrets = Vec::new();
    for (at, line) in text.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let secret = PeerSecret::parse(line).map_err(|error| wrong(&format!("line {}: {error}", at + 1)))?;
        if secrets.contains(&secret) {
            return Err(wrong(&format!("line {}: this secret is in the file twice", at + 1)));
        }
        secrets.push(secret);
    }
    match secrets.len() {
        0 => Err(wrong("no secret in it; make one with: openssl rand -hex 32")),
        1..=SECRETS_MAX => Ok(secrets.into()),
        _ => Err(wrong(&format!("{SECRETS_MAX} secrets at most"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "00112233445566778899aabbccddeeff0123456789abcdeffedcba9876543210";
    const BASE64: &str = "ABEiM0RVZneImaq7zN3u/wEjRWeJq83v/ty6mHZUMhA=";

    #[test]
    fn hex_and_base64_give_the_same_secret() {
        let secret = PeerSecret::parse(HEX).unwrap();
        assert_eq!(PeerSecret::parse(BASE64).unwrap(), secret);
        assert_eq!(PeerSecret::parse(BASE64.trim_end_matches('=')).unwrap(), secret);
        assert_eq!(PeerSecret::parse(&BASE64.replace('/', "_")).unwrap(), secret);
        assert_eq!(PeerSecret::parse(&HEX.to_uppercase()).unwrap(), secret);
    }

    #[test]
    fn what_is_not_32_random_bytes_is_refused() {
        for text in ["", "secret", &HEX[2..], &format!("{HEX}00"), &"ab".repeat(32), &"00".repeat(32)] {
            assert!(PeerSecret::parse(text).is_err(), "{text}");
        }
        assert!(PeerSecret::parse(&"g".repeat(64)).is_err());
        assert!(PeerSecret::parse(&"A".repeat(43)).is_err());
        assert!(PeerSecret::parse(&BASE64.replace("MhA=", "MhB=")).is_err(), "bits beyond 32 bytes");
        assert_eq!(format!("{:?}", PeerSecret::parse(HEX).unwrap()), "PeerSecret(redacted)");
    }

    #[test]
    fn a_file_has_one_secret_a_line_and_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, format!("# the old one\n{HEX}\n\n")).unwrap();
        let file = SecretFile::open(&path).unwrap();
        assert_eq!(file.reread(), Ok(None));
        let next = HEX.replace("00112233", "99887766");
        std::fs::write(&path, format!("{next}\n{HEX}\n")).unwrap();
        assert_eq!(file.reread(), Ok(Some(Vec::new())));
        assert_eq!(file.secrets()[0], PeerSecret::parse(&next).unwrap());
        std::fs::write(&path, &next).unwrap();
        assert_eq!(file.reread(), Ok(Some(vec![PeerSecret::parse(HEX).unwrap().id()])));
        std::fs::write(&path, "half a line").unwrap();
        assert!(file.reread().unwrap_err().contains("line 1"));
        assert_eq!(file.secrets().len(), 1, "the secrets in use stay");
    }

    #[test]
    fn every_wrong_file_is_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        assert!(SecretFile::open(&path).unwrap_err().contains("peer-secret-file"));
        let many: Vec<String> = (0..9).map(|n| HEX.replace("00112233", &format!("{n}0112233"))).collect();
        for text in ["", "# nothing", &format!("{HEX}\n{HEX}"), &many.join("\n"), &" ".repeat(5_000)] {
            std::fs::write(&path, text).unwrap();
            let line = SecretFile::open(&path).unwrap_err();
            assert!(line.starts_with("peer-secret-file") && line.lines().count() == 1, "{line}");
        }
    }
}
