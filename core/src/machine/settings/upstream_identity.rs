//! Which Redis the members have behind them. Two members with two different Redis servers would be two stores for one name, so
//! each reports the identity of its own, and one that has another than the reference serves nothing from it.
//!
//! An identity is what `INFO` of a Redis says: its run id (one process), its replication id (one history of data, shared by a
//! primary and its replicas) and the replication id before a failover. The reference is the leader's. It moves on by itself
//! when a Redis is promoted or restarted from its data (its second id is the reference's): a history has one newest end. It
//! moves to an unrelated Redis only when the leader reports one and no other member still has the old one.

use crate::machine::log::bytes::{put_bytes, put_varint, Reader};
use std::collections::BTreeMap;

/// Redis's ids have 40 digits.
const ID_BYTES_MAX: usize = 64;
/// Members whose report is kept.
const REPORTS_MAX: usize = 1_024;

/// What a member has behind it, as it is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report<'a> {
    NoRedis,
    Redis {
        run_id: &'a [u8],
        replid: &'a [u8],
        /// Empty where there is none.
        replid2: &'a [u8],
    },
}

/// The same, kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    NoRedis,
    Redis { run_id: Vec<u8>, replid: Vec<u8>, replid2: Vec<u8> },
}

/// How a report stands to the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// The same server, or another with the same data.
    Same,
    /// Made from the reference's data by a failover or a restart.
    Successor,
    Other,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Behind {
    /// `None` until the first leader has reported.
    pub reference: Option<Identity>,
    pub reports: BTreeMap<u64, Identity>,
}

impl Identity {
    #[must_use]
    pub fn as_report(&self) -> Report<'_> {
        match self {
            Identity::NoRedis => Report::NoRedis,
            Identity::Redis { run_id, replid, replid2 } => Report::Redis { run_id, replid, replid2 },
        }
    }

    #[must_use]
    pub fn relation_of(&self, report: &Report<'_>) -> Relation {
        match (self, report) {
            (Identity::NoRedis, Report::NoRedis) => Relation::Same,
            (Identity::NoRedis, Report::Redis { .. }) | (Identity::Redis { .. }, Report::NoRedis) => {
                Relation::Other
            }
            (Identity::Redis { run_id, replid, .. }, Report::Redis { run_id: run, replid: id, replid2 }) => {
                if run_id == run || replid == id {
                    Relation::Same
                } else if replid == replid2 {
                    Relation::Successor
                } else {
                    Relation::Other
                }
            }
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.as_report().encode(out);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Identity> {
        Report::decode(reader).map(|report| report.to_identity())
    }
}

impl<'a> Report<'a> {
    #[must_use]
    pub fn to_identity(&self) -> Identity {
        match *self {
            Report::NoRedis => Identity::NoRedis,
            Report::Redis { run_id, replid, replid2 } => {
                Identity::Redis { run_id: run_id.into(), replid: replid.into(), replid2: replid2.into() }
            }
        }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Report::NoRedis => out.push(0),
            Report::Redis { run_id, replid, replid2 } => {
                out.push(1);
                put_bytes(out, run_id);
                put_bytes(out, replid);
                put_bytes(out, replid2);
            }
        }
    }

    pub(crate) fn decode(reader: &mut Reader<'a>) -> Option<Report<'a>> {
        match reader.u8()? {
            0 => Some(Report::NoRedis),
            1 => Some(Report::Redis { run_id: id(reader)?, replid: id(reader)?, replid2: id(reader)? }),
            _ => None,
        }
    }
}

fn id<'a>(reader: &mut Reader<'a>) -> Option<&'a [u8]> {
    reader.bytes().filter(|id| id.len() <= ID_BYTES_MAX)
}

impl Behind {
    /// A member's report. True where the reference changed.
    pub(crate) fn report(&mut self, node: u64, leads: bool, report: &Report<'_>) -> bool {
        if self.reports.len() < REPORTS_MAX || self.reports.contains_key(&node) {
            self.reports.insert(node, report.to_identity());
        }
        let taken = match &self.reference {
            None => leads,
            Some(reference) => match reference.relation_of(report) {
                // A replica shares the data of its primary, but a server that changed its own id is the newest there is.
                Relation::Same => is_same_server(reference, report),
                Relation::Successor => true,
                Relation::Other => leads && !self.others_have(node, reference),
            },
        };
        let changed = taken && self.reference.as_ref().map(Identity::as_report) != Some(*report);
        if changed {
            self.reference = Some(report.to_identity());
        }
        changed
    }

