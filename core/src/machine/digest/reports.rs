//! The commands by which digests travel through the log. Bounded, without an answer.

use super::DigestKind;
use crate::machine::log::bytes::{put_varint, Reader};
use crate::machine::Machine;

/// What the log carries about digests. None of it changes the chain, so a report never causes the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DigestCommand {
    /// The leader asks everybody for a digest at this entry.
    Checkpoint { kind: DigestKind },
    /// A voter's digest at an earlier entry.
    Report {
        node: u64,
        /// The log index that added it: an earlier life of the same id is another member.
        added_at: u64,
        kind: DigestKind,
        index: u64,
        value: u64,
    },
    /// A member has found that it differs from a majority at `index`, and serves no more.
    Quarantine { node: u64, added_at: u64, index: u64 },
}

impl DigestCommand {
    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        match self {
            DigestCommand::Checkpoint { kind } => {
                out.push(1);
                out.push(kind.number());
            }
            DigestCommand::Report { node, added_at, kind, index, value } => {
                out.push(2);
                put_varint(out, node);
                put_varint(out, added_at);
                out.push(kind.number());
                put_varint(out, index);
                out.extend_from_slice(&value.to_le_bytes());
            }
            DigestCommand::Quarantine { node, added_at, index } => {
                out.push(3);
                put_varint(out, node);
                put_varint(out, added_at);
                put_varint(out, index);
            }
        }
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Option<DigestCommand> {
        Some(match reader.u8()? {
            1 => DigestCommand::Checkpoint { kind: DigestKind::read(reader)? },
            2 => DigestCommand::Report {
                node: reader.varint()?,
                added_at: reader.varint()?,
                kind: DigestKind::read(reader)?,
                index: reader.varint()?,
                value: reader.u64_fixed()?,
            },
            3 => DigestCommand::Quarantine {
                node: reader.varint()?,
                added_at: reader.varint()?,
                index: reader.varint()?,
            },
            _ => return None,
        })
    }
}

impl Machine {
    pub(crate) fn digest_command(&mut self, command: DigestCommand) {
        let digests = &mut self.digests;
        digests.revision += 1;
        match command {
            DigestCommand::Checkpoint { kind } => digests.asked = digests.asked.max(Some(kind)),
            DigestCommand::Report { node, added_at, kind, index, value } => {
                digests.table.report(node, added_at, kind, index, value);
            }
            DigestCommand::Quarantine { node, added_at, index } => {
                digests.table.quarantine(node, added_at, index);
            }
        }
    }
}
