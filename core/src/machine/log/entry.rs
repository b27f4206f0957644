//! The bytes of one log entry: a version, the leader's stamp, and a batch of commands from each origin.
//!
//! ```text
//! entry  = format:u8  term  logical_ms  wall_us  batch*
//! batch  = node  incarnation:u64  acked_below  count:u32  (seq  len  command)*
//! ```
//! `format` tells the cluster version. Numbers without a width are varints. A `seq` of 0 wants neither an answer nor to be remembered.
//!
//! An entry is applied whole or not at all: it is read to its end before anything changes, not even the clock. One that this
//! release does not know ([`EntryError`]) stops the node. To skip it, or to answer it with an error, would be divergence: a
//! release that knows it has applied it.

use crate::grammar;
use crate::keyspace::table;
use crate::machine::log::bytes::{put_bytes, put_varint, Reader};
use crate::machine::log::codec;
use crate::machine::log::command::{CallSite, Command, Words};
use crate::machine::queue::waiter::{put_origin, read_origin};
use crate::machine::version::{self, ClusterVersion, FormatError, Gate, Need, UpgradeCommand, VersionRange};
use crate::machine::{Applied, Machine};
use crate::script::AS_USER;
use crate::types::{Origin, RequestId, Stamp};
use std::fmt;

/// Puts an entry together from blobs that are encoded already.
#[derive(Debug)]
pub struct EntryBuilder {
    bytes: Vec<u8>,
    commands: usize,
}

impl EntryBuilder {
    /// In the format of the first cluster version, which every node of release 1 or later reads: for tests and tools.
    #[must_use]
    pub fn new(stamp: Stamp) -> EntryBuilder {
        EntryBuilder::for_version(version::FIRST, stamp)
    }

    /// In the format of the version that the cluster runs.
    #[must_use]
    pub fn for_version(runs: ClusterVersion, stamp: Stamp) -> EntryBuilder {
        let mut bytes = Vec::with_capacity(256);
        bytes.push(version::format_byte(runs));
        put_varint(&mut bytes, stamp.term);
        put_varint(&mut bytes, stamp.logical_ms);
        put_varint(&mut bytes, stamp.wall_us);
        EntryBuilder { bytes, commands: 0 }
    }

    /// Adds one origin's commands. `acked_below`: the origin has every answer with a lower `seq`.
    pub fn push_batch<B: AsRef<[u8]>>(
        &mut self,
        origin: Origin,
        acked_below: u64,
        commands: impl IntoIterator<Item = (u64, B)>,
    ) {
        put_origin(&mut self.bytes, origin);
        put_varint(&mut self.bytes, acked_below);
        let count_at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        let mut count = 0u32;
        for (seq, blob) in commands {
            put_varint(&mut self.bytes, seq);
            put_bytes(&mut self.bytes, blob.as_ref());
            count += 1;
        }
        self.bytes[count_at..count_at + 4].copy_from_slice(&count.to_le_bytes());
        self.commands += count as usize;
    }

    /// Bytes so far: the leader closes an entry that is large enough.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it has no command.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.commands == 0
    }

    #[must_use]
    pub fn commands(&self) -> usize {
        self.commands
    }

    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Reads the stamp alone: a new leader goes on from the last one.
#[must_use]
pub fn entry_stamp(bytes: &[u8]) -> Option<Stamp> {
    let mut reader = Reader::new(bytes);
    version::read_format_byte(reader.u8()?, VersionRange::ANY).ok()?;
    read_stamp(&mut reader)
}

fn read_stamp(reader: &mut Reader<'_>) -> Option<Stamp> {
    Some(Stamp { term: reader.varint()?, logical_ms: reader.varint()?, wall_us: reader.varint()? })
}

/// What stands before the commands of one origin.
struct BatchHead {
    origin: Origin,
    acked_below: u64,
    count: usize,
}

