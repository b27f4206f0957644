//! Tests of the pending table.

use super::*;

const ORIGIN: Origin = Origin { node: 1, incarnation: 1 };

fn submit(ticket: Ticket, wait_ms: u64) -> Submit {
    Submit { ticket, connection: ticket, blob: Bytes::from_static(b"command"), timeout_ms: 5_000, wait_ms }
}

/// Sends all that is due at this time; answers its numbers.
fn forward_all(pending: &mut PendingTable, now_ms: u64) -> Vec<u64> {
    pending.go_back_if_due(now_ms, 500);
    let sent = std::iter::from_fn(|| pending.next_to_forward()).map(|command| command.seq).collect();
    pending.await_leader(now_ms, 500);
    sent
}

#[test]
fn what_never_left_was_certainly_not_applied() {
    let mut pending = PendingTable::new(ORIGIN);
    let sent = pending.submit(submit(1, 0), 0);
    assert_eq!(forward_all(&mut pending, 0), [sent]);
    let kept = pending.submit(submit(2, 0), 0);
    let verdicts: Vec<_> = pending.overdue(5_000).into_iter().map(|late| (late.seq, late.verdict)).collect();
    assert_eq!(verdicts, [(sent, TimeoutOutcome::Unknown), (kept, TimeoutOutcome::NeverSent)]);
}

#[test]
fn a_placed_wait_is_acknowledged_and_still_answered() {
    let mut pending = PendingTable::new(ORIGIN);
    let seq = pending.submit(submit(7, 1_000), 0);
    forward_all(&mut pending, 0);
    pending.queued(seq);
    assert_eq!(pending.acked_below(), seq + 1);
    assert!(pending.overdue(5_999).is_empty());
    assert_eq!(pending.answered(seq).and_then(|done| done.ticket), Some(7));
    assert!(pending.overdue(u64::MAX).is_empty());
}

#[test]
fn a_wait_without_end_ends_only_while_it_has_no_place() {
    let mut pending = PendingTable::new(ORIGIN);
    let placed = pending.submit(submit(1, WAIT_FOREVER), 0);
    let lost = pending.submit(submit(2, WAIT_FOREVER), 0);
    forward_all(&mut pending, 0);
    pending.queued(placed);
    let late: Vec<u64> = pending.overdue(5_000).into_iter().map(|late| late.seq).collect();
    assert_eq!(late, [lost]);
    assert!(pending.overdue(u64::MAX - 1).is_empty());
    assert_eq!(pending.answered(placed).and_then(|done| done.ticket), Some(1));
}

#[test]
fn a_cancel_goes_to_the_log_only_if_the_request_may_be_there() {
    let mut pending = PendingTable::new(ORIGIN);
    let sent = pending.submit(submit(1, 1_000), 0);
    forward_all(&mut pending, 0);
    pending.submit(submit(2, 1_000), 0);
    assert_eq!(pending.cancel(1), Some(sent));
    assert_eq!(pending.cancel(2), None);
    assert_eq!(pending.cancel(3), None);
    assert_eq!(pending.unapplied_bytes(), 0);
}

#[test]
fn a_withdrawn_wait_is_called_off_and_still_answered() {
    let mut pending = PendingTable::new(ORIGIN);
    pending.submit(submit(1, WAIT_FOREVER), 0);
    assert_eq!(pending.withdraw(1), WithdrawOutcome::NeverSent);
    assert_eq!(pending.unapplied_len(), 0);

    let sent = pending.submit(submit(2, WAIT_FOREVER), 0);
    forward_all(&mut pending, 0);
    assert_eq!(pending.withdraw(2), WithdrawOutcome::CancelInLog(sent));
    assert!(pending.queued(sent), "it came to stand in the queue after all");
    assert_eq!(pending.answered(sent).and_then(|done| done.ticket), Some(2));
    assert_eq!(pending.withdraw(2), WithdrawOutcome::Unknown);
}

#[test]
fn silence_sends_again_from_the_oldest_on_and_ever_less_often() {
    let mut pending = PendingTable::new(ORIGIN);
    for ticket in 1..=3 {
        pending.submit(submit(ticket, 0), 0);
    }
    assert_eq!(forward_all(&mut pending, 0), [1, 2, 3]);
    assert_eq!(forward_all(&mut pending, 499), [0_u64; 0]);
    assert_eq!(pending.answered(1).and_then(|done| done.ticket), Some(1));
    assert_eq!(forward_all(&mut pending, 600), [0_u64; 0], "something was applied");
    assert_eq!(forward_all(&mut pending, 1_099), [0_u64; 0]);
    assert_eq!(forward_all(&mut pending, 1_100), [2, 3]);
    let fourth = pending.submit(submit(4, 0), 1_200);
    assert_eq!(forward_all(&mut pending, 1_200), [fourth]);
    assert_eq!(pending.unsettled_before(fourth), 3);
    assert_eq!(forward_all(&mut pending, 2_099), [0_u64; 0], "the second time-out is twice as long");
    assert_eq!(forward_all(&mut pending, 2_100), [2, 3, fourth]);
    assert_eq!(pending.unsettled_before(2), 0);
}

#[test]
fn a_new_leader_is_sent_everything() {
    let mut pending = PendingTable::new(ORIGIN);
    pending.submit(submit(1, 0), 0);
    assert_eq!(forward_all(&mut pending, 0), [1]);
    pending.leader_changed();
    assert_eq!(forward_all(&mut pending, 0), [1]);
}

#[test]
fn a_leader_that_was_not_reached_is_sent_to_again_at_once_and_not_in_a_storm() {
    let mut pending = PendingTable::new(ORIGIN);
    pending.submit(submit(1, 0), 1_000);
    assert_eq!(forward_all(&mut pending, 1_000), [1]);
    pending.leader_unreachable(1_001);
    assert_eq!(forward_all(&mut pending, 1_001), [1]);
    let mut sent = 0;
    for now_ms in 1_002..1_400 {
        pending.leader_unreachable(now_ms);
        sent += forward_all(&mut pending, now_ms).len();
    }
    assert!((1..=3).contains(&sent), "sent {sent} times");
}

#[test]
fn a_new_start_takes_over_what_was_not_applied() {
    let mut pending = PendingTable::new(ORIGIN);
    let placed = pending.submit(submit(1, 1_000), 0);
    pending.queued(placed);
    pending.submit(submit(2, 0), 0);
    forward_all(&mut pending, 0);
    assert_eq!(pending.restart_incarnation(Origin { node: 1, incarnation: 2 }), [1]);
    assert_eq!(pending.next_unsent(), Some(1));
    assert_eq!(pending.answered(1).and_then(|done| done.ticket), Some(2));
}
