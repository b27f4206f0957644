//! What `CLIENT LIST` and `CLIENT INFO` show of a client: one line, in Redis's words.
//!
//! What changes with every command is stored once for all commands that came together, in one word: nobody sees half of it.

use crate::acl::commands::{self, CommandId};
use crate::server::client::registry::ClientInfo;
use crate::server::client::session::{Client, TrackingMode};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// As long as the longest `container|subcommand` that is known.
const WORD_BYTES_MAX: usize = 24;

/// The newest command of a connection, by its first words.
#[derive(Clone, Copy, Debug, Default)]
pub struct LastCommand {
    name: ShortWord,
    subcommand: ShortWord,
}

/// Empty where it would be longer: no command or subcommand is.
#[derive(Clone, Copy, Debug, Default)]
struct ShortWord {
    bytes: [u8; WORD_BYTES_MAX],
    len: u8,
}

impl ShortWord {
    #[inline]
    fn set(&mut self, word: &[u8]) {
        self.len = match self.bytes.get_mut(..word.len()) {
            Some(bytes) => {
                bytes.copy_from_slice(word);
                word.len() as u8
            }
            None => 0,
        };
    }

    fn get(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl LastCommand {
    #[inline]
    pub fn note(&mut self, name: &[u8], subcommand: Option<&[u8]>) {
        self.name.set(name);
        self.subcommand.set(subcommand.unwrap_or_default());
    }

    fn id(&self) -> Option<CommandId> {
        commands::find(&[self.name.get(), self.subcommand.get()]).map(|known| known.id)
    }
}

/// Bits 0 to 15: the number of the last command and 1, or 0. 16 to 23: flags. From 32 on: commands queued since `MULTI`.
#[derive(Debug, Default)]
pub struct ShownState(AtomicU64);

const MULTI: u64 = 1 << 16;
const TRACKING: u64 = 1 << 17;
const BROKEN_REDIRECT: u64 = 1 << 18;
const BROADCAST: u64 = 1 << 19;
const MONITOR: u64 = 1 << 20;
const QUEUED_FROM_BIT: u32 = 32;

impl ShownState {
    pub fn store(&self, last: &LastCommand, client: &Client) {
        let mut state = last.id().map_or(0, |id| u64::from(id.0) + 1);
        if let Some(transaction) = &client.transaction {
            state |= MULTI | (transaction.len() as u64) << QUEUED_FROM_BIT;
        }
        state |= if client.monitors { MONITOR } else { 0 };
        if let Some(tracking) = &client.tracking {
            state |= TRACKING;
            state |= if tracking.redirect_broken { BROKEN_REDIRECT } else { 0 };
            state |= if tracking.mode == TrackingMode::Broadcast { BROADCAST } else { 0 };
        }
        self.0.store(state, Ordering::Relaxed);
    }
}

impl ShownState {
    #[must_use]
    pub fn is_monitor(&self) -> bool {
        self.0.load(Ordering::Relaxed) & MONITOR != 0
    }
}

/// The types of clients that `CLIENT LIST` and `CLIENT KILL` tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientType {
    Normal,
    PubSub,
    /// `master` and `replica`: nobody is.
    Replication,
}

impl ClientInfo {
    #[must_use]
    pub fn client_type(&self) -> ClientType {
        match self.subscriptions.load(Ordering::Relaxed) {
            0 => ClientType::Normal,
            _ => ClientType::PubSub,
        }
    }

    /// As in Redis: `N` where there is no other.
    fn flags(&self, state: u64) -> String {
        let flags = [
            ('O', state & MONITOR != 0),
            ('P', self.client_type() == ClientType::PubSub),
            ('x', state & MULTI != 0),
            ('b', self.blocked.load(Ordering::Relaxed)),
            ('t', state & TRACKING != 0),
            ('R', state & BROKEN_REDIRECT != 0),
            ('B', state & BROADCAST != 0),
        ];
        let shown: String = flags.iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| *flag).collect();
        if shown.is_empty() {
            "N".to_owned()
        } else {
            shown
        }
    }

    /// One line of `CLIENT LIST`.
    #[must_use]
    pub fn line(&self, now_ms: u64) -> String {
        let texts = self.texts().clone();
        let state = self.shown.0.load(Ordering::Relaxed);
        let command = (state as u16).checked_sub(1).map(|id| commands::by_id(CommandId(id)).name.as_str());
        let patterns = self.patterns.load(Ordering::Relaxed);
        let shards = self.shards.load(Ordering::Relaxed);
        let mut line = String::with_capacity(240);
        let _ = write!(
            line,
            "id={} addr={} laddr={} fd=0 name={} age={} idle={} flags={} db={} sub={} psub={} ssub={} multi={} events=r \
             cmd={} user={} resp={} lib-name={} lib-ver={}",
            self.id,
            self.address,
            self.local_address,
            texts.name,
            now_ms.saturating_sub(self.since_ms) / 1000,
            now_ms.saturating_sub(self.seen_ms.load(Ordering::Relaxed)) / 1000,
            self.flags(state),
            self.db.load(Ordering::Relaxed),
            self.subscriptions.load(Ordering::Relaxed).saturating_sub(patterns + shards),
            patterns,
            shards,
            if state & MULTI != 0 { (state >> QUEUED_FROM_BIT) as i64 } else { -1 },
            command.unwrap_or("NULL"),
            if texts.user.is_empty() { "default" } else { &texts.user },
            self.protocol.load(Ordering::Relaxed),
            texts.library,
            texts.library_version,
        );
        line
    }
}
