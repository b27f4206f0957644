//! What watchers of losses are told, and when.

use super::*;
use crate::client_memory::ClientMemory;
use crate::clock::Clock;
use redfence_core::types::{LockMode, LossCause};
use std::sync::atomic::AtomicBool;
use std::task::Waker;

fn key(fence: u64) -> GrantKey {
    GrantKey { db: 0, resource: Bytes::from_static(b"r"), fence: Fence(fence) }
}

fn told(fence: u64, lease_ms: u64) -> ToldGrant {
    ToldGrant { key: key(fence), lease_ms, in_session: false, user: UserTag::DEFAULT }
}

fn found(watch: &LossWatch, key: GrantKey, state: GrantState) {
    watch.found(key, state, watch.misses());
}

fn attempt(by: AttemptBy) -> Attempt {
    Attempt { db: 0, resource: Bytes::from_static(b"r"), by }
}

fn by_owner() -> Attempt {
    attempt(AttemptBy::Owner(Bytes::from_static(b"me")))
}

fn loss(fence: u64, cause: Option<LossCause>, session: Option<u64>) -> Loss {
    let resource = Bytes::from_static(b"r");
    let session = session.map(SessionId);
    let (user, owner, mode) = (UserTag::DEFAULT, Bytes::from_static(b"me"), LockMode::Exclusive);
    let (fence, successor) = (Fence(fence), Some(Fence(fence + 1)));
    Loss { db: 0, resource, fence, cause, session, user, owner, mode, successor }
}

#[derive(Debug, Default)]
struct Woken(AtomicBool);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn notices(inbox: &mut LossInbox) -> Vec<(NoticeKind, u64, &'static str)> {
    let mut context = Context::from_waker(Waker::noop());
    let next = || match inbox.poll(&mut context) {
        Poll::Ready(Some(notice)) => Some((notice.kind, notice.fence.0, notice.cause)),
        Poll::Ready(None) | Poll::Pending => None,
    };
    std::iter::from_fn(next).collect()
}

fn watch() -> (LossWatch, LossInbox, Arc<ClientMemory>) {
    let memory = ClientMemory::new(Clock::start());
    let watch = LossWatch::new(Arc::default());
    let inbox = watch.start(&memory.open(1)).expect("the first time");
    (watch, inbox, memory)
}

/// Asks, and is told of the grant.
fn grant(watch: &LossWatch, fence: u64, lease_ms: u64) {
    watch.asks(1, &by_owner());
    watch.granted(1, &by_owner(), told(fence, lease_ms));
    watch.answered(1, &by_owner());
}

#[test]
fn a_loss_is_told_once_and_a_release_never() {
    let (watch, mut inbox, memory) = watch();
    grant(&watch, 5, 100);
    grant(&watch, 6, 100);
    watch.ended(&loss(5, Some(LossCause::Expired), None));
    watch.ended(&loss(5, Some(LossCause::Expired), None));
    watch.ended(&loss(6, None, None));
    assert_eq!(notices(&mut inbox), [(NoticeKind::Lost, 5, "expired")]);
    assert!(watch.is_idle());
    assert_eq!(memory.total_bytes(), 0);
}

/// However many others have ended in between.
#[test]
fn a_grant_that_is_told_after_its_end_is_reported_at_once() {
    let (watch, mut inbox, _memory) = watch();
    watch.asks(1, &by_owner());
    watch.ended(&loss(5, Some(LossCause::Wounded), None));
    watch.ended(&loss(6, None, None));
    for fence in 100..100_000 {
        let mut other = loss(fence, Some(LossCause::Expired), None);
        other.owner = Bytes::from_static(b"another");
        watch.ended(&other);
    }
    assert_eq!(notices(&mut inbox), [], "nobody was told of it yet");
    watch.granted(1, &by_owner(), told(5, 100));
    watch.granted(1, &by_owner(), told(6, 100));
    watch.answered(1, &by_owner());
    assert_eq!(notices(&mut inbox), [(NoticeKind::Lost, 5, "wounded")]);
    assert!(watch.is_idle());
    assert!(watch.take_to_look_up().is_empty());
}

