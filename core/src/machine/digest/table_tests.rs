//! Who is believed, and when nobody is.

use super::*;
use DigestKind::{Chain, Full};

fn table(voters: u64) -> DigestTable {
    let mut table = DigestTable::default();
    table.set_members((1..=voters).map(voter).collect());
    table.open(Chain, 100);
    table
}

fn voter(node: u64) -> MemberLife {
    MemberLife { node, added_at: 0, voter: true }
}

#[test]
fn the_majority_decides_whoever_reports_first() {
    for wrong in 1..=3 {
        for first in 1..=3 {
            let mut table = table(3);
            for node in (0..3).map(|step| (first + step - 1) % 3 + 1) {
                table.report(node, 0, Chain, 100, if node == wrong { 7 } else { 5 });
            }
            assert_eq!(table.standing(), Standing::Agreed);
            assert_eq!(table.confirmed, 100);
            let quarantined: Vec<u64> =
                (1..=3).filter(|node| table.quarantined_at(*node, 0).is_some()).collect();
            assert_eq!(quarantined, [wrong], "first {first}");
        }
    }
}

#[test]
fn a_majority_without_the_third_confirms_and_a_late_stranger_is_found() {
    let mut table = table(3);
    table.report(1, 0, Chain, 100, 5);
    assert_eq!(table.confirmed, 0);
    table.report(2, 0, Chain, 100, 5);
    assert_eq!((table.confirmed, table.row(Chain, 100).unwrap().agreed()), (100, Some(5)));
    table.report(3, 0, Chain, 100, 6);
    assert_eq!(table.quarantined_at(3, 0), Some(100));
}

#[test]
fn two_of_five_in_different_ways_are_both_found() {
    let mut table = table(5);
    for (node, value) in [(1, 9), (2, 8), (3, 5), (4, 5)] {
        table.report(node, 0, Chain, 100, value);
    }
    assert_eq!(table.standing(), Standing::Undecided(100));
    table.report(5, 0, Chain, 100, 5);
    assert_eq!(table.standing(), Standing::Agreed);
    assert!(table.quarantined_at(1, 0).is_some() && table.quarantined_at(2, 0).is_some());
    assert_eq!(table.quarantined.len(), 2);
}

#[test]
fn three_values_are_no_majority_and_nobody_is_blamed() {
    let mut table = table(3);
    table.report(1, 0, Chain, 100, 5);
    table.report(2, 0, Chain, 100, 6);
    assert_eq!(table.standing(), Standing::Undecided(100));
    table.report(3, 0, Chain, 100, 7);
    assert_eq!(table.standing(), Standing::NoMajority(100));
    assert!(table.quarantined.is_empty());
    // The operator keeps one of them: what it says counts from then on.
    table.set_members(vec![voter(2)]);
    table.open(Chain, 200);
    assert_eq!((table.standing(), table.confirmed), (Standing::Agreed, 200));
}

#[test]
fn quarantined_voters_still_count_as_voters() {
    let mut table = table(3);
    for (node, value) in [(1, 5), (2, 5), (3, 6)] {
        table.report(node, 0, Chain, 100, value);
    }
    table.open(Chain, 200);
    table.report(3, 0, Chain, 200, 5);
    table.report(1, 0, Chain, 200, 5);
    assert_eq!(table.confirmed, 100, "the report of a quarantined node counts for nothing");
    table.report(2, 0, Chain, 200, 8);
    assert_eq!(table.standing(), Standing::NoMajority(200), "two are left, and they differ");
}

#[test]
fn reports_of_strangers_of_earlier_lives_and_second_ones_change_nothing() {
    let mut table = table(2);
    table.set_members(vec![voter(1), voter(2), MemberLife { node: 3, added_at: 50, voter: true }]);
    table.report(3, 0, Chain, 100, 6);
    table.report(9, 0, Chain, 100, 6);
    table.report(1, 0, Chain, 99, 6);
    table.report(1, 0, Full, 100, 6);
    assert!(table.row(Chain, 100).unwrap().reports.is_empty());
    table.report(1, 0, Chain, 100, 5);
    table.report(1, 0, Chain, 100, 6);
    table.report(3, 50, Chain, 100, 5);
    assert_eq!((table.confirmed, table.standing()), (100, Standing::Agreed));
    assert!(table.quarantined.is_empty());
}

