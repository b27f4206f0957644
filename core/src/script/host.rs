//! What a running script may do to the world: `redis.call`.

use crate::grammar;
use crate::keyspace::table::{self, Run};
use crate::keyspace::{Context, Resp};
use crate::reply::{Refusal, Reply};

const READ_ONLY: &str = "ERR Write commands are not allowed from read-only scripts.";

/// The keys a script works on, seen from inside the VM.
pub(super) trait Host {
    /// Runs one command; the reply is in the shape of the script's protocol.
    fn call(&mut self, argv: &[&[u8]]) -> Reply;
    fn resp(&self) -> Resp;
    fn set_resp(&mut self, resp: Resp);
}

pub(super) struct ScriptHost<'k> {
    pub(super) cx: Context<'k>,
    pub(super) read_only: bool,
}

impl ScriptHost<'_> {
    /// A `LOCK.*` command. `None` where it is none, or where there are no locks.
    fn lock(&mut self, argv: &[&[u8]]) -> Option<Reply> {
        let row = grammar::table::find(argv.first()?)?;
        if self.read_only && row.write {
            return Some(Refusal::new(READ_ONLY).into());
        }
        self.cx.keys.lock(self.cx.db, argv).map(Reply::plain)
    }
}

impl Host for ScriptHost<'_> {
    fn call(&mut self, argv: &[&[u8]]) -> Reply {
        let refuse = |text: &'static str| Reply::Error(Refusal::new(text));
        let Some(row) = argv.first().and_then(|name| table::find(name)) else {
            return self.lock(argv).unwrap_or_else(|| refuse("ERR Unknown Redis command called from script"));
        };
        if !row.takes(argv.len()) {
            return refuse("ERR Wrong number of args calling Redis command from script");
        }
        let handler = match row.run {
            Run::Here(handler) if !row.is(table::NOSCRIPT) => handler,
            Run::Here(_) | Run::Elsewhere => {
                return refuse("ERR This Redis command is not allowed from script");
            }
        };
        if self.read_only && row.is(table::W) {
            return refuse(READ_ONLY);
        }
        let reply = handler(&mut self.cx, argv).unwrap_or_else(Reply::Error);
        self.cx.keys.note_read(row, argv);
        reply
    }

    fn resp(&self) -> Resp {
        self.cx.resp
    }

    fn set_resp(&mut self, resp: Resp) {
        self.cx.resp = resp;
    }
}