#[test]
fn a_session_is_told_of_locks_of_other_connections() {
    let (watch, mut inbox, _memory) = watch();
    assert!(watch.watch_session(1, SessionId(9), UserTag::DEFAULT));
    grant(&watch, 5, 100);
    watch.ended(&loss(5, Some(LossCause::SessionEnded), Some(9)));
    watch.ended(&loss(6, Some(LossCause::Forced), Some(9)));
    watch.ended(&loss(7, Some(LossCause::Forced), Some(8)));
    let told = notices(&mut inbox);
    assert_eq!(told, [(NoticeKind::Lost, 5, "session_ended"), (NoticeKind::Lost, 6, "forced")]);
    watch.stop(1);
    watch.ended(&loss(8, Some(LossCause::Forced), Some(9)));
    assert_eq!(notices(&mut inbox), []);
}

#[test]
fn a_loss_under_a_session_is_told_behind_the_answer_and_once() {
    let (watch, mut inbox, _memory) = watch();
    assert!(watch.watch_session(1, SessionId(9), UserTag::DEFAULT));
    for (at, by) in
        [by_owner(), attempt(AttemptBy::Conversion), attempt(AttemptBy::Transaction)].into_iter().enumerate()
    {
        let first = 10 * at as u64;
        watch.asks(1, &by);
        watch.ended(&loss(first + 5, Some(LossCause::Expired), Some(9)));
        assert_eq!(notices(&mut inbox), [], "its answer is not there");
        watch.granted(1, &by, told(first + 5, 100));
        watch.answered(1, &by);
        assert_eq!(notices(&mut inbox), [(NoticeKind::Lost, first + 5, "expired")]);
        watch.asks(1, &by);
        watch.ended(&loss(first + 6, Some(LossCause::Expired), Some(9)));
        watch.answered(1, &by);
        let of_another = [(NoticeKind::Lost, first + 6, "expired")];
        assert_eq!(notices(&mut inbox), of_another, "the session had it, of another connection perhaps");
        watch.ended(&loss(first + 7, Some(LossCause::Expired), Some(9)));
        let of_another = [(NoticeKind::Lost, first + 7, "expired")];
        assert_eq!(notices(&mut inbox), of_another, "of another connection");
    }
}

/// Another connection took the lock for the same owner and session, and lost it while this one waited for it (and for others).
#[test]
fn a_loss_under_a_session_is_told_though_its_owner_is_granted_something_else() {
    for is_granted in [true, false] {
        let (watch, mut inbox, memory) = watch();
        assert!(watch.watch_session(1, SessionId(9), UserTag::DEFAULT));
        let attempts = [by_owner(), attempt(AttemptBy::Conversion)];
        for attempt in &attempts {
            watch.asks(1, attempt);
        }
        watch.ended(&loss(5, Some(LossCause::Forced), Some(9)));
        watch.ended(&loss(6, None, Some(9)));
        assert_eq!(notices(&mut inbox), []);
        if is_granted {
            watch.granted(1, &by_owner(), told(7, 100));
        }
        attempts.iter().for_each(|attempt| watch.answered(1, attempt));
        assert_eq!(notices(&mut inbox), [(NoticeKind::Lost, 5, "forced")], "granted: {is_granted}");
        watch.stop(1);
        assert_eq!(memory.total_bytes(), 0);
    }
}

/// A shared hold of the session ends while another is converted: that is no grant the conversion could be answered with.
#[test]
fn a_conversion_holds_up_no_other_loss() {
    let (watch, mut inbox, _memory) = watch();
    assert!(watch.watch_session(1, SessionId(9), UserTag::DEFAULT));
    watch.asks(1, &attempt(AttemptBy::Conversion));
    let mut shared = loss(5, Some(LossCause::Wounded), Some(9));
    shared.mode = LockMode::Shared;
    watch.ended(&shared);
    assert_eq!(notices(&mut inbox), [(NoticeKind::Lost, 5, "wounded")]);
}

