//! How functions written in Rust stand in Luau. A refusal is no Lua error: the function answers `true, results…` or
//! `false, message`, and the prelude raises the message at the caller's line, as a string a script can look at.

use super::values::number;
use mlua::{Error, Lua, LuaString, MultiValue, Result, Table, Value};

/// Why a library function gave no result.
pub(super) enum Failure {
    /// The script did something wrong, and may catch it.
    Refused(String),
    /// The VM could not go on: for want of memory or of budget. Nothing may catch it.
    Fatal(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Fatal(error)
    }
}

impl From<String> for Failure {
    fn from(message: String) -> Failure {
        Failure::Refused(message)
    }
}

impl From<&str> for Failure {
    fn from(message: &str) -> Failure {
        Failure::Refused(message.to_owned())
    }
}

pub(super) type Results = std::result::Result<Vec<Value>, Failure>;

/// Puts a function into a library.
pub(super) fn register(
    lua: &Lua,
    library: &Table,
    name: &'static str,
    function: impl Fn(&Lua, &Args) -> Results + 'static,
) -> Result<()> {
    let wrapped = lua.create_function(move |lua, args: MultiValue| {
        let args = Args { name, values: args.into_iter().collect() };
        let mut answer = vec![Value::Boolean(true)];
        match function(lua, &args) {
            Ok(results) => answer.extend(results),
            Err(Failure::Refused(message)) => {
                answer = vec![Value::Boolean(false), Value::String(lua.create_string(message)?)];
            }
            Err(Failure::Fatal(error)) => return Err(error),
        }
        Ok(MultiValue::from_iter(answer))
    })?;
    library.raw_set(name, wrapped)
}

/// The arguments of a call.
pub(super) struct Args {
    name: &'static str,
    values: Vec<Value>,
}

impl Args {
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// Nil where there is none.
    pub(super) fn get(&self, index: usize) -> &Value {
        self.values.get(index).unwrap_or(&Value::Nil)
    }

    pub(super) fn number(&self, index: usize) -> std::result::Result<f64, Failure> {
        let value = self.get(index);
        let from_text = || value.as_string()?.to_str().ok()?.trim().parse().ok();
        number(value).or_else(from_text).ok_or_else(|| self.bad(index, "number"))
    }

    pub(super) fn string(&self, index: usize) -> std::result::Result<LuaString, Failure> {
        self.get(index).as_string().cloned().ok_or_else(|| self.bad(index, "string"))
    }

    fn bad(&self, index: usize, wanted: &str) -> Failure {
        let got = if index < self.len() { self.get(index).type_name() } else { "no value" };
        let name = self.name;
        format!("bad argument #{} to '{name}' ({wanted} expected, got {got})", index + 1).into()
    }
}
