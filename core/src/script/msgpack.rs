//! `cmsgpack`: `pack`, `unpack`, `unpack_one`, `unpack_limit`.

use super::budget::Budget;
use super::json::array_len;
use super::library::{register, Args, Failure, Results};
use super::values::{charge_text, charge_value, entries, number};
use mlua::{Lua, Result, Table, Value};
use std::rc::Rc;

/// Results of one call: each takes a place on the stack.
const RESULTS_MAX: usize = 4000;
/// Tables inside tables; what is deeper is packed as nil, as in Redis.
const DEPTH_MAX: usize = 16;

type Outcome<T> = std::result::Result<T, Failure>;

pub(super) fn library(lua: &Lua, budget: &Rc<Budget>) -> Result<Table> {
    let library = lua.create_table()?;
    let packing = budget.clone();
    register(lua, &library, "pack", move |lua, args| {
        if args.len() == 0 {
            return Err("bad argument #0 to 'pack' (MessagePack pack needs input.)".into());
        }
        let mut out = Vec::new();
        for index in 0..args.len() {
            pack(args.get(index), 0, &packing, &mut out)?;
        }
        Ok(vec![Value::String(lua.create_string(out)?)])
    })?;
    let unpacking = budget.clone();
    register(lua, &library, "unpack", move |lua, args| unpack(lua, args, &unpacking, usize::MAX, None))?;
    let unpacking = budget.clone();
    register(lua, &library, "unpack_one", move |lua, args| {
        let offset = if args.len() > 1 { args.number(1)? as usize } else { 0 };
        unpack(lua, args, &unpacking, 1, Some(offset))
    })?;
    let unpacking = budget.clone();
    register(lua, &library, "unpack_limit", move |lua, args| {
        let limit = args.number(1)? as usize;
        let offset = if args.len() > 2 { args.number(2)? as usize } else { 0 };
        unpack(lua, args, &unpacking, limit, Some(offset))
    })?;
    Ok(library)
}

#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "mlua's values: what has no meaning in Redis is treated alike"
)]
fn pack(value: &Value, depth: usize, budget: &Budget, out: &mut Vec<u8>) -> Outcome<()> {
    charge_value(budget, value, out.len())?;
    match value {
        Value::String(text) => pack_bytes(&text.as_bytes(), out),
        Value::Boolean(value) => out.push(if *value { 0xc3 } else { 0xc2 }),
        Value::Integer(_) | Value::Number(_) => pack_number(number(value).unwrap_or(0.0), out),
        Value::Table(table) if depth < DEPTH_MAX => pack_table(table, depth + 1, budget, out)?,
        _ => out.push(0xc0),
    }
    Ok(())
}

