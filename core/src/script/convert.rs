//! Redis's conversions between replies and Lua values, to the letter of `script_lua.c` of Redis 7.0.

use super::values::sorted_entries;
use crate::keyspace::numbers::format_g;
use crate::keyspace::Resp;
use crate::reply::{Refusal, Reply};
use ::bytes::Bytes;
use mlua::{Lua, Result, Table, Value};

/// Tables inside tables a reply may have.
const DEPTH_MAX: usize = 128;
/// Elements of one reply. A table that contains itself twice would never end.
const ITEMS_MAX: usize = 1_000_000;

/// A reply as a script sees it, and how many elements it has.
pub(super) fn to_lua(lua: &Lua, reply: &Reply, resp: Resp) -> Result<Value> {
    Ok(match reply {
        Reply::Nil | Reply::NilArray => match resp {
            Resp::Two => Value::Boolean(false),
            Resp::Three => Value::Nil,
        },
        Reply::Int(value) => Value::Number(*value as f64),
        Reply::Double(value) => match resp {
            Resp::Two => Value::String(lua.create_string(format_g(*value, 17))?),
            Resp::Three => field(lua, "double", Value::Number(*value))?,
        },
        Reply::Bool(value) => match resp {
            Resp::Two => Value::Number(f64::from(u8::from(*value))),
            Resp::Three => Value::Boolean(*value),
        },
        Reply::Bulk(bytes) | Reply::Verbatim(bytes) => Value::String(lua.create_string(bytes)?),
        Reply::Text(text) => Value::String(lua.create_string(text)?),
        Reply::Status(text) => field(lua, "ok", Value::String(lua.create_string(text.as_bytes())?))?,
        Reply::Error(refusal) => field(lua, "err", Value::String(lua.create_string(refusal.0.as_bytes())?))?,
        Reply::Array(items) => sequence(lua, items.iter(), resp)?,
        Reply::Set(items) => match resp {
            Resp::Two => sequence(lua, items.iter(), resp)?,
            Resp::Three => {
                let members = lua.create_table()?;
                for item in items {
                    members.raw_set(to_lua(lua, item, resp)?, true)?;
                }
                field(lua, "set", Value::Table(members))?
            }
        },
        Reply::Map(pairs) => match resp {
            Resp::Two => sequence(lua, pairs.iter().flat_map(|(key, value)| [key, value]), resp)?,
            Resp::Three => {
                let map = lua.create_table()?;
                for (key, value) in pairs {
                    map.raw_set(to_lua(lua, key, resp)?, to_lua(lua, value, resp)?)?;
                }
                field(lua, "map", Value::Table(map))?
            }
        },
        Reply::Granted { .. }
        | Reply::Released
        | Reply::Renewed { .. }
        | Reply::Refused(_)
        | Reply::Info(_) => {
            unreachable!("scripts see plain replies")
        }
    })
}

fn field(lua: &Lua, name: &str, value: Value) -> Result<Value> {
    let table = lua.create_table_with_capacity(0, 1)?;
    table.raw_set(name, value)?;
    Ok(Value::Table(table))
}

fn sequence<'a>(lua: &Lua, items: impl Iterator<Item = &'a Reply>, resp: Resp) -> Result<Value> {
    let table = lua.create_table()?;
    for (index, item) in items.enumerate() {
        table.raw_set(index + 1, to_lua(lua, item, resp)?)?;
    }
    Ok(Value::Table(table))
}

/// What a script returns, as a reply. `resp` is the script's own (`redis.setresp`).
pub(super) fn to_reply(value: &Value, resp: Resp) -> Result<Reply> {
    let mut items_left = ITEMS_MAX;
    convert(value, resp, 0, &mut items_left)
}

fn convert(value: &Value, resp: Resp, depth: usize, items_left: &mut usize) -> Result<Reply> {
    if depth > DEPTH_MAX || *items_left == 0 {
        return Ok(Reply::Error(Refusal::new("ERR reached lua stack limit")));
    }
    *items_left -= 1;
    Ok(match value {
        Value::String(text) => Reply::bulk(text.as_bytes()),
        Value::Integer(value) => Reply::Int(*value),
        Value::Number(value) => Reply::Int(truncated(*value)),
        Value::Boolean(value) => match (resp, value) {
            (Resp::Three, value) => Reply::Bool(*value),
            (Resp::Two, true) => Reply::Int(1),
            (Resp::Two, false) => Reply::Nil,
        },
        Value::Table(table) => from_table(table, resp, depth, items_left)?,
        _ => Reply::Nil,
    })
}

/// C's conversion to `long long` on x86: what does not fit becomes the lowest.
fn truncated(value: f64) -> i64 {
    if (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&value) {
        value as i64
    } else {
        i64::MIN
    }
}

fn from_table(table: &Table, resp: Resp, depth: usize, items_left: &mut usize) -> Result<Reply> {
    if let Value::String(text) = table.raw_get("err")? {
        return Ok(Reply::Error(Refusal::new(one_line(&text.as_bytes()))));
    }
    if let Value::String(text) = table.raw_get("ok")? {
        return Ok(Reply::Status(one_line(&text.as_bytes()).into()));
    }
    match table.raw_get("double")? {
        Value::Number(value) => return Ok(Reply::Double(value)),
        Value::Integer(value) => return Ok(Reply::Double(value as f64)),
        _ => {}
    }
    if let Value::Table(map) = table.raw_get("map")? {
        let mut pairs = Vec::new();
        for (key, value) in sorted_entries(&map)? {
            let key = convert(&key, resp, depth + 1, items_left)?;
            pairs.push((key, convert(&value, resp, depth + 1, items_left)?));
        }
        return Ok(Reply::Map(pairs));
    }
    if let Value::Table(set) = table.raw_get("set")? {
        let mut members = Vec::new();
        for (member, _) in sorted_entries(&set)? {
            members.push(convert(&member, resp, depth + 1, items_left)?);
        }
        return Ok(Reply::Set(members));
    }
    if let Value::Table(text) = table.raw_get("verbatim_string")? {
        if let Value::String(text) = text.raw_get("string")? {
            return Ok(Reply::Verbatim(Bytes::copy_from_slice(&text.as_bytes())));
        }
    }
    let mut items = Vec::new();
    for index in 1_i64.. {
        let item: Value = table.raw_get(index)?;
        if item.is_nil() {
            break;
        }
        items.push(convert(&item, resp, depth + 1, items_left)?);
        if *items_left == 0 {
            break;
        }
    }
    Ok(Reply::Array(items))
}

/// Errors and statuses are one line on the wire, and C text to Redis: they end at the first zero byte.
pub(super) fn one_line(text: &[u8]) -> String {
    let text = text.split(|byte| *byte == 0).next().unwrap_or(b"");
    String::from_utf8_lossy(text).replace(['\r', '\n'], " ")
}
