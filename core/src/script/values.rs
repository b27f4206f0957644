//! Looks at Lua values that several libraries share.

use super::budget::Budget;
use super::library::Failure;
use mlua::{Table, Value};

/// About how long a library takes for one value.
const VALUE_NS: u64 = 100;
/// Bytes of text a library walks through in a nanosecond, the slow ones too.
const BYTES_PER_NS: u64 = 1;

/// The entries of a table, in its own order.
pub(super) fn entries(table: &Table, budget: &Budget) -> Result<Vec<(Value, Value)>, Failure> {
    let mut entries = Vec::new();
    for pair in table.pairs::<Value, Value>() {
        budget.charge_ns(VALUE_NS)?;
        entries.push(pair?);
    }
    Ok(entries)
}

/// Before one value is written behind what is there already: charged each time it is met.
pub(super) fn charge_value(budget: &Budget, value: &Value, written: usize) -> Result<(), Failure> {
    let bytes = value.as_string().map_or(0, |text| text.as_bytes().len());
    budget.charge_bytes(written + bytes)?;
    charge_text(budget, bytes)
}

/// Before this much text is walked through.
pub(super) fn charge_text(budget: &Budget, bytes: usize) -> Result<(), Failure> {
    Ok(budget.charge_ns(VALUE_NS + bytes as u64 / BYTES_PER_NS)?)
}

#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "mlua's values: what has no meaning in Redis is treated alike"
)]
pub(super) fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(value) => Some(*value as f64),
        Value::Number(value) => Some(*value),
        _ => None,
    }
}
