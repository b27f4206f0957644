//! One Luau VM: built once, frozen, and used for many scripts.
//!
//! Nothing a script does outlives it: globals and libraries are read-only, a script's own values become garbage.

use super::budget::{Budget, Stop, MEMORY_BYTES_MAX, MEMORY_BYTES_SLACK};
use super::host::Host;
use super::random::Random;
use super::redis_api;
use super::scripts::Sha;
use super::source::{self, Flags};
use super::{bits, convert, json, msgpack, structs};
use crate::reply::{Refusal, Reply};
use mlua::chunk::{ChunkMode, Compiler};
use mlua::{Error, Function, Lua, LuaOptions, Result, StdLib, Table, Value};
use scoped_tls_hkt::scoped_thread_local;
use std::rc::Rc;

scoped_thread_local!(pub(super) static mut HOST: for<'a> &'a mut dyn Host);

/// Garbage that may gather in the VM before it is collected.
const GARBAGE_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Compiled scripts kept, and their bytes of source. All are dropped when it is full: they are compiled again when needed.
const COMPILED_MAX: usize = 4096;
const COMPILED_BYTES_MAX: usize = 8 * 1024 * 1024;

pub(super) struct Vm {
    lua: Lua,
    /// `(script, KEYS, ARGV)` → `true, result` or `false, {err, line}`.
    run: Function,
    pub(super) budget: Rc<Budget>,
    compiled: hashbrown::HashMap<Sha, Compiled, rustc_hash::FxBuildHasher>,
    compiled_bytes: usize,
    /// What the VM uses when nothing runs and nothing is garbage.
    base_bytes: usize,
}

#[derive(Clone)]
pub(super) struct Compiled {
    function: Function,
    pub(super) flags: Flags,
}

/// One call of a script.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScriptCall<'a> {
    pub(super) sha: Sha,
    pub(super) keys: &'a [&'a [u8]],
    pub(super) args: &'a [&'a [u8]],
}

impl Vm {
    /// `seed`: where `math.random` begins.
    pub(super) fn new(seed: u32) -> Vm {
        Vm::build(seed).expect("the sandbox is made of our own code")
    }

    fn build(seed: u32) -> Result<Vm> {
        let libs = StdLib::COROUTINE | StdLib::TABLE | StdLib::STRING | StdLib::MATH | StdLib::DEBUG;
        let lua = Lua::new_with(libs, LuaOptions::new().catch_rust_panics(false))?;
        lua.set_compiler(Compiler::new().set_optimization_level(1).set_debug_level(1));
        let budget = Rc::new(Budget::default());
        let random = Rc::new(Random::default());
        random.seed(seed);
        let rust = lua.create_table()?;
        redis_api::register(&lua, &rust, &budget, &random)?;
        rust.raw_set("bit", bits::library(&lua)?)?;
        rust.raw_set("cjson", json::library(&lua, &budget)?)?;
        rust.raw_set("cmsgpack", msgpack::library(&lua, &budget)?)?;
        rust.raw_set("struct", structs::library(&lua, &budget)?)?;
        let prelude = lua.load(include_str!("prelude.luau")).set_name("=redfence").into_function()?;
        let (globals, run): (Table, Function) = prelude.call(rust)?;
        freeze(&lua, &globals)?;
        let steps = budget.clone();
        lua.set_interrupt(move |lua| steps.step(lua).map(|()| mlua::VmState::Continue));
        lua.gc_collect()?;
        let base_bytes = lua.used_memory();
        let compiled = hashbrown::HashMap::default();
        Ok(Vm { lua, run, budget, compiled, compiled_bytes: 0, base_bytes })
    }

    /// The script as a function, compiled at most once. The error is Redis's line.
    pub(super) fn compile(&mut self, sha: &Sha, body: &[u8]) -> std::result::Result<Compiled, Refusal> {
        if let Some(compiled) = self.compiled.get(sha) {
            return Ok(compiled.clone());
        }
        let (text, flags) = source::prepare(body).map_err(|line| refused(&line))?;
        let loaded = self.lua.load(text).set_name("=user_script").set_mode(ChunkMode::Text).into_function();
        let function = loaded.map_err(|error| {
            if let Error::SyntaxError { message, .. } = error {
                refused(&message)
            } else {
                refused(&error.to_string())
            }
        })?;
        if self.compiled.len() >= COMPILED_MAX || self.compiled_bytes + body.len() > COMPILED_BYTES_MAX {
            self.forget_compiled();
        }
        let compiled = Compiled { function, flags };
        self.compiled_bytes += body.len();
        self.compiled.insert(*sha, compiled.clone());
        Ok(compiled)
    }

