//! Who is closed at the limit, and what counts.

use super::*;

const LIMIT: usize = 1_000_000;

fn memory() -> Arc<ClientMemory> {
    ClientMemory::with_limit(Clock::start(), LIMIT)
}

fn is_open(account: &Account) -> bool {
    !account.held().is_closed
}

#[test]
fn at_the_limit_nobody_is_closed_and_one_byte_past_it_the_largest_is() {
    let memory = memory();
    let (small, large) = (memory.open(1), memory.open(2));
    small.report(LIMIT / 4);
    large.report(LIMIT - LIMIT / 4);
    assert!(is_open(&small) && is_open(&large));
    small.report(LIMIT / 4 + 1);
    assert!(is_open(&small) && !is_open(&large));
    assert_eq!(memory.total_bytes(), LIMIT / 4 + 1);
    assert_eq!(memory.closed_connections(), 1);
}

#[test]
fn who_moves_is_not_closed_for_many_who_do_not() {
    let memory = memory();
    let reader = memory.open(1);
    reader.report(LIMIT / 16);
    let idle: Vec<_> = (2..52).map(|id| memory.open(id)).collect();
    for account in &idle {
        account.moved_ms.store(0, Ordering::Relaxed);
    }
    std::thread::sleep(std::time::Duration::from_millis(100));
    for account in &idle {
        reader.has_moved(memory.clock.monotonic_ms());
        account.report(LIMIT / 20);
    }
    assert!(is_open(&reader), "it holds the most, but it reads");
    assert!(idle.iter().filter(|account| !is_open(account)).count() >= 30);
    assert!(memory.total_bytes() <= LIMIT);
}

/// An attacker can take a byte now and then, and hold far more than its share.
#[test]
fn an_idle_client_below_its_share_stays_before_many_that_move() {
    let memory = memory();
    let idle = memory.open(1);
    idle.report(LIMIT / 1_000);
    idle.has_moved(0);
    let moving: Vec<_> = (2..42).map(|id| memory.open(id)).collect();
    std::thread::sleep(std::time::Duration::from_millis(100));
    for account in moving.iter().cycle().take(400) {
        account.report(LIMIT / 20);
        account.has_moved(memory.clock.monotonic_ms());
    }
    assert!(is_open(&idle), "it holds a thousandth");
    assert!(memory.closed_connections() > 10 && memory.total_bytes() <= LIMIT);
}

/// All others are just below their share: the one above it reads its largest reply.
#[test]
fn who_reads_its_largest_reply_is_not_closed_for_others_at_their_share() {
    let memory = ClientMemory::new(Clock::start());
    let limit = limits::CLIENT_BYTES_PER_NODE_MAX;
    let reader = memory.open(1);
    reader.report(limits::READ_REPLY_BYTES_MAX + limits::UNREAD_REPLIES_BYTES_MAX);
    let crowd: Vec<_> = (2..1_002).map(|id| memory.open(id)).collect();
    for account in &crowd {
        account.report(limit / 8 * 7 / 1_002);
    }
    std::thread::sleep(std::time::Duration::from_millis(20));
    reader.has_moved(memory.clock.monotonic_ms());
    let greedy = memory.open(2_000);
    greedy.report(limit / 8);
    assert!(is_open(&reader) && crowd.iter().all(|account| is_open(account)));
    assert!(!is_open(&greedy));
}

#[test]
fn an_idle_client_that_asks_for_much_has_time_to_take_it() {
    let memory = memory();
    let (asks, holds) = (memory.open(1), memory.open(2));
    holds.report(LIMIT / 2);
    asks.has_moved(0);
    holds.has_moved(0);
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(asks.add_reply(LIMIT - LIMIT / 4), "its time begins now");
    assert!(!is_open(&holds));
}

/// Thousands that hold 64 KiB and take a byte every second or two; one that reads 6 MiB over a line with a delay of 50 ms.
#[test]
fn who_reads_a_large_value_stays_before_a_crowd_that_hardly_reads() {
    const NOW_MS: u64 = 1_000_000;
    let memory = ClientMemory::new(Clock::start());
    let honest = memory.open(1);
    honest.report(6 << 20);
    honest.has_moved(NOW_MS - 50);
    let subscriber = memory.open(2);
    subscriber.report(16 << 10);
    subscriber.has_moved(0);
    let slow: Vec<_> = (3..4_003).map(|id| memory.open(id)).collect();
    for account in &slow {
        account.report(64 << 10);
        account.has_moved(NOW_MS - 900 - account.client % 1_000);
    }
    let accounts: Vec<_> = memory.accounts().values().cloned().collect();
    let order: Vec<u64> =
        worst_first(accounts.iter(), memory.limit, NOW_MS).iter().map(|account| account.client).collect();
    assert!(order[..slow.len()].iter().all(|client| *client > 2), "the crowd goes first");
    assert!(!order.contains(&2), "below its share");
    // Of two that move alike the larger goes first.
    let larger = memory.open(9_999);
    larger.report(7 << 20);
    larger.has_moved(NOW_MS - 50);
    let pair = [honest, larger];
    assert_eq!(worst_first(pair.iter(), 0, NOW_MS)[0].client, 9_999);
}

#[test]
fn what_is_taken_or_left_counts_no_more() {
    let memory = memory();
    let account = memory.open(1);
    assert!(account.add_reply(1_000) && account.add_message(100));
    account.report(10);
    assert_eq!(memory.total_bytes(), 1_110);
    account.take_reply(1_000);
    account.take_message(100);
    assert_eq!(memory.total_bytes(), 10);
    account.leave();
    assert_eq!(memory.total_bytes(), 0);
    assert!(!account.add_reply(1), "nobody is left to take it");
    assert_eq!(memory.total_bytes(), 0);
    assert!(memory.accounts().is_empty());
}

#[test]
fn reads_are_deferred_at_the_limit_until_they_are_resumed() {
    let account = ClientMemory::new(Clock::start()).open(1);
    assert!(account.add_reply(limits::UNREAD_REPLIES_BYTES_MAX - 1) && !account.defers_read());
    assert!(account.add_reply(1) && account.defers_read());
    account.take_reply(limits::UNREAD_REPLIES_BYTES_MAX);
    assert!(account.defers_read(), "a later read must not pass one that was handed back");
    account.resume_reads();
    assert!(!account.defers_read());
}
