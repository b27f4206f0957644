//! One Luau VM: built once, frozen, and used for many scripts.
//!
//! Nothing a script does outlives it: globals and libraries are read-only, a script's own values become garbage. The
//! garbage collector stands still while a script runs, so that what memory it may use does not depend on what ran before.

use super::budget::{Budget, Stop};
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

/// Bytes a script may allocate in the shared VM. One that needs more, or more steps, runs again, from the start, in a VM of its own.
pub(super) const SHARED_BYTES_MAX: usize = 128 * 1024;
/// Bytes a script may allocate in a VM of its own.
pub(super) const OWN_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Garbage that may gather in the shared VM before it is collected.
const GARBAGE_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Compiled scripts kept. All are dropped when it is full: they are compiled again when needed.
const COMPILED_MAX: usize = 4096;

pub(super) struct Vm {
    lua: Lua,
    /// `(script, KEYS, ARGV)` → `true, result` or `false, {err, line}`.
    run: Function,
    budget: Rc<Budget>,
    random: Rc<Random>,
    compiled: hashbrown::HashMap<Sha, Compiled, rustc_hash::FxBuildHasher>,
    /// What the VM uses when nothing runs and nothing is garbage.
    base_bytes: usize,
}

#[derive(Clone)]
pub(super) struct Compiled {
    function: Function,
    pub(super) flags: Flags,
}

/// How a run ended.
pub(super) enum Outcome {
    Done(Reply),
    Stopped(Stop),
}

impl Vm {
    pub(super) fn new() -> Vm {
        Vm::build().expect("the sandbox is made of our own code")
    }

    fn build() -> Result<Vm> {
        let libs = StdLib::COROUTINE | StdLib::TABLE | StdLib::STRING | StdLib::MATH | StdLib::DEBUG;
        let lua = Lua::new_with(libs, LuaOptions::new().catch_rust_panics(false))?;
        lua.gc_stop();
        lua.set_compiler(Compiler::new().set_optimization_level(1).set_debug_level(1));
        let budget = Rc::new(Budget::default());
        let random = Rc::new(Random::default());
        let rust = lua.create_table()?;
        redis_api::register(&lua, &rust, &budget, &random)?;
        rust.raw_set("bit", bits::library(&lua)?)?;
        rust.raw_set("cjson", json::library(&lua)?)?;
        rust.raw_set("cmsgpack", msgpack::library(&lua)?)?;
        rust.raw_set("struct", structs::library(&lua)?)?;
        let prelude = lua.load(include_str!("prelude.luau")).set_name("=redfence").into_function()?;
        let (globals, run): (Table, Function) = prelude.call(rust)?;
        freeze(&lua, &globals)?;
        let steps = budget.clone();
        lua.set_interrupt(move |lua| steps.step(lua).map(|()| mlua::VmState::Continue));
        lua.gc_collect()?;
        let base_bytes = lua.used_memory();
        Ok(Vm { lua, run, budget, random, compiled: hashbrown::HashMap::default(), base_bytes })
    }

    /// The script as a function, compiled at most once. The error is Redis's line.
    pub(super) fn compile(&mut self, sha: &Sha, body: &[u8]) -> std::result::Result<Compiled, Refusal> {
        if let Some(compiled) = self.compiled.get(sha) {
            return Ok(compiled.clone());
        }
        let (text, flags) = source::prepare(body).map_err(|line| refused(&line))?;
        // Compiling is not running: no budget, and a memory limit would make the outcome depend on what is cached.
        let loaded = self.lua.load(text).set_name("=user_script").set_mode(ChunkMode::Text).into_function();
        let function = loaded.map_err(|error| match error {
            Error::SyntaxError { message, .. } => refused(&message),
            other => refused(&other.to_string()),
        })?;
        if self.compiled.len() >= COMPILED_MAX {
            self.compiled.clear();
        }
        let compiled = Compiled { function, flags };
        self.compiled.insert(*sha, compiled.clone());
        Ok(compiled)
    }

    /// Runs a script against the host that is set.
    pub(super) fn run(&self, call: &super::Call<'_>, script: &Compiled, own: bool) -> Outcome {
        let bytes_max = if own { OWN_BYTES_MAX } else { SHARED_BYTES_MAX };
        self.budget.start(own);
        self.random.seed(0);
        let limit = self.lua.used_memory() + bytes_max;
        self.lua.set_memory_limit(limit).expect("the VM has its own allocator");
        let result = self.attempt(call, script);
        self.lua.set_memory_limit(0).expect("the VM has its own allocator");
        if let Some(stop) = self.budget.stopped() {
            return Outcome::Stopped(stop);
        }
        match result {
            Ok(reply) => Outcome::Done(reply),
            // Rust raises nothing else.
            Err(_) => Outcome::Stopped(Stop::Memory),
        }
    }

    fn attempt(&self, call: &super::Call<'_>, script: &Compiled) -> Result<Reply> {
        let list = |words: &[&[u8]]| -> Result<Table> {
            let table = self.lua.create_table_with_capacity(words.len(), 0)?;
            for (index, word) in words.iter().enumerate() {
                table.raw_set(index + 1, self.lua.create_string(word)?)?;
            }
            Ok(table)
        };
        let args = (&script.function, list(call.keys)?, list(call.args)?);
        let (ok, value): (bool, Value) = self.run.call(args)?;
        if ok {
            return convert::to_reply(&value, HOST.with(|host| host.resp()));
        }
        let Value::Table(error) = value else {
            // The handler had no memory left to make its table.
            self.budget.note(None);
            return Err(Error::RuntimeError("out of memory".into()));
        };
        let text: Value = error.raw_get("err")?;
        let text = match &text {
            // Luau's text for this, but for the capital letter.
            Value::String(text) => convert::one_line(&text.as_bytes())
                .replace("attempt to modify a readonly table", "Attempt to modify a readonly table"),
            _ => "ERR unknown error".into(),
        };
        let line: Option<i64> = error.raw_get("line")?;
        Ok(Reply::Error(Refusal::new(match line {
            Some(line) => {
                let sha = super::scripts::sha_hex(&call.sha);
                format!("{text} script: {sha}, on @user_script:{line}.")
            }
            None => text,
        })))
    }

    /// Lets garbage go when enough has gathered.
    pub(super) fn tidy(&mut self) {
        if self.lua.used_memory() > self.base_bytes + GARBAGE_BYTES_MAX {
            self.collect();
            // Still that much: the compiled scripts are large.
            if self.lua.used_memory() > self.base_bytes + GARBAGE_BYTES_MAX / 2 {
                self.compiled.clear();
                self.collect();
            }
        }
    }

    fn collect(&self) {
        self.lua.gc_collect().expect("a collection runs no code of ours");
        self.lua.gc_stop();
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