/// The owner asks again while its first answer is under way: both are answered with one grant.
#[test]
fn an_owner_that_asks_twice_is_told_once() {
    let (watch, mut inbox, _memory) = watch();
    watch.asks(1, &by_owner());
    watch.asks(1, &by_owner());
    watch.granted(1, &by_owner(), told(5, 100));
    watch.answered(1, &by_owner());
    watch.ended(&loss(5, Some(LossCause::Expired), None));
    watch.granted(1, &by_owner(), told(5, 100));
    watch.answered(1, &by_owner());
    assert_eq!(notices(&mut inbox), [(NoticeKind::Lost, 5, "expired")]);
    assert!(watch.is_idle());
}

#[test]
fn who_named_a_session_is_disconnected_where_ends_were_missed() {
    let (watch, mut inbox, _memory) = watch();
    assert!(watch.watch_session(1, SessionId(9), UserTag::DEFAULT));
    watch.missed();
    assert!(inbox.overflowed());
    let mut context = Context::from_waker(Waker::noop());
    assert_eq!(inbox.poll(&mut context), Poll::Ready(None));
    assert!(watch.table().clients.is_empty() && watch.table().sessions.is_empty());
    assert!(!watch.has_clients());
}

#[test]
fn a_session_that_is_not_the_clients_is_not_watched() {
    let (watch, mut inbox, _memory) = watch();
    assert!(watch.watch_session(1, SessionId(9), UserTag::DEFAULT));
    assert!(watch.is_watching_session(1, SessionId(9)));
    watch.unwatch_session(1, SessionId(9));
    watch.ended(&loss(5, Some(LossCause::Forced), Some(9)));
    assert_eq!(notices(&mut inbox), []);
}

#[test]
fn doubt_is_told_once_an_outage_at_half_of_the_lease() {
    let (watch, mut inbox, _memory) = watch();
    grant(&watch, 5, 100);
    grant(&watch, 6, 0);
    assert_eq!(watch.take_to_look_up(), [key(6)], "its session decides");
    watch.suspect(1);
    assert_eq!(
        notices(&mut inbox),
        [(NoticeKind::Suspect, 6, "no_quorum")],
        "nobody knows its session's ttl"
    );
    assert_eq!(watch.suspect(49), []);
    assert_eq!(watch.suspect(50).len(), 1);
    assert_eq!(watch.suspect(70), []);
    assert_eq!(notices(&mut inbox), [(NoticeKind::Suspect, 5, "no_quorum")]);
    watch.trust();
    assert_eq!(watch.suspect(50).len(), 2);
    notices(&mut inbox);
    watch.trust();
    watch.renewed(&key(5), 1_000);
    found(&watch, key(6), GrantState::Held { fence: Fence(6), lease_ms: 40 });
    watch.suspect(100);
    assert_eq!(notices(&mut inbox), [(NoticeKind::Suspect, 6, "no_quorum")]);
    watch.suspect(500);
    assert_eq!(notices(&mut inbox), [(NoticeKind::Suspect, 5, "no_quorum")]);
}

