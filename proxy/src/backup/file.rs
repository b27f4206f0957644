//! Reads a backup: to its end, with every check, into a machine.

use crate::node_api::backup_file::{BackupHeader, HEADER_BYTES_MAX};
use crate::node_api::snapshot_stream::StreamRestorer;
use redfence_core::machine::version::VersionRange;
use redfence_core::machine::Machine;
use std::fs::File;
use std::io::Read;
use std::path::Path;

const READ_BYTES: usize = 1 << 20;
/// Terms and indexes beyond it are no cluster's: a million a second would take longer than 30,000 years.
const POSITION_MAX: u64 = 1 << 60;

/// The header and the state. An error is one line that names the file.
pub(super) fn load(path: &Path) -> Result<(BackupHeader, Machine), String> {
    File::open(path)
        .map_err(|error| error.to_string())
        .and_then(read)
        .map_err(|why| format!("backup {}: {why}", path.display()))
}

fn read(mut file: impl Read) -> Result<(BackupHeader, Machine), String> {
    let mut bytes = vec![0; READ_BYTES.max(HEADER_BYTES_MAX)];
    let mut filled = 0;
    let (header, header_bytes) = loop {
        let read = file.read(&mut bytes[filled..]).map_err(|error| error.to_string())?;
        filled += read;
        match BackupHeader::decode(&bytes[..filled])? {
            Some(decoded) => break decoded,
            None if read == 0 => return Err("the file ends within its first line".to_owned()),
            None => {}
        }
    };
    let mut restorer = StreamRestorer::new(VersionRange::PROGRAM);
    let mut crc = crc32fast::Hasher::new();
    let mut size_bytes = 0;
    let mut piece = header_bytes..filled;
    loop {
        let part = &bytes[piece];
        size_bytes += part.len() as u64;
        if size_bytes > header.size_bytes {
            return Err(format!("the file goes on after {} bytes of state", header.size_bytes));
        }
        crc.update(part);
        restorer.push(part)?;
        let read = file.read(&mut bytes).map_err(|error| error.to_string())?;
        if read == 0 {
            break;
        }
        piece = 0..read;
    }
    if size_bytes != header.size_bytes {
        return Err(format!("the file ends after {size_bytes} of {} bytes of state", header.size_bytes));
    }
    if crc.finalize() != header.crc32 {
        return Err("the file is damaged: its checksum does not fit".to_owned());
    }
    let machine = match header.size_bytes {
        0 => Machine::new(),
        _ => restorer.finish()?,
    };
    // The new cluster's log goes on from there.
    let at = header.at();
    let holds = |said: u64, held: u64| (held..=POSITION_MAX).contains(&said);
    if !holds(at.index, machine.entry_index()) || !holds(at.term, machine.stamp().term) {
        return Err("its first line names a log position that does not fit its state".to_owned());
    }
    Ok((header, machine))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_api::snapshot_stream::framed;
    use crate::node_api::{LogPosition, SnapshotMeta};
    use redfence_core::machine::{Applied, EntryBuilder};
    use redfence_core::types::Stamp;

    fn backup() -> Vec<u8> {
        backup_at(LogPosition { index: 9, term: 3 })
    }

    /// Of a state whose last entry is the eighth, of term 2.
    fn backup_at(at: LogPosition) -> Vec<u8> {
        let mut machine = Machine::new();
        let entry = EntryBuilder::new(Stamp { term: 2, logical_ms: 5, wall_us: 5 }).finish();
        machine.apply_entry_at(8, &entry, &mut Applied::default()).unwrap();
        machine.snapshot_begin();
        let mut state = Vec::new();
        while let Some(piece) = machine.snapshot_step(10) {
            state.extend_from_slice(&framed(&piece));
        }
        let (size_bytes, crc32) = (state.len() as u64, crc32fast::hash(&state));
        let meta = SnapshotMeta { at, size_bytes, crc32, ..SnapshotMeta::default() };
        [BackupHeader::new(7, 1, &meta).encode().to_vec(), state].concat()
    }

    #[test]
    fn a_backup_is_read_and_every_cut_or_flipped_bit_is_noticed() {
        let good = backup();
        let (header, machine) = read(&good[..]).unwrap();
        assert_eq!(
            (header.at(), &header.cluster[..]),
            (LogPosition { index: 9, term: 3 }, "0000000000000007")
        );
        assert_eq!(machine.entry_index(), 8);
        for cut in 0..good.len() {
            assert!(read(&good[..cut]).is_err(), "{cut}");
        }
        assert!(read(&[&good[..], b"x"].concat()[..]).err().unwrap().contains("goes on"));
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            if let Ok((read, _)) = read(&bad[..]) {
                assert_eq!(read, header, "bit {bit}: only the case of a hexadecimal digit");
            }
        }
    }

    #[test]
    fn a_position_that_does_not_fit_the_state_is_refused() {
        for (index, term) in [(8, 2), (9, 3), (POSITION_MAX, POSITION_MAX)] {
            assert!(read(&backup_at(LogPosition { index, term })[..]).is_ok(), "{index} {term}");
        }
        for (index, term) in [(7, 3), (9, 1), (0, 0), (POSITION_MAX + 1, 3), (9, u64::MAX), (u64::MAX, 3)] {
            let refused = read(&backup_at(LogPosition { index, term })[..]).err();
            assert!(refused.is_some_and(|why| why.contains("does not fit its state")), "{index} {term}");
        }
    }
}
