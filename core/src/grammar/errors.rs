//! Every error text of the grammar, in one place. The first word is the code a client acts on.

use crate::reply::Refusal;
use crate::types::{
    LockMode, LABEL_BYTES_MAX, MULTI_RESOURCES_MAX, OWNER_BYTES_MAX, PATTERN_BYTES_MAX, PERMITS_MAX,
    RESOURCE_BYTES_MAX, SCAN_COUNT_MAX, TTL_MS_MAX, VALUE_BYTES_MAX, WAIT_MS_MAX,
};

/// Redis's own text.
#[must_use]
pub fn wrong_arity(command: &str) -> Refusal {
    Refusal::new(format!("ERR wrong number of arguments for '{}' command", command.to_ascii_lowercase()))
}

#[must_use]
pub fn unknown_subcommand(command: &str, word: &[u8]) -> Refusal {
    Refusal::new(format!("ERR unknown subcommand '{}' of {command}", shown(word)))
}

#[must_use]
pub fn resource_length() -> Refusal {
    Refusal::new(format!("ERR resource name must be 1 to {RESOURCE_BYTES_MAX} bytes"))
}

#[must_use]
pub fn owner_length() -> Refusal {
    Refusal::new(format!("ERR owner must be 1 to {OWNER_BYTES_MAX} bytes"))
}

#[must_use]
pub fn label_length() -> Refusal {
    Refusal::new(format!("ERR session name must be 1 to {LABEL_BYTES_MAX} bytes"))
}

#[must_use]
pub fn pattern_length() -> Refusal {
    Refusal::new(format!("ERR pattern must be 1 to {PATTERN_BYTES_MAX} bytes"))
}

#[must_use]
pub fn session_full(max: usize) -> Refusal {
    Refusal::new(format!(
        "OOM a session may hold and wait for {max} locks; release some, or open another session"
    ))
}

#[must_use]
pub fn ttl_range() -> Refusal {
    Refusal::new(format!("ERR ttl must be an integer from 1 to {TTL_MS_MAX} milliseconds"))
}

#[must_use]
pub fn ttl_zero_needs_session() -> Refusal {
    Refusal::new("ERR ttl 0 (as long as the session lives) needs SESSION; otherwise ttl must be an integer from 1 to 31536000000 milliseconds")
}

#[must_use]
pub fn wait_range() -> Refusal {
    Refusal::new(format!("ERR WAIT must be an integer from 0 to {WAIT_MS_MAX} milliseconds"))
}

#[must_use]
pub fn fence_range() -> Refusal {
    Refusal::new("ERR fence must be an integer from 1 to 9007199254740991")
}

#[must_use]
pub fn multi_count() -> Refusal {
    Refusal::new(format!("ERR count must be an integer from 1 to {MULTI_RESOURCES_MAX}"))
}

#[must_use]
pub fn multi_count_mismatch() -> Refusal {
    Refusal::new("ERR count does not match the number of resources given")
}

#[must_use]
pub fn duplicate_resource(resource: &[u8]) -> Refusal {
    Refusal::new(format!("ERR resource '{}' is given twice", shown(resource)))
}

#[must_use]
pub fn cursor() -> Refusal {
    Refusal::new("ERR invalid cursor")
}

#[must_use]
pub fn scan_count() -> Refusal {
    Refusal::new(format!("ERR COUNT must be an integer from 1 to {SCAN_COUNT_MAX}"))
}

#[must_use]
pub fn value_length() -> Refusal {
    Refusal::new(format!("ERR VALUE must be at most {VALUE_BYTES_MAX} bytes"))
}

#[must_use]
pub fn permits_syntax() -> Refusal {
    Refusal::new("ERR syntax error: write PERMITS n OF max")
}

#[must_use]
pub fn permits_range() -> Refusal {
    Refusal::new(format!("ERR PERMITS n OF max: integers with 1 <= n <= max <= {PERMITS_MAX}"))
}

#[must_use]
pub fn two_kinds() -> Refusal {
    Refusal::new("ERR syntax error: SHARED and PERMITS cannot be given together")
}

#[must_use]
pub fn convert_mode(word: &[u8]) -> Refusal {
    Refusal::new(format!("ERR syntax error: convert to SHARED or EXCLUSIVE, not '{}'", shown(word)))
}

#[must_use]
pub fn unknown_policy(word: &[u8]) -> Refusal {
    Refusal::new(format!("ERR unknown policy '{}': use detect, wait-die or wound-wait", shown(word)))
}

#[must_use]
pub fn age_range() -> Refusal {
    Refusal::new("ERR AGE must be an integer from 0 to 9007199254740991")
}

