//! The reports of the voters, compared. The majority decides, never the leader.
//!
//! A row is opened by its point and holds one value for each voter; the first report of a member counts. As soon as a majority of
//! the voters has reported the same value the row is *agreed*, everything up to its index is confirmed, and whoever reported
//! something else is quarantined, also if it reports later. Rows are few: an older one is dropped undecided, because the chain of a
//! later one covers it.

use crate::machine::log::bytes::{put_varint, Reader};
use std::collections::VecDeque;

/// Rows kept of each kind. Full digests are rare, and take long on a large state.
const CHAIN_ROWS_MAX: usize = 16;
const FULL_ROWS_MAX: usize = 4;
/// More members than a cluster can have.
const MEMBERS_MAX: usize = 256;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DigestKind {
    /// All events and replies up to the index.
    Chain,
    /// The state at the index.
    Full,
}

impl DigestKind {
    pub(crate) fn number(self) -> u8 {
        match self {
            DigestKind::Chain => 0,
            DigestKind::Full => 1,
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<DigestKind> {
        Some(match reader.flag()? {
            false => DigestKind::Chain,
            true => DigestKind::Full,
        })
    }
}

/// A member of the cluster, one life of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberLife {
    pub node: u64,
    pub added_at: u64,
    pub voter: bool,
}

/// Whether the reports allow to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nobody differs, or a majority has decided who is wrong.
    Agreed,
    /// Voters differ at this index, and those that have not reported yet may decide it.
    Undecided(u64),
    /// Voters differ at this index, and no majority can agree any more.
    NoMajority(u64),
}

/// One member's value at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reported {
    node: u64,
    added_at: u64,
    value: u64,
}

/// The reports about one point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DigestRow {
    index: u64,
    agreed: Option<u64>,
    reports: Vec<Reported>,
}

impl DigestRow {
    /// The value of a majority, once there is one.
    #[must_use]
    pub fn agreed(&self) -> Option<u64> {
        self.agreed
    }

    #[must_use]
    pub fn has_report_of(&self, node: u64, added_at: u64) -> bool {
        self.reports.iter().any(|report| (report.node, report.added_at) == (node, added_at))
    }

    /// The most frequent value, and how many voters have it.
    fn most(&self, members: &[MemberLife]) -> (u64, usize) {
        let counted = |value: u64| self.voters(members).filter(|report| report.value == value).count();
        let values = self.voters(members).map(|report| (report.value, counted(report.value)));
        values.max_by_key(|(_, count)| *count).unwrap_or((0, 0))
    }

    /// Reports of those that are voters now.
    fn voters<'a>(&'a self, members: &'a [MemberLife]) -> impl Iterator<Item = &'a Reported> {
        self.reports.iter().filter(|report| {
            let of_it =
                |member: &&MemberLife| (member.node, member.added_at) == (report.node, report.added_at);
            members.iter().find(of_it).is_some_and(|member| member.voter)
        })
    }
}

/// A member that has diverged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Diverged {
    node: u64,
    added_at: u64,
    index: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DigestTable {
    chain_rows: VecDeque<DigestRow>,
    full_rows: VecDeque<DigestRow>,
    pub(crate) confirmed: u64,
    pub(crate) quarantined: Vec<Diverged>,
    /// Voters' chains differ at this index, and nothing at or behind it is agreed yet.
    chain_conflict: Option<u64>,
    /// The same for full digests. Chains say nothing of it: states that differ may answer alike for long.
    full_conflict: Option<u64>,
    /// Not state: a function of the log's membership changes.
    members: Vec<MemberLife>,
}

impl DigestTable {
    pub(crate) fn set_members(&mut self, members: Vec<MemberLife>) {
        self.quarantined.retain(|diverged| {
            members.iter().any(|member| (member.node, member.added_at) == (diverged.node, diverged.added_at))
        });
        self.members = members;
        self.members.truncate(MEMBERS_MAX);
    }

    fn voters(&self) -> impl Iterator<Item = &MemberLife> {
        self.members.iter().filter(|member| member.voter)
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.voters().count() == 1
    }

