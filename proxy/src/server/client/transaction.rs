//! What a client has said since `MULTI`, and the keys it watches. State alone; what the commands do is in
//! [`crate::server::commands::transaction`].
//!
//! A transaction has one target: the upstream Redis queues it, or it is queued here and goes to the Raft keyspace as one entry.
//! Where both are possible the first command decides: one with a key goes where its key lives, one without goes to the Redis.

use crate::acl::check::runs_script;
use crate::server::client::session::DATABASES;
use bytes::Bytes;
use redfence_core::grammar::{self, Request};
use redfence_core::keyspace::{table, Resp};
use redfence_core::limits::REQUEST_BYTES_MAX;
use redfence_core::machine::{put_user, Command, Watched, Words};
use redfence_core::reply::{Refusal, Reply};
use redfence_core::script::AS_USER;
use redfence_core::types::{Fence, Member, SessionId, UserTag};
use smallvec::{smallvec, SmallVec};

/// Commands in one transaction of the keyspace. One more is refused, and `EXEC` will discard them all.
pub const COMMANDS_MAX: usize = 1024;
/// What a word adds to its bytes in the log, and a watched key to those of its name.
const WORD_OVERHEAD_BYTES: usize = 5;
const WATCHED_OVERHEAD_BYTES: usize = 18;
/// What a word takes in memory besides its bytes.
const WORD_HELD_BYTES: usize = 48;
/// What a transaction adds to its commands and watched keys.
const FRAME_BYTES: usize = 64;
/// Keys of the keyspace one connection may watch. `WATCH` of more is refused.
pub const WATCHED_MAX: usize = 1024;

/// Who queues the commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionTarget {
    /// No command has come yet that would tell.
    Undecided,
    /// The upstream Redis, which has been sent the `MULTI`.
    Upstream,
    Keyspace,
}

#[derive(Debug)]
pub struct Transaction {
    pub target: TransactionTarget,
    /// A command was refused: `EXEC` discards the rest.
    pub must_abort: bool,
    /// When it began, in generations of users.
    pub access_generation: u64,
    /// Administrative commands in it, for the audit log; filled only where there is one.
    pub admin_acts: Vec<String>,
    /// The upstream Redis was sent an `ECHO` of this word in the place of each command that is queued here.
    pub echoed: Option<[u8; 32]>,
    /// That of the last `SELECT` that the upstream Redis has queued.
    pub upstream_db: Option<u32>,
    commands: Vec<Vec<Bytes>>,
    bytes: usize,
    words: usize,
}

/// A key of the keyspace, as it was at `WATCH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedKey {
    pub db: u32,
    pub key: Bytes,
    pub token: u64,
}

impl WatchedKey {
    /// What it takes in the log.
    #[must_use]
    pub fn logged_bytes(&self) -> usize {
        watched_bytes(&self.key)
    }

    fn borrow(&self) -> Watched<'_> {
        Watched { db: self.db, key: &self.key, token: self.token }
    }
}

