//! The table of [`super::LossWatch`]: clients, their grants, what they ask for, and who hears of the end of what.

use super::{
    Attempt, AttemptBy, GrantKey, LossNotice, NoticeKind, ToldGrant, ENDS_PER_ATTEMPT_MAX,
    ENDS_PER_CLIENT_MAX, GRANTS_PER_CLIENT_MAX, NOTICE_BYTES,
};
use crate::client_memory::Account;
use crate::events::overflow::OverflowMark;
use bytes::Bytes;
use redfence_core::machine::Loss;
use redfence_core::types::{Fence, LockMode, LossCause, SessionId, UserTag};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use tokio::sync::mpsc;

#[derive(Debug)]
pub(super) struct NotifiedClient {
    sender: mpsc::Sender<LossNotice>,
    overflowed: OverflowMark,
    account: Arc<Account>,
    pub(super) grants: HashMap<GrantKey, NotedGrant>,
    /// What these take, as its account has it.
    grants_bytes: usize,
    pub(super) sessions: SmallVec<[WatchedSession; 1]>,
    /// What it has got no answer to yet.
    asking: HashMap<Attempt, Asked>,
    /// How many ends wait beside these, and what they take, as its account has it.
    ends: usize,
    ends_bytes: usize,
    /// Told by a look at the state: the feed may be behind it, and say so once more of a session's lock.
    told_by_look: HashSet<GrantKey>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct WatchedSession {
    pub(super) id: SessionId,
    /// Whose it counts as.
    pub(super) user: UserTag,
    /// It was seen to be the client's.
    pub(super) is_own: bool,
}

/// What an end takes besides its name and its owner.
const END_BYTES: usize = 192;
/// What a noted grant takes besides its name: its places in two tables.
const GRANT_BYTES: usize = 256;
/// So many are remembered of those that were told by a look.
const TOLD_BY_LOOK_MAX: usize = 256;

#[derive(Clone, Copy, Debug)]
pub(super) struct NotedGrant {
    /// 0: not known.
    pub(super) lease_ms: u64,
    pub(super) in_session: bool,
    pub(super) user: UserTag,
    /// It was told that nobody knows, since the leader was last reached.
    pub(super) is_suspect: bool,
    /// It stood when the client was told of it, or was seen to stand since: that it is gone is news.
    pub(super) stood: bool,
    /// Its end may have been missed. That of any other comes by the feed, with its cause, be the state ahead of it.
    pub(super) is_doubtful: bool,
    /// The state does not have it, and it may have ended before the client was watched: if not, the feed will tell.
    pub(super) is_gone: bool,
    /// It seems to have ended before the client was watched, by the time its client knew of.
    pub(super) is_over: bool,
}

impl NotedGrant {
    /// One that stands.
    pub(super) fn new(lease_ms: u64, in_session: bool, user: UserTag) -> NotedGrant {
        NotedGrant {
            lease_ms,
            in_session,
            user,
            is_suspect: false,
            stood: true,
            is_doubtful: false,
            is_gone: false,
            is_over: false,
        }
    }

    pub(super) fn of(told: &ToldGrant) -> NotedGrant {
        NotedGrant::new(told.lease_ms, told.in_session, told.user)
    }
}

#[derive(Debug, Default)]
struct Asked {
    /// How often: an owner may ask again before its first answer.
    times: u32,
    ends: VecDeque<EndMeanwhile>,
    /// Ends may have been missed meanwhile.
    missed: bool,
}

impl Asked {
    fn end_of(&mut self, fence: Fence) -> Option<&mut EndMeanwhile> {
        self.ends.iter_mut().find(|end| end.fence == fence)
    }
}

/// The end of a grant that may be the one asked for.
#[derive(Debug)]
struct EndMeanwhile {
    fence: Fence,
    name_bytes: usize,
    /// Whose grant it was.
    owner: Bytes,
    /// `None`: it has been told.
    notice: Option<LossNotice>,
    /// The client would have heard of it as of one of its session's.
    of_session: bool,
}

impl EndMeanwhile {
    fn bytes(&self) -> usize {
        END_BYTES + self.name_bytes + self.owner.len()
    }
}

impl NotifiedClient {
    pub(super) fn new(
        sender: mpsc::Sender<LossNotice>,
        overflowed: OverflowMark,
        account: Arc<Account>,
    ) -> NotifiedClient {
        NotifiedClient {
            sender,
            overflowed,
            account,
            grants: HashMap::default(),
            grants_bytes: 0,
            sessions: SmallVec::new(),
            asking: HashMap::default(),
            ends: 0,
            ends_bytes: 0,
            told_by_look: HashSet::default(),
        }
    }