#[test]
fn a_member_that_is_removed_and_added_again_is_another_one() {
    let mut table = table(3);
    for (node, value) in [(1, 5), (2, 5), (3, 6)] {
        table.report(node, 0, Chain, 100, value);
    }
    table.set_members(vec![voter(1), voter(2)]);
    table.set_members(vec![voter(1), voter(2), MemberLife { node: 3, added_at: 120, voter: false }]);
    assert_eq!((table.quarantined_at(3, 0), table.quarantined_at(3, 120)), (None, None));
    table.quarantine(3, 0, 100);
    assert!(table.quarantined.is_empty(), "a late word about its earlier life");
}

#[test]
fn a_learner_has_no_say() {
    let mut table = DigestTable::default();
    table.set_members(vec![voter(1), voter(2), MemberLife { node: 3, added_at: 9, voter: false }]);
    table.open(Chain, 100);
    table.report(3, 9, Chain, 100, 5);
    table.report(1, 0, Chain, 100, 5);
    assert_eq!(table.confirmed, 0);
}

#[test]
fn the_table_is_bounded_and_survives_its_bytes() {
    let mut table = table(3);
    for index in 101..1_000 {
        table.open(Chain, index);
        table.open(Full, index);
        table.report(1, 0, Chain, index, index);
        table.report(2, 0, Full, index, index % 7);
    }
    table.report(1, 0, Full, 999, 90);
    table.report(2, 0, Chain, 999, 999);
    table.report(3, 0, Chain, 999, 1);
    assert_eq!((table.chain_rows.len(), table.full_rows.len()), (CHAIN_ROWS_MAX, FULL_ROWS_MAX));
    let mut bytes = Vec::new();
    table.write(&mut bytes);
    let mut reader = Reader::new(&bytes);
    let mut read = DigestTable::read(&mut reader, 999).expect("well formed");
    assert!(reader.is_empty());
    read.set_members((1..=3).map(voter).collect());
    assert_eq!(read, table);
    for cut in 0..bytes.len() {
        assert!(DigestTable::read(&mut Reader::new(&bytes[..cut]), 999).is_none(), "cut at {cut}");
    }
    assert!(DigestTable::read(&mut Reader::new(&bytes), 998).is_none(), "an index from the future");
}

/// States that differ may answer alike: an agreed chain says nothing about them.
#[test]
fn only_a_full_digest_ends_a_conflict_of_full_digests() {
    let mut table = table(3);
    table.open(Full, 100);
    table.report(1, 0, Full, 100, 7);
    table.report(2, 0, Full, 100, 8);
    assert_eq!(table.standing(), Standing::Undecided(100));
    table.open(Chain, 200);
    table.report(1, 0, Chain, 200, 5);
    table.report(2, 0, Chain, 200, 5);
    assert_eq!((table.standing(), table.has_full_conflict()), (Standing::Undecided(100), true));
    let mut bytes = Vec::new();
    table.write(&mut bytes);
    let members = table.members.clone();
    let mut table = DigestTable::read(&mut Reader::new(&bytes), 200).unwrap();
    table.set_members(members);
    assert!(table.has_full_conflict(), "it outlives a restart");
    table.open(Full, 300);
    for (node, value) in [(1, 7), (2, 8), (3, 8)] {
        table.report(node, 0, Full, 300, value);
    }
    assert_eq!((table.standing(), table.quarantined_at(1, 0)), (Standing::Agreed, Some(300)));
}

#[test]
fn those_who_are_removed_do_not_differ_any_more() {
    let mut table = table(3);
    table.report(1, 0, Chain, 100, 5);
    table.report(2, 0, Chain, 100, 6);
    assert_eq!(table.standing(), Standing::Undecided(100));
    table.set_members([1, 3].map(voter).to_vec());
    assert_eq!(table.standing(), Standing::Agreed);
    table.report(3, 0, Chain, 100, 7);
    assert_eq!(table.standing(), Standing::NoMajority(100));
}

#[test]
fn those_who_are_quarantined_for_another_point_do_not_differ_any_more() {
    let mut table = table(3);
    table.open(Full, 110);
    table.open(Full, 120);
    table.report(1, 0, Full, 120, 5);
    table.report(2, 0, Full, 120, 6);
    assert!(table.has_full_conflict());
    for (node, value) in [(1, 3), (3, 3), (2, 4)] {
        table.report(node, 0, Full, 110, value);
    }
    assert_eq!(table.quarantined_at(2, 0), Some(110));
    assert_eq!((table.standing(), table.has_full_conflict()), (Standing::Agreed, false));
}