impl Transaction {
    #[must_use]
    pub fn new(target: TransactionTarget) -> Transaction {
        Transaction {
            target,
            must_abort: false,
            access_generation: 0,
            admin_acts: Vec::new(),
            echoed: None,
            upstream_db: None,
            commands: Vec::new(),
            bytes: 0,
            words: 0,
        }
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.commands.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// The commands queued here.
    pub fn commands(&self) -> impl Iterator<Item = &[Bytes]> {
        self.commands.iter().map(Vec::as_slice)
    }

    /// Takes commands out that are not for the log, by place in rising order.
    pub fn remove(&mut self, places: impl DoubleEndedIterator<Item = usize>) {
        places.rev().for_each(|at| {
            self.commands.remove(at);
        });
    }

    /// Takes out all that are queued here.
    pub fn take_commands(&mut self) -> Vec<Vec<Bytes>> {
        std::mem::take(&mut self.commands)
    }

    /// Those that this node answers itself when the transaction is carried out, by place in rising order.
    #[must_use]
    pub fn about_the_client(&self) -> Vec<(usize, Vec<Bytes>)> {
        let commands = self.commands.iter().enumerate();
        commands
            .filter(|(_, argv)| argv[0].eq_ignore_ascii_case(b"CLIENT"))
            .map(|(at, argv)| (at, argv.clone()))
            .collect()
    }

    /// Whether a script is queued.
    #[must_use]
    pub fn has_script(&self) -> bool {
        self.commands.iter().any(|argv| runs_script(&[&argv[0]]))
    }

    /// Whether it fits into a request when these rights go with each of its scripts.
    pub fn check_rights(&self, rights: &[u8], watched: usize) -> Result<(), Refusal> {
        let scripts = self.commands.iter().filter(|argv| runs_script(&[&argv[0]])).count();
        let more = scripts * (rights.len() + AS_USER.len() + 2 * WORD_OVERHEAD_BYTES);
        if self.bytes + more + watched + FRAME_BYTES > REQUEST_BYTES_MAX {
            return Err(Refusal::new(
                "ERR the transaction exceeds 4 MiB with the rules of its user, which go with each script; split it into smaller ones",
            ));
        }
        Ok(())
    }

    /// Keeps a command until `EXEC`. `watched`: what the watched keys take in the log.
    pub fn queue(&mut self, argv: &[&[u8]], watched: usize) -> Result<(), Refusal> {
        let words: usize = argv.iter().map(|word| word.len() + WORD_OVERHEAD_BYTES).sum();
        let bytes = self.bytes + words + WORD_OVERHEAD_BYTES;
        if self.commands.len() == COMMANDS_MAX {
            return Err(Refusal::new(format!("ERR a transaction holds {COMMANDS_MAX} commands at most")));
        }
        if bytes + watched + FRAME_BYTES > REQUEST_BYTES_MAX {
            return Err(Refusal::new(
                "ERR the transaction exceeds 4 MiB with its watched keys; split it into smaller ones",
            ));
        }
        self.bytes = bytes;
        self.words += argv.len() + 1;
        self.commands.push(argv.iter().map(|word| Bytes::copy_from_slice(word)).collect());
        Ok(())
    }

    /// What it takes in memory.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.bytes + self.words * WORD_HELD_BYTES
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

    /// Its commands that may be granted a lock or renew one. `db`: where it begins.
    #[must_use]
    pub fn locks(&self, db: u32) -> Vec<LockInTransaction> {
        let selects = self.selects();
        let is_lock = |argv: &Vec<Bytes>| grammar::is_ours(&argv[0]);
        let commands = self.commands.iter().enumerate().filter(|(_, argv)| is_lock(argv));
        let of_command = |(at, argv): (usize, &Vec<Bytes>)| {
            let Some(Ok(request)) = grammar::parse(argv) else { return None };
            let before = selects.iter().rev().find(|(place, db)| *place < at && *db < DATABASES);
            let db = before.map_or(db, |(_, db)| *db);
            let (names, step) = lock_step(&request)?;
            let names = names.into_iter().map(Bytes::copy_from_slice).collect();
            let session = request.acquire_options().and_then(|options| SessionId::parse(options.session?));
            Some(LockInTransaction { at, db, names, step, session })
        };
        commands.filter_map(of_command).collect()
    }

    /// The one entry it becomes. `rights`: those of its user, where its scripts must be checked.
    #[must_use]
    pub fn encode(
        &self,
        user: UserTag,
        db: u32,
        resp: Resp,
        member: Option<Member>,
        watched: &[WatchedKey],
        rights: Option<&[u8]>,
    ) -> Bytes {
        let watched = watched.iter().map(WatchedKey::borrow).collect();
        let words = self.commands.iter().map(|argv| {
            let rights = rights.filter(|_| runs_script(&[&argv[0]]));
            let before = rights.into_iter().flat_map(|rights| [AS_USER, rights]);
            before.chain(argv.iter().map(|word| &word[..]))
        });
        let commands = words.map(Iterator::collect::<Words<'_>>).collect();
        let mut blob = Vec::with_capacity(self.bytes + 16 * self.commands.len() + 64);
        // A script and a command that takes a lock are never in one transaction.
        let holds_script = |argv: &Vec<Bytes>| table::find(&argv[0]).is_some_and(|row| row.is(table::SCRIPT));
        if !self.commands.iter().any(holds_script) {
            put_user(&mut blob, user);
        }
        Command::Transaction { db, resp, member, watched, commands }.encode(&mut blob);
        blob.into()
    }
}

/// What a command does with which locks, if it is one of those that matter here.
fn lock_step<'a>(request: &Request<'a>) -> Option<(Vec<&'a [u8]>, LockStep)> {
    if let Request::Acquire(acquire) = request {
        let is_nameless = acquire.options.owner.is_none();
        return Some((vec![acquire.resource], LockStep::Grants { is_nameless, converts: None }));
    }
    if let Request::MAcquire(acquire) = request {
        let is_nameless = acquire.options.owner.is_none();
        return Some((acquire.resources.to_vec(), LockStep::Grants { is_nameless, converts: None }));
    }
    if let Request::Convert(convert) = request {
        // Whoever converts knows a fence to ask with again.
        let step = LockStep::Grants { is_nameless: false, converts: Some(convert.fence) };
        return Some((vec![convert.resource], step));
    }
    if let Request::Renew(renew) = request {
        return Some((vec![renew.resource], LockStep::Renews(renew.fence)));
    }
    if let Request::Release(release) = request {
        return Some((vec![release.resource], LockStep::Releases(smallvec![release.fence])));
    }
    if let Request::MRelease(release) = request {
        let (names, fences) = release.pairs.iter().copied().unzip();
        return Some((names, LockStep::Releases(fences)));
    }
    None
}

/// A command of a transaction that is about locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockInTransaction {
    /// Its place among the commands that are carried out.
    pub at: usize,
    pub db: u32,
    pub names: Vec<Bytes>,
    pub step: LockStep,
    /// That it is to be held under.
    pub session: Option<SessionId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockStep {
    /// Nameless: its owner is made up by the machine, and nobody can ask again.
    Grants {
        is_nameless: bool,
        /// The fence of the hold that it takes the place of, whose session it goes on with.
        converts: Option<Fence>,
    },
    Renews(Fence),
    /// Of each name.
    Releases(SmallVec<[Fence; 1]>),
}

impl LockInTransaction {
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.names.iter().map(|name| name.len() + WORD_HELD_BYTES).sum::<usize>() + WORD_HELD_BYTES
    }

