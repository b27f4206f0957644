//! The bounds of the machine's memory and work. Every node of a cluster must run with the same ones: they decide answers.

/// What may grow, and how far. One more is refused with `OOM`, or folded away where the field says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Records of all kinds: held, queued for, idle. Refused with `OOM`.
    pub locks_max: usize,
    /// Waiters in one lock's queue. Refused with `OOM`.
    pub waiters_per_lock_max: usize,
    /// Waiters altogether. Refused with `OOM`.
    pub waiters_max: usize,
    /// Holders of one lock in mode shared or permits. Refused with `OOM`.
    pub holders_per_lock_max: usize,
    /// The same of all locks together. Refused with `OOM`.
    pub holders_max: usize,
    /// Places in queues altogether: a multi-lock stands in several. Refused with `OOM`.
    pub queue_entries_max: usize,
    /// Requests that may hang on one queued owner. Refused with `ERR`.
    pub requests_per_waiter_max: usize,
    /// Live sessions. Refused with `OOM`.
    pub sessions_max: usize,
    /// Records of free locks. The oldest is folded into the floor.
    pub idle_max: usize,
    /// High-water marks of `FENCE.*`. Refused with `OOM`.
    pub marks_max: usize,
    /// Nodes whose replies are remembered. Refused with `OOM`.
    pub origins_max: usize,
    /// Replies remembered for one node. The oldest is dropped; its retry is answered `INDETERMINATE`.
    pub remembered_per_origin_max: usize,
    /// Deadlines worked off at the start of one entry. The rest stays due, and is seen as ended by whatever touches it.
    pub due_per_entry_max: usize,
    /// Locks and waiters that go with the sessions which the commands of one entry close or find dead. The rest counts as ended, and goes
    /// with later entries.
    pub session_ends_per_entry_max: usize,
    /// Locks of one session, held and waited for. Refused with `OOM`.
    pub locks_per_session_max: usize,
    /// Idle records forgotten by one `Expire`. The rest goes with the next one.
    pub idle_per_entry_max: usize,
    /// Steps of one search for a circle of waiting sessions. Beyond it the wait is let through: its own time limit ends it.
    pub deadlock_steps_max: usize,
    /// The same for all searches of one entry.
    pub deadlock_steps_per_entry_max: usize,
    /// Holders that one entry looks at for waiters that might wound them, but for a few each time. Beyond it nobody is wounded: the waiter is
    /// looked at again with the next end of a hold.
    pub wound_steps_per_entry_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            locks_max: 8_000_000,
            waiters_per_lock_max: crate::types::WAITERS_PER_LOCK_MAX,
            waiters_max: 200_000,
            holders_per_lock_max: crate::types::HOLDERS_PER_LOCK_MAX,
            holders_max: 1_000_000,
            queue_entries_max: 1_000_000,
            requests_per_waiter_max: 8,
            sessions_max: 100_000,
            idle_max: 1_000_000,
            marks_max: 1_000_000,
            origins_max: 1_024,
            remembered_per_origin_max: 65_536,
            due_per_entry_max: 4_096,
            session_ends_per_entry_max: 16_384,
            locks_per_session_max: 10_000,
            idle_per_entry_max: 8_192,
            deadlock_steps_max: 50_000,
            deadlock_steps_per_entry_max: 200_000,
            wound_steps_per_entry_max: 200_000,
        }
    }
}
