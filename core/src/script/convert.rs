//! Redis's conversions between replies and Lua values, to the letter of `script_lua.c` of Redis 7.0.

use super::budget::{Budget, Stop};
use super::values::number;
use crate::keyspace::numbers::format_g;
use crate::keyspace::Resp;
use crate::reply::{Refusal, Reply};
use mlua::{Lua, Result, Table, Value};

/// Tables inside tables a reply may have.
const DEPTH_MAX: usize = 128;
/// Bytes of one reply, counted each time a value is met: a table that contains itself twice would never end.
pub(super) const REPLY_BYTES_MAX: usize = 2 * 1024 * 1024;
/// What a value takes besides its text.
const VALUE_BYTES: usize = 10;
/// About how long one value takes.
const VALUE_NS: u64 = 100;

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
        | Reply::GrantedMany { .. }
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
pub(super) fn to_reply(value: &Value, resp: Resp, budget: &Budget) -> Result<Reply> {
    Returned { resp, budget, bytes_left: REPLY_BYTES_MAX }.convert(value, 0)
}

/// A conversion under way.
struct Returned<'a> {
    resp: Resp,
    budget: &'a Budget,
    bytes_left: usize,
}

impl Returned<'_> {
    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "mlua's values: what has no meaning in Redis is treated alike"
    )]
    fn convert(&mut self, value: &Value, depth: usize) -> Result<Reply> {
        self.budget.charge_ns(VALUE_NS)?;
        let text_bytes = value.as_string().map_or(0, |text| text.as_bytes().len());
        self.bytes_left = match self.bytes_left.checked_sub(text_bytes + VALUE_BYTES) {
            Some(left) => left,
            None => return Err(self.budget.end(Stop::Reply)),
        };
        if depth > DEPTH_MAX {
            return Ok(Reply::Error(Refusal::new("ERR reached lua stack limit")));
        }
        Ok(match value {
            Value::String(text) => Reply::bulk(text.as_bytes()),
            Value::Integer(value) => Reply::Int(*value),
            Value::Number(value) => Reply::Int(truncated(*value)),
            Value::Boolean(value) => match (self.resp, value) {
                (Resp::Three, value) => Reply::Bool(*value),
                (Resp::Two, true) => Reply::Int(1),
                (Resp::Two, false) => Reply::Nil,
            },
            Value::Table(table) => self.table(table, depth)?,
            _ => Reply::Nil,
        })
    }

    fn line(&mut self, text: &mlua::LuaString) -> Result<String> {
        let text = text.as_bytes();
        self.bytes_left = match self.bytes_left.checked_sub(text.len() * 3) {
            Some(left) => left,
            None => return Err(self.budget.end(Stop::Reply)),
        };
        Ok(one_line(&text))
    }

    fn table(&mut self, table: &Table, depth: usize) -> Result<Reply> {
        if let Value::String(text) = table.raw_get("err")? {
            return Ok(Reply::Error(Refusal::new(self.line(&text)?)));
        }
        if let Value::String(text) = table.raw_get("ok")? {
            return Ok(Reply::Status(self.line(&text)?.into()));
        }
        if let Some(value) = number(&table.raw_get("double")?) {
            return Ok(Reply::Double(value));
        }
        if let Value::Table(map) = table.raw_get("map")? {
            let mut pairs = Vec::new();
            for pair in map.pairs::<Value, Value>() {
                let (key, value) = pair?;
                pairs.push((self.convert(&key, depth + 1)?, self.convert(&value, depth + 1)?));
            }
            return Ok(Reply::Map(pairs));
        }
        if let Value::Table(set) = table.raw_get("set")? {
            let mut members = Vec::new();
            for pair in set.pairs::<Value, Value>() {
                members.push(self.convert(&pair?.0, depth + 1)?);
            }
            return Ok(Reply::Set(members));
        }
        if let Value::Table(text) = table.raw_get("verbatim_string")? {
            if let value @ Value::String(_) = text.raw_get("string")? {
                let reply = self.convert(&value, depth)?;
                return Ok(if let Reply::Bulk(text) = reply { Reply::Verbatim(text) } else { reply });
            }
        }
        let mut items = Vec::new();
        for index in 1_i64.. {
            let item: Value = table.raw_get(index)?;
            if item.is_nil() {
                break;
            }
            items.push(self.convert(&item, depth + 1)?);
        }
        Ok(Reply::Array(items))
    }
}

/// C's conversion to `long long` on x86: what does not fit becomes the lowest.
fn truncated(value: f64) -> i64 {
    if (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&value) {
        value as i64
    } else {
        i64::MIN
    }
}

/// Errors and statuses are one line on the wire, and C text to Redis: they end at the first zero byte.
pub(super) fn one_line(text: &[u8]) -> String {
    let text = text.split(|byte| *byte == 0).next().unwrap_or(b"");
    String::from_utf8_lossy(text).replace(['\r', '\n'], " ")
}