#[must_use]
pub fn unknown_option(word: &[u8]) -> Refusal {
    Refusal::new(format!("ERR syntax error: unknown option '{}'", shown(word)))
}

#[must_use]
pub fn repeated_option(word: &str) -> Refusal {
    Refusal::new(format!("ERR syntax error: option {word} is given twice"))
}

#[must_use]
pub fn missing_value(word: &str) -> Refusal {
    Refusal::new(format!("ERR syntax error: option {word} needs a value"))
}

#[must_use]
pub fn unknown_tier(word: &[u8]) -> Refusal {
    Refusal::new(format!("ERR unknown tier '{}': use EFFICIENCY or CORRECTNESS", shown(word)))
}

/// A session id nobody could have been given is simply not a live session.
#[must_use]
pub fn no_session() -> Refusal {
    Refusal::new("NOSESSION no such session: it was closed, has ended, or never was; open a new one")
}

#[must_use]
pub fn backup_number() -> Refusal {
    Refusal::new("ERR id and offset of a backup must be non-negative integers")
}

#[must_use]
pub fn node_id() -> Refusal {
    Refusal::new("ERR node id must be an integer from 1 to 65535")
}

#[must_use]
pub fn node_address() -> Refusal {
    Refusal::new("ERR node address must be host:port, at most 255 bytes")
}

/// A Tier 1 backend was asked for what only Tier 2 promises.
#[must_use]
pub fn tier_correctness_here() -> Refusal {
    Refusal::new("TIER correctness is not served here: this is the efficiency tier; ask a Redfence proxy")
}

/// Sessions exist in Tier 2 only.
#[must_use]
pub fn tier_sessions_here() -> Refusal {
    Refusal::new(
        "TIER sessions live in the correctness tier only; ask a Redfence proxy with TIER CORRECTNESS",
    )
}

/// Kinds of locks and explanations exist in Tier 2.
#[must_use]
pub fn tier_kinds_here() -> Refusal {
    Refusal::new(
        "TIER the efficiency tier has exclusive locks only, without LOCK.CONVERT and LOCK.EXPLAIN; ask a Redfence proxy with TIER CORRECTNESS",
    )
}

/// A module or a script cannot write to a client that has asked nothing.
#[must_use]
pub fn tier_notify_here() -> Refusal {
    Refusal::new(
        "TIER LOCK.NOTIFY is not served by this Redis; SUBSCRIBE __lost__:<resource> here, or ask a Redfence proxy",
    )
}

#[must_use]
pub fn stale_fence(fence: u64, mark: u64) -> Refusal {
    Refusal::new(format!("STALE fence {fence} is behind {mark}"))
}

/// A fence nobody can have been given yet.
#[must_use]
pub fn future_fence(fence: u64) -> Refusal {
    Refusal::new(format!(
        "ERR fence {fence} is from the future: more than 60 s ahead of the cluster's clock and of the last fence of this resource"
    ))
}

/// The same at a Redis.
#[must_use]
pub fn future_fence_at_redis(fence: u64) -> Refusal {
    Refusal::new(format!(
        "ERR fence {fence} is from the future: more than 1 hour ahead of this server's clock"
    ))
}

#[must_use]
pub fn too_many_marks(max: usize) -> Refusal {
    Refusal::new(format!(
        "OOM too many high-water marks ({max}); lower mark-retention-ms or use fewer resources"
    ))
}

/// Redis's text, with the name of the replicated setting.
#[must_use]
pub fn out_of_memory() -> Refusal {
    Refusal::new("OOM command not allowed when used memory > 'max-memory'.")
}

#[must_use]
pub fn too_many_holders(max: usize) -> Refusal {
    Refusal::new(format!("OOM this lock has {max} holders; retry when some have released it"))
}

#[must_use]
pub fn too_many_holders_in_all(max: usize) -> Refusal {
    Refusal::new(format!("OOM too many holders of shared locks and permits in all ({max}); retry later"))
}

/// Held, or waited for, in a mode that does not go with what was asked.
#[must_use]
pub fn other_mode(mode: LockMode) -> Refusal {
    Refusal::new(format!(
        "MODE the lock is in use in mode {}; wait until it is free, or use another name",
        mode.as_str()
    ))
}

/// A retry of an owner that asks for something else than it has.
#[must_use]
pub fn owner_in_other_mode() -> Refusal {
    Refusal::new("MODE this OWNER has the lock, or its place in line, in another mode or with another number of permits; use LOCK.CONVERT, or another OWNER")
}

