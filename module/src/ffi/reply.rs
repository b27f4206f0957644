//! Rendering a `Reply` into the client's protocol.

use super::{api, Ctx};
use redfence_core::reply::{Reply, Sink};
use redis_module::raw;
use std::ffi::CString;

impl Ctx {
    pub(crate) fn reply(&self, reply: &Reply) {
        reply.render(&mut Client(self));
    }
}

struct Client<'c>(&'c Ctx);

/// Redis reads these up to the first NUL; our texts have none, and one that did is cut there.
fn c_text(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}

impl Sink for Client<'_> {
    fn nil(&mut self) {
        // SAFETY: the context is live (so in every method below).
        unsafe { api!(RedisModule_ReplyWithNull(self.0.raw())) };
    }

    fn nil_array(&mut self) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithNullArray(self.0.raw())) };
    }

    fn int(&mut self, value: i64) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithLongLong(self.0.raw(), value)) };
    }

    fn double(&mut self, value: f64) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithDouble(self.0.raw(), value)) };
    }

    fn boolean(&mut self, value: bool) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithBool(self.0.raw(), value.into())) };
    }

    fn bulk(&mut self, value: &[u8]) {
        // SAFETY: as above; Redis copies the bytes.
        unsafe { api!(RedisModule_ReplyWithStringBuffer(self.0.raw(), value.as_ptr().cast(), value.len())) };
    }

    fn status(&mut self, value: &str) {
        let text = c_text(value);
        // SAFETY: as above; Redis copies the text.
        unsafe { api!(RedisModule_ReplyWithSimpleString(self.0.raw(), text.as_ptr())) };
    }

    fn error(&mut self, line: &str) {
        let text = c_text(line);
        // SAFETY: as above; Redis copies the text.
        unsafe { api!(RedisModule_ReplyWithError(self.0.raw(), text.as_ptr())) };
    }

    fn verbatim(&mut self, value: &[u8]) {
        // SAFETY: as above; Redis copies the bytes.
        unsafe {
            api!(RedisModule_ReplyWithVerbatimString(self.0.raw(), value.as_ptr().cast(), value.len()))
        };
    }

    fn array(&mut self, len: usize) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithArray(self.0.raw(), len as std::ffi::c_long)) };
    }

    fn map(&mut self, pairs: usize) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithMap(self.0.raw(), pairs as std::ffi::c_long)) };
    }

    fn set(&mut self, len: usize) {
        // SAFETY: as above.
        unsafe { api!(RedisModule_ReplyWithSet(self.0.raw(), len as std::ffi::c_long)) };
    }
}