    /// Fences and ttl, where the answer to it is a grant.
    #[must_use]
    pub fn granted(&self, reply: &Reply) -> Option<(Vec<Fence>, u64)> {
        let LockStep::Grants { .. } = self.step else { return None };
        if let Some((fences, ttl_ms)) = reply.granted() {
            return Some((fences.to_vec(), ttl_ms));
        }
        // As it comes out of the log.
        let Reply::Array(parts) = reply else { return None };
        match &parts[..] {
            [Reply::Int(one), Reply::Int(ttl_ms)] => Some((vec![Fence(*one as u64)], *ttl_ms as u64)),
            [Reply::Array(many), Reply::Int(ttl_ms)] => {
                let fence = |part: &Reply| {
                    let Reply::Int(fence) = part else { return None };
                    Some(Fence(*fence as u64))
                };
                Some((many.iter().filter_map(fence).collect(), *ttl_ms as u64))
            }
            _ => None,
        }
    }
}

/// What a watched key takes in the log.
fn watched_bytes(key: &[u8]) -> usize {
    key.len() + WATCHED_OVERHEAD_BYTES
}

/// Whether a connection may watch these keys besides those it watches.
pub fn check_watched(watched: &[WatchedKey], keys: &[&[u8]]) -> Result<(), Refusal> {
    if watched.len() + keys.len() > WATCHED_MAX {
        return Err(Refusal::new(format!("ERR a connection watches {WATCHED_MAX} keys at most")));
    }
    let before: usize = watched.iter().map(WatchedKey::logged_bytes).sum();
    let more: usize = keys.iter().map(|key| watched_bytes(key)).sum();
    if before + more + FRAME_BYTES > REQUEST_BYTES_MAX {
        return Err(Refusal::new("ERR the names of all watched keys exceed 4 MiB; UNWATCH or watch fewer"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_is_bounded_in_number() {
        let mut many = Transaction::new(TransactionTarget::Keyspace);
        for _ in 0..COMMANDS_MAX {
            many.queue(&[b"PING"], 0).unwrap();
        }
        assert!(many.queue(&[b"PING"], 0).is_err());
    }

    /// At the limit and one past it, with and without watched keys: what is taken fits into a request.
    #[test]
    fn a_transaction_with_its_watched_keys_fits_into_a_request() {
        let word = vec![b'x'; 64 * 1024];
        for count in [0, 1, 30, 63] {
            let name = vec![b'k'; 60_000];
            let watched: Vec<WatchedKey> = (0..count)
                .map(|_| WatchedKey { db: 15, key: name.clone().into(), token: u64::MAX })
                .collect();
            let names: usize = watched.iter().map(WatchedKey::logged_bytes).sum();
            let mut transaction = Transaction::new(TransactionTarget::Keyspace);
            while transaction.queue(&[b"ECHO", &word], names).is_ok() {}
            // The largest word that still fits.
            let fits =
                (0..word.len()).rev().find(|len| transaction.queue(&[b"ECHO", &word[..*len]], names).is_ok());
            let blob =
                transaction.encode(UserTag(1), 15, Resp::Three, Some(Member(u64::MAX)), &watched, None);
            assert!(blob.len() <= REQUEST_BYTES_MAX, "{} bytes with {count} watched", blob.len());
            assert!(fits.is_none() || blob.len() > REQUEST_BYTES_MAX - 4096, "{} bytes", blob.len());
        }
    }

    #[test]
    fn watched_names_are_bounded_in_bytes() {
        let name = vec![b'k'; 60_000];
        let mut watched = Vec::new();
        while check_watched(&watched, &[&name]).is_ok() {
            watched.push(WatchedKey { db: 0, key: name.clone().into(), token: 0 });
        }
        assert_eq!(watched.len(), REQUEST_BYTES_MAX / (60_000 + WATCHED_OVERHEAD_BYTES));
        assert!(check_watched(&watched, &[b"small"]).is_ok());
    }

    #[test]
    fn finds_the_databases_it_goes_to() {
        let mut transaction = Transaction::new(TransactionTarget::Keyspace);
        for argv in [&[&b"select"[..], b"3"][..], &[b"PING"], &[b"SELECT", b"x"], &[b"SELECT", b"99"]] {
            transaction.queue(argv, 0).unwrap();
        }
        assert_eq!(transaction.selects(), [(0, 3), (3, 99)]);
    }
}