    pub(super) fn watches(&self, session: SessionId) -> bool {
        self.sessions.iter().any(|watched| watched.id == session)
    }

    /// False: it is closed, because the clients of this node hold too much.
    fn note(&mut self, key: GrantKey, grant: NotedGrant) -> bool {
        let bytes = key.resource.len() + GRANT_BYTES;
        if self.grants.insert(key, grant).is_some() {
            return true;
        }
        self.grants_bytes += bytes;
        self.account.add_message(bytes)
    }

    fn forget_grant(&mut self, key: &GrantKey) {
        if self.grants.remove(key).is_some() {
            let bytes = key.resource.len() + GRANT_BYTES;
            self.grants_bytes -= bytes;
            self.account.take_message(bytes);
        }
    }

    /// An end that concerns the client if it is told of this very grant. False: too many wait, or the clients of this node hold too much.
    fn keep_end(&mut self, attempt: &Attempt, end: EndMeanwhile) -> bool {
        let Some(asked) = self.asking.get_mut(attempt) else { return true };
        if asked.ends.len() >= ENDS_PER_ATTEMPT_MAX || self.ends >= ENDS_PER_CLIENT_MAX {
            return false;
        }
        let bytes = end.bytes();
        asked.ends.push_back(end);
        self.ends += 1;
        self.ends_bytes += bytes;
        self.account.add_message(bytes)
    }

    /// Ends that wait beside the attempt no more: none of them is the end of its grant. What is to be told of them: those of sessions that the
    /// client watches.
    fn let_go(&mut self, attempt: &Attempt, ends: VecDeque<EndMeanwhile>) -> Vec<LossNotice> {
        if ends.is_empty() {
            return Vec::new();
        }
        let bytes = ends.iter().map(EndMeanwhile::bytes).sum();
        self.ends -= ends.len();
        self.ends_bytes -= bytes;
        self.account.take_message(bytes);
        let mut notices = Vec::new();
        for end in ends.into_iter().filter(|end| end.of_session) {
            if let Some(notice) = end.notice {
                self.drop_notices(attempt, end.fence, end.owner);
                notices.push(notice);
            }
        }
        notices
    }

    /// The end of a grant is told with this attempt: not once more with another at the same lock.
    fn drop_notices(&mut self, attempt: &Attempt, fence: Fence, owner: Bytes) {
        let kept = AttemptBy::Kept(fence);
        for by in [AttemptBy::Owner(owner), AttemptBy::Conversion, kept, AttemptBy::Transaction] {
            let other = Attempt { by, ..attempt.clone() };
            let same = self.asking.get_mut(&other).and_then(|asked| asked.end_of(fence));
            same.into_iter().for_each(|end| end.notice = None);
        }
    }