#[test]
fn what_was_missed_is_looked_up() {
    let (watch, mut inbox, _memory) = watch();
    watch.missed();
    assert!(watch.take_to_look_up().is_empty(), "nothing to look for");
    grant(&watch, 5, 100);
    watch.asks(1, &by_owner());
    watch.missed();
    assert_eq!(watch.take_to_look_up(), [key(5)]);
    assert!(watch.take_to_look_up().is_empty());
    watch.not_found(key(5));
    assert_eq!(watch.take_to_look_up(), [key(5)], "once more");
    let expired = GrantState::Ended { reason: Reason::Expired, successor: Some(Fence(6)) };
    found(&watch, key(5), expired);
    found(&watch, key(5), expired);
    assert_eq!(notices(&mut inbox), [(NoticeKind::Lost, 5, "expired")]);
    // Its end may be among those that were missed.
    watch.granted(1, &by_owner(), told(7, 100));
    watch.answered(1, &by_owner());
    assert_eq!(watch.take_to_look_up(), [key(7)]);
    found(&watch, key(7), GrantState::Ended { reason: Reason::AlreadyReleased, successor: None });
    assert_eq!(notices(&mut inbox), [], "a release is no loss");
    assert!(watch.is_idle());
    grant(&watch, 8, 100);
    watch.missed();
    found(&watch, key(8), GrantState::Deleted { successor: None });
    assert_eq!(notices(&mut inbox), [(NoticeKind::Lost, 8, "deleted")]);
    assert!(watch.is_idle());
}

/// Grants that were told before: of what has ended since it hears, of what had ended before it does not.
#[test]
fn what_was_told_before_is_watched_too() {
    let (watch, mut inbox, _memory) = watch();
    for fence in [5, 6, 7] {
        watch.knows(1, told(fence, 100), false);
    }
    let mut asked = watch.take_to_look_up();
    asked.sort_by_key(|key| key.fence);
    assert_eq!(asked, [key(5), key(6), key(7)]);
    let expired = GrantState::Ended { reason: Reason::Expired, successor: None };
    found(&watch, key(5), expired);
    found(&watch, key(6), GrantState::Held { fence: Fence(6), lease_ms: 100 });
    found(&watch, key(7), expired);
    assert_eq!(notices(&mut inbox), [], "long gone");
    watch.ended(&loss(6, Some(LossCause::Forced), None));
    // The state was ahead of the feed.
    watch.ended(&loss(7, Some(LossCause::Forced), None));
    assert_eq!(notices(&mut inbox), [(NoticeKind::Lost, 6, "forced"), (NoticeKind::Lost, 7, "forced")]);
    for fence in [9, 8, 10] {
        watch.knows(1, told(fence, 100), false);
    }
    found(&watch, key(8), GrantState::Held { fence: Fence(8), lease_ms: 200 });
    assert_eq!(
        watch.stop(1).unwrap(),
        [told(8, 200), told(9, 100), told(10, 100)],
        "without 5, which is no more"
    );
}

/// The client is watched from a time on at which the node is cut off: nobody can look whether what it holds stands.
#[test]
fn what_was_told_before_an_outage_is_doubted() {
    let (watch, mut inbox, _memory) = watch();
    watch.knows(1, told(5, 100), false);
    watch.knows(1, told(6, 0), false);
    watch.knows(1, told(7, 100), false);
    watch.knows(1, told(8, 100), true);
    found(&watch, key(7), GrantState::Ended { reason: Reason::Expired, successor: None });
    watch.suspect(49);
    assert_eq!(notices(&mut inbox), [(NoticeKind::Suspect, 6, "no_quorum")], "its session decides");
    watch.suspect(50);
    watch.suspect(60);
    assert_eq!(notices(&mut inbox), [(NoticeKind::Suspect, 5, "no_quorum")]);
    // The node comes back by a snapshot: what it could not look up before may have ended since.
    watch.missed();
    for fence in [5, 7] {
        found(&watch, key(fence), GrantState::Ended { reason: Reason::Expired, successor: None });
    }
    assert_eq!(notices(&mut inbox), [(NoticeKind::Lost, 5, "expired")]);
}

