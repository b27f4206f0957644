//! Log writes in flight, and what is reported to raft when they are durable.
//!
//! Tasks have numbers of their own, because some (compaction) belong to no Ready, and many a Ready (heartbeats, a moved
//! commit index) needs no task.

use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(in crate::tier2) struct PersistQueue {
    last_number: u64,
    /// Task, and the Ready it belongs to (0: none).
    under_way: VecDeque<(u64, u64)>,
    last_ready: u64,
    /// The last task that holds a new term or vote.
    vote_number: u64,
    durable_number: u64,
}

impl PersistQueue {
    pub(in crate::tier2) fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// The number the next task will get.
    pub(in crate::tier2) fn peek_number(&self) -> u64 {
        self.last_number + 1
    }

    /// Tasks that are not durable yet.
    pub(in crate::tier2) fn len(&self) -> usize {
        self.under_way.len()
    }

    pub(in crate::tier2) fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// A task goes to the writer.
    pub(in crate::tier2) fn started(&mut self, number: u64, ready: u64, holds_vote: bool) {
        self.under_way.push_back((number, ready));
        self.last_ready = self.last_ready.max(ready);
        if holds_vote {
            self.vote_number = number;
        }
    }

    /// A Ready that needs no task. Answers whether raft may be advanced at once.
    pub(in crate::tier2) fn nothing_to_write(&mut self, ready: u64) -> bool {
        self.last_ready = ready;
        self.is_idle()
    }

    /// Whether the current term and vote are durable: a heartbeat may be answered without waiting for log entries.
    pub(in crate::tier2) fn vote_is_durable(&self) -> bool {
        self.vote_number <= self.durable_number
    }

    /// Tasks up to `number` are durable. Answers the Ready that raft may be advanced by.
    pub(in crate::tier2) fn persisted(&mut self, number: u64) -> Option<u64> {
        self.durable_number = self.durable_number.max(number);
        let mut ready = None;
        while self.under_way.front().is_some_and(|(task, _)| *task <= number) {
            let (_, of_task) = self.under_way.pop_front().expect("front() is Some");
            if of_task > 0 {
                ready = Some(of_task);
            }
        }
        match self.under_way.is_empty() {
            // Whatever came after the last task had nothing to write.
            true => Some(self.last_ready),
            false => ready,
        }
    }

    pub(in crate::tier2) fn is_durable(&self, number: u64) -> bool {
        number <= self.durable_number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readies_without_a_task_are_covered_by_the_one_before() {
        let mut queue = PersistQueue::default();
        assert!(queue.nothing_to_write(1));
        let first = queue.next_number();
        queue.started(first, 2, true);
        assert!(!queue.vote_is_durable());
        assert!(!queue.nothing_to_write(3));
        let second = queue.next_number();
        queue.started(second, 4, false);
        assert_eq!(queue.persisted(first), Some(2));
        assert!(queue.vote_is_durable());
        assert!(!queue.nothing_to_write(5));
        assert_eq!(queue.persisted(second), Some(5));
        assert!(queue.is_idle());
    }
}