    /// False: it has too much unread.
    fn tell(&self, notice: LossNotice) -> bool {
        let bytes = notice.resource.len() + NOTICE_BYTES;
        if !self.account.add_message(bytes) {
            return false;
        }
        let sent = self.sender.try_send(notice).is_ok();
        if !sent {
            self.account.take_message(bytes);
        }
        sent
    }
}

#[derive(Debug, Default)]
pub(super) struct LossTable {
    pub(super) clients: FxHashMap<u64, NotifiedClient>,
    /// Whom a grant concerns.
    pub(super) grants: HashMap<GrantKey, SmallVec<[u64; 1]>>,
    pub(super) sessions: FxHashMap<SessionId, SmallVec<[u64; 1]>>,
    /// Who asks for it.
    asking: HashMap<Attempt, SmallVec<[u64; 1]>>,
    pub(super) to_look_up: HashSet<GrantKey>,
    /// To be removed.
    pub(super) overflowed: Vec<u64>,
    /// How often ends were missed.
    pub(super) misses: u64,
    /// Nobody has to doubt anything while the leader is out of reach for less than this.
    pub(super) trusted_for_ms: u64,
}

impl LossTable {
    /// The sender goes with the record: that wakes the connection.
    pub(super) fn remove(&mut self, client: u64) -> Option<NotifiedClient> {
        let record = self.clients.remove(&client)?;
        record.account.take_message(record.grants_bytes + record.ends_bytes);
        for key in record.grants.keys() {
            forget(&mut self.grants, key, client);
        }
        for session in &record.sessions {
            forget(&mut self.sessions, &session.id, client);
        }
        for attempt in record.asking.keys() {
            forget(&mut self.asking, attempt, client);
        }
        Some(record)
    }

    /// The client must know that it does not hear everything.
    pub(super) fn overflow(&mut self, client: u64) {
        if let Some(record) = self.clients.get(&client) {
            record.overflowed.set();
            self.overflowed.push(client);
        }
    }

    fn tell(&mut self, client: u64, notice: LossNotice) {
        if self.clients.get(&client).is_some_and(|record| !record.tell(notice)) {
            self.overflow(client);
        }
    }

    // ---- attempts ----

    /// How many bytes are kept of it until it is answered.
    pub(super) fn ask(&mut self, client: u64, attempt: &Attempt) -> usize {
        let Some(record) = self.clients.get_mut(&client) else { return 0 };
        // One copy for all who ask: their commands may be far larger, and their clients leave.
        let known = self.asking.get_key_value(attempt).map(|(known, _)| known.clone());
        let attempt = known.unwrap_or_else(|| attempt.copied());
        let bytes = attempt.bytes();
        let asked = record.asking.entry(attempt.clone()).or_default();
        asked.times += 1;
        if asked.times == 1 {
            self.asking.entry(attempt).or_default().push(client);
        }
        bytes
    }

    pub(super) fn granted(&mut self, client: u64, attempt: &Attempt, grant: ToldGrant) {
        let Some(record) = self.clients.get_mut(&client) else { return };
        let mut noted = NotedGrant::of(&grant);
        let ToldGrant { key, .. } = grant;
        // Told anew, its end is news again.
        record.told_by_look.remove(&key);
        // A retry need not name the session again.
        let before = record.grants.get(&key).filter(|known| known.in_session && !noted.in_session);
        let names_no_session = before.is_some();
        if let Some(before) = before {
            (noted.in_session, noted.lease_ms) = (true, noted.lease_ms.min(before.lease_ms));
        }
        let mut asked = record.asking.get_mut(attempt);
        // It asked before it was watched, or ends were missed since.
        let is_doubtful = asked.as_ref().is_none_or(|asked| asked.missed);
        // Answers come in the order of the grants. This end stays: an owner may be told of one grant several times.
        let mut earlier = VecDeque::new();
        if let (Some(asked), AttemptBy::Owner(_)) = (&mut asked, &attempt.by) {
            if asked.ends.iter().any(|end| end.fence < key.fence) {
                let ends = std::mem::take(&mut asked.ends).into_iter();
                (earlier, asked.ends) = ends.partition(|end| end.fence < key.fence);
            }
        }
        let ended = asked.and_then(|asked| asked.end_of(key.fence));
        let ended = ended.map(|end| (end.owner.clone(), end.notice.take()));
        let mut notices = record.let_go(attempt, earlier);
        let has_ended = ended.is_some();
        if let Some((owner, notice)) = ended {
            record.drop_notices(attempt, key.fence, owner);
            notices.extend(notice);
        }
        notices.into_iter().for_each(|notice| self.tell(client, notice));
        if has_ended {
            return;
        }
        let noted = NotedGrant { is_doubtful, ..noted };
        let looks = is_doubtful || names_no_session || noted.lease_ms == 0;
        if self.note(client, key.clone(), noted) && looks {
            self.to_look_up.insert(key);
        }
    }