/// Renewed by another connection, a grant may stand though its time is over as far as its own connection knows.
#[test]
fn what_is_over_and_stands_is_watched() {
    let (watch, mut inbox, _memory) = watch();
    watch.knows(1, told(5, 100), true);
    watch.suspect(50);
    assert_eq!(notices(&mut inbox), [], "most likely it had ended before");
    found(&watch, key(5), GrantState::Held { fence: Fence(5), lease_ms: 100 });
    watch.suspect(50);
    watch.ended(&loss(5, Some(LossCause::Expired), None));
    let heard = [(NoticeKind::Suspect, 5, "no_quorum"), (NoticeKind::Lost, 5, "expired")];
    assert_eq!(notices(&mut inbox), heard);
}

/// Renewed by another connection, and gone when the node comes back by a snapshot: nobody knows when it ended.
#[test]
fn what_is_over_and_may_have_ended_since_is_told() {
    let (watch, mut inbox, _memory) = watch();
    watch.knows(1, told(5, 100), true);
    watch.missed();
    found(&watch, key(5), GrantState::Ended { reason: Reason::Expired, successor: None });
    assert_eq!(notices(&mut inbox), [(NoticeKind::Lost, 5, "expired")]);
}

/// An owner that always asks again before it has its answer, and reads what it is told.
#[test]
fn ends_do_not_pile_up_beside_an_attempt() {
    let (watch, mut inbox, _memory) = watch();
    watch.asks(1, &by_owner());
    for fence in 1..=3 * ENDS_PER_ATTEMPT_MAX as u64 {
        watch.asks(1, &by_owner());
        watch.ended(&loss(fence, Some(LossCause::Forced), None));
        watch.granted(1, &by_owner(), told(fence, 100));
        watch.answered(1, &by_owner());
        // The same grant is told again.
        watch.granted(1, &by_owner(), told(fence, 100));
        assert_eq!(notices(&mut inbox), [(NoticeKind::Lost, fence, "forced")]);
    }
    assert!(!inbox.overflowed() && watch.is_idle());
}

/// The client does not read its answers meanwhile.
#[test]
fn ends_that_wait_are_held_for_the_client_and_bounded() {
    let name = |n: usize| Bytes::from(format!("{n:04}").repeat(128));
    let (watch, inbox, memory) = watch();
    let by = || AttemptBy::Transaction;
    let attempts: Vec<_> = (0..100).map(|n| Attempt { db: 0, resource: name(n), by: by() }).collect();
    for attempt in &attempts {
        assert!((512..1_024).contains(&watch.asks(1, attempt)));
    }
    let end = |fence: usize| {
        let mut loss = loss(fence as u64, Some(LossCause::Forced), None);
        loss.resource = name(fence % attempts.len());
        watch.ended(&loss);
    };
    (0..ENDS_PER_CLIENT_MAX).for_each(end);
    let held = memory.total_bytes();
    let (each, of_first) = (held / ENDS_PER_CLIENT_MAX, ENDS_PER_CLIENT_MAX.div_ceil(100));
    assert!((512 + 128..1_024).contains(&each), "{each} bytes each");
    watch.answered(1, &attempts[0]);
    assert_eq!(memory.total_bytes(), held - of_first * each);
    (0..of_first).for_each(|n| end(1 + n % 99));
    assert!(!inbox.overflowed());
    end(1);
    assert!(inbox.overflowed() && !watch.has_clients(), "one more");
    drop(inbox);
    assert_eq!(memory.total_bytes(), 0);
}

/// A table that all share keeps the command of no client.
#[test]
fn an_attempt_is_a_copy_of_its_names() {
    let (watch, _inbox, memory) = watch();
    let _second = watch.start(&memory.open(2));
    let command = Bytes::from(vec![b'x'; 1 << 20]);
    let by = AttemptBy::Owner(command.slice(10..20));
    let large = Attempt { db: 0, resource: command.slice(..10), by };
    watch.asks(1, &large);
    watch.asks(2, &large);
    drop(large);
    assert!(command.is_unique());
}

