//! The `bit` library (Lua BitOp): 32-bit operations with signed results.

use super::library::{register, Args, Failure, Results};
use mlua::{Lua, Result, Table, Value};

/// A number modulo 2^32, as BitOp takes it.
fn int(args: &Args, index: usize) -> std::result::Result<i32, Failure> {
    Ok(args.number(index)?.round_ties_even().rem_euclid(4_294_967_296.0) as u64 as u32 as i32)
}

fn give(value: i32) -> Results {
    Ok(vec![Value::Number(f64::from(value))])
}

fn tohex(lua: &Lua, args: &Args) -> Results {
    let value = int(args, 0)?;
    let digits = if args.len() > 1 { int(args, 1)? } else { 8 };
    let text = if digits < 0 { format!("{value:08X}") } else { format!("{value:08x}") };
    let count = digits.unsigned_abs().min(8) as usize;
    Ok(vec![Value::String(lua.create_string(&text[8 - count..])?)])
}

type Binary = fn(i32, i32) -> i32;
type Unary = fn(i32) -> i32;
type Shift = fn(i32, u32) -> i32;

const FOLDS: [(&str, Binary); 3] = [("band", |a, b| a & b), ("bor", |a, b| a | b), ("bxor", |a, b| a ^ b)];
const UNARIES: [(&str, Unary); 3] = [("tobit", |a| a), ("bnot", |a| !a), ("bswap", i32::swap_bytes)];
const SHIFTS: [(&str, Shift); 5] = [
    ("lshift", |a, by| a << by),
    ("rshift", |a, by| ((a as u32) >> by) as i32),
    ("arshift", |a, by| a >> by),
    ("rol", i32::rotate_left),
    ("ror", i32::rotate_right),
];

pub(super) fn library(lua: &Lua) -> Result<Table> {
    let bit = lua.create_table()?;
    for (name, operation) in FOLDS {
        register(lua, &bit, name, move |_, args| {
            let mut result = int(args, 0)?;
            for index in 1..args.len() {
                result = operation(result, int(args, index)?);
            }
            give(result)
        })?;
    }
    for (name, operation) in UNARIES {
        register(lua, &bit, name, move |_, args| give(operation(int(args, 0)?)))?;
    }
    for (name, operation) in SHIFTS {
        register(lua, &bit, name, move |_, args| give(operation(int(args, 0)?, int(args, 1)? as u32 & 31)))?;
    }
    register(lua, &bit, "tohex", tohex)?;
    Ok(bit)
}
