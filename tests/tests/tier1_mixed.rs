//! Old and new on one Redis, under load: `SET NX PX` with compare-and-delete against LOCK.*, never two holders.
//!
//! Every holder marks the lock in this process while it has it, so a second holder is seen at once. Times to live are
//! far longer than the run: no lock may end but by its holder's hand.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use redfence_tests::client::Client;
use redfence_tests::redis::Redis;
use redfence_tests::resp::Value;
use redfence_tests::tier1::Tier1;
use redfence_tests::{ask, expect, words};

const COMPARE_AND_DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
const RUN_FOR: Duration = Duration::from_secs(3);
const TTL_MS: u64 = 600_000;
const LOCKS: usize = 3;

/// What all threads watch: who is inside each lock, and how often each side got in.
#[derive(Default)]
struct Watch {
    stop: AtomicBool,
    inside: [AtomicI64; LOCKS],
    last_fence: [AtomicI64; LOCKS],
    plain_grants: AtomicU64,
    lock_grants: AtomicU64,
    handovers: AtomicU64,
}

impl Watch {
    fn runs(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Holds the lock for a moment; panics when somebody else is inside.
    fn inside(&self, lock: usize, who: i64) {
        let before = self.inside[lock].swap(who, Ordering::SeqCst);
        assert_eq!(before, 0, "lock {lock} is held by {before} and by {who}");
        std::thread::yield_now();
        let after = self.inside[lock].swap(0, Ordering::SeqCst);
        assert_eq!(after, who, "lock {lock}: {after} came in while {who} held it");
    }
}

fn name(lock: usize) -> String {
    format!("mixed:{lock}")
}

/// A client of an old library: tries, and lets go by script.
fn plain_client(mut client: Client, who: i64, watch: &Watch) {
    let value = format!("plain-{who}");
    let mut turn = who as usize;
    while watch.runs() {
        turn += 1;
        let lock = turn % LOCKS;
        if ask!(client, "SET", name(lock), &value, "NX", "PX", TTL_MS).is_ok() {
            watch.inside(lock, who);
            watch.plain_grants.fetch_add(1, Ordering::Relaxed);
            let deleted = ask!(client, "EVAL", COMPARE_AND_DELETE, 1, name(lock), &value);
            assert_eq!(deleted, Value::Integer(1), "the lock of {who} was taken away");
        }
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// A client of ours: tries or waits, and gives back by fence, or by the old script every third time.
fn lock_client(mut client: Client, who: i64, watch: &Watch) {
    let mut turn = who as usize;
    while watch.runs() {
        turn += 1;
        let lock = turn % LOCKS;
        let wait_ms = if turn.is_multiple_of(2) { 200 } else { 0 };
        let owner = format!("owner-{who}-{turn}");
        client.send(&words!["LOCK.ACQUIRE", name(lock), TTL_MS, "WAIT", wait_ms, "OWNER", &owner]);
        let reply = client.receive();
        if reply == Value::NullBulk {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        }
        let fence = expect::granted(&reply).fence;
        watch.inside(lock, who);
        let last = watch.last_fence[lock].swap(fence, Ordering::SeqCst);
        assert!(fence > last, "lock {lock}: fence {fence} after {last}");
        watch.lock_grants.fetch_add(1, Ordering::Relaxed);
        watch.handovers.fetch_add(u64::from(wait_ms > 0), Ordering::Relaxed);
        if turn.is_multiple_of(3) {
            let deleted = ask!(client, "EVAL", COMPARE_AND_DELETE, 1, name(lock), &owner);
            assert_eq!(deleted, Value::Integer(1), "the lock of {who} was taken away");
        } else {
            client.release(&name(lock), fence);
        }
        // Whoever always stands in line would never let a plain client in.
        std::thread::sleep(Duration::from_micros(300));
    }
}

trait IsOk {
    fn is_ok(&self) -> bool;
}

impl IsOk for Value {
    fn is_ok(&self) -> bool {
        *self == Value::Simple(b"OK".to_vec())
    }
}

fn never_two_holders(server: &Redis, kinds: &[Tier1]) {
    let watch = Watch::default();
    std::thread::scope(|scope| {
        for number in 0..4 {
            let plain = kinds[0].client(server);
            let watch = &watch;
            scope.spawn(move || stops_all_on_panic(watch, || plain_client(plain, 100 + number, watch)));
            let ours = kinds[number as usize % kinds.len()].client(server);
            scope.spawn(move || stops_all_on_panic(watch, || lock_client(ours, 200 + number, watch)));
        }
        std::thread::sleep(RUN_FOR);
        watch.stop.store(true, Ordering::Relaxed);
    });
    let (plain, lock) = (watch.plain_grants.into_inner(), watch.lock_grants.into_inner());
    println!(
        "{plain} grants to SET NX, {lock} to LOCK.ACQUIRE, {} of them asked to wait",
        watch.handovers.into_inner()
    );
    assert!(plain > 50 && lock > 50, "both sides must have held the locks: {plain} and {lock}");
}

fn stops_all_on_panic(watch: &Watch, work: impl FnOnce()) {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    if let Err(panic) = outcome {
        watch.stop.store(true, Ordering::Relaxed);
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn module_and_plain_clients() {
    never_two_holders(&Redis::start(&Tier1::Module.options()), &[Tier1::Module]);
}

#[test]
fn lua_and_plain_clients() {
    never_two_holders(&Redis::start(&Tier1::Functions.options()), &[Tier1::Functions, Tier1::Script]);
}

#[test]
fn module_lua_and_plain_clients() {
    never_two_holders(&Redis::start(&Tier1::Module.options()), &Tier1::ALL);
}