    /// What waited beside the attempt and was not told with its grant is the end of another grant, or of one that was over before it could
    /// be told: that concerns the client only where it watches the session.
    pub(super) fn answered(&mut self, client: u64, attempt: &Attempt) {
        let Some(record) = self.clients.get_mut(&client) else { return };
        let Some(asked) = record.asking.get_mut(attempt) else { return };
        asked.times -= 1;
        if asked.times > 0 {
            return;
        }
        let asked = record.asking.remove(attempt).unwrap_or_default();
        forget(&mut self.asking, attempt, client);
        if let Some(record) = self.clients.get_mut(&client) {
            let notices = record.let_go(attempt, asked.ends);
            notices.into_iter().for_each(|notice| self.tell(client, notice));
        }
    }

    /// The clients that may be waiting for the grant that has ended here.
    fn who_asks(&self, loss: &Loss) -> SmallVec<[(u64, Attempt); 1]> {
        if self.asking.is_empty() {
            return SmallVec::new();
        }
        let conversion = (loss.mode == LockMode::Exclusive).then_some(AttemptBy::Conversion);
        let ways =
            [AttemptBy::Owner(loss.owner.clone()), AttemptBy::Kept(loss.fence), AttemptBy::Transaction];
        let mut asking = SmallVec::new();
        for by in ways.into_iter().chain(conversion) {
            let attempt = Attempt { db: loss.db, resource: loss.resource.clone(), by };
            let clients = self.asking.get(&attempt).into_iter().flatten();
            asking.extend(clients.map(|client| (*client, attempt.clone())));
        }
        asking
    }

    // ---- grants ----

    /// False where the client is gone, or knows of too many.
    pub(super) fn note(&mut self, client: u64, key: GrantKey, grant: NotedGrant) -> bool {
        self.trusted_for_ms = 0;
        let Some(record) = self.clients.get_mut(&client) else { return false };
        let is_new = !record.grants.contains_key(&key);
        if is_new && record.grants.len() >= GRANTS_PER_CLIENT_MAX {
            self.overflow(client);
            return false;
        }
        // One name for all who know of the grant.
        let key = self.grants.get_key_value(&key).map_or(key, |(known, _)| known.clone());
        if is_new {
            self.grants.entry(key.clone()).or_default().push(client);
        }
        let is_noted = record.note(key, grant);
        if !is_noted {
            self.overflow(client);
        }
        is_noted
    }

    pub(super) fn change_each(&mut self, key: &GrantKey, mut change: impl FnMut(&mut NotedGrant)) {
        self.trusted_for_ms = 0;
        for client in self.grants.get(key).into_iter().flatten() {
            let record = self.clients.get_mut(client);
            record.and_then(|record| record.grants.get_mut(key)).into_iter().for_each(&mut change);
        }
    }

    /// Where the lock may have a session, a longer time is believed when the state was looked at: the session may end before it.
    pub(super) fn renewed(&mut self, key: &GrantKey, lease_ms: u64) {
        let mut looks = false;
        self.change_each(key, |grant| {
            let is_believed = !grant.in_session || lease_ms <= grant.lease_ms;
            looks |= !is_believed;
            if is_believed {
                grant.lease_ms = lease_ms;
            }
        });
        if looks {
            self.to_look_up.insert(key.clone());
        }
    }