/// Two attempts at one lock in flight, one of them a transaction, by a client that watches the session: whichever is told of the grant.
#[test]
fn an_end_during_several_attempts_is_told_once() {
    let transaction = || attempt(AttemptBy::Transaction);
    for (first, is_told) in [(by_owner(), true), (by_owner(), false), (transaction(), true)] {
        let (watch, mut inbox, _memory) = watch();
        assert!(watch.watch_session(1, SessionId(7), UserTag::DEFAULT));
        let attempts = [first.clone(), if first == by_owner() { transaction() } else { by_owner() }];
        for attempt in &attempts {
            watch.asks(1, attempt);
        }
        watch.ended(&loss(5, Some(LossCause::Expired), Some(7)));
        if is_told {
            watch.granted(1, &first, told(5, 100));
        }
        attempts.iter().for_each(|attempt| watch.answered(1, attempt));
        let wanted = [(NoticeKind::Lost, 5, "expired")];
        assert_eq!(notices(&mut inbox), wanted, "{first:?}, told: {is_told}");
        assert!(watch.is_idle());
    }
}

/// Of what other connections took for a session its watchers know nothing: the node looks when it is cut off.
#[test]
fn what_others_took_for_a_session_is_doubted() {
    let (watch, mut inbox, _memory) = watch();
    assert!(watch.watch_session(1, SessionId(7), UserTag(3)));
    assert_eq!(watch.watched_sessions(), [SessionId(7)]);
    watch.session_holds(SessionId(7), &key(5), 100);
    assert!(watch.is_idle(), "nobody has seen yet that the session is the client's");
    watch.owns_session(1, SessionId(7));
    watch.session_holds(SessionId(8), &key(4), 100);
    watch.session_holds(SessionId(7), &key(5), 100);
    watch.session_holds(SessionId(7), &key(5), 100);
    watch.suspect(49);
    assert_eq!(notices(&mut inbox), []);
    assert_eq!(watch.suspect(50)[0].user, UserTag(3));
    watch.ended(&loss(5, Some(LossCause::Expired), Some(7)));
    let heard = [(NoticeKind::Suspect, 5, "no_quorum"), (NoticeKind::Lost, 5, "expired")];
    assert_eq!(notices(&mut inbox), heard);
    assert!(watch.is_idle());
}

/// What a session holds may have been granted on the same connection.
#[test]
fn what_is_noted_already_stays_as_it_is() {
    let (watch, mut inbox, _memory) = watch();
    grant(&watch, 5, 100);
    watch.suspect(50);
    watch.knows(1, told(5, 0), false);
    assert!(watch.take_to_look_up().is_empty());
    watch.suspect(60);
    assert_eq!(notices(&mut inbox), [(NoticeKind::Suspect, 5, "no_quorum")]);
}

/// Looked up for the ttl of its session: the state is ahead of the feed, which knows the cause.
#[test]
fn a_look_at_a_grant_does_not_tell_its_end() {
    let (watch, mut inbox, _memory) = watch();
    grant(&watch, 5, 0);
    assert_eq!(watch.take_to_look_up(), [key(5)]);
    found(&watch, key(5), GrantState::Ended { reason: Reason::Expired, successor: None });
    assert_eq!(notices(&mut inbox), []);
    watch.ended(&loss(5, Some(LossCause::SessionEnded), None));
    assert_eq!(notices(&mut inbox), [(NoticeKind::Lost, 5, "session_ended")]);
}

#[test]
fn a_client_that_does_not_read_is_disconnected() {
    let (watch, inbox, memory) = watch();
    let woken = Arc::new(Woken::default());
    for fence in 1..=UNREAD_MAX as u64 + 1 {
        inbox.poll_overflow(&Context::from_waker(&Waker::from(Arc::clone(&woken))));
        assert!(!inbox.overflowed() && !woken.0.load(Ordering::Relaxed));
        grant(&watch, fence, 100);
        watch.ended(&loss(fence, Some(LossCause::Expired), None));
    }
    assert!(inbox.overflowed() && woken.0.load(Ordering::Relaxed), "also where it has no room for more");
    assert!(!watch.has_clients());
    drop(inbox);
    assert_eq!(memory.total_bytes(), 0);
}

