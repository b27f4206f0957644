//! The functions of the `redis` table that need Rust, and those by which the prelude speaks to the budget.

use super::budget::{Budget, Stop};
use super::convert::to_lua;
use super::library::{self, Args, Results};
use super::random::Random;
use super::scripts::{sha1, sha_hex};
use super::values::number;
use super::vm::HOST;
use crate::keyspace::numbers::format_g;
use crate::keyspace::Resp;
use crate::reply::{Refusal, Reply};
use mlua::{BorrowedBytes, Lua, LuaString, MultiValue, Result, Table, Value};
use smallvec::SmallVec;
use std::rc::Rc;

/// About how long one element of a reply takes to become a Lua value, and a byte of text to be hashed.
const ELEMENT_NS: u64 = 150;
const SHA1_NS_PER_BYTE: u64 = 4;

pub(super) fn register(lua: &Lua, rust: &Table, budget: &Rc<Budget>, random: &Rc<Random>) -> Result<()> {
    register_budget(lua, rust, budget)?;
    let spender = budget.clone();
    let call = lua.create_function(move |lua, args: MultiValue| call(lua, &args, &spender))?;
    rust.raw_set("call", call)?;
    rust.raw_set(
        "error_text",
        lua.create_function(|lua, text: LuaString| lua.create_string(error_text(&text.as_bytes())))?,
    )?;
    let hashing = budget.clone();
    library::register(lua, rust, "sha1hex", move |lua, args| {
        if args.len() != 1 {
            return Err("wrong number of arguments".into());
        }
        let text = argument(args.get(0)).unwrap_or_default();
        hashing.charge_ns(text.len() as u64 * SHA1_NS_PER_BYTE)?;
        let hex = sha_hex(&sha1(&text));
        Ok(vec![Value::String(lua.create_string(hex)?)])
    })?;
    library::register(lua, rust, "log", log)?;
    library::register(lua, rust, "setresp", setresp)?;
    library::register(lua, rust, "set_repl", |_, args| {
        if args.len() != 1 {
            return Err("redis.set_repl() requires one argument.".into());
        }
        match args.number(0)? as i64 {
            0..=3 => Ok(Vec::new()),
            _ => {
                Err("Invalid replication flags. Please use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE."
                    .into())
            }
        }
    })?;
    let dice = random.clone();
    library::register(lua, rust, "random", move |_, args| random_number(args, &dice))?;
    let dice = random.clone();
    library::register(lua, rust, "randomseed", move |_, args| {
        dice.seed(args.number(0)? as i64 as u32);
        Ok(Vec::new())
    })
}

fn register_budget(lua: &Lua, rust: &Table, budget: &Rc<Budget>) -> Result<()> {
    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "mlua's values: what has no meaning in Redis is treated alike"
    )]
    fn note(lua: &Lua, budget: &Budget, error: &Value) {
        match error {
            Value::String(text) => budget.note(lua, Some(&text.as_bytes())),
            // What scripts may throw besides.
            Value::Nil | Value::Boolean(_) | Value::Integer(_) | Value::Number(_) | Value::Table(_) => {
                budget.note(lua, Some(b""));
            }
            Value::Function(_) | Value::Thread(_) => budget.note(lua, Some(b"")),
            _ => budget.note(lua, None),
        }
    }
    let noting = budget.clone();
    rust.raw_set(
        "note",
        lua.create_function(move |lua, error: Value| {
            note(lua, &noting, &error);
            Ok(())
        })?,
    )?;
    let catching = budget.clone();
    rust.raw_set(
        "caught",
        lua.create_function(move |lua, error: Value| {
            note(lua, &catching, &error);
            catching.go_on()
        })?,
    )?;
    rust.raw_set(
        "elapsed",
        lua.create_function(|_, ()| Ok(HOST.with(|host| host.elapsed_us()) as f64 / 1e6))?,
    )?;
    rust.raw_set("find", lua.create_function(plain_find)?)?;
    let charging = budget.clone();
    // Estimated nanoseconds of what is to come, and bytes it will make.
    let charge = lua.create_function(move |_, (ns, bytes): (f64, Option<f64>)| {
        charging.charge_bytes(bytes.unwrap_or(0.0) as usize)?;
        charging.charge_ns(ns as u64)
    })?;
    rust.raw_set("charge", charge)
}

/// Where a text without magic characters begins in another, from a place on: `first, last`, or nil.
fn plain_find(_lua: &Lua, (text, pattern, from): (LuaString, LuaString, f64)) -> Result<(Value, Value)> {
    let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
    let from = from as usize - 1;
    Ok(match text.get(from..).and_then(|rest| memchr::memmem::find(rest, &pattern)) {
        Some(at) => {
            let first = from + at + 1;
            (Value::Number(first as f64), Value::Number((first + pattern.len() - 1) as f64))
        }
        None => (Value::Nil, Value::Nil),
    })
}

