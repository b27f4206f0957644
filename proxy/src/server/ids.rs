//! Names nobody can guess: owners and sessions made up by this node, from the operating system's randomness.

use redfence_core::types::SessionId;
use std::cell::RefCell;

/// Random bytes fetched at once, so that not every name costs a system call.
const POOL_BYTES: usize = 1024;

struct Pool {
    bytes: [u8; POOL_BYTES],
    at: usize,
}

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { bytes: [0; POOL_BYTES], at: POOL_BYTES }) };
}

fn random<const N: usize>() -> [u8; N] {
    POOL.with_borrow_mut(|pool| {
        if pool.at + N > POOL_BYTES {
            getrandom::getrandom(&mut pool.bytes).expect("getrandom failed");
            pool.at = 0;
        }
        let mut taken = [0; N];
        taken.copy_from_slice(&pool.bytes[pool.at..pool.at + N]);
        pool.bytes[pool.at..pool.at + N].fill(0);
        pool.at += N;
        taken
    })
}

/// An owner for an acquire that names none: 32 hexadecimal digits.
#[must_use]
pub fn owner() -> [u8; 32] {
    let mut text = [0; 32];
    for (at, byte) in random::<16>().into_iter().enumerate() {
        text[2 * at] = b"0123456789abcdef"[usize::from(byte >> 4)];
        text[2 * at + 1] = b"0123456789abcdef"[usize::from(byte & 15)];
    }
    text
}

#[must_use]
pub fn session() -> SessionId {
    SessionId(u64::from_le_bytes(random()))
}

/// Text for `run_id`: 40 hexadecimal digits, as in Redis.
#[must_use]
pub fn run_id() -> String {
    random::<20>().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    #[test]
    fn no_two_are_equal() {
        let owners: HashSet<[u8; 32]> = (0..10_000).map(|_| super::owner()).collect();
        assert_eq!(owners.len(), 10_000);
        assert!(owners.iter().all(|owner| owner.iter().all(u8::is_ascii_hexdigit)));
        let sessions: HashSet<_> = (0..10_000).map(|_| super::session()).collect();
        assert_eq!(sessions.len(), 10_000);
    }
}