/// A lock ends with its session, whatever time of its own a renewal gives it.
#[test]
fn a_renewal_is_believed_to_last_longer_when_the_state_says_so() {
    let (watch, mut inbox, _memory) = watch();
    let grant = |fence, lease_ms| {
        watch.asks(1, &by_owner());
        watch.granted(1, &by_owner(), ToldGrant { in_session: true, ..told(fence, lease_ms) });
        watch.answered(1, &by_owner());
    };
    grant(5, 100);
    watch.renewed(&key(5), 1_000);
    assert_eq!(watch.take_to_look_up(), [key(5)]);
    watch.suspect(50);
    assert_eq!(notices(&mut inbox), [(NoticeKind::Suspect, 5, "no_quorum")]);
    watch.trust();
    found(&watch, key(5), GrantState::Held { fence: Fence(5), lease_ms: 200 });
    watch.renewed(&key(5), 200);
    assert!(watch.take_to_look_up().is_empty(), "no longer than before");
    assert!(watch.suspect(99).is_empty());
    watch.renewed(&key(5), 60);
    assert_eq!(watch.suspect(30).len(), 1, "a shorter time counts at once");
    // Where the ttl of the session is not known yet, a renewal does not tell it either.
    grant(6, 0);
    watch.renewed(&key(6), 1_000);
    assert_eq!(watch.take_to_look_up(), [key(6)]);
    assert_eq!(watch.suspect(31).len(), 1);
}

/// An owner that asks again gets its grant again, with the session that it has.
#[test]
fn a_retry_that_names_no_session_keeps_the_one_there_is() {
    let (watch, _inbox, _memory) = watch();
    watch.asks(1, &by_owner());
    watch.granted(1, &by_owner(), ToldGrant { in_session: true, ..told(5, 100) });
    watch.answered(1, &by_owner());
    assert!(watch.take_to_look_up().is_empty());
    grant(&watch, 5, 60_000);
    assert_eq!(watch.take_to_look_up(), [key(5)]);
    assert_eq!(watch.suspect(50).len(), 1, "by the session's time until it was looked at");
    watch.trust();
    found(&watch, key(5), GrantState::Held { fence: Fence(5), lease_ms: 200 });
    watch.renewed(&key(5), 60_000);
    assert_eq!(watch.suspect(100).len(), 1);
}

/// A retry is answered with the grant after its end was told: what comes last must be true.
#[test]
fn a_grant_that_is_told_again_is_lost_again() {
    let (watch, mut inbox, _memory) = watch();
    grant(&watch, 5, 100);
    watch.missed();
    watch.asks(1, &by_owner());
    found(&watch, key(5), GrantState::Ended { reason: Reason::Expired, successor: None });
    watch.granted(1, &by_owner(), told(5, 100));
    watch.answered(1, &by_owner());
    watch.ended(&loss(5, Some(LossCause::Expired), None));
    let heard = [(NoticeKind::Lost, 5, "expired"), (NoticeKind::Lost, 5, "expired")];
    assert_eq!(notices(&mut inbox), heard);
}

/// The hold goes on under its fence: its end, which may come before the answer, is told behind it.
#[test]
fn a_conversion_that_keeps_its_fence_is_told_of_its_end_once() {
    for (is_known, watches, is_granted) in [
        (false, false, true),
        (true, false, true),
        (false, true, true),
        (false, true, false),
        (true, true, false),
    ] {
        let (watch, mut inbox, _memory) = watch();
        if is_known {
            grant(&watch, 5, 100);
        }
        if watches {
            assert!(watch.watch_session(1, SessionId(9), UserTag::DEFAULT));
        }
        let kept = attempt(AttemptBy::Kept(Fence(5)));
        watch.asks(1, &kept);
        let mut shared = loss(5, Some(LossCause::Forced), Some(9));
        shared.mode = LockMode::Shared;
        watch.ended(&shared);
        if is_granted {
            watch.granted(1, &kept, told(5, 100));
        }
        watch.answered(1, &kept);
        let heard = [(NoticeKind::Lost, 5, "forced")];
        assert_eq!(
            notices(&mut inbox),
            heard,
            "known: {is_known}, watches: {watches}, granted: {is_granted}"
        );
        assert!(watch.is_idle());
    }
}