    fn majority(&self) -> usize {
        self.voters().count() / 2 + 1
    }

    /// A point was made.
    pub(crate) fn open(&mut self, kind: DigestKind, index: u64) {
        if self.is_alone() {
            // A single voter has nobody to compare with: what it says is the majority's word.
            self.confirm(kind, index);
            return;
        }
        let (rows, rows_max) = match kind {
            DigestKind::Chain => (&mut self.chain_rows, CHAIN_ROWS_MAX),
            DigestKind::Full => (&mut self.full_rows, FULL_ROWS_MAX),
        };
        rows.push_back(DigestRow { index, agreed: None, reports: Vec::new() });
        while rows.len() > rows_max {
            rows.pop_front();
        }
    }

    pub(crate) fn row(&self, kind: DigestKind, index: u64) -> Option<&DigestRow> {
        let rows = match kind {
            DigestKind::Chain => &self.chain_rows,
            DigestKind::Full => &self.full_rows,
        };
        rows.iter().rev().find(|row| row.index == index)
    }

    /// A voter's value. One that is no voter, or is quarantined, has no say; nor has a second report for the same point.
    pub(crate) fn report(&mut self, node: u64, added_at: u64, kind: DigestKind, index: u64, value: u64) {
        let is_voter = self.voters().any(|member| (member.node, member.added_at) == (node, added_at));
        if !is_voter || self.quarantined_at(node, added_at).is_some() {
            return;
        }
        let rows = match kind {
            DigestKind::Chain => &mut self.chain_rows,
            DigestKind::Full => &mut self.full_rows,
        };
        let Some(at) = rows.iter().rposition(|row| row.index == index) else { return };
        if rows[at].has_report_of(node, added_at) || rows[at].reports.len() >= MEMBERS_MAX {
            return;
        }
        rows[at].reports.push(Reported { node, added_at, value });
        let row = rows[at].clone();
        let agreed = self.judge(kind, &row);
        match kind {
            DigestKind::Chain => self.chain_rows[at].agreed = agreed,
            DigestKind::Full => self.full_rows[at].agreed = agreed,
        }
    }

    /// The agreed value of a row after a report, and what follows from it.
    fn judge(&mut self, kind: DigestKind, row: &DigestRow) -> Option<u64> {
        let (value, count) = row.most(&self.members);
        let agreed = row.agreed.or((count >= self.majority()).then_some(value));
        let Some(value) = agreed else {
            if row.voters(&self.members).any(|report| report.value != value) {
                let conflict = match kind {
                    DigestKind::Chain => &mut self.chain_conflict,
                    DigestKind::Full => &mut self.full_conflict,
                };
                *conflict = (*conflict).max(Some(row.index));
            }
            return None;
        };
        self.confirm(kind, row.index);
        for report in row.reports.iter().filter(|report| report.value != value) {
            self.quarantine(report.node, report.added_at, row.index);
        }
        Some(value)
    }

    fn confirm(&mut self, kind: DigestKind, index: u64) {
        self.confirmed = self.confirmed.max(index);
        let is_over = |conflict: &mut u64| *conflict <= index;
        self.chain_conflict.take_if(is_over);
        if kind == DigestKind::Full {
            self.full_conflict.take_if(is_over);
        }
    }

    /// Voters' states differ, whatever their answers were.
    pub(crate) fn has_full_conflict(&self) -> bool {
        self.full_conflict.is_some_and(|index| self.is_conflict(DigestKind::Full, index))
    }

    /// Whether those still differ who differed at an index: some may have been removed since, or quarantined for another point.
    fn is_conflict(&self, kind: DigestKind, index: u64) -> bool {
        let Some(row) = self.row(kind, index) else { return true };
        let counts = |report: &&Reported| self.quarantined_at(report.node, report.added_at).is_none();
        let mut values = row.voters(&self.members).filter(counts).map(|report| report.value);
        values.next().is_some_and(|first| values.any(|value| value != first))
    }