/// Why an entry cannot be applied. Nothing of it was; the node must stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryError {
    /// Written in a format this release does not read.
    Format(FormatError),
    /// Written in the format of a later version than the cluster runs.
    Ahead { version: ClusterVersion, runs: ClusterVersion },
    /// The bytes end within a batch or a number.
    Frame,
    /// The command at this place (from 0) has an unknown tag, or its fields are not those of its tag.
    Command { at: usize, tag: Option<u8> },
    /// The command at this place holds a Redis command this release does not have.
    RedisCommand { at: usize, name: String },
    /// The command at this place holds a script as a client sent it: only what the leader made of it is ever logged.
    Script { at: usize },
    /// The command at this place needs a later version than the cluster runs.
    NeedsVersion { at: usize, need: Need, runs: ClusterVersion },
    /// The command at this place raises the cluster version beyond what this release can run.
    Raise { at: usize, to: ClusterVersion, known: VersionRange },
}

impl fmt::Display for EntryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EntryError::Format(error) => error.fmt(f),
            EntryError::Ahead { version, runs } => {
                write!(f, "its format is that of cluster version {version}, the cluster runs {runs}")
            }
            EntryError::Frame => f.write_str("its bytes are not those of an entry"),
            EntryError::Command { at, tag: Some(tag) } => {
                write!(f, "command {at} (tag {tag}) is malformed or not known to this release")
            }
            EntryError::Command { at, tag: None } => write!(f, "command {at} is empty"),
            EntryError::RedisCommand { at, name } => {
                write!(f, "command {at} runs '{name}', which this release does not have")
            }
            EntryError::Script { at } => {
                write!(f, "command {at} holds a script that was not run before it was logged")
            }
            EntryError::NeedsVersion { at, need: Need { command, version }, runs } => {
                write!(f, "command {at} ({command}) needs cluster version {version}, the cluster runs {runs}")
            }
            EntryError::Raise { at, to, known } => {
                write!(f, "command {at} raises the cluster version to {to}, this node can run {known}")
            }
        }
    }
}

impl std::error::Error for EntryError {}

#[cold]
fn not_decoded(at: usize, blob: &[u8]) -> EntryError {
    EntryError::Command { at, tag: blob.first().copied() }
}

/// Whether the cluster's version has this command, and this node the version it asks for.
fn check_version(at: usize, command: &Command<'_>, gate: Gate) -> Result<(), EntryError> {
    let Gate { runs, known, hold } = gate;
    if let Command::Upgrade(UpgradeCommand::Raise { to }) = command {
        // It is the first of its entry; elsewhere a hold or its end may stand before it.
        let is_void = hold && at == 0;
        if *to > known.newest && !is_void {
            return Err(EntryError::Raise { at, to: *to, known });
        }
    }
    // Nothing this program can decode needs more than its newest version.
    if runs < version::NEWEST {
        let need = command.need();
        if need.version > known.newest {
            // As the older program would say that a test plays here.
            return Err(EntryError::Command { at, tag: None });
        }
        if need.version > runs {
            return Err(EntryError::NeedsVersion { at, need, runs });
        }
    }
    Ok(())
}

/// Whether this release has the Redis commands that a command holds.
fn check_names(at: usize, command: &Command<'_>) -> Result<(), EntryError> {
    let mut checked = Ok(());
    command.for_each_redis_call(|site, argv| {
        if checked.is_ok() {
            checked = check_words(at, argv, site == CallSite::Transaction);
        }
    });
    checked
}

/// Fronts refuse names they do not have, so an unknown one was logged by another release.
fn check_words(at: usize, argv: &Words<'_>, in_transaction: bool) -> Result<(), EntryError> {
    let name = *argv.first().ok_or(EntryError::Command { at, tag: None })?;
    let is_known = table::find(name).is_some() || name == AS_USER;
    if is_known || (in_transaction && grammar::is_ours(name)) {
        return Ok(());
    }
    let name = name[..name.len().min(NAME_SHOWN_BYTES)].escape_ascii().to_string();
    Err(EntryError::RedisCommand { at, name })
}

/// Bytes of an unknown command's name that an error shows.
const NAME_SHOWN_BYTES: usize = 32;