    pub(super) fn ended(&mut self, loss: &Loss) {
        let key = GrantKey { db: loss.db, resource: loss.resource.clone(), fence: loss.fence };
        let notice = loss.cause.map(|cause| LossNotice {
            kind: NoticeKind::Lost,
            resource: loss.resource.clone(),
            fence: loss.fence,
            cause: cause.as_str(),
            successor: loss.successor,
            user: loss.user,
        });
        let asking = self.who_asks(loss);
        let known_by: SmallVec<[u64; 2]> = self.take_concerned(&key).collect();
        let watchers = loss.session.and_then(|session| self.sessions.get(&session));
        let watchers = watchers.into_iter().flatten().copied();
        let concerns = concerns_of(known_by, watchers, asking.iter().map(|(client, _)| *client));
        let names_it = |by: &AttemptBy| matches!(by, AttemptBy::Owner(_) | AttemptBy::Kept(_));
        let by_name = asking.iter().filter(|(_, attempt)| names_it(&attempt.by));
        let asks_by_name: FxHashSet<u64> = by_name.map(|(client, _)| *client).collect();
        for (client, attempt) in &asking {
            let Concern { is_known, of_session, .. } = concerns[client];
            let notice = notice.clone().filter(|_| !is_known);
            // If the client gets to know this grant, then by the answer to the attempt that names its owner or its fence.
            let by_name = matches!(attempt.by, AttemptBy::Transaction) && asks_by_name.contains(client);
            let (fence, owner, name_bytes) = (loss.fence, loss.owner.clone(), loss.resource.len());
            let end = EndMeanwhile { fence, name_bytes, owner, notice, of_session: of_session && !by_name };
            if self.clients.get_mut(client).is_some_and(|record| !record.keep_end(attempt, end)) {
                self.overflow(*client);
            }
        }
        let Some(notice) = notice else { return };
        for (client, concern) in concerns {
            let is_told =
                self.clients.get_mut(&client).is_some_and(|record| record.told_by_look.remove(&key));
            if !is_told && (concern.is_known || (concern.of_session && !concern.is_asked_for)) {
                self.tell(client, notice.clone());
            }
        }
    }

    /// It has ended by its holder's will.
    pub(super) fn end(&mut self, key: &GrantKey) {
        self.take_concerned(key).for_each(drop);
    }

    /// The state does not have it any more; when that came about was missed.
    pub(super) fn gone(&mut self, key: &GrantKey, cause: LossCause, successor: Option<Fence>) {
        let mut stay = SmallVec::new();
        for client in self.grants.remove(key).into_iter().flatten() {
            let Some(record) = self.clients.get_mut(&client) else { continue };
            let Some(noted) = record.grants.get_mut(key) else { continue };
            let grant = *noted;
            if !grant.is_doubtful || grant.is_gone {
                noted.is_gone = !grant.stood;
                stay.push(client);
                continue;
            }
            let (kind, cause) = (NoticeKind::Lost, cause.as_str());
            let (resource, fence) = (key.resource.clone(), key.fence);
            record.forget_grant(key);
            if record.told_by_look.len() >= TOLD_BY_LOOK_MAX {
                record.told_by_look.clear();
            }
            record.told_by_look.insert(key.clone());
            self.tell(client, LossNotice { kind, resource, fence, cause, successor, user: grant.user });
        }
        if !stay.is_empty() {
            self.grants.insert(key.clone(), stay);
        }
    }

    /// The clients that know of a grant, which they do no longer.
    fn take_concerned<'a>(&'a mut self, key: &'a GrantKey) -> impl Iterator<Item = u64> + 'a {
        self.to_look_up.remove(key);
        let concerned = self.grants.remove(key).into_iter().flatten();
        concerned.inspect(|client| {
            self.clients.get_mut(client).into_iter().for_each(|record| record.forget_grant(key));
        })
    }

    pub(super) fn missed(&mut self) {
        self.trusted_for_ms = 0;
        self.misses += 1;
        for client in self.clients.values_mut() {
            client.asking.values_mut().for_each(|asked| asked.missed = true);
            client.told_by_look.clear();
            client.grants.values_mut().for_each(|grant| grant.is_doubtful = true);
        }
        self.to_look_up = self.grants.keys().cloned().collect();
    }