    fn forget_compiled(&mut self) {
        self.compiled.clear();
        self.compiled_bytes = 0;
    }

    /// Runs a script against a host.
    pub(super) fn run(
        &self,
        call: &ScriptCall<'_>,
        script: &Compiled,
        host: &mut dyn Host,
    ) -> std::result::Result<Reply, Stop> {
        let base_bytes = self.lua.used_memory();
        self.budget.start(base_bytes);
        let limit = base_bytes + MEMORY_BYTES_MAX + MEMORY_BYTES_SLACK;
        self.lua.set_memory_limit(limit).expect("the VM has its own allocator");
        let result = HOST.set(host, || self.attempt(call, script));
        self.lua.set_memory_limit(0).expect("the VM has its own allocator");
        match (self.budget.stopped(), result) {
            (Some(stop), _) => Err(stop),
            (None, Ok(reply)) => Ok(reply),
            // Rust raises nothing else.
            (None, Err(_)) => Err(Stop::Memory),
        }
    }

    fn attempt(&self, call: &ScriptCall<'_>, script: &Compiled) -> Result<Reply> {
        let list = |words: &[&[u8]]| -> Result<Table> {
            let table = self.lua.create_table_with_capacity(words.len(), 0)?;
            for (index, word) in words.iter().enumerate() {
                table.raw_set(index + 1, self.lua.create_string(word)?)?;
            }
            Ok(table)
        };
        let args = (&script.function, list(call.keys)?, list(call.args)?);
        let (ok, value): (bool, Value) = self.run.call(args)?;
        self.budget.go_on()?;
        if ok {
            return convert::to_reply(&value, HOST.with(|host| host.resp()), &self.budget);
        }
        let Value::Table(error) = value else {
            // The handler had no memory left to make its table.
            return Err(self.budget.end(Stop::Memory));
        };
        let text: Value = error.raw_get("err")?;
        let text = match text.as_string() {
            Some(text) if text.as_bytes().len() > convert::REPLY_BYTES_MAX => {
                return Err(self.budget.end(Stop::Reply));
            }
            // Luau's text for this, but for the capital letter.
            Some(text) => convert::one_line(&text.as_bytes())
                .replace("attempt to modify a readonly table", "Attempt to modify a readonly table"),
            None => "ERR unknown error".into(),
        };
        let line: Option<i64> = error.raw_get("line")?;
        Ok(Reply::Error(match line {
            Some(line) => super::error_at_line(&text, &call.sha, line as u32),
            None => Refusal::new(text),
        }))
    }

    /// Lets garbage go when enough has gathered.
    pub(super) fn tidy(&mut self) {
        if self.lua.used_memory() > self.base_bytes + GARBAGE_BYTES_MAX {
            self.collect();
            // Still that much: the compiled scripts are large.
            if self.lua.used_memory() > self.base_bytes + MEMORY_BYTES_MAX {
                self.forget_compiled();
                self.collect();
            }
        }
    }

    fn collect(&self) {
        self.lua.gc_collect().expect("a collection runs no code of ours");
    }
}

fn refused(message: &str) -> Refusal {
    let message = convert::one_line(message.as_bytes());
    if message.starts_with("user_script:") {
        return Refusal::new(format!("ERR Error compiling script (new function): {message}"));
    }
    Refusal::new(format!("ERR {message}"))
}

/// Puts our globals in place of Luau's and makes them, and all they hold, read-only.
fn freeze(lua: &Lua, globals: &Table) -> Result<()> {
    for pair in globals.pairs::<String, Value>() {
        if let (_, Value::Table(library)) = pair? {
            library.set_readonly(true);
        }
    }
    globals.raw_set("_G", globals)?;
    let meta = lua.create_table()?;
    let missing = lua
        .load("local _, name = ... error(\"Script attempted to access nonexistent global variable '\" .. tostring(name) .. \"'\", 2)")
        .set_name("=redfence")
        .into_function()?;
    meta.raw_set("__index", missing)?;
    meta.raw_set("__metatable", false)?;
    meta.set_readonly(true);
    globals.set_metatable(Some(meta))?;
    // Methods of strings go through the same functions.
    let string_meta: Table = lua.load("return getmetatable('')").eval()?;
    string_meta.set_readonly(false);
    string_meta.raw_set("__index", globals.raw_get::<Table>("string")?)?;
    string_meta.set_readonly(true);
    globals.set_readonly(true);
    lua.set_globals(globals.clone())
}
