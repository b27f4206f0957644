//! The functions of the `redis` table that need Rust, and those by which the prelude speaks to the budget.

use super::budget::Budget;
use super::convert::to_lua;
use super::library::{self, Args, Results};
use super::random::Random;
use super::scripts::{sha1, sha_hex};
use super::values::number;
use super::vm::HOST;
use crate::keyspace::numbers::format_g;
use crate::keyspace::Resp;
use crate::reply::{Refusal, Reply};
use mlua::{BorrowedBytes, Lua, MultiValue, Result, Table, Value};
use smallvec::SmallVec;
use std::rc::Rc;

/// Units one command costs, and for how many elements of its reply one more.
const UNITS_PER_CALL: i64 = 25;
const ITEMS_PER_UNIT: usize = 4;

pub(super) fn register(lua: &Lua, rust: &Table, budget: &Rc<Budget>, random: &Rc<Random>) -> Result<()> {
    register_budget(lua, rust, budget)?;
    let spender = budget.clone();
    let call = lua.create_function(move |lua, args: MultiValue| call(lua, &args, &spender))?;
    rust.raw_set("call", call)?;
    rust.raw_set(
        "error_text",
        lua.create_function(|lua, text: mlua::LuaString| lua.create_string(error_text(&text.as_bytes())))?,
    )?;
    library::register(lua, rust, "sha1hex", |lua, args| {
        if args.len() != 1 {
            return Err("wrong number of arguments".into());
        }
        let hex = sha_hex(&sha1(&argument(args.get(0)).unwrap_or_default()));
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
    fn note(budget: &Budget, error: &Value) {
        match error {
            Value::String(text) => budget.note(Some(&text.as_bytes())),
            // What scripts may throw besides.
            Value::Nil | Value::Boolean(_) | Value::Integer(_) | Value::Number(_) | Value::Table(_) => {
                budget.note(Some(b""));
            }
            Value::Function(_) | Value::Thread(_) => budget.note(Some(b"")),
            _ => budget.note(None),
        }
    }
    let noting = budget.clone();
    rust.raw_set(
        "note",
        lua.create_function(move |_, error: Value| {
            note(&noting, &error);
            Ok(())
        })?,
    )?;
    let catching = budget.clone();
    rust.raw_set(
        "caught",
        lua.create_function(move |_, error: Value| {
            note(&catching, &error);
            catching.go_on()
        })?,
    )?;
    let weighing = budget.clone();
    rust.raw_set(
        "weigh",
        lua.create_function(move |_, bytes: f64| {
            weighing.weigh(bytes as usize);
            Ok(())
        })?,
    )?;
    let charging = budget.clone();
    rust.raw_set("charge", lua.create_function(move |_, units: f64| charging.spend(units as i64))?)
}

/// A string, or a number as Redis 7.0 prints it: `%.17g`.
fn argument(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        other => number(other).map(|value| format_g(value, 17).into_bytes()),
    }
}

/// One word of a command: borrowed from the VM where it is a string.
enum Word {
    Text(BorrowedBytes),
    Number(String),
}

/// `redis.call` and `redis.pcall`: answers whether it failed, and the reply.
fn call(lua: &Lua, args: &MultiValue, budget: &Budget) -> Result<(bool, Value)> {
    budget.spend(UNITS_PER_CALL)?;
    let mut words: SmallVec<[Word; 8]> = SmallVec::new();
    for value in args {
        match value {
            Value::String(text) => words.push(Word::Text(text.as_bytes())),
            other => match number(other) {
                Some(value) => words.push(Word::Number(format_g(value, 17))),
                None => {
                    return refuse(lua, "ERR Lua redis lib command arguments must be strings or integers")
                }
            },
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
    let (reply, resp) = HOST.with(|host| (host.call(&argv), host.resp()));
    budget.spend((items(&reply) / ITEMS_PER_UNIT) as i64)?;
    Ok((reply.is_error(), to_lua(lua, &reply, resp)?))
}

fn items(reply: &Reply) -> usize {
    match reply {
        Reply::Array(items) | Reply::Set(items) => items.len(),
        Reply::Map(pairs) => pairs.len() * 2,
        _ => 0,
    }
}

fn refuse(lua: &Lua, line: &'static str) -> Result<(bool, Value)> {
    Ok((true, to_lua(lua, &Reply::Error(Refusal::new(line)), Resp::Two)?))
}

/// `redis.error_reply`: the first word is the code; a single word gets `ERR` before it. A leading `-` is dropped.
fn error_text(text: &[u8]) -> Vec<u8> {
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