/// A string, or a number as Redis 7.0 prints it: `%.17g`.
fn argument(value: &Value) -> Option<Vec<u8>> {
    if let Value::String(text) = value {
        return Some(text.as_bytes().to_vec());
    }
    number(value).map(|value| format_g(value, 17).into_bytes())
}

/// One word of a command: borrowed from the VM where it is a string.
enum Word {
    Text(BorrowedBytes),
    Number(String),
}

/// `redis.call` and `redis.pcall`: answers whether it failed, and the reply.
fn call(lua: &Lua, args: &MultiValue, budget: &Budget) -> Result<(bool, Value)> {
    let mut words: SmallVec<[Word; 8]> = SmallVec::new();
    for value in args {
        if let Value::String(text) = value {
            words.push(Word::Text(text.as_bytes()));
        } else if let Some(value) = number(value) {
            words.push(Word::Number(format_g(value, 17)));
        } else {
            return refuse(lua, "ERR Lua redis lib command arguments must be strings or integers");
        }
    }
    if words.is_empty() {
        return refuse(lua, "ERR Please specify at least one argument for this redis lib call");
    }
    let argv: SmallVec<[&[u8]; 8]> = words
        .iter()
        .map(|word| match word {
            Word::Text(bytes) => bytes.as_ref(),
            Word::Number(text) => text.as_bytes(),
        })
        .collect();
    let cost_ns = HOST.with(|host| host.cost_ns(&argv)).map_err(|stop| budget.end(stop))?;
    budget.charge_ns(cost_ns)?;
    let (reply, resp) = HOST.with(|host| (host.call(&argv), host.resp()));
    let reply = reply.map_err(|stop: Stop| budget.end(stop))?;
    budget.charge_ns(elements(&reply) as u64 * ELEMENT_NS)?;
    Ok((reply.is_error(), to_lua(lua, &reply, resp)?))
}

fn elements(reply: &Reply) -> usize {
    match reply {
        Reply::Array(items) | Reply::Set(items) => 1 + items.iter().map(elements).sum::<usize>(),
        Reply::Map(pairs) => {
            1 + pairs.iter().map(|(key, value)| elements(key) + elements(value)).sum::<usize>()
        }
        Reply::Granted { .. }
        | Reply::GrantedMany { .. }
        | Reply::Released
        | Reply::Renewed { .. }
        | Reply::Refused(_)
        | Reply::Nil
        | Reply::NilArray
        | Reply::Int(_)
        | Reply::Double(_)
        | Reply::Bool(_)
        | Reply::Bulk(_)
        | Reply::Text(_)
        | Reply::Status(_)
        | Reply::Error(_)
        | Reply::Verbatim(_)
        | Reply::Info(_) => 1,
    }
}

fn refuse(lua: &Lua, line: &'static str) -> Result<(bool, Value)> {
    Ok((true, to_lua(lua, &Reply::Error(Refusal::new(line)), Resp::Two)?))
}

/// `redis.error_reply`: the first word is the code; a single word gets `ERR` before it. A leading `-` is dropped.
pub(super) fn error_text(text: &[u8]) -> Vec<u8> {
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let end = text.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n')).map_or(0, |last| last + 1);
    let text = &text[..end];
    if text.contains(&b' ') {
        text.to_vec()
    } else {
        [b"ERR ".as_slice(), text].concat()
    }
}

/// Checked as Redis checks it, then dropped: a replicated log line would be written by every node.
fn log(_lua: &Lua, args: &Args) -> Results {
    if args.len() < 2 {
        return Err("redis.log() requires two arguments or more.".into());
    }
    match number(args.get(0)) {
        None => Err("First argument must be a number (log level).".into()),
        Some(level) if (0.0..=3.0).contains(&level) => Ok(Vec::new()),
        Some(_) => Err("Invalid log level.".into()),
    }
}

fn setresp(_lua: &Lua, args: &Args) -> Results {
    if args.len() != 1 {
        return Err("redis.setresp() requires one argument.".into());
    }
    let resp = match number(args.get(0)) {
        Some(2.0) => Resp::Two,
        Some(3.0) => Resp::Three,
        _ => return Err("RESP version must be 2 or 3.".into()),
    };
    HOST.with(|host| host.set_resp(resp));
    Ok(Vec::new())
}

fn random_number(args: &Args, random: &Random) -> Results {
    let roll = random.next();
    let (low, high) = match args.len() {
        0 => return Ok(vec![Value::Number(roll)]),
        1 => (1.0, args.number(0)?.trunc()),
        2 => (args.number(0)?.trunc(), args.number(1)?.trunc()),
        _ => return Err("wrong number of arguments".into()),
    };
    if low > high {
        return Err(format!("bad argument #{} to 'random' (interval is empty)", args.len()).into());
    }
    Ok(vec![Value::Number((roll * (high - low + 1.0)).floor() + low)])
}
