//! `KEYS` in slices: a node looks at some records, does everything else it has to do, and goes on.
//!
//! A key that is there from the first slice to the last is listed; one that comes or goes meanwhile may be or not, as with `SCAN`.
//! Names are put in order as they are found: to sort all of them at the end would take too long.

use crate::glob;
use crate::keyspace::{errors, Keys};
use crate::limits::READ_REPLY_BYTES_MAX;
use crate::machine::keys::adapter::ReadKeys;
use crate::machine::log::command::Db;
use crate::machine::work::Work;
use crate::machine::Machine;
use crate::reply::Reply;
use crate::types::Member;
use ::bytes::Bytes;
use std::collections::BTreeSet;

/// Records one slice looks at, and steps of the pattern after which it ends sooner.
const RECORDS_PER_SLICE: usize = 4_096;
const STEPS_PER_SLICE_MAX: u64 = 4_000_000;
/// Names found after which a slice ends: to put one in order costs as much as several looks.
const FOUND_PER_SLICE_MAX: usize = 1_024;
/// Records that are looked at before the steps are looked at.
const RECORDS_PER_LOOK: usize = 16;

/// One `KEYS` under way.
#[derive(Debug)]
pub struct KeysWalk {
    member: Option<Member>,
    db: Db,
    pattern: Bytes,
    cursor: u64,
    /// By name.
    found: BTreeSet<Bytes>,
    bytes: usize,
}

impl KeysWalk {
    /// `None` where these words are no `KEYS` that could be answered with a list.
    #[must_use]
    pub fn new(member: Option<Member>, db: Db, argv: &[Bytes]) -> Option<KeysWalk> {
        match argv {
            [name, pattern] if name.eq_ignore_ascii_case(b"keys") => {
                errors::check_pattern(pattern).ok()?;
                let (found, pattern) = (BTreeSet::new(), pattern.clone());
                Some(KeysWalk { member, db, pattern, cursor: 0, found, bytes: 0 })
            }
            _ => None,
        }
    }

    /// Looks at one slice. The answer, once the last one is through.
    pub fn step(&mut self, machine: &Machine) -> Option<Reply> {
        let keys = ReadKeys { machine, member: self.member, late_ms: 0, work: Work::of_read() };
        let (mut steps, mut looked) = (0, 0);
        let found_max = self.found.len() + FOUND_PER_SLICE_MAX;
        while looked < RECORDS_PER_SLICE && steps < STEPS_PER_SLICE_MAX && self.found.len() < found_max {
            let (pattern, found, bytes) = (&self.pattern, &mut self.found, &mut self.bytes);
            self.cursor = keys.scan(self.db, self.cursor, RECORDS_PER_LOOK, &mut |key, _| {
                // One that went and came back may be met twice.
                if glob::matches_counted(pattern, key, &mut steps)
                    && found.insert(Bytes::copy_from_slice(key))
                {
                    *bytes += key.len() + 16;
                }
            });
            looked += RECORDS_PER_LOOK;
            if self.bytes > READ_REPLY_BYTES_MAX {
                return Some(errors::KEYS_TOO_LONG.into());
            }
            if self.cursor == 0 {
                let found = std::mem::take(&mut self.found);
                return Some(Reply::Array(found.into_iter().map(Reply::Bulk).collect()));
            }
        }
        None
    }
}
