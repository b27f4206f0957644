//! Tables in an order all nodes share: numbers, then strings, then booleans, each in its own order.

use mlua::{Error, Result, Table, Value};
use std::cmp::Ordering;

/// The entries of a table. Fails where tables, functions or threads are keys: their order would be that of addresses.
pub(super) fn sorted_entries(table: &Table) -> Result<Vec<(Value, Value)>> {
    let mut entries = Vec::new();
    for pair in table.pairs::<Value, Value>() {
        let (key, value) = pair?;
        if rank(&key).is_none() {
            return Err(Error::RuntimeError("a table with such keys has no order".into()));
        }
        entries.push((key, value));
    }
    entries.sort_by(|(left, _), (right, _)| compare(left, right));
    Ok(entries)
}

fn rank(key: &Value) -> Option<u8> {
    match key {
        Value::Integer(_) | Value::Number(_) => Some(0),
        Value::String(_) => Some(1),
        Value::Boolean(_) => Some(2),
        _ => None,
    }
}

pub(super) fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(value) => Some(*value as f64),
        Value::Number(value) => Some(*value),
        _ => None,
    }
}

fn compare(left: &Value, right: &Value) -> Ordering {
    match (left, right) {
        (Value::String(left), Value::String(right)) => left.as_bytes().cmp(&right.as_bytes()),
        (Value::Boolean(left), Value::Boolean(right)) => left.cmp(right),
        _ => match (number(left), number(right)) {
            (Some(left), Some(right)) => left.total_cmp(&right),
            _ => rank(left).cmp(&rank(right)),
        },
    }
}
