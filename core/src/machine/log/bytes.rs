//! Reading and writing the primitive values of every format of the machine: entries, commands, snapshots.
//!
//! A [`Reader`] answers `None` where the bytes are not what was promised, and never allocates from a declared length.

/// Cuts values off the front of a byte slice.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(head)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    pub(crate) fn flag(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(crate) fn u32_fixed(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    pub(crate) fn u64_fixed(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    /// A varint in its one shortest form, so that equal values have equal bytes.
    #[inline]
    pub(crate) fn varint(&mut self) -> Option<u64> {
        match self.rest.split_first() {
            // Most are small.
            Some((&first, rest)) if first < 0x80 => {
                self.rest = rest;
                Some(u64::from(first))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Option<u64> {
        // Eight bytes at once, where there are as many: the number ends with the first that has its top bit clear.
        if let Some(bytes) = self.rest.first_chunk::<8>() {
            let word = u64::from_le_bytes(*bytes);
            let ends = !word & 0x8080_8080_8080_8080;
            if ends != 0 {
                let last_bit = ends.trailing_zeros();
                let last = word >> (last_bit - 7) & 0x7f;
                self.rest = &self.rest[last_bit as usize / 8 + 1..];
                return (last > 0 || last_bit == 7).then_some(packed(word & (u64::MAX >> (63 - last_bit))));
            }
        }
        self.varint_by_byte()
    }

    /// A varint that is checked and not looked at.
    #[inline]
    pub(crate) fn skip_varint(&mut self) -> Option<()> {
        if let Some(bytes) = self.rest.first_chunk::<8>() {
            let ends = !u64::from_le_bytes(*bytes) & 0x8080_8080_8080_8080;
            if ends != 0 {
                let last = ends.trailing_zeros() as usize / 8;
                self.rest = &self.rest[last + 1..];
                return (last == 0 || bytes[last] > 0).then_some(());
            }
        }
        self.varint_by_byte().map(|_| ())
    }

    fn varint_by_byte(&mut self) -> Option<u64> {
        let mut value = 0u64;
        let mut shift = 0u32;
        loop {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if (shift == 63 && bits > 1) || (byte == 0 && shift > 0) {
                return None;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Some(value);
            }
            shift += 7;
            if shift > 63 {
                return None;
            }
        }
    }

    pub(crate) fn varint_u32(&mut self) -> Option<u32> {
        u32::try_from(self.varint()?).ok()
    }

    /// Bytes behind their length.
    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.varint()?).ok()?;
        self.take(len)
    }
}

/// The low seven bits of each byte, side by side.
#[inline]
fn packed(word: u64) -> u64 {
    let word = word & 0x007f_007f_007f_007f | (word & 0x7f00_7f00_7f00_7f00) >> 1;
    let word = word & 0x0000_3fff_0000_3fff | (word & 0x3fff_0000_3fff_0000) >> 2;
    word & 0x0fff_ffff | (word & 0x0fff_ffff_0000_0000) >> 4
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A hash that is the same on every node and in every version: replicas compare their states by it. Tables whose keys clients choose go
/// by it with a secret as the seed: see [`HashKey`](crate::machine::store::hash_key::HashKey).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hash64(u64);

const HASH_KEYS: [u64; 3] = [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93, 0xa076_1d64_78bd_642f];

impl Hash64 {
    #[inline]
    pub(crate) fn new(seed: u64) -> Hash64 {
        Hash64(seed ^ HASH_KEYS[0])
    }

    #[inline]
    fn fold(&mut self, a: u64, b: u64) {
        let product =
            u128::from(a ^ self.0 ^ HASH_KEYS[1]) * u128::from(b ^ HASH_KEYS[2] ^ self.0.rotate_left(32));
        self.0 = (product as u64) ^ ((product >> 64) as u64) ^ self.0.rotate_left(23);
    }

    #[inline]
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(16);
        for chunk in &mut chunks {
            self.fold(word(&chunk[..8]), word(&chunk[8..]));
        }
        let rest = chunks.remainder();
        let (low, high) = rest.split_at(rest.len().min(8));
        self.fold(word(low), word(high) ^ (bytes.len() as u64) << 32);
    }

    /// The hash of a name alone. Two halves of each 32 bytes go their own ways, so that no product waits for the other.
    #[inline]
    pub(crate) fn of_name(seed: u64, name: &[u8]) -> u64 {
        let (mut left, mut right) = (Hash64::new(seed), Hash64::new(!seed));
        let mut chunks = name.chunks_exact(32);
        for chunk in &mut chunks {
            left.fold(word(&chunk[..8]), word(&chunk[8..16]));
            right.fold(word(&chunk[16..24]), word(&chunk[24..]));
        }
        if !chunks.remainder().is_empty() {
            left.write(chunks.remainder());
        }
        left.fold(right.0, name.len() as u64);
        left.0
    }

    #[inline]
    pub(crate) fn finish(self) -> u64 {
        let mut last = self;
        last.fold(HASH_KEYS[0], 0);
        last.0
    }
}

