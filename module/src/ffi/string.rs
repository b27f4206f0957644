//! Strings of Redis: the arguments of a command, borrowed, and strings of our own.

use super::api;
use redis_module::raw;
use std::marker::PhantomData;

/// One argument of a command. Borrowed from Redis for the length of the call.
#[repr(transparent)]
pub(crate) struct Arg(*mut raw::RedisModuleString);

impl Arg {
    /// # Safety
    /// `argv` must point to `argc` strings that live for `'a`.
    pub(super) unsafe fn slice<'a>(argv: *mut *mut raw::RedisModuleString, argc: usize) -> &'a [Arg] {
        if argv.is_null() || argc == 0 {
            return &[];
        }
        // SAFETY: `Arg` is transparent over the pointer; the caller vouches for pointer, length and life.
        unsafe { std::slice::from_raw_parts(argv.cast::<Arg>(), argc) }
    }

    pub(crate) fn name(&self) -> Name<'_> {
        Name { raw: self.0, life: PhantomData }
    }
}

impl AsRef<[u8]> for Arg {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: an `Arg` is made from a live string only.
        unsafe { bytes_of(self.0) }
    }
}

/// A string as the name or the value of something. Cheap to copy.
#[derive(Clone, Copy)]
pub(crate) struct Name<'a> {
    raw: *mut raw::RedisModuleString,
    life: PhantomData<&'a ()>,
}

impl<'a> Name<'a> {
    /// # Safety
    /// `raw` must be a live string for `'a`.
    pub(super) unsafe fn new(raw: *mut raw::RedisModuleString) -> Name<'a> {
        Name { raw, life: PhantomData }
    }

    pub(super) fn raw(self) -> *mut raw::RedisModuleString {
        self.raw
    }

    pub(crate) fn bytes(self) -> &'a [u8] {
        // SAFETY: a `Name` borrows from a live string.
        unsafe { bytes_of(self.raw) }
    }
}

/// A string made by us, freed by us. Redis may keep its own reference to it.
pub(crate) struct OwnedString(*mut raw::RedisModuleString);

impl OwnedString {
    pub(crate) fn new(bytes: &[u8]) -> OwnedString {
        // SAFETY: Redis copies `len` bytes from the pointer. No context: the string is ours to free.
        OwnedString(unsafe {
            api!(RedisModule_CreateString(std::ptr::null_mut(), bytes.as_ptr().cast(), bytes.len()))
        })
    }

    pub(crate) fn name(&self) -> Name<'_> {
        Name { raw: self.0, life: PhantomData }
    }
}

impl Drop for OwnedString {
    fn drop(&mut self) {
        // SAFETY: made by `CreateString` without a context, dropped once.
        unsafe { api!(RedisModule_FreeString(std::ptr::null_mut(), self.0)) }
    }
}

/// # Safety
/// `string` must be live for `'a`.
unsafe fn bytes_of<'a>(string: *mut raw::RedisModuleString) -> &'a [u8] {
    let mut len = 0;
    // SAFETY: the caller vouches for `string`; Redis answers a pointer to `len` bytes that live as long as it does.
    unsafe {
        let start = api!(RedisModule_StringPtrLen(string, &mut len));
        std::slice::from_raw_parts(start.cast::<u8>(), len)
    }
}