/// Another client's conversion down was answered with nil: it never knew of the grant.
#[test]
fn a_conversion_that_is_refused_tells_nothing_of_the_others_grant() {
    let (watch, mut inbox, _memory) = watch();
    let kept = attempt(AttemptBy::Kept(Fence(5)));
    watch.asks(1, &kept);
    watch.ended(&loss(5, Some(LossCause::Forced), None));
    watch.answered(1, &kept);
    assert_eq!(notices(&mut inbox), []);
}

#[test]
fn noted_grants_are_held_for_the_client() {
    let (watch, _inbox, memory) = watch();
    for fence in 1..=100 {
        grant(&watch, fence, 100);
        grant(&watch, fence, 100);
    }
    let held = memory.total_bytes();
    assert!((100 * 200..100 * 400).contains(&held), "{held}");
    watch.ended(&loss(1, None, None));
    found(&watch, key(2), GrantState::Ended { reason: Reason::AlreadyReleased, successor: None });
    assert_eq!(memory.total_bytes(), held / 100 * 98);
    watch.stop(1);
    assert_eq!(memory.total_bytes(), 0);
}

/// The state was looked at before the feed came by, which then finds the client watching the session.
#[test]
fn what_a_look_has_told_the_feed_does_not_tell_again() {
    let (watch, mut inbox, _memory) = watch();
    grant(&watch, 5, 100);
    watch.missed();
    assert!(watch.watch_session(1, SessionId(9), UserTag::DEFAULT));
    found(&watch, key(5), GrantState::Ended { reason: Reason::Expired, successor: None });
    watch.ended(&loss(5, Some(LossCause::SessionEnded), Some(9)));
    watch.ended(&loss(6, Some(LossCause::SessionEnded), Some(9)));
    let heard = [(NoticeKind::Lost, 5, "expired"), (NoticeKind::Lost, 6, "session_ended")];
    assert_eq!(notices(&mut inbox), heard);
}

/// What the state says is older than what was missed since: it must be asked again, or the end is never told.
#[test]
fn an_answer_from_before_ends_were_missed_counts_for_nothing() {
    let (watch, mut inbox, _memory) = watch();
    grant(&watch, 5, 100);
    watch.missed();
    let misses = watch.misses();
    assert_eq!(watch.take_to_look_up(), [key(5)]);
    watch.missed();
    watch.found(key(5), GrantState::Held { fence: Fence(5), lease_ms: 100 }, misses);
    assert_eq!(watch.take_to_look_up(), [key(5)], "again");
    found(&watch, key(5), GrantState::Ended { reason: Reason::Expired, successor: None });
    assert_eq!(notices(&mut inbox), [(NoticeKind::Lost, 5, "expired")]);
}

/// The feed may say so later, or never.
#[test]
fn what_the_client_has_released_is_not_lost_though_ends_are_missed() {
    let (watch, mut inbox, _memory) = watch();
    grant(&watch, 5, 100);
    watch.released(&key(5));
    watch.missed();
    assert!(watch.take_to_look_up().is_empty());
    found(&watch, key(5), GrantState::Ended { reason: Reason::NotOwner, successor: Some(Fence(9)) });
    assert_eq!(notices(&mut inbox), []);
    assert_eq!(watch.stop(1), Some(Vec::new()));
    assert_eq!(watch.stop(1), None, "it is gone");
}
