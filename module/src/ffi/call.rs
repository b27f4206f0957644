//! Running a command of Redis: `SCAN` for `LOCK.SCAN`, anything at all for `FENCE.CALL`.

use super::{api, Arg, Ctx, OwnedString};
use redis_module::raw;
use std::ffi::{CStr, CString};
use std::ptr::NonNull;

/// The answer of a command, freed on drop.
pub(crate) struct CallReply(NonNull<raw::RedisModuleCallReply>);

impl Drop for CallReply {
    fn drop(&mut self) {
        // SAFETY: Redis gave it to us, and it is freed once.
        unsafe { api!(RedisModule_FreeCallReply(self.0.as_ptr())) };
    }
}

impl Ctx {
    /// Runs a client's command as that client: its ACL holds, what a script may not call is refused, nothing blocks, and
    /// the effects are replicated. Errors are replies. `None` where there is no such command, or its name is nonsense.
    pub(crate) fn call_for_client(&self, command: &[Arg]) -> Option<CallReply> {
        let (name, arguments) = command.split_first()?;
        let name = CString::new(name.as_ref()).ok()?;
        self.call(&name, c"!CES0v", arguments)
    }

    /// One step of `SCAN`: the next cursor and the keys.
    pub(crate) fn scan(&self, cursor: u64, pattern: &[u8], count: u64) -> Option<(u64, Vec<Vec<u8>>)> {
        let (cursor, count) = (cursor.to_string(), count.to_string());
        let words: [&[u8]; 7] =
            [cursor.as_bytes(), b"MATCH", pattern, b"COUNT", count.as_bytes(), b"TYPE", b"string"];
        let strings = words.map(OwnedString::new);
        let mut raw_strings = strings.each_ref().map(|string| string.name().raw());
        // SAFETY: the format says a vector and its length follow; the strings live through the call.
        let reply = unsafe {
            api!(RedisModule_Call(
                self.raw(),
                c"SCAN".as_ptr(),
                c"v".as_ptr(),
                raw_strings.as_mut_ptr(),
                raw_strings.len()
            ))
        };
        let reply = CallReply(NonNull::new(reply)?);
        let cursor = std::str::from_utf8(&reply.element(0)?.text()?).ok()?.parse().ok()?;
        let list = reply.element(1)?;
        let keys = (0..list.len()).filter_map(|at| list.element(at)?.text()).collect();
        Some((cursor, keys))
    }

    pub(crate) fn reply_with(&self, reply: &CallReply) {
        // SAFETY: context and reply are live.
        unsafe { api!(RedisModule_ReplyWithCallReply(self.raw(), reply.0.as_ptr())) };
    }

    fn call(&self, name: &CStr, format: &CStr, arguments: &[Arg]) -> Option<CallReply> {
        // SAFETY: `Arg` is transparent over the pointer Redis wants; the format says a vector and its length follow, and
        // Redis only reads it.
        let reply = unsafe {
            api!(RedisModule_Call(
                self.raw(),
                name.as_ptr(),
                format.as_ptr(),
                arguments.as_ptr().cast::<*mut raw::RedisModuleString>(),
                arguments.len()
            ))
        };
        NonNull::new(reply).map(CallReply)
    }
}

/// An element of an answer, borrowed from it.
struct Element<'r>(NonNull<raw::RedisModuleCallReply>, std::marker::PhantomData<&'r CallReply>);

/// How Redis begins its word that a command does not run at all: unknown, wrong number of words, not allowed here, to this user or now.
const REFUSED: [&[u8]; 6] = [
    b"ERR unknown command",
    b"ERR wrong number of arguments",
    b"ERR command '",
    b"ERR Write commands are not allowed",
    b"NOPERM",
    b"OOM",
];

impl CallReply {
    /// Whether the command was refused before it ran.
    pub(crate) fn is_refusal(&self) -> bool {
        let whole = Element(self.0, std::marker::PhantomData);
        // SAFETY: the reply is live.
        let kind = unsafe { api!(RedisModule_CallReplyType(self.0.as_ptr())) };
        kind == raw::REDISMODULE_REPLY_ERROR as i32
            && whole.text().is_some_and(|text| REFUSED.iter().any(|begins| text.starts_with(begins)))
    }

    fn element(&self, at: usize) -> Option<Element<'_>> {
        Element(self.0, std::marker::PhantomData).element(at)
    }
}

impl<'r> Element<'r> {
    fn len(&self) -> usize {
        // SAFETY: the reply is live.
        unsafe { api!(RedisModule_CallReplyLength(self.0.as_ptr())) }
    }

    fn element(&self, at: usize) -> Option<Element<'r>> {
        // SAFETY: the reply is live; Redis answers NULL beyond its end or where it is no array.
        let raw = unsafe { api!(RedisModule_CallReplyArrayElement(self.0.as_ptr(), at)) };
        NonNull::new(raw).map(|raw| Element(raw, std::marker::PhantomData))
    }

    fn text(&self) -> Option<Vec<u8>> {
        let mut len = 0;
        // SAFETY: the reply is live; Redis answers NULL where it is no string, else `len` bytes.
        unsafe {
            let start = api!(RedisModule_CallReplyStringPtr(self.0.as_ptr(), &mut len));
            (!start.is_null()).then(|| std::slice::from_raw_parts(start.cast::<u8>(), len).to_vec())
        }
    }
}