    pub(super) fn suspect(&mut self, out_of_reach_ms: u64) -> Vec<LossNotice> {
        if out_of_reach_ms < self.trusted_for_ms {
            return Vec::new();
        }
        let mut doubtful = Vec::new();
        let mut next_ms = u64::MAX;
        for (client, record) in &mut self.clients {
            for (key, grant) in &mut record.grants {
                if grant.is_suspect || grant.is_gone || grant.is_over {
                    continue;
                }
                // How long a session lives may not be known yet (0): such a lock is doubted at once.
                let due_ms = grant.lease_ms / 2;
                if out_of_reach_ms < due_ms {
                    next_ms = next_ms.min(due_ms);
                    continue;
                }
                grant.is_suspect = true;
                doubtful.push((*client, key.clone(), grant.user));
            }
        }
        self.trusted_for_ms = next_ms;
        let mut told = HashMap::new();
        for (client, key, user) in doubtful {
            let (kind, cause, successor) = (NoticeKind::Suspect, "no_quorum", None);
            let (resource, fence) = (key.resource.clone(), key.fence);
            let notice = LossNotice { kind, resource, fence, cause, successor, user };
            self.tell(client, notice.clone());
            told.insert(key, notice);
        }
        told.into_values().collect()
    }
}

/// How the end of a grant concerns a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Concern {
    /// It was told of the grant.
    is_known: bool,
    /// It watches the grant's session.
    of_session: bool,
    /// It may be waiting for this very grant.
    is_asked_for: bool,
}

/// Linear in their number: thousands may watch one session, or wait for one name.
fn concerns_of<T: Eq + Hash>(
    known_by: impl IntoIterator<Item = T>,
    watchers: impl IntoIterator<Item = T>,
    asking: impl IntoIterator<Item = T>,
) -> FxHashMap<T, Concern> {
    let mut concerns = FxHashMap::<T, Concern>::default();
    known_by.into_iter().for_each(|client| concerns.entry(client).or_default().is_known = true);
    watchers.into_iter().for_each(|client| concerns.entry(client).or_default().of_session = true);
    asking.into_iter().for_each(|client| concerns.entry(client).or_default().is_asked_for = true);
    concerns
}

pub(super) fn forget<K: Hash + Eq>(
    map: &mut HashMap<K, SmallVec<[u64; 1]>, impl BuildHasher>,
    key: &K,
    client: u64,
) {
    let Some(clients) = map.get_mut(key) else { return };
    clients.retain(|other| *other != client);
    if clients.is_empty() {
        map.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::hash::Hasher;

    thread_local! {
        static COMPARISONS: Cell<usize> = const { Cell::new(0) };
    }

    /// A client whose comparisons are counted.
    #[derive(Clone, Copy, Debug, Eq)]
    struct Counted(u64);

    impl Hash for Counted {
        fn hash<H: Hasher>(&self, state: &mut H) {
            self.0.hash(state);
        }
    }

    impl PartialEq for Counted {
        fn eq(&self, other: &Counted) -> bool {
            COMPARISONS.with(|count| count.set(count.get() + 1));
            self.0 == other.0
        }
    }

    #[test]
    fn who_is_concerned_is_found_in_linear_time() {
        const CLIENTS: u64 = 5_000;
        let clients = |from: u64| (from..from + CLIENTS).map(Counted);
        let concerns = concerns_of(clients(0), clients(1), clients(2));
        let comparisons = COMPARISONS.with(Cell::get);
        assert!(comparisons < 4 * 3 * CLIENTS as usize, "{comparisons} comparisons for {CLIENTS} clients");
        assert_eq!(concerns.len() as u64, CLIENTS + 2);
        let of = |client| {
            let Concern { is_known, of_session, is_asked_for } = concerns[&Counted(client)];
            (is_known, of_session, is_asked_for)
        };
        assert_eq!((of(0), of(1)), ((true, false, false), (true, true, false)));
        assert_eq!((of(2), of(CLIENTS)), ((true, true, true), (false, true, true)));
        assert_eq!(of(CLIENTS + 1), (false, false, true));
    }
}
