//! What a client has said since `MULTI`, and the keys it watches. State alone; what the commands do is in
//! [`super::commands::transaction`].
//!
//! A transaction has one home: the Redis behind the proxy queues it, or it is queued here and goes to the Raft keyspace as one entry.
//! Where both are possible the first command decides: one with a key goes where its key lives, one without goes to the Redis.

use bytes::Bytes;
use redfence_core::keyspace::{table, Resp};
use redfence_core::machine::{Command, Watched, Words};
use redfence_core::reply::Refusal;
use redfence_core::types::Member;

/// Commands in one transaction of the keyspace. One more is refused, and `EXEC` will discard them all.
pub const COMMANDS_MAX: usize = 1024;
/// Bytes of their words, likewise.
pub const BYTES_MAX: usize = 2 * 1024 * 1024;
/// Keys of the keyspace one connection may watch. `WATCH` of more is refused.
pub const WATCHED_MAX: usize = 1024;

/// Who queues the commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// No command has come yet that would tell.
    Undecided,
    /// The Redis behind, which has been told of the `MULTI`.
    Redis,
    Keyspace,
}

#[derive(Debug)]
pub struct Transaction {
    pub home: Home,
    /// A command was refused: `EXEC` discards the rest.
    pub spoilt: bool,
    commands: Vec<Vec<Bytes>>,
    bytes: usize,
}

/// A key of the keyspace, as it was at `WATCH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedKey {
    pub db: u32,
    pub key: Bytes,
    pub token: u64,
}

impl WatchedKey {
    fn borrow(&self) -> Watched<'_> {
        Watched { db: self.db, key: &self.key, token: self.token }
    }
}

impl Transaction {
    #[must_use]
    pub fn new(home: Home) -> Transaction {
        Transaction { home, spoilt: false, commands: Vec::new(), bytes: 0 }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Keeps a command until `EXEC`.
    pub fn queue(&mut self, argv: &[&[u8]]) -> Result<(), Refusal> {
        let bytes = self.bytes + argv.iter().map(|word| word.len()).sum::<usize>();
        if self.commands.len() == COMMANDS_MAX {
            return Err(Refusal::new(format!("ERR a transaction holds {COMMANDS_MAX} commands at most")));
        }
        if bytes > BYTES_MAX {
            return Err(Refusal::new(format!(
                "ERR the commands of a transaction hold {BYTES_MAX} bytes at most"
            )));
        }
        self.bytes = bytes;
        self.commands.push(argv.iter().map(|word| Bytes::copy_from_slice(word)).collect());
        Ok(())
    }

    /// Where among the commands a `SELECT` stands: the last that succeeds moves the connection.
    #[must_use]
    pub fn selects(&self) -> Vec<(usize, u32)> {
        let database = |argv: &Vec<Bytes>| -> Option<u32> {
            let is_select = table::find(&argv[0]).is_some_and(|row| row.name == "select");
            is_select.then(|| std::str::from_utf8(&argv[1]).ok()?.parse().ok()).flatten()
        };
        let found = self.commands.iter().enumerate();
        found.filter_map(|(at, argv)| database(argv).map(|db| (at, db))).collect()
    }

    /// The one entry it becomes.
    #[must_use]
    pub fn encode(&self, db: u32, resp: Resp, member: Option<Member>, watched: &[WatchedKey]) -> Bytes {
        let watched = watched.iter().map(WatchedKey::borrow).collect();
        let words = self.commands.iter().map(|argv| argv.iter().map(|word| &word[..]));
        let commands = words.map(Iterator::collect::<Words<'_>>).collect();
        let mut blob = Vec::with_capacity(self.bytes + 16 * self.commands.len() + 64);
        Command::Transaction { db, resp, member, watched, commands }.encode(&mut blob);
        blob.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_is_bounded_in_number_and_bytes() {
        let mut many = Transaction::new(Home::Keyspace);
        for _ in 0..COMMANDS_MAX {
            many.queue(&[b"PING"]).unwrap();
        }
        assert!(many.queue(&[b"PING"]).is_err());

        let mut large = Transaction::new(Home::Keyspace);
        let half = vec![b'x'; BYTES_MAX / 2 - 4];
        large.queue(&[b"ECHO", &half]).unwrap();
        large.queue(&[b"ECHO", &half]).unwrap();
        assert!(large.queue(&[b"PING"]).is_err());
    }

    #[test]
    fn finds_the_databases_it_goes_to() {
        let mut transaction = Transaction::new(Home::Keyspace);
        for argv in [&[&b"select"[..], b"3"][..], &[b"PING"], &[b"SELECT", b"x"], &[b"SELECT", b"99"]] {
            transaction.queue(argv).unwrap();
        }
        assert_eq!(transaction.selects(), [(0, 3), (3, 99)]);
    }
}
