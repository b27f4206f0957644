//! What watchers of losses are told, and when.

use super::*;
use crate::client_memory::ClientMemory;
use crate::clock::Clock;
use redfence_core::types::LossCause;
use std::task::Waker;

fn key(fence: u64) -> GrantKey {
    GrantKey { db: 0, resource: Bytes::from_static(b"r"), fence: Fence(fence) }
}

fn loss(fence: u64, cause: Option<LossCause>, session: Option<u64>) -> Loss {
    let resource = Bytes::from_static(b"r");
    let session = session.map(SessionId);
    let (user, owner) = (UserTag::DEFAULT, Bytes::from_static(b"me"));
    let (fence, successor) = (Fence(fence), Some(Fence(fence + 1)));
    Loss { db: 0, resource, fence, cause, session, user, owner, successor }
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

#[test]
fn a_loss_is_told_once_and_a_release_never() {
    let (watch, mut inbox, memory) = watch();
    watch.granted(1, key(5), 100, UserTag::DEFAULT);
    watch.granted(1, key(6), 100, UserTag::DEFAULT);
    watch.ended(&loss(5, Some(LossCause::Expired), None));
    watch.ended(&loss(5, Some(LossCause::Expired), None));
    watch.ended(&loss(6, None, None));
    assert_eq!(notices(&mut inbox), [(NoticeKind::Lost, 5, "expired")]);
    assert!(watch.is_idle());
    assert_eq!(memory.total_bytes(), 0);
}

#[test]
fn a_grant_that_is_told_after_its_end_is_reported_at_once() {
    let (watch, mut inbox, _memory) = watch();
    watch.ended(&loss(5, Some(LossCause::Wounded), None));
    watch.ended(&loss(6, None, None));
    assert_eq!(notices(&mut inbox), [], "nobody was told of it yet");
    watch.granted(1, key(5), 100, UserTag::DEFAULT);
    watch.granted(1, key(6), 100, UserTag::DEFAULT);
    assert_eq!(notices(&mut inbox), [(NoticeKind::Lost, 5, "wounded")]);
    assert!(watch.is_idle());
}

#[test]
fn a_session_is_told_of_locks_of_other_connections() {
    let (watch, mut inbox, _memory) = watch();
    assert!(watch.watch_session(1, SessionId(9)));
    watch.granted(1, key(5), 100, UserTag::DEFAULT);
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
    assert!(watch.watch_session(1, SessionId(9)));
    let attempt = Attempt { db: 0, resource: Bytes::from_static(b"r"), owner: Bytes::from_static(b"me") };
    watch.asks(1, attempt.clone());
    watch.ended(&loss(5, Some(LossCause::Expired), Some(9)));
    assert_eq!(notices(&mut inbox), [], "its answer is not there");
    watch.granted(1, key(5), 100, UserTag::DEFAULT);
    watch.answered(1, &attempt);
    assert_eq!(notices(&mut inbox), [(NoticeKind::Lost, 5, "expired")]);
    watch.asks(1, attempt.clone());
    watch.ended(&loss(6, Some(LossCause::Expired), Some(9)));
    watch.answered(1, &attempt);
    assert_eq!(notices(&mut inbox), [], "a grant that was not told");
    watch.ended(&loss(7, Some(LossCause::Expired), Some(9)));
    assert_eq!(notices(&mut inbox), [(NoticeKind::Lost, 7, "expired")], "of another connection");
}

#[test]
fn who_named_a_session_is_disconnected_where_ends_were_missed() {
    let (watch, mut inbox, _memory) = watch();
    assert!(watch.watch_session(1, SessionId(9)));
    watch.missed();
    assert!(inbox.overflowed());
    let mut context = Context::from_waker(Waker::noop());
    assert_eq!(inbox.poll(&mut context), Poll::Ready(None));
    assert!(watch.table().clients.is_empty() && watch.table().sessions.is_empty());
}

#[test]
fn a_session_that_is_not_the_clients_is_not_watched() {
    let (watch, mut inbox, _memory) = watch();
    assert!(watch.watch_session(1, SessionId(9)));
    watch.unwatch_session(1, SessionId(9));
    watch.ended(&loss(5, Some(LossCause::Forced), Some(9)));
    assert_eq!(notices(&mut inbox), []);
}

#[test]
fn doubt_is_told_once_an_outage_at_half_of_the_ttl() {
    let (watch, mut inbox, _memory) = watch();
    watch.granted(1, key(5), 100, UserTag::DEFAULT);
    watch.granted(1, key(6), 0, UserTag::DEFAULT);
    watch.suspect(49);
    assert_eq!(notices(&mut inbox), []);
    watch.suspect(50);
    watch.suspect(70);
    assert_eq!(notices(&mut inbox), [(NoticeKind::Suspect, 5, "no_quorum")]);
    watch.trust();
    watch.suspect(50);
    assert_eq!(notices(&mut inbox), [(NoticeKind::Suspect, 5, "no_quorum")]);
}

#[test]
fn what_was_missed_is_looked_up() {
    let (watch, mut inbox, _memory) = watch();
    watch.missed();
    assert!(watch.take_to_check().is_empty(), "nothing to look for");
    watch.granted(1, key(5), 100, UserTag::DEFAULT);
    watch.missed();
    assert_eq!(watch.take_to_check(), [key(5)]);
    assert!(watch.take_to_check().is_empty());
    watch.gone(key(5), Some(Fence(6)));
    watch.gone(key(5), Some(Fence(6)));
    assert_eq!(notices(&mut inbox), [(NoticeKind::Lost, 5, "expired")]);
}

#[test]
fn a_client_that_does_not_read_is_marked() {
    let (watch, inbox, _memory) = watch();
    for fence in 1..=UNREAD_MAX as u64 + 1 {
        assert!(!inbox.overflowed());
        watch.granted(1, key(fence), 100, UserTag::DEFAULT);
        watch.ended(&loss(fence, Some(LossCause::Expired), None));
    }
    assert!(inbox.overflowed());
}