    fn others_have(&self, node: u64, reference: &Identity) -> bool {
        let mut others = self.reports.iter().filter(|(other, _)| **other != node);
        others.any(|(_, identity)| reference.relation_of(&identity.as_report()) == Relation::Same)
    }

    /// A member is gone: what it had behind it no longer counts.
    pub(crate) fn forget(&mut self, node: u64) {
        self.reports.remove(&node);
    }

    /// A new cluster begins: members of the old one that are not in it will not report again.
    pub(crate) fn forget_all(&mut self) {
        self.reports.clear();
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.reference.is_some()));
        if let Some(reference) = &self.reference {
            reference.write(out);
        }
        put_varint(out, self.reports.len() as u64);
        for (node, identity) in &self.reports {
            put_varint(out, *node);
            identity.write(out);
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Behind> {
        let reference = if reader.flag()? { Some(Identity::read(reader)?) } else { None };
        let mut reports = BTreeMap::new();
        for _ in 0..reader.varint().filter(|count| *count <= REPORTS_MAX as u64)? {
            reports.insert(reader.varint()?, Identity::read(reader)?);
        }
        Some(Behind { reference, reports })
    }
}

fn is_same_server(reference: &Identity, report: &Report<'_>) -> bool {
    match (reference, report) {
        (Identity::Redis { run_id, .. }, Report::Redis { run_id: run, .. }) => run_id == run,
        (Identity::NoRedis, _) | (_, Report::NoRedis) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redis<'a>(run_id: &'a str, replid: &'a str, replid2: &'a str) -> Report<'a> {
        Report::Redis { run_id: run_id.as_bytes(), replid: replid.as_bytes(), replid2: replid2.as_bytes() }
    }

    fn is_reference(behind: &Behind, report: &Report<'_>) -> bool {
        behind.reference.as_ref().unwrap().relation_of(report) == Relation::Same
    }

    #[test]
    fn the_first_leader_decides_and_a_member_with_another_redis_does_not() {
        let mut behind = Behind::default();
        assert!(!behind.report(2, false, &redis("r2", "y", "")));
        assert!(behind.reference.is_none());
        assert!(behind.report(1, true, &redis("r1", "x", "")));
        assert!(!behind.report(2, false, &redis("r2", "y", "")));
        assert!(!behind.report(2, true, &redis("r2", "y", "")), "a new leader with a Redis of its own");
        assert!(is_reference(&behind, &redis("r1", "x", "")));
        assert!(!is_reference(&behind, &redis("r2", "y", "")));
        assert!(is_reference(&behind, &redis("r3", "x", "")), "a replica of the reference");
    }

    #[test]
    fn a_failover_moves_the_reference_on_and_never_back() {
        let mut behind = Behind::default();
        behind.report(1, true, &redis("r1", "x", ""));
        behind.report(2, false, &redis("r2", "x", ""));
        assert!(behind.report(2, false, &redis("r2", "y", "x")));
        assert!(is_reference(&behind, &redis("r2", "y", "x")));
        assert!(!is_reference(&behind, &redis("r1", "x", "")), "the old primary");
        assert!(!behind.report(1, true, &redis("r1", "x", "")));
    }

    #[test]
    fn an_unrelated_redis_is_taken_when_nobody_has_the_old_one() {
        let mut behind = Behind::default();
        behind.report(1, true, &redis("r1", "x", ""));
        behind.report(2, false, &redis("r1", "x", ""));
        assert!(!behind.report(1, true, &redis("r9", "z", "")), "node 2 still has the old one");
        assert!(!behind.report(2, false, &redis("r9", "z", "")), "only the leader's word counts");
        assert!(behind.report(1, true, &redis("r9", "z", "")));
        behind.report(1, true, &Report::NoRedis);
        assert!(!is_reference(&behind, &Report::NoRedis));
        behind.forget(2);
        assert!(behind.report(1, true, &Report::NoRedis));
    }
}