#[inline]
fn word(bytes: &[u8]) -> u64 {
    if let Ok(full) = <[u8; 8]>::try_from(bytes) {
        return u64::from_le_bytes(full);
    }
    let mut padded = [0u8; 8];
    padded[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(padded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_come_back_and_only_in_one_form() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            let mut reader = Reader::new(&out);
            assert_eq!(reader.varint(), Some(value));
            assert!(reader.is_empty());
        }
        assert_eq!(Reader::new(&[0x80, 0x00]).varint(), None, "a longer form of zero");
        assert_eq!(
            Reader::new(&[0x80, 0x00, 1, 1, 1, 1, 1, 1, 1]).varint(),
            None,
            "the same before other bytes"
        );
        assert_eq!(Reader::new(&[0xff; 11]).varint(), None, "more than 64 bits");
        assert_eq!(Reader::new(&[0x80]).varint(), None, "cut short");
    }

    #[test]
    fn names_have_hashes_of_their_own() {
        use std::collections::BTreeSet;
        let numbered = |number: u32| format!("tenant:4711:invoices:settlement:{number}");
        let hashes: Vec<u64> =
            (0..100_000).map(|number| Hash64::of_name(0, numbered(number).as_bytes())).collect();
        assert_eq!(hashes.iter().collect::<BTreeSet<_>>().len(), hashes.len());
        // About one pair of them is equal in 32 bits by chance.
        let low: BTreeSet<u32> = hashes.iter().map(|hash| *hash as u32).collect();
        assert!(low.len() > hashes.len() - 10, "{}", low.len());
        let name = [b'x'; 100];
        let mut seen: BTreeSet<u64> = (0..=100).map(|len| Hash64::of_name(0, &name[..len])).collect();
        for at in 0..name.len() {
            let mut other = name;
            other[at] ^= 1;
            seen.insert(Hash64::of_name(0, &other));
        }
        seen.insert(Hash64::of_name(1, &name));
        assert_eq!(seen.len(), 101 + 100 + 1);
    }

    #[test]
    fn varints_before_other_bytes_are_read_as_by_themselves() {
        let mut value = 0x9e37_79b9_7f4a_7c15u64;
        for round in 0..10_000u32 {
            value = value.rotate_left(7).wrapping_mul(0xd6e8_feb8_6659_fd93);
            // Of every length, with every byte behind it, and cut short; now and then in a form that is too long.
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value >> (round % 64));
            if round % 5 == 0 {
                *bytes.last_mut().expect("a byte") |= 0x80;
                bytes.push(0);
            }
            bytes.extend_from_slice(&value.to_be_bytes());
            bytes.truncate(round as usize % 18 + 1);
            let (mut at_once, mut by_byte) = (Reader::new(&bytes), Reader::new(&bytes));
            let read = at_once.varint();
            let mut skipping = Reader::new(&bytes);
            assert_eq!(skipping.skip_varint().is_some(), read.is_some(), "{bytes:02x?}");
            if read.is_some() {
                assert_eq!(skipping.rest, at_once.rest, "{bytes:02x?}");
            }
            assert_eq!(read, by_byte.varint_by_byte(), "{bytes:02x?}");
            assert!(read.is_none() || at_once.rest() == by_byte.rest(), "{bytes:02x?}");
        }
    }

    #[test]
    fn declared_lengths_are_not_believed() {
        let mut out = Vec::new();
        put_varint(&mut out, u64::MAX);
        out.push(1);
        assert_eq!(Reader::new(&out).bytes(), None);
    }

    #[test]
    fn hash_tells_lengths_and_places_apart() {
        let of = |bytes: &[u8]| {
            let mut hash = Hash64::new(0);
            hash.write(bytes);
            hash.finish()
        };
        let mut seen = std::collections::BTreeSet::new();
        for len in 0..64 {
            assert!(seen.insert(of(&vec![0; len])), "zeros of length {len}");
        }
        for at in 0..40 {
            let mut bytes = [0u8; 40];
            bytes[at] = 1;
            assert!(seen.insert(of(&bytes)), "one at {at}");
        }
    }
}
