//! Redis's commands on the lock table: every key is a lock, and its value is the owner.

pub(crate) mod adapter;
pub(crate) mod blocked;
pub(crate) mod key_accesses;
pub(crate) mod keys_walk;
pub(crate) mod lock_commands;
pub(crate) mod members;
pub(crate) mod redis;
pub(crate) mod undo;