    pub(crate) fn quarantine(&mut self, node: u64, added_at: u64, index: u64) {
        let is_member = self.members.iter().any(|member| (member.node, member.added_at) == (node, added_at));
        if is_member && self.quarantined_at(node, added_at).is_none() && self.quarantined.len() < MEMBERS_MAX
        {
            self.quarantined.push(Diverged { node, added_at, index });
        }
    }

    pub(crate) fn quarantined_at(&self, node: u64, added_at: u64) -> Option<u64> {
        let of_it = |diverged: &&Diverged| (diverged.node, diverged.added_at) == (node, added_at);
        self.quarantined.iter().find(of_it).map(|diverged| diverged.index)
    }

    pub(crate) fn standing(&self) -> Standing {
        let full = self.full_conflict.filter(|index| self.is_conflict(DigestKind::Full, *index));
        let chain = self.chain_conflict.filter(|index| self.is_conflict(DigestKind::Chain, *index));
        let Some(index) = full.or(chain) else { return Standing::Agreed };
        let open = |row: &DigestRow| {
            let silent = self.voters().filter(|member| {
                !row.has_report_of(member.node, member.added_at)
                    && self.quarantined_at(member.node, member.added_at).is_none()
            });
            row.most(&self.members).1 + silent.count() >= self.majority()
        };
        let rows = self.row(DigestKind::Chain, index).into_iter().chain(self.row(DigestKind::Full, index));
        match rows.filter(|row| row.agreed.is_none()).all(open) {
            true => Standing::Undecided(index),
            false => Standing::NoMajority(index),
        }
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        for rows in [&self.chain_rows, &self.full_rows] {
            put_varint(out, rows.len() as u64);
            rows.iter().for_each(|row| row.write(out));
        }
        put_varint(out, self.confirmed);
        put_varint(out, self.chain_conflict.unwrap_or(0));
        put_varint(out, self.full_conflict.unwrap_or(0));
        put_varint(out, self.quarantined.len() as u64);
        for Diverged { node, added_at, index } in &self.quarantined {
            [node, added_at, index].into_iter().for_each(|number| put_varint(out, *number));
        }
    }

    /// `index_max`: the last entry applied.
    pub(crate) fn read(reader: &mut Reader<'_>, index_max: u64) -> Option<DigestTable> {
        let mut table = DigestTable::default();
        for (rows, rows_max) in
            [(&mut table.chain_rows, CHAIN_ROWS_MAX), (&mut table.full_rows, FULL_ROWS_MAX)]
        {
            for _ in 0..reader.varint().filter(|count| *count <= rows_max as u64)? {
                rows.push_back(DigestRow::read(reader).filter(|row| row.index <= index_max)?);
            }
        }
        let mut before = || reader.varint().filter(|number| *number <= index_max);
        table.confirmed = before()?;
        table.chain_conflict = Some(before()?).filter(|index| *index > 0);
        table.full_conflict = Some(before()?).filter(|index| *index > 0);
        for _ in 0..reader.varint().filter(|count| *count <= MEMBERS_MAX as u64)? {
            let (node, added_at, index) = (reader.varint()?, reader.varint()?, reader.varint()?);
            table.quarantined.push(Diverged { node, added_at, index });
        }
        Some(table)
    }
}

impl DigestRow {
    fn write(&self, out: &mut Vec<u8>) {
        put_varint(out, self.index);
        out.push(u8::from(self.agreed.is_some()));
        if let Some(value) = self.agreed {
            out.extend_from_slice(&value.to_le_bytes());
        }
        put_varint(out, self.reports.len() as u64);
        for Reported { node, added_at, value } in &self.reports {
            put_varint(out, *node);
            put_varint(out, *added_at);
            out.extend_from_slice(&value.to_le_bytes());
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<DigestRow> {
        let index = reader.varint()?;
        let agreed = if reader.flag()? { Some(reader.u64_fixed()?) } else { None };
        let mut reports = Vec::new();
        for _ in 0..reader.varint().filter(|count| *count <= MEMBERS_MAX as u64)? {
            let (node, added_at) = (reader.varint()?, reader.varint()?);
            reports.push(Reported { node, added_at, value: reader.u64_fixed()? });
        }
        Some(DigestRow { index, agreed, reports })
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
