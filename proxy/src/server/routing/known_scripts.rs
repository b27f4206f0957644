//! Scripts whose bodies this node's clients have sent: which of them only read, and which were sent through the log a short while ago.
//!
//! A script that only reads runs on this node's own state and leaves nothing in the log. In Redis it is cached all the same, so the
//! first time, and again after a while, it goes through the log: the leader runs it and its body comes into the cache. A SHA-1
//! stands for one body for ever, so what it is flagged with needs no invalidation; whether it is cached is asked of the state.

use redfence_core::script::scripts::{parse_sha, sha1, Sha};
use std::collections::HashMap;
use std::sync::Mutex;

/// All are forgotten when there are more.
const SCRIPTS_MAX: usize = 4_096;
/// A body that is used goes through the log once in this time: the cache may have been flushed, by any node.
const LOGGED_MS: u64 = 60_000;

#[derive(Clone, Copy, Debug)]
struct CachedScript {
    no_writes: bool,
    logged_at_ms: u64,
}

#[derive(Debug, Default)]
pub struct KnownScripts {
    by_sha: Mutex<HashMap<Sha, CachedScript>>,
}

impl KnownScripts {
    /// Whether a command with a script may run on this node's own state. If not it goes through the log, which is noted here.
    pub fn may_read(&self, argv: &[&[u8]], now_ms: u64) -> bool {
        let is = |name: &str| argv[0].eq_ignore_ascii_case(name.as_bytes());
        match argv {
            [_, body, ..] if is("eval_ro") => self.is_logged(body, now_ms),
            [_, body, ..] if is("eval") && is_flagged_no_writes(body) => self.is_logged(body, now_ms),
            [_, sha, ..] if is("evalsha") => self.is_no_writes(sha),
            [_, verb, body] if is("script") && verb.eq_ignore_ascii_case(b"LOAD") => {
                if is_flagged_no_writes(body) {
                    self.is_logged(body, now_ms);
                }
                false
            }
            [_, verb, ..] if is("script") && verb.eq_ignore_ascii_case(b"FLUSH") => {
                self.by_sha.lock().expect("mutex poisoned").clear();
                false
            }
            _ => is("evalsha_ro"),
        }
    }

    /// Whether a body has gone through the log lately. If not, it does now.
    fn is_logged(&self, body: &[u8], now_ms: u64) -> bool {
        let sha = sha1(body);
        let mut by_sha = self.by_sha.lock().expect("mutex poisoned");
        let known = by_sha.get(&sha);
        if known.is_some_and(|known| now_ms.saturating_sub(known.logged_at_ms) < LOGGED_MS) {
            return true;
        }
        if by_sha.len() >= SCRIPTS_MAX {
            by_sha.clear();
        }
        by_sha.insert(sha, CachedScript { no_writes: is_flagged_no_writes(body), logged_at_ms: now_ms });
        false
    }

    fn is_no_writes(&self, sha: &[u8]) -> bool {
        let by_sha = self.by_sha.lock().expect("mutex poisoned");
        parse_sha(sha).and_then(|sha| by_sha.get(&sha)).is_some_and(|known| known.no_writes)
    }
}

/// Whether a script's first line says `flags=no-writes`.
fn is_flagged_no_writes(body: &[u8]) -> bool {
    let first_line = body.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let Some(Ok(words)) = first_line.strip_prefix(b"#!lua").map(std::str::from_utf8) else { return false };
    let mut flags = words.split_ascii_whitespace().filter_map(|word| word.strip_prefix("flags="));
    flags.any(|flags| flags.split(',').any(|flag| flag == "no-writes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use redfence_core::script::scripts::sha_hex;

    const FLAGGED: &str = "#!lua flags=no-writes\nreturn 1";

    fn may_read(known: &KnownScripts, words: &[&str], now_ms: u64) -> bool {
        known.may_read(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>(), now_ms)
    }

    #[test]
    fn scripts_that_only_read_are_told_by_name_or_flag() {
        let known = KnownScripts::default();
        for words in
            [["EVAL_RO", "return 1", "0"], ["EVAL", "#!lua name=x flags=allow-oom,no-writes\nreturn 1", "0"]]
        {
            assert!(!may_read(&known, &words, 0), "the first time it is cached");
            assert!(may_read(&known, &words, 1));
            assert!(!may_read(&known, &words, LOGGED_MS + 1), "and again after a while");
            assert!(may_read(&known, &words, LOGGED_MS + 2));
        }
        assert!(may_read(&known, &["evalsha_ro", "00", "0"], 0));
        for body in ["#!lua name=no-writes\nreturn 1", "return 'flags=no-writes'", "return 1"] {
            assert!(!may_read(&known, &["EVAL", body, "0"], 0));
            assert!(!may_read(&known, &["EVAL", body, "0"], 1));
        }
    }

    #[test]
    fn a_cached_script_that_only_reads_is_known_by_its_sha() {
        let known = KnownScripts::default();
        let sha = sha_hex(&sha1(FLAGGED.as_bytes()));
        assert!(!may_read(&known, &["EVALSHA", &sha, "0"], 0));
        assert!(!may_read(&known, &["SCRIPT", "LOAD", FLAGGED], 0));
        assert!(may_read(&known, &["EVALSHA", &sha, "0"], 1));
        assert!(!may_read(&known, &["SCRIPT", "FLUSH"], 2));
        assert!(!may_read(&known, &["EVALSHA", &sha, "0"], 3));
        // Whether it writes is not known of one that was only called as if it did not.
        let plain = sha_hex(&sha1(b"return 1"));
        may_read(&known, &["EVAL_RO", "return 1", "0"], 4);
        assert!(!may_read(&known, &["EVALSHA", &plain, "0"], 5));
    }
}
