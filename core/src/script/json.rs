//! `cjson` as Redis has it: numbers as `%.14g`, an empty table is `{}`, holes in arrays are null.

use super::budget::Budget;
use super::library::{register, Args, Failure, Results};
use super::values::{charge_text, charge_value, entries, number};
use crate::keyspace::numbers::format_g;
use mlua::{Lua, Result, Table, Value};
use std::rc::Rc;

const DEPTH_MAX: usize = 1000;
/// An array with more than twice as many places as values, and more places than this, is refused.
const SPARSE_SAFE: usize = 10;

type Outcome<T> = std::result::Result<T, Failure>;

pub(super) fn library(lua: &Lua, budget: &Rc<Budget>) -> Result<Table> {
    let json = lua.create_table()?;
    let encoding = budget.clone();
    register(lua, &json, "encode", move |lua, args| encode(lua, args, &encoding))?;
    let decoding = budget.clone();
    register(lua, &json, "decode", move |lua, args| decode(lua, args, &decoding))?;
    json.raw_set("null", Value::NULL)?;
    Ok(json)
}

fn encode(lua: &Lua, args: &Args, budget: &Budget) -> Results {
    if args.len() != 1 {
        return Err("bad argument #1 to 'encode' (expected 1 argument)".into());
    }
    let mut out = Vec::new();
    write(args.get(0), 0, budget, &mut out)?;
    Ok(vec![Value::String(lua.create_string(out)?)])
}

#[allow(clippy::wildcard_enum_match_arm, reason = "mlua's values: the others have no form in JSON")]
fn write(value: &Value, depth: usize, budget: &Budget, out: &mut Vec<u8>) -> Outcome<()> {
    charge_value(budget, value, out.len())?;
    if depth > DEPTH_MAX {
        return Err(format!("Cannot serialise, excessive depth ({depth})").into());
    }
    match value {
        Value::Nil => out.extend_from_slice(b"null"),
        Value::LightUserData(pointer) if pointer.0.is_null() => out.extend_from_slice(b"null"),
        Value::Boolean(value) => out.extend_from_slice(value.to_string().as_bytes()),
        Value::String(text) => write_string(&text.as_bytes(), out),
        Value::Integer(_) | Value::Number(_) => write_number(value, out)?,
        Value::Table(table) => write_table(table, depth + 1, budget, out)?,
        other => {
            return Err(format!("Cannot serialise {}: type not supported", other.type_name()).into());
        }
    }
    Ok(())
}

fn write_number(value: &Value, out: &mut Vec<u8>) -> Outcome<()> {
    let value = number(value).unwrap_or(0.0);
    if !value.is_finite() {
        return Err("Cannot serialise number: must not be NaN or Inf".into());
    }
    out.extend_from_slice(format_g(value, 14).as_bytes());
    Ok(())
}

fn write_string(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in text {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'/' => out.extend_from_slice(b"\\/"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0..=0x1f | 0x7f => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(*byte),
        }
    }
    out.push(b'"');
}

/// The places of an array; `None` where a key is anything but a positive whole number, or there is none.
pub(super) fn array_len(entries: &[(Value, Value)]) -> Option<usize> {
    let mut len = None;
    for (key, _) in entries {
        let key = number(key)?;
        if key < 1.0 || key.fract() != 0.0 || key > 1e15 {
            return None;
        }
        len = len.max(Some(key as usize));
    }
    len
}

#[allow(clippy::wildcard_enum_match_arm, reason = "mlua's values: the others are no keys in JSON")]
fn write_table(table: &Table, depth: usize, budget: &Budget, out: &mut Vec<u8>) -> Outcome<()> {
    let entries = entries(table, budget)?;
    if let Some(len) = array_len(&entries) {
        if len > entries.len() * 2 && len > SPARSE_SAFE {
            return Err("Cannot serialise table: excessively sparse array".into());
        }
        out.push(b'[');
        for index in 1..=len {
            if index > 1 {
                out.push(b',');
            }
            write(&table.raw_get(index)?, depth, budget, out)?;
        }
        out.push(b']');
        return Ok(());
    }
    out.push(b'{');
    for (index, (key, value)) in entries.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        charge_value(budget, key, out.len())?;
        match key {
            Value::String(text) => write_string(&text.as_bytes(), out),
            Value::Integer(_) | Value::Number(_) => {
                out.push(b'"');
                write_number(key, out)?;
                out.push(b'"');
            }
            other => {
                let kind = other.type_name();
                return Err(format!("Cannot serialise {kind}: table key must be a number or string").into());
            }
        }
        out.push(b':');
        write(value, depth, budget, out)?;
    }
    out.push(b'}');
    Ok(())
}

fn decode(lua: &Lua, args: &Args, budget: &Budget) -> Results {
    let text = args.string(0)?;
    charge_text(budget, text.as_bytes().len())?;
    let mut reader = Reader { lua, budget, text: &text.as_bytes(), at: 0 };
    reader.spaces();
    let value = reader.value(0)?;
    reader.spaces();
    if reader.at < reader.text.len() {
        return Err(reader.expected("the end"));
    }
    Ok(vec![value])
}

