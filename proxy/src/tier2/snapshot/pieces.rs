//! The bytes of a snapshot file, as a stream that may be cut anywhere.

use crate::tier2::ports::{LogReader, SnapshotMeta};
use bytes::{Buf, Bytes, BytesMut};
use redfence_core::machine::{Machine, Restorer};

/// A piece is some thousand records at most; a longer one is damage.
const PIECE_BYTES_MAX: usize = 64 << 20;
/// Read from disk at once.
const READ_BYTES: usize = 1 << 20;

/// One piece as it stands in the file.
pub(crate) fn framed(piece: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(4 + piece.len());
    out.extend_from_slice(&(piece.len() as u32).to_le_bytes());
    out.extend_from_slice(piece);
    out.into()
}

/// Takes the file's bytes in any portions and builds the machine as they come.
pub(crate) struct StreamRestorer {
    restorer: Restorer,
    rest: BytesMut,
}

impl StreamRestorer {
    pub(crate) fn new() -> StreamRestorer {
        StreamRestorer { restorer: Restorer::default(), rest: BytesMut::new() }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.rest.extend_from_slice(bytes);
        while let Some(length) = self.rest.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes) as usize)
        {
            if length > PIECE_BYTES_MAX {
                return Err(format!("a piece of the snapshot claims {length} bytes"));
            }
            if self.rest.len() < 4 + length {
                break;
            }
            self.rest.advance(4);
            let piece = self.rest.split_to(length);
            self.restorer.push(&piece).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<Machine, String> {
        if !self.rest.is_empty() {
            return Err("the snapshot ends within a piece".to_owned());
        }
        self.restorer.finish().map_err(|error| error.to_string())
    }
}

/// The machine of a stored snapshot, at start-up.
pub fn load(meta: &SnapshotMeta, reader: &dyn LogReader) -> Result<Machine, String> {
    if meta.size_bytes == 0 {
        return Ok(Machine::new());
    }
    let mut restorer = StreamRestorer::new();
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