/// Permits and keys that are no locks have no other mode.
#[must_use]
pub fn not_convertible() -> Refusal {
    Refusal::new(format!(
        "MODE only exclusive and shared locks can be converted, and a plain key only where it is a string of 1 to {OWNER_BYTES_MAX} bytes"
    ))
}

/// A plain command would write to a lock that has, or may have, several holders.
#[must_use]
pub fn plain_write_on_several() -> Refusal {
    Refusal::new("MODE the name is a lock held in mode shared or permits; plain commands cannot write to it: use LOCK.RELEASE or LOCK.FORCERELEASE")
}

/// The fence of a hold that others have beside it orders nothing.
#[must_use]
pub fn fence_of_several(fence: u64) -> Refusal {
    Refusal::new(format!(
        "MODE fence {fence} is of a shared lock or of permits: it names a holder and orders nothing; guard writes with an exclusive lock"
    ))
}

#[must_use]
pub fn second_upgrade() -> Refusal {
    Refusal::new("DEADLOCK another holder waits to convert this lock to EXCLUSIVE, and neither could ever have it; release yours and retry")
}

/// `wait-die`: the session would wait for an older one.
#[must_use]
pub fn would_wait_for_older(resource: &[u8], older: &str) -> Refusal {
    Refusal::new(format!(
        "DEADLOCK policy wait-die: '{}' is held or awaited by {older}; release what you hold and retry",
        shown(resource)
    ))
}

#[must_use]
pub fn queue_full() -> Refusal {
    Refusal::new("OOM the queue of this lock is full (10000 waiters); retry later")
}

#[must_use]
pub fn wrong_type() -> Refusal {
    Refusal::new("WRONGTYPE Operation against a key holding the wrong kind of value")
}

#[must_use]
pub fn too_many_waiters(max: usize) -> Refusal {
    Refusal::new(format!("OOM too many waiters in all ({max}); retry later"))
}

/// A waiter for several locks has a place in each of their queues.
#[must_use]
pub fn too_many_queue_entries(max: usize) -> Refusal {
    Refusal::new(format!("OOM too many places in queues in all ({max}); retry later"))
}

#[must_use]
pub fn too_many_locks(max: usize) -> Refusal {
    Refusal::new(format!("OOM too many locks ({max}); release some or retry later"))
}

#[must_use]
pub fn too_many_sessions(max: usize) -> Refusal {
    Refusal::new(format!("OOM too many sessions ({max}); close some or retry later"))
}

#[must_use]
pub fn too_many_sessions_of_user(max: usize) -> Refusal {
    Refusal::new(format!("OOM too many sessions of this user ({max}); close some or retry later"))
}

#[must_use]
pub fn too_many_nodes(max: usize) -> Refusal {
    Refusal::new(format!("OOM too many nodes ({max}) send commands; remove those that are gone"))
}

#[must_use]
pub fn too_many_retries(max: usize) -> Refusal {
    Refusal::new(format!("ERR {max} requests of this OWNER are queued already; wait for their answer"))
}

#[must_use]
pub fn owner_queued_elsewhere() -> Refusal {
    Refusal::new(
        "ERR this OWNER is queued already for other resources; OWNER must be unique to one acquisition",
    )
}

#[must_use]
pub fn owner_of_other_session() -> Refusal {
    Refusal::new(
        "ERR this OWNER has the lock, or its place in line, without this SESSION; OWNER must be unique to one acquisition",
    )
}

#[must_use]
pub fn session_exists() -> Refusal {
    Refusal::new("ERR a session with this id exists; open it under another")
}

/// `circle` names sessions and resources in turn.
#[must_use]
pub fn deadlock(circle: &str) -> Refusal {
    Refusal::new(format!("DEADLOCK this wait would never end: {circle}; release what you hold and retry"))
}

/// The command was applied once, but so long ago that its reply was dropped.
#[must_use]
/// The leader's run of a script and the log disagree about the state.
pub fn effects_differ() -> Refusal {
    Refusal::new("INDETERMINATE the script's writes were applied, but with other results than the leader saw; read the keys before you go on")
}

pub fn reply_forgotten() -> Refusal {
    Refusal::new("INDETERMINATE this request may have been applied, its reply is no longer known; retry with the same OWNER, or wait out the ttl")
}

/// A command that is not about locks of this tier.
#[must_use]
pub fn not_for_the_machine(command: &str) -> Refusal {
    Refusal::new(format!("TIER {command} is not served by the lock machine; ask the backend it belongs to"))
}

/// Client bytes inside an error line: at most 64 of them, no control bytes, always valid text.
#[must_use]
pub fn shown(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(64)];
    String::from_utf8_lossy(cut).chars().map(|ch| if ch.is_control() { '?' } else { ch }).collect()
}
