//! Workloads of the load generator, one file each, for all servers that speak RESP; ZooKeeper's is in
//! [`crate::zookeeper`], etcd's in [`crate::etcd`].

pub(crate) mod hot;
pub(crate) mod keepalive;
pub(crate) mod multi;
pub(crate) mod pairs;

use crate::resp;
use std::io::Write;

pub(crate) const TTL_MS: &[u8] = b"30000";

/// The name that all clients wait for, and the one that all of them read: beyond the private ones.
pub(crate) const HOT_NAME: u64 = 1_000_000;
pub(crate) const READ_NAME: u64 = 1_000_001;

/// A name of 64 bytes, as an object's path would be.
pub(crate) fn name(number: u64) -> Vec<u8> {
    let mut name = Vec::with_capacity(64);
    write_name(number, &mut name);
    name
}

fn write_name(number: u64, into: &mut Vec<u8>) {
    into.clear();
    let _ = write!(into, "{:<52}{number:012}", "tenant:4711:invoices:settlement:");
}

/// As long as a UUID, and unique to the attempt.
pub(crate) fn write_owner(client: usize, attempt: u64, into: &mut Vec<u8>) {
    into.clear();
    let _ = write!(into, "{client:08x}-0000-4000-8000-{attempt:015}");
}

/// The fence of `[fence, ttl]`.
pub(crate) fn granted(reply: &[u8]) -> Result<i64, String> {
    let mut found = resp::integers(reply);
    match (reply.first(), found.next()) {
        (Some(b'*'), Some(fence)) => Ok(fence),
        _ => Err(format!("not granted: {}", resp::shown(reply))),
    }
}

/// `[1, …]`.
fn agreed(reply: &[u8]) -> Result<(), String> {
    let agrees = reply.first() == Some(&b'*') && resp::integers(reply).next() == Some(1);
    agrees.then_some(()).ok_or_else(|| format!("refused: {}", resp::shown(reply)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_owners_are_as_long_as_said() {
        assert_eq!(name(7).len(), 64);
        assert_ne!(name(7), name(8));
        let mut owner = Vec::new();
        write_owner(3, 12, &mut owner);
        assert_eq!(owner.len(), 39);
    }

    #[test]
    fn only_a_grant_is_a_grant() {
        assert_eq!(granted(b"*2\r\n:17\r\n:30000\r\n"), Ok(17));
        assert!(
            granted(b"*-1\r\n").is_err() && granted(b"-ERR x\r\n").is_err() && granted(b":17\r\n").is_err()
        );
        assert!(agreed(b"*2\r\n:1\r\n$2\r\nok\r\n").is_ok());
        assert!(agreed(b"*2\r\n:0\r\n$7\r\nexpired\r\n").is_err());
    }
}
