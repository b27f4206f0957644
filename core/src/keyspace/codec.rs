//! A value as bytes, for snapshots. The form of a collection is written too: the order of iteration depends on it.

use super::list::List;
use super::sorted::Score;
use super::value::Value;
use super::{fields, sorted};
use bytes::Bytes;

fn put_len(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(&(len as u32).to_le_bytes());
}

pub(super) fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    put_len(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Appends the value's bytes.
pub fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Str(bytes) => {
            out.push(0);
            put(out, bytes);
        }
        Value::List(items) => {
            out.push(1);
            put_len(out, items.len());
            items.iter().for_each(|item| put(out, item));
        }
        Value::Hash(fields) => {
            out.push(if matches!(fields.form(), fields::FieldsForm::Small(_)) { 2 } else { 3 });
            put_len(out, fields.len());
            for (name, value) in fields.iter() {
                put(out, name);
                put(out, value);
            }
        }
        Value::Set(members) => {
            out.push(if matches!(members.form(), fields::FieldsForm::Small(_)) { 4 } else { 5 });
            put_len(out, members.len());
            members.iter().for_each(|(name, ())| put(out, name));
        }
        Value::ZSet(members) => {
            out.push(if matches!(members.form(), sorted::SortedForm::Small(_)) { 6 } else { 7 });
            put_len(out, members.len());
            for (score, member) in members.iter() {
                out.extend_from_slice(&score.to_bits().to_le_bytes());
                put(out, member);
            }
        }
    }
}

pub(super) struct ValueReader<'a>(pub(super) &'a [u8]);

impl<'a> ValueReader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn len(&mut self) -> Option<usize> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?) as usize)
    }

    pub(super) fn bytes(&mut self) -> Option<Bytes> {
        let len = self.len()?;
        self.take(len).map(Bytes::copy_from_slice)
    }

    pub(super) fn score(&mut self) -> Option<Score> {
        let score = f64::from_bits(u64::from_le_bytes(self.take(8)?.try_into().ok()?));
        (!score.is_nan()).then_some(Score(score))
    }
}

/// Reads a value that takes up all of `bytes`. `None` where they are not one.
#[must_use]
pub fn read(bytes: &[u8]) -> Option<Value> {
    let mut reader = ValueReader(bytes);
    let tag = *reader.take(1)?.first()?;
    let value = match tag {
        0 => Value::Str(reader.bytes()?),
        1 => {
            let mut items = List::default();
            for _ in 0..reader.len()? {
                items.push_back(reader.bytes()?);
            }
            Value::List(Box::new(items))
        }
        2 | 3 => {
            let entries = read_entries(&mut reader, |reader| reader.bytes())?;
            Value::Hash(read_form(entries, tag == 2).into())
        }
        4 | 5 => {
            let entries = read_entries(&mut reader, |_| Some(()))?;
            Value::Set(read_form(entries, tag == 4).into())
        }
        6 | 7 => {
            let mut entries = Vec::new();
            for _ in 0..reader.len()? {
                let score = reader.score()?;
                entries.push((score, reader.bytes()?));
            }
            if !entries.is_sorted() {
                return None;
            }
            let form = if tag == 6 {
                sorted::SortedForm::Small(entries)
            } else {
                let by_member = entries.iter().map(|(score, member)| (member.clone(), *score)).collect();
                sorted::SortedForm::Large { by_score: entries.into_iter().collect(), by_member }
            };
            Value::ZSet(Box::new(form.into()))
        }
        _ => return None,
    };
    (reader.0.is_empty() && !value.is_empty_collection()).then_some(value)
}

fn read_form<V: Clone>(entries: Vec<(Bytes, V)>, small: bool) -> fields::FieldsForm<V> {
    match small {
        true => fields::FieldsForm::Small(entries),
        false => fields::FieldsForm::Large(entries.into_iter().collect()),
    }
}

fn read_entries<V>(
    reader: &mut ValueReader<'_>,
    value: impl Fn(&mut ValueReader<'_>) -> Option<V>,
) -> Option<Vec<(Bytes, V)>> {
    let mut entries = Vec::new();
    for _ in 0..reader.len()? {
        let name = reader.bytes()?;
        entries.push((name, value(reader)?));
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::fields::Fields;
    use super::sorted::Sorted;
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let mut hash: Fields<Bytes> = Fields::default();
        let mut set: Fields<()> = Fields::default();
        let mut zset = Sorted::default();
        let mut list = List::default();
        let mut values = Vec::new();
        for number in 0..300 {
            let name = format!("name{}", number * 7919 % 300);
            hash.insert(name.as_bytes(), Bytes::from(name.clone()));
            set.insert(name.as_bytes(), ());
            zset.insert(name.as_bytes(), f64::from(number % 13));
            list.push_back(Bytes::from(name));
            if number == 3 || number == 299 {
                values.extend([
                    Value::Hash(hash.clone()),
                    Value::Set(set.clone()),
                    Value::ZSet(Box::new(zset.clone())),
                    Value::List(Box::new(list.clone())),
                    Value::str(b""),
                ]);
            }
        }
        for value in values {
            let mut bytes = Vec::new();
            write(&value, &mut bytes);
            assert_eq!(read(&bytes).as_ref(), Some(&value));
            assert_eq!(read(&bytes[..bytes.len() - 1]), None);
            assert_eq!(read(&[&bytes[..], b"x"].concat()), None);
        }
    }
}