struct Reader<'a> {
    lua: &'a Lua,
    budget: &'a Budget,
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn spaces(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn expected(&self, what: &str) -> Failure {
        let found = match self.peek() {
            None => "T_END",
            Some(b'{') => "T_OBJ_BEGIN",
            Some(b'}') => "T_OBJ_END",
            Some(b'[') => "T_ARR_BEGIN",
            Some(b']') => "T_ARR_END",
            Some(b'"') => "T_STRING",
            Some(b':') => "T_COLON",
            Some(b',') => "T_COMMA",
            Some(b'0'..=b'9' | b'-') => "T_NUMBER",
            Some(_) => "invalid token",
        };
        format!("Expected {what} but found {found} at character {}", self.at + 1).into()
    }

    fn value(&mut self, depth: usize) -> Outcome<Value> {
        charge_text(self.budget, 0)?;
        if depth > DEPTH_MAX {
            return Err(format!("Found too many nested data structures ({depth})").into());
        }
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => Ok(Value::String(self.lua.create_string(self.string()?)?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => {
                for (word, value) in
                    [("true", Value::Boolean(true)), ("false", Value::Boolean(false)), ("null", Value::NULL)]
                {
                    if self.text[self.at..].starts_with(word.as_bytes()) {
                        self.at += word.len();
                        return Ok(value);
                    }
                }
                Err(self.expected("value"))
            }
        }
    }

    fn number(&mut self) -> Outcome<Value> {
        let from = self.at;
        while matches!(self.peek(), Some(b'+' | b'-' | b'.' | b'0'..=b'9' | b'e' | b'E')) {
            self.at += 1;
        }
        let text = std::str::from_utf8(&self.text[from..self.at]).unwrap_or("");
        match text.parse::<f64>() {
            Ok(value) => Ok(Value::Number(value)),
            Err(_) => {
                self.at = from;
                Err(format!("Expected value but found invalid number at character {}", from + 1).into())
            }
        }
    }

    fn array(&mut self, depth: usize) -> Outcome<Value> {
        self.at += 1;
        let table = self.lua.create_table()?;
        self.spaces();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Value::Table(table));
        }
        for index in 1.. {
            self.spaces();
            table.raw_set(index, self.value(depth + 1)?)?;
            self.spaces();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => break,
                _ => return Err(self.expected("comma or array end")),
            }
        }
        self.at += 1;
        Ok(Value::Table(table))
    }

    fn object(&mut self, depth: usize) -> Outcome<Value> {
        self.at += 1;
        let table = self.lua.create_table()?;
        self.spaces();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Table(table));
        }
        loop {
            self.spaces();
            if self.peek() != Some(b'"') {
                return Err(self.expected("object key string"));
            }
            let key = self.string()?;
            self.spaces();
            if self.peek() != Some(b':') {
                return Err(self.expected("colon"));
            }
            self.at += 1;
            self.spaces();
            let value = self.value(depth + 1)?;
            table.raw_set(self.lua.create_string(key)?, value)?;
            self.spaces();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => break,
                _ => return Err(self.expected("comma or object end")),
            }
        }
        self.at += 1;
        Ok(Value::Table(table))
    }

    fn string(&mut self) -> Outcome<Vec<u8>> {
        let from = self.at;
        self.at += 1;
        let mut out = Vec::new();
        loop {
            let Some(byte) = self.peek() else {
                let at = self.text.len() + 1;
                return Err(
                    format!("Expected value but found unexpected end of string at character {at}").into()
                );
            };
            self.at += 1;
            match byte {
                b'"' => return Ok(out),
                b'\\' => self.escape(from, &mut out)?,
                _ => out.push(byte),
            }
        }
    }

    fn escape(&mut self, from: usize, out: &mut Vec<u8>) -> Outcome<()> {
        let byte = self.peek().unwrap_or(0);
        self.at += 1;
        match byte {
            b'"' | b'\\' | b'/' => out.push(byte),
            b'b' => out.push(0x08),
            b'f' => out.push(0x0c),
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            b'u' => {
                let invalid = || {
                    Failure::from(format!(
                        "Expected value but found invalid unicode escape code at character {}",
                        from + 1
                    ))
                };
                let mut code = self.hex4().ok_or_else(invalid)?;
                if (0xd800..0xdc00).contains(&code) && self.text[self.at..].starts_with(b"\\u") {
                    self.at += 2;
                    let low = self.hex4().filter(|low| (0xdc00..0xe000).contains(low)).ok_or_else(invalid)?;
                    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                }
                let text = char::from_u32(code).ok_or_else(invalid)?;
                out.extend_from_slice(text.encode_utf8(&mut [0; 4]).as_bytes());
            }
            _ => {
                return Err(format!(
                    "Expected value but found invalid escape code at character {}",
                    from + 1
                )
                .into());
            }
        }
        Ok(())
    }

    fn hex4(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 4)?;
        let text =
            std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()))?;
        self.at += 4;
        u32::from_str_radix(text, 16).ok()
    }
}
