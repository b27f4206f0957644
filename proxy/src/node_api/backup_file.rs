//! The file of a backup: one line of text that says what it is, then the bytes of a snapshot file.
//!
//! ```text
//! redfence-backup 1 <crc32 of the JSON> <JSON: BackupHeader>\n
//! <the bytes of a snapshot file: see snapshot_stream.rs>
//! ```
//! A node gives out exactly these bytes; `redfence backup` stores them as they come.

use super::{LogPosition, NodeId, SnapshotMeta};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

const MAGIC: &str = "redfence-backup";
/// Raised whenever an older program would misread the file. The state in it has the format of its cluster version.
const FORMAT_VERSION: u32 = 1;
/// Longest first line: 64 members with long addresses fit.
pub const HEADER_BYTES_MAX: usize = 256 << 10;

/// What a backup says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackupHeader {
    /// The cluster it was taken of: 16 hexadecimal digits.
    pub cluster: String,
    /// The last log entry it holds.
    pub index: u64,
    pub term: u64,
    /// When it was asked for, by the clock of the node, in microseconds since 1970.
    pub taken_at_us: u64,
    pub members: Vec<(NodeId, String)>,
    /// Of what follows this line.
    pub size_bytes: u64,
    /// crc32 (IEEE) of what follows this line.
    pub crc32: u32,
}

impl BackupHeader {
    pub(crate) fn new(cluster_id: u64, taken_at_us: u64, meta: &SnapshotMeta) -> BackupHeader {
        BackupHeader {
            cluster: format!("{cluster_id:016x}"),
            index: meta.at.index,
            term: meta.at.term,
            taken_at_us,
            members: meta.members.iter().map(|member| (member.id, member.addr.clone())).collect(),
            size_bytes: meta.size_bytes,
            crc32: meta.crc32,
        }
    }

    #[must_use]
    pub fn at(&self) -> LogPosition {
        LogPosition { index: self.index, term: self.term }
    }

    /// The first line of the file, with its end.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let json = serde_json::to_string(self).expect("numbers and text are always JSON");
        let crc = crc32fast::hash(json.as_bytes());
        format!("{MAGIC} {FORMAT_VERSION} {crc:08x} {json}\n").into_bytes().into()
    }

    /// Reads the first line out of the beginning of a file. Answers how long it is as well; `None`: it has not come to its end.
    pub fn decode(bytes: &[u8]) -> Result<Option<(BackupHeader, usize)>, String> {
        let begins = &bytes[..bytes.len().min(MAGIC.len())];
        if !MAGIC.as_bytes().starts_with(begins) {
            return Err("this is no backup of Redfence".to_owned());
        }
        let Some(end) = memchr::memchr(b'\n', bytes).filter(|end| *end < HEADER_BYTES_MAX) else {
            return match bytes.len() < HEADER_BYTES_MAX {
                true => Ok(None),
                false => Err("this is no backup of Redfence: its first line does not end".to_owned()),
            };
        };
        let line = std::str::from_utf8(&bytes[..end]).map_err(|_| damaged())?;
        let mut parts = line.splitn(4, ' ').skip(1);
        let (format, crc, json) = match (parts.next(), parts.next(), parts.next()) {
            (Some(format), Some(crc), Some(json)) => (format, crc, json),
            _ => return Err(damaged()),
        };
        if format != FORMAT_VERSION.to_string() {
            return Err(format!("backup format {format} is not known, this release reads {FORMAT_VERSION}"));
        }
        if u32::from_str_radix(crc, 16) != Ok(crc32fast::hash(json.as_bytes())) {
            return Err(damaged());
        }
        let header = serde_json::from_str(json).map_err(|_| damaged())?;
        Ok(Some((header, end + 1)))
    }
}

fn damaged() -> String {
    "the first line of the backup is damaged".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> BackupHeader {
        let members = vec![(1, "a:1".to_owned()), (2, "odd\nhost:2".to_owned())];
        BackupHeader {
            cluster: format!("{:016x}", 77),
            index: 5,
            term: 2,
            taken_at_us: 9,
            members,
            size_bytes: 3,
            crc32: 8,
        }
    }

    #[test]
    fn a_header_is_one_line_and_every_flipped_bit_is_noticed() {
        let mut bytes = header().encode().to_vec();
        let length = bytes.len();
        bytes.extend_from_slice(b"abc");
        assert_eq!(BackupHeader::decode(&bytes), Ok(Some((header(), length))));
        for cut in 0..length {
            assert_eq!(BackupHeader::decode(&bytes[..cut]), Ok(None), "{cut}");
        }
        for bit in 0..(length - 1) * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            // A flip inside the checksum's own hexadecimal may change its case alone: the same number.
            if let Ok(Some((read, _))) = BackupHeader::decode(&bad) {
                assert_eq!(read, header(), "bit {bit}");
            }
        }
    }

    #[test]
    fn what_is_no_backup_is_told_apart_from_one_that_is_cut_short() {
        assert!(BackupHeader::decode(b"REDIS0011").unwrap_err().contains("no backup"));
        assert_eq!(BackupHeader::decode(b"redfence-backup 1 "), Ok(None));
        let endless = [b"redfence-backup 1 ".to_vec(), vec![b'x'; HEADER_BYTES_MAX]].concat();
        assert!(BackupHeader::decode(&endless).unwrap_err().contains("does not end"));
        assert!(BackupHeader::decode(b"redfence-backup 2 00000000 {}\n").unwrap_err().contains("format 2"));
    }
}