fn pack_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    match bytes.len() {
        len @ 0..=31 => out.push(0xa0 | len as u8),
        len @ 32..=0xff => out.extend_from_slice(&[0xd9, len as u8]),
        len @ 0x100..=0xffff => {
            out.push(0xda);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            out.push(0xdb);
            out.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
    out.extend_from_slice(bytes);
}

fn pack_number(value: f64, out: &mut Vec<u8>) {
    if value.fract() != 0.0 || value.abs() >= 9_223_372_036_854_775_808.0 || !value.is_finite() {
        if f64::from(value as f32) == value {
            out.push(0xca);
            out.extend_from_slice(&(value as f32).to_be_bytes());
        } else {
            out.push(0xcb);
            out.extend_from_slice(&value.to_be_bytes());
        }
        return;
    }
    let whole = value as i64;
    // The shortest form that holds it.
    let (tag, width): (Option<u8>, usize) = match whole {
        -32..=127 => (None, 1),
        128..=0xff => (Some(0xcc), 1),
        0x100..=0xffff => (Some(0xcd), 2),
        0x1_0000..=0xffff_ffff => (Some(0xce), 4),
        0x1_0000_0000.. => (Some(0xcf), 8),
        -128..=-33 => (Some(0xd0), 1),
        -32768..=-129 => (Some(0xd1), 2),
        -2_147_483_648..=-32769 => (Some(0xd2), 4),
        _ => (Some(0xd3), 8),
    };
    out.extend(tag);
    out.extend_from_slice(&whole.to_be_bytes()[8 - width..]);
}

fn pack_len(len: usize, small: (u8, usize), tags: (u8, u8), out: &mut Vec<u8>) {
    if len < small.1 {
        out.push(small.0 | len as u8);
    } else if len <= 0xffff {
        out.push(tags.0);
        out.extend_from_slice(&(len as u16).to_be_bytes());
    } else {
        out.push(tags.1);
        out.extend_from_slice(&(len as u32).to_be_bytes());
    }
}

fn pack_table(table: &Table, depth: usize, budget: &Budget, out: &mut Vec<u8>) -> Outcome<()> {
    let entries = entries(table, budget)?;
    // An array has no holes; an empty table is one.
    if entries.is_empty() || array_len(&entries) == Some(entries.len()) {
        pack_len(entries.len(), (0x90, 16), (0xdc, 0xdd), out);
        for index in 1..=entries.len() {
            pack(&table.raw_get(index)?, depth, budget, out)?;
        }
        return Ok(());
    }
    pack_len(entries.len(), (0x80, 16), (0xde, 0xdf), out);
    for (key, value) in &entries {
        pack(key, depth, budget, out)?;
        pack(value, depth, budget, out)?;
    }
    Ok(())
}

/// Values from an offset on; where one is given, also returns the next offset.
fn unpack(lua: &Lua, args: &Args, budget: &Budget, limit: usize, from: Option<usize>) -> Results {
    let text = args.string(0)?;
    let bytes = text.as_bytes();
    let offset = from.unwrap_or(0);
    if offset > bytes.len() {
        let len = bytes.len();
        return Err(format!("Start offset {offset} greater than input length {len}.").into());
    }
    let mut reader = Reader { lua, budget, bytes: &bytes, at: offset };
    let mut values = Vec::new();
    while reader.at < bytes.len() && values.len() < limit {
        if values.len() >= RESULTS_MAX {
            return Err("too many results to unpack".into());
        }
        values.push(reader.value(0)?);
    }
    if from.is_some() {
        let next = if reader.at < bytes.len() { reader.at as f64 } else { -1.0 };
        values.insert(0, Value::Number(next));
    }
    Ok(values)
}

struct Reader<'a> {
    lua: &'a Lua,
    budget: &'a Budget,
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn take(&mut self, len: usize) -> Outcome<&[u8]> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or("Missing bytes in input.")?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn uint(&mut self, width: usize) -> Outcome<u64> {
        Ok(self.take(width)?.iter().fold(0, |sum, byte| (sum << 8) | u64::from(*byte)))
    }

    fn value(&mut self, depth: usize) -> Outcome<Value> {
        charge_text(self.budget, 0)?;
        if depth > 1000 {
            return Err("Bad data format in input.".into());
        }
        let signed = |value: u64, width: usize| {
            let unused = 64 - width as u32 * 8;
            Value::Number((((value << unused) as i64) >> unused) as f64)
        };
        let tag = self.uint(1)? as u8;
        Ok(match tag {
            0x00..=0x7f => Value::Number(f64::from(tag)),
            0xe0..=0xff => Value::Number(f64::from(tag as i8)),
            0x80..=0x8f => self.map(u64::from(tag & 15), depth)?,
            0x90..=0x9f => self.array(u64::from(tag & 15), depth)?,
            0xa0..=0xbf => self.text(u64::from(tag & 31))?,
            0xc0 => Value::Nil,
            0xc2 => Value::Boolean(false),
            0xc3 => Value::Boolean(true),
            0xca => Value::Number(f64::from(f32::from_bits(self.uint(4)? as u32))),
            0xcb => Value::Number(f64::from_bits(self.uint(8)?)),
            0xcc..=0xcf => Value::Number(self.uint(1 << (tag - 0xcc))? as f64),
            0xd0..=0xd3 => {
                let width = 1 << (tag - 0xd0);
                signed(self.uint(width)?, width)
            }
            0xc4 | 0xd9 => {
                let len = self.uint(1)?;
                self.text(len)?
            }
            0xc5 | 0xda => {
                let len = self.uint(2)?;
                self.text(len)?
            }
            0xc6 | 0xdb => {
                let len = self.uint(4)?;
                self.text(len)?
            }
            0xdc | 0xdd => {
                let len = self.uint(if tag == 0xdc { 2 } else { 4 })?;
                self.array(len, depth)?
            }
            0xde | 0xdf => {
                let len = self.uint(if tag == 0xde { 2 } else { 4 })?;
                self.map(len, depth)?
            }
            _ => return Err("Bad data format in input.".into()),
        })
    }

    fn text(&mut self, len: u64) -> Outcome<Value> {
        let lua = self.lua;
        let bytes = self.take(usize::try_from(len).unwrap_or(usize::MAX))?;
        Ok(Value::String(lua.create_string(bytes)?))
    }

    fn array(&mut self, len: u64, depth: usize) -> Outcome<Value> {
        let table = self.lua.create_table()?;
        for index in 1..=len {
            table.raw_set(index, self.value(depth + 1)?)?;
        }
        Ok(Value::Table(table))
    }

    fn map(&mut self, len: u64, depth: usize) -> Outcome<Value> {
        let table = self.lua.create_table()?;
        for _ in 0..len {
            let key = self.value(depth + 1)?;
            let value = self.value(depth + 1)?;
            if key.is_nil() || number(&key).is_some_and(f64::is_nan) {
                return Err("Bad data format in input.".into());
            }
            table.raw_set(key, value)?;
        }
        Ok(Value::Table(table))
    }
}