/// Reads an entry to its end. The reader that comes back stands before the first batch.
///
/// The commands are decoded here to be checked, and again when they are run: to keep them in between costs more, because they are
/// large and would be written to memory and read again.
fn check_entry(bytes: &[u8], gate: Gate) -> Result<(Stamp, Reader<'_>), EntryError> {
    let mut reader = Reader::new(bytes);
    let format = reader.u8().ok_or(EntryError::Frame)?;
    let version = version::read_format_byte(format, gate.known).map_err(EntryError::Format)?;
    if version > gate.runs {
        return Err(EntryError::Ahead { version, runs: gate.runs });
    }
    let stamp = read_stamp(&mut reader).ok_or(EntryError::Frame)?;
    let batches = reader.clone();
    let mut at = 0;
    while !reader.is_empty() {
        let batch = read_head(&mut reader).ok_or(EntryError::Frame)?;
        for at in at..at + batch.count {
            let blob = skip_number(&mut reader).ok_or(EntryError::Frame)?;
            check_logged(at, blob, gate)?;
        }
        at += batch.count;
    }
    Ok((stamp, batches))
}

fn read_head(reader: &mut Reader<'_>) -> Option<BatchHead> {
    let origin = read_origin(reader)?;
    let acked_below = reader.varint()?;
    let count = reader.u32_fixed()? as usize;
    Some(BatchHead { origin, acked_below, count })
}

#[inline]
fn read_numbered<'a>(reader: &mut Reader<'a>) -> Option<(u64, &'a [u8])> {
    Some((reader.varint()?, reader.bytes()?))
}

/// The same without the number.
#[inline]
fn skip_number<'a>(reader: &mut Reader<'a>) -> Option<&'a [u8]> {
    reader.skip_varint()?;
    reader.bytes()
}

/// Whether this node can apply the command at this place.
fn check_logged(at: usize, blob: &[u8], gate: Gate) -> Result<(), EntryError> {
    if codec::is_plain_lock_command(blob) {
        return Ok(());
    }
    let checked = Command::visit(blob, |command| {
        check_names(at, command)?;
        check_version(at, command, gate)?;
        if command.is_request() {
            return Err(EntryError::Script { at });
        }
        Ok(())
    });
    checked.unwrap_or_else(|| Err(not_decoded(at, blob)))
}

impl Machine {
    /// Whether a command may enter the log, or become what may, as far as this node can tell: a leader proposes nothing that it
    /// could not apply, and nothing that the version of the cluster does not have.
    pub fn check_command(&self, blob: &[u8]) -> Result<(), EntryError> {
        let command = Command::decode(blob).ok_or_else(|| not_decoded(0, blob))?;
        check_names(0, &command)?;
        check_version(0, &command, self.gate())
    }

    /// Applies the entry after the last one: see [`Machine::apply_entry_at`].
    pub fn apply_entry(&mut self, bytes: &[u8], out: &mut Applied) -> Result<(), EntryError> {
        self.apply_entry_at(self.entry_index() + 1, bytes, out)
    }

    /// Applies one entry of the log. An error says that nothing of it was applied, and the node must stop. Raft's own entries have
    /// indexes too, so `index` may skip some.
    pub fn apply_entry_at(&mut self, index: u64, bytes: &[u8], out: &mut Applied) -> Result<(), EntryError> {
        let (stamp, mut reader) = check_entry(bytes, self.gate())?;
        self.begin_digest();
        self.begin(stamp, out);
        while let Some(BatchHead { origin, acked_below, count }) = read_head(&mut reader) {
            for _ in 0..count {
                let Some((seq, blob)) = read_numbered(&mut reader) else {
                    unreachable!("the entry was checked")
                };
                let id = (seq > 0).then_some(RequestId { origin, seq });
                let run = Command::visit(blob, |command| self.run(id, command, out));
                assert!(run.is_some(), "an entry that was checked is read again");
            }
            // After the commands: the first of them may be the OriginStart that makes this incarnation the live one.
            self.acknowledge(origin, acked_below);
        }
        self.finish(out);
        self.end_digest(index);
        Ok(())
    }
}
