//! Waits in the Lua library that stand in one place of a queue.
//!
//! An attempt that is sent again while it is queued keeps its place: both waits are one entry in the queue there. So the entry leaves the
//! queue with the last of them, and is kept for as long as the longest. Waits at other nodes are not known here.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use tokio::time::Instant;

/// What makes two waits one entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Attempt {
    db: u32,
    multi: bool,
    /// In byte order: whoever names them in another order waits for the same.
    names: Vec<Vec<u8>>,
    owner: Vec<u8>,
}

#[derive(Debug, Default)]
struct Waits {
    last_id: u64,
    by_attempt: HashMap<Arc<Attempt>, BTreeSet<(Instant, u64)>>,
}

/// All attempts with an owner of their client's that wait now.
#[derive(Clone, Debug, Default)]
pub(super) struct Attempts(Arc<Mutex<Waits>>);

impl Attempts {
    pub(super) fn stand(
        &self,
        db: u32,
        multi: bool,
        names: &[&[u8]],
        owner: &[u8],
        deadline: Instant,
    ) -> Standing {
        let mut names: Vec<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
        names.sort_unstable();
        let mut attempt = Arc::new(Attempt { db, multi, names, owner: owner.to_vec() });
        let mut waits = self.0.lock().expect("mutex poisoned");
        if let Some((known, _)) = waits.by_attempt.get_key_value(&attempt) {
            attempt = Arc::clone(known);
        }
        waits.last_id += 1;
        let id = waits.last_id;
        waits.by_attempt.entry(Arc::clone(&attempt)).or_default().insert((deadline, id));
        drop(waits);
        Standing { deadline, shared: Some(Shared { attempts: self.clone(), attempt, id }) }
    }
}

/// One wait; dropping it leaves.
#[derive(Debug)]
pub(super) struct Standing {
    deadline: Instant,
    /// `None`: nobody else can wait as this one.
    shared: Option<Shared>,
}

#[derive(Debug)]
struct Shared {
    attempts: Attempts,
    attempt: Arc<Attempt>,
    id: u64,
}

impl Standing {
    pub(super) fn alone(deadline: Instant) -> Standing {
        Standing { deadline, shared: None }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// When the last of those ends that wait in the same place.
    pub(super) fn last_deadline(&self) -> Instant {
        let Some(shared) = &self.shared else { return self.deadline };
        let waits = shared.attempts.0.lock().expect("mutex poisoned");
        let last = waits.by_attempt.get(&shared.attempt).and_then(BTreeSet::last);
        last.map_or(self.deadline, |(deadline, _)| *deadline)
    }

    /// Whether nobody else waits in the same place, so that it is to be given up. May be said again.
    pub(super) fn leave(&self) -> bool {
        let Some(shared) = &self.shared else { return true };
        let mut waits = shared.attempts.0.lock().expect("mutex poisoned");
        let Some(others) = waits.by_attempt.get_mut(&shared.attempt) else { return true };
        others.remove(&(self.deadline, shared.id));
        let is_last = others.is_empty();
        if is_last {
            waits.by_attempt.remove(&shared.attempt);
        }
        is_last
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_last_one_gives_up_the_place() {
        let attempts = Attempts::default();
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let first = attempts.stand(0, true, &[b"a", b"b"], b"me", later);
        let again = attempts.stand(0, true, &[b"b", b"a"], b"me", now);
        let others = [
            attempts.stand(1, true, &[b"a", b"b"], b"me", now),
            attempts.stand(0, true, &[b"a", b"b"], b"you", now),
            attempts.stand(0, true, &[b"a"], b"me", now),
            attempts.stand(0, false, &[b"a"], b"me", now),
        ];
        assert_eq!((again.deadline(), again.last_deadline()), (now, later));
        assert!(!first.leave());
        assert!(!first.leave(), "the same answer when it is asked again");
        assert_eq!(again.last_deadline(), now);
        assert!(others.iter().all(Standing::leave));
        assert!(again.leave());
        drop((first, again));
        assert!(attempts.0.lock().unwrap().by_attempt.is_empty());
    }
}
