//! The bytes of a snapshot file, as a stream that may be cut anywhere.

use crate::node_api::{LogReader, SnapshotMeta};
use bytes::{Buf, Bytes, BytesMut};
use redfence_core::limits::SNAPSHOT_PIECE_BYTES_MAX;
use redfence_core::machine::version::VersionRange;
use redfence_core::machine::{Checker, Machine, RestoreError, Restorer};

/// Read from disk at once.
const READ_BYTES: usize = 1 << 20;

/// One piece as it stands in the file.
pub(crate) fn framed(piece: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(4 + piece.len());
    out.extend_from_slice(&(piece.len() as u32).to_le_bytes());
    out.extend_from_slice(piece);
    out.into()
}

/// The file's bytes, in any portions, cut into pieces again.
#[derive(Default)]
struct Pieces {
    rest: BytesMut,
}

impl Pieces {
    fn push(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        self.rest.extend_from_slice(bytes);
        while let Some(length) = self.rest.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes) as usize)
        {
            if length > SNAPSHOT_PIECE_BYTES_MAX {
                return Err(format!("a piece of the snapshot claims {length} bytes"));
            }
            if self.rest.len() < 4 + length {
                break;
            }
            self.rest.advance(4);
            take(&self.rest.split_to(length))?;
        }
        Ok(())
    }

    fn finish(&self) -> Result<(), String> {
        match self.rest.is_empty() {
            true => Ok(()),
            false => Err("the snapshot ends within a piece".to_owned()),
        }
    }
}

/// Takes the file's bytes in any portions and builds the machine as they come.
pub(crate) struct StreamRestorer {
    pieces: Pieces,
    restorer: Restorer,
    /// The bytes are whole, and of a version this release does not read.
    unknown_version: bool,
}

impl StreamRestorer {
    /// For a node that can run these cluster versions.
    pub(crate) fn new(versions: VersionRange) -> StreamRestorer {
        StreamRestorer {
            pieces: Pieces::default(),
            restorer: Restorer::for_versions(versions),
            unknown_version: false,
        }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), String> {
        let (restorer, unknown_version) = (&mut self.restorer, &mut self.unknown_version);
        self.pieces.push(bytes, |piece| {
            restorer.push(piece).map_err(|error| {
                *unknown_version |= matches!(error, RestoreError::Format(_));
                error.to_string()
            })
        })
    }

    pub(crate) fn is_of_unknown_version(&self) -> bool {
        self.unknown_version
    }

    pub(crate) fn finish(self) -> Result<Machine, String> {
        self.pieces.finish()?;
        self.restorer.finish().map_err(|error| error.to_string())
    }
}

/// Takes the bytes of a stored file in any portions and says whether a node could start from them. Storage asks before it reports a
/// snapshot as stored, and only then is the log behind it compacted.
#[derive(Default)]
pub(crate) struct StreamChecker {
    pieces: Pieces,
    checker: Checker,
}

impl StreamChecker {
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), String> {
        let checker = &mut self.checker;
        self.pieces.push(bytes, |piece| checker.push(piece).map_err(|error| error.to_string()))
    }

    pub(crate) fn finish(self) -> Result<(), String> {
        self.pieces.finish()?;
        self.checker.finish().map_err(|error| error.to_string())
    }
}

/// The machine before anything was logged.
pub(crate) fn empty_machine(versions: VersionRange) -> Machine {
    let mut machine = Machine::new();
    machine.set_versions(versions);
    machine
}

/// The machine of a stored snapshot, for this program.
pub fn load(meta: &SnapshotMeta, reader: &dyn LogReader) -> Result<Machine, String> {
    load_for(meta, reader, VersionRange::PROGRAM)
}

/// The machine of a stored snapshot, at start-up of a node that can run these cluster versions.
pub(crate) fn load_for(
    meta: &SnapshotMeta,
    reader: &dyn LogReader,
    versions: VersionRange,
) -> Result<Machine, String> {
    if meta.size_bytes == 0 {
        return Ok(empty_machine(versions));
    }
    let mut restorer = StreamRestorer::new(versions);
    let mut crc = crc32fast::Hasher::new();
    let mut offset = 0;
    while offset < meta.size_bytes {
        let bytes = reader.snapshot_read(meta.id, offset, READ_BYTES).map_err(|error| error.0)?;
        if bytes.is_empty() {
            return Err(format!("the snapshot file ends at {offset} of {} bytes", meta.size_bytes));
        }
        offset += bytes.len() as u64;
        crc.update(&bytes);
        restorer.push(&bytes)?;
    }
    if offset != meta.size_bytes || crc.finalize() != meta.crc32 {
        return Err("the snapshot file is damaged: its checksum does not fit".to_owned());
    }
    restorer.finish()
}
