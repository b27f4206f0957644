//! A sorted set: members ordered by score, then by bytes, as in Redis.
//!
//! Small ones are one sorted vector. Larger ones are two persistent trees, one by (score, member) and one by member, so
//! that a copy costs nothing and a script's writes can be undone.
//!
//! # Caveats
//!
//! Ranks in a large set are counted from the nearer end: linear, where Redis's skip list is logarithmic.

use super::fields::SMALL_MAX;
use crate::limits::ELEMENT_OVERHEAD_BYTES;
use bytes::Bytes;
use imbl::{OrdMap, OrdSet};
use std::cmp::Ordering;

/// A score: any double but NaN. -0 and 0 are equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score(pub f64);

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Score) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Score) -> Ordering {
        self.0.partial_cmp(&other.0).expect("a score is never NaN: parsing and arithmetic refuse it")
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SortedForm {
    Small(Vec<(Score, Bytes)>),
    Large { by_score: OrdSet<(Score, Bytes)>, by_member: OrdMap<Bytes, Score> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sorted {
    form: SortedForm,
    weight: usize,
}

/// A member and its score count as two elements.
fn weigh(member: &[u8]) -> usize {
    member.len() + 2 * ELEMENT_OVERHEAD_BYTES
}

impl Default for Sorted {
    fn default() -> Self {
        Sorted { form: SortedForm::Small(Vec::new()), weight: 0 }
    }
}

impl From<SortedForm> for Sorted {
    fn from(form: SortedForm) -> Sorted {
        let mut sorted = Sorted { form, weight: 0 };
        sorted.weight = sorted.iter().map(|(_, member)| weigh(member)).sum();
        sorted
    }
}

impl Sorted {
    #[must_use]
    pub fn form(&self) -> &SortedForm {
        &self.form
    }

    /// Bytes of all members, each with its overhead.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.weight
    }

    /// Adds a member behind all others, as a snapshot gives them. `None` where it is there already or out of order.
    pub(super) fn append(&mut self, score: Score, member: Bytes) -> Option<()> {
        let weight = weigh(&member);
        match &mut self.form {
            SortedForm::Small(entries) => {
                let in_order = entries.last().is_none_or(|(last, name)| (*last, name) < (score, &member));
                let doubled = entries.iter().any(|(_, have)| *have == member);
                (in_order && !doubled && entries.len() < SMALL_MAX).then(|| entries.push((score, member)))?;
            }
            SortedForm::Large { by_score, by_member } => {
                let entry = (score, member);
                let in_order = by_score.get_max().is_none_or(|last| *last < entry);
                if !in_order || by_member.insert(entry.1.clone(), score).is_some() {
                    return None;
                }
                by_score.insert(entry);
            }
        }
        self.weight += weight;
        Some(())
    }

    #[must_use]
    pub fn len(&self) -> usize {
        match &self.form {
            SortedForm::Small(entries) => entries.len(),
            SortedForm::Large { by_member, .. } => by_member.len(),
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that a look for this member compares at most.
    #[must_use]
    pub(super) fn compared_bytes(&self, member: &[u8]) -> usize {
        let compares = match &self.form {
            SortedForm::Small(entries) => entries.len(),
            SortedForm::Large { by_member, .. } => {
                2 * (by_member.len().checked_ilog2().unwrap_or(0) as usize + 1)
            }
        };
        member.len() * compares
    }

    #[must_use]
    pub fn score(&self, member: &[u8]) -> Option<f64> {
        match &self.form {
            SortedForm::Small(entries) => {
                entries.iter().find(|(_, have)| have == member).map(|(score, _)| score.0)
            }
            SortedForm::Large { by_member, .. } => by_member.get(member).map(|score| score.0),
        }
    }

    /// Sets the member's score, adding it if need be; answers the score it had.
    pub fn insert(&mut self, member: &[u8], score: f64) -> Option<f64> {
        let before = self.remove(member);
        self.weight += weigh(member);
        // Adding zero turns -0 into 0: they are equal, and Redis's small sets too print 0.
        let entry = (Score(score + 0.0), Bytes::copy_from_slice(member));
        match &mut self.form {
            SortedForm::Small(entries) => {
                let at = entries.partition_point(|have| *have < entry);
                entries.insert(at, entry);
                if entries.len() > SMALL_MAX {
                    let entries = std::mem::take(entries);
                    let by_member = entries.iter().map(|(score, member)| (member.clone(), *score)).collect();
                    self.form = SortedForm::Large { by_score: entries.into_iter().collect(), by_member };
                }
            }
            SortedForm::Large { by_score, by_member } => {
                by_member.insert(entry.1.clone(), entry.0);
                by_score.insert(entry);
            }
        }
        before
    }

    pub fn remove(&mut self, member: &[u8]) -> Option<f64> {
        let score = match &mut self.form {
            SortedForm::Small(entries) => {
                let at = entries.iter().position(|(_, have)| have == member)?;
                entries.remove(at).0
            }
            SortedForm::Large { by_score, by_member } => {
                let (member, score) = by_member.remove_with_key(member)?;
                by_score.remove(&(score, member));
                score
            }
        };
        self.weight -= weigh(member);
        Some(score.0)
    }

    /// Lowest first; may be walked from the other end.
    pub fn iter(&self) -> Box<dyn DoubleEndedIterator<Item = (f64, &Bytes)> + '_> {
        match &self.form {
            SortedForm::Small(entries) => Box::new(entries.iter().map(|(score, member)| (score.0, member))),
            SortedForm::Large { by_score, .. } => {
                Box::new(by_score.iter().map(|(score, member)| (score.0, member)))
            }
        }
    }

    /// From the first entry whose score is at least `score`, lowest first.
    pub fn iter_from(&self, score: f64) -> Box<dyn DoubleEndedIterator<Item = (f64, &Bytes)> + '_> {
        match &self.form {
            SortedForm::Small(entries) => {
                let at = entries.partition_point(|(have, _)| have.0 < score);
                Box::new(entries[at..].iter().map(|(score, member)| (score.0, member)))
            }
            SortedForm::Large { by_score, .. } => {
                let from = (Score(score), Bytes::new());
                Box::new(by_score.range(from..).map(|(score, member)| (score.0, member)))
            }
        }
    }

    /// Up to the last entry whose score is at most `score`, highest first.
    pub fn iter_down_from(&self, score: f64) -> Box<dyn Iterator<Item = (f64, &Bytes)> + '_> {
        match &self.form {
            SortedForm::Small(entries) => {
                let until = entries.partition_point(|(have, _)| have.0 <= score);
                Box::new(entries[..until].iter().rev().map(|(score, member)| (score.0, member)))
            }
            SortedForm::Large { by_score, .. } if score < f64::INFINITY => {
                // No member is greater than all others, so the bound is the next score with the least member.
                let until = (Score(score.next_up()), Bytes::new());
                Box::new(by_score.range(..until).rev().map(|(score, member)| (score.0, member)))
            }
            SortedForm::Large { .. } => Box::new(self.iter().rev()),
        }
    }

    /// How many entries stand before this member.
    #[must_use]
    pub fn rank(&self, member: &[u8]) -> Option<usize> {
        self.score(member)?;
        self.iter().position(|(_, have)| have == member)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_agree() {
        let mut small = Sorted::default();
        let mut large = Sorted::default();
        for number in 0..=SMALL_MAX {
            large.insert(format!("filler{number}").as_bytes(), 1e9);
        }
        for (member, score) in [("b", 2.0), ("a", 2.0), ("c", -1.0), ("d", f64::INFINITY), ("b", 3.5)] {
            assert_eq!(small.insert(member.as_bytes(), score), large.insert(member.as_bytes(), score));
        }
        for number in 0..=SMALL_MAX {
            assert_eq!(large.remove(format!("filler{number}").as_bytes()), Some(1e9));
        }
        assert!(matches!(large.form(), SortedForm::Large { .. }));
        assert_eq!(large.weight(), Sorted::from(large.form().clone()).weight());
        assert_eq!(large.weight(), small.weight());
        let walk = |set: &Sorted| set.iter().map(|(s, m)| (s, m.clone())).collect::<Vec<_>>();
        assert_eq!(walk(&small), walk(&large));
        assert_eq!(small.rank(b"b"), Some(2));
        assert_eq!(large.rank(b"b"), Some(2));
        let from = |set: &Sorted| set.iter_from(2.0).map(|(_, m)| m.clone()).collect::<Vec<_>>();
        assert_eq!(from(&small), ["a", "b", "d"]);
        assert_eq!(from(&small), from(&large));
        let down = |set: &Sorted| set.iter_down_from(3.0).map(|(_, m)| m.clone()).collect::<Vec<_>>();
        assert_eq!(down(&large), ["a", "c"]);
    }
}
