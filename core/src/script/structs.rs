//! The `struct` library: `pack`, `unpack`, `size` with formats such as `>I2c0`.

use super::budget::Budget;
use super::library::{register, Args, Failure, Results};
use super::values::charge_text;
use mlua::{Lua, Result, Table, Value};
use std::rc::Rc;

/// About how long one letter of a format takes.
const LETTER_NS: usize = 50;
/// Bytes one packed string may have.
const BYTES_MAX: usize = 1024 * 1024;

type Function = fn(&Lua, &Args) -> Results;
type Outcome<T> = std::result::Result<T, Failure>;

pub(super) fn library(lua: &Lua, budget: &Rc<Budget>) -> Result<Table> {
    let library = lua.create_table()?;
    let functions: [(&'static str, Function); 3] = [("pack", pack), ("unpack", unpack), ("size", size)];
    for (name, function) in functions {
        let budget = budget.clone();
        register(lua, &library, name, move |lua, args| {
            // Each letter of the format is an item; an item is at most all of the data.
            charge_text(&budget, args.string(0)?.as_bytes().len() * LETTER_NS)?;
            function(lua, args)
        })?;
    }
    Ok(library)
}

/// One element of a format.
#[derive(Clone, Copy)]
enum Item {
    Int {
        bytes: usize,
        signed: bool,
    },
    Float,
    Double,
    /// Ends with a zero byte.
    Text,
    /// So many bytes; 0: as the value, or the number read before, says.
    Chars(usize),
    Pad,
}

struct Format<'a> {
    rest: &'a [u8],
    little: bool,
    align_max: usize,
}

impl<'a> Format<'a> {
    fn new(text: &'a [u8]) -> Format<'a> {
        Format { rest: text, little: cfg!(target_endian = "little"), align_max: 1 }
    }

    /// A number behind a letter, or `otherwise`.
    fn count(&mut self, otherwise: usize) -> Outcome<usize> {
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return Ok(otherwise);
        }
        let (number, rest) = self.rest.split_at(digits);
        self.rest = rest;
        let number = std::str::from_utf8(number).ok().and_then(|text| text.parse::<usize>().ok());
        number.filter(|number| *number <= BYTES_MAX).ok_or_else(|| "integral size overflow".into())
    }

    fn int(&mut self, otherwise: usize, signed: bool) -> Outcome<Item> {
        let bytes = self.count(otherwise)?;
        if bytes == 0 || bytes > 8 {
            return Err(format!("integral size {bytes} is larger than limit of 8").into());
        }
        Ok(Item::Int { bytes, signed })
    }

    fn next(&mut self) -> Outcome<Option<Item>> {
        while let Some((letter, rest)) = self.rest.split_first() {
            self.rest = rest;
            return Ok(Some(match letter {
                b' ' => continue,
                b'<' => {
                    self.little = true;
                    continue;
                }
                b'>' => {
                    self.little = false;
                    continue;
                }
                b'=' => {
                    self.little = cfg!(target_endian = "little");
                    continue;
                }
                b'!' => {
                    let align = self.count(8)?;
                    if align == 0 || !align.is_power_of_two() {
                        return Err("alignment is not a power of 2".into());
                    }
                    self.align_max = align;
                    continue;
                }
                b'b' => Item::Int { bytes: 1, signed: true },
                b'B' => Item::Int { bytes: 1, signed: false },
                b'h' => Item::Int { bytes: 2, signed: true },
                b'H' => Item::Int { bytes: 2, signed: false },
                b'l' => Item::Int { bytes: 8, signed: true },
                b'L' | b'T' => Item::Int { bytes: 8, signed: false },
                b'i' => self.int(4, true)?,
                b'I' => self.int(4, false)?,
                b'f' => Item::Float,
                b'd' | b'n' => Item::Double,
                b's' => Item::Text,
                b'c' => Item::Chars(self.count(1)?),
                b'x' => Item::Pad,
                other => {
                    let other = char::from(*other);
                    return Err(format!("invalid format option '{other}'").into());
                }
            }));
        }
        Ok(None)
    }

    /// Bytes to skip so that an item stands aligned at `at`.
    fn padding(&self, item: Item, at: usize) -> usize {
        let width = match item {
            Item::Int { bytes, .. } => bytes,
            Item::Float => 4,
            Item::Double => 8,
            Item::Text | Item::Chars(_) | Item::Pad => return 0,
        };
        let align = width.min(self.align_max);
        if align > 1 && align.is_power_of_two() {
            (align - (at & (align - 1))) & (align - 1)
        } else {
            0
        }
    }
}

fn put(out: &mut Vec<u8>, big_endian: &[u8], little: bool) {
    if little {
        out.extend(big_endian.iter().rev());
    } else {
        out.extend_from_slice(big_endian);
    }
}

fn pack(lua: &Lua, args: &Args) -> Results {
    let text = args.string(0)?;
    let text = text.as_bytes();
    let mut format = Format::new(&text);
    let mut out = Vec::new();
    let mut index = 1;
    while let Some(item) = format.next()? {
        out.resize(out.len() + format.padding(item, out.len()), 0);
        match item {
            Item::Pad => {
                out.push(0);
                continue;
            }
            Item::Int { bytes, .. } => {
                let value = args.number(index)?;
                // As C: a negative number goes through the signed type.
                let value = if value < 0.0 { value as i64 as u64 } else { value as u64 };
                put(&mut out, &value.to_be_bytes()[8 - bytes..], format.little);
            }
            Item::Float => put(&mut out, &(args.number(index)? as f32).to_be_bytes(), format.little),
            Item::Double => put(&mut out, &args.number(index)?.to_be_bytes(), format.little),
            Item::Text | Item::Chars(0) => {
                out.extend_from_slice(&args.string(index)?.as_bytes());
                if matches!(item, Item::Text) {
                    out.push(0);
                }
            }
            Item::Chars(len) => {
                let text = args.string(index)?;
                let text = text.as_bytes();
                out.extend_from_slice(text.get(..len).ok_or("string too short")?);
            }
        }
        index += 1;
        if out.len() > BYTES_MAX {
            return Err("packed string too long".into());
        }
    }
    Ok(vec![Value::String(lua.create_string(out)?)])
}

fn unpack(lua: &Lua, args: &Args) -> Results {
    let (text, data) = (args.string(0)?, args.string(1)?);
    let (text, data) = (text.as_bytes(), data.as_bytes());
    let mut at = if args.len() > 2 { (args.number(2)? as usize).saturating_sub(1) } else { 0 };
    let mut format = Format::new(&text);
    let mut values: Vec<Value> = Vec::new();
    while let Some(item) = format.next()? {
        at += format.padding(item, at);
        let rest = data.get(at..).ok_or("data string too short")?;
        let short = || Failure::from("data string too short");
        match item {
            Item::Pad => at += 1,
            Item::Int { bytes, signed } => {
                let raw = rest.get(..bytes).ok_or_else(short)?;
                let fold = |sum: u64, byte: &u8| (sum << 8) | u64::from(*byte);
                let value =
                    if format.little { raw.iter().rev().fold(0, fold) } else { raw.iter().fold(0, fold) };
                let unused = 64 - bytes as u32 * 8;
                let value = if signed { (((value << unused) as i64) >> unused) as f64 } else { value as f64 };
                values.push(Value::Number(value));
                at += bytes;
            }
            Item::Float => {
                let raw: [u8; 4] = rest.get(..4).ok_or_else(short)?.try_into().expect("four bytes");
                let value = if format.little { f32::from_le_bytes(raw) } else { f32::from_be_bytes(raw) };
                values.push(Value::Number(f64::from(value)));
                at += 4;
            }
            Item::Double => {
                let raw: [u8; 8] = rest.get(..8).ok_or_else(short)?.try_into().expect("eight bytes");
                let value = if format.little { f64::from_le_bytes(raw) } else { f64::from_be_bytes(raw) };
                values.push(Value::Number(value));
                at += 8;
            }
            Item::Text => {
                let len = rest.iter().position(|byte| *byte == 0).ok_or("unfinished string in data")?;
                values.push(Value::String(lua.create_string(&rest[..len])?));
                at += len + 1;
            }
            Item::Chars(len) => {
                let len = match (len, values.pop()) {
                    (0, Some(Value::Number(len))) if len >= 0.0 => len as usize,
                    (0, _) => return Err("format 'c0' needs a previous size".into()),
                    (len, popped) => {
                        values.extend(popped);
                        len
                    }
                };
                values.push(Value::String(lua.create_string(rest.get(..len).ok_or_else(short)?)?));
                at += len;
            }
        }
    }
    values.push(Value::Number((at + 1) as f64));
    Ok(values)
}

fn size(_lua: &Lua, args: &Args) -> Results {
    let text = args.string(0)?;
    let text = text.as_bytes();
    let mut format = Format::new(&text);
    let mut at = 0;
    while let Some(item) = format.next()? {
        at += format.padding(item, at);
        at += match item {
            Item::Int { bytes, .. } => bytes,
            Item::Float => 4,
            Item::Double => 8,
            Item::Pad => 1,
            Item::Text => return Err("variable-size format in 'size'".into()),
            Item::Chars(0) => return Err("variable-length format in 'size'".into()),
            Item::Chars(len) => len,
        };
    }
    Ok(vec![Value::Number(at as f64)])
}
