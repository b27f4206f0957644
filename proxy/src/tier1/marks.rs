//! `FENCE.CHECK` and `FENCE.GET` where there is no Redis: the high-water marks of this process.

use redfence_core::reply::{Refusal, Reply};
use redfence_core::types::Fence;
use rustc_hash::FxHashMap;
use std::sync::Mutex;

/// Marks that are kept. A check of one more resource is refused: forgetting a mark would let a stale writer in.
const MARKS_MAX: usize = 1_000_000;

/// Keyspace and name.
type Key = (u32, Box<[u8]>);

#[derive(Debug, Default)]
pub struct Marks {
    marks: Mutex<FxHashMap<Key, Fence>>,
}

impl Marks {
    #[must_use]
    pub fn check(&self, db: u32, resource: &[u8], fence: Fence) -> Reply {
        let mut marks = self.marks.lock().expect("the marks are whole");
        let room = marks.len() < MARKS_MAX;
        match marks.get_mut(&(db, resource.into())) {
            Some(mark) if *mark > fence => Reply::Int(0),
            Some(mark) => {
                *mark = fence;
                Reply::Int(1)
            }
            None if room => {
                marks.insert((db, resource.into()), fence);
                Reply::Int(1)
            }
            None => Reply::Error(Refusal::new(
                "OOM this node keeps a million high-water marks already; use a Redis for more",
            )),
        }
    }

    #[must_use]
    pub fn get(&self, db: u32, resource: &[u8]) -> Reply {
        let marks = self.marks.lock().expect("the marks are whole");
        Reply::Int(marks.get(&(db, resource.into())).map_or(0, |mark| mark.0 as i64))
    }
}

/// `FENCE.CALL` runs a command at the resource, and here is none.
#[must_use]
pub fn no_redis_to_call() -> Refusal {
    Refusal::new("ERR FENCE.CALL runs a command on the Redis behind this proxy, and there is none; start it with --redis")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_only_rise() {
        let marks = Marks::default();
        assert_eq!(marks.get(0, b"r"), Reply::Int(0));
        assert_eq!(marks.check(0, b"r", Fence(5)), Reply::Int(1));
        assert_eq!(marks.check(0, b"r", Fence(5)), Reply::Int(1));
        assert_eq!(marks.check(0, b"r", Fence(4)), Reply::Int(0));
        assert_eq!(marks.check(0, b"r", Fence(9)), Reply::Int(1));
        assert_eq!(marks.get(0, b"r"), Reply::Int(9));
        assert_eq!(marks.get(1, b"r"), Reply::Int(0));
    }
}
