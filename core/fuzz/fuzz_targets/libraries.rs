//! cjson, cmsgpack, struct, bit and string functions on any bytes, called as scripts call them: an answer or an error, never
//! a panic, and what was unpacked can be packed again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use redfence_core_fuzz::Leader;
use std::cell::RefCell;

thread_local! {
    static LEADER: RefCell<(Leader, u32)> = RefCell::new((Leader::new(), 0));
}

const RUNS_PER_LEADER: u32 = 1_000;

const BODY: &str = r#"
local text, form = ARGV[1], ARGV[2]
local n = 0
local function try(f, ...) local r = {pcall(f, ...)} n = n + (r[1] and 1 or 0) return unpack(r) end
local ok, value = try(cjson.decode, text)
if ok then
  local fine, again = try(cjson.encode, value)
  if fine then assert((pcall(cjson.decode, again)), "encoded JSON cannot be decoded: " .. again) end
  try(cmsgpack.pack, value)
end
local ok, value = try(cmsgpack.unpack, text)
if ok then
  local fine, again = try(cmsgpack.pack, value)
  if fine then assert((pcall(cmsgpack.unpack, again)), "packed MessagePack cannot be unpacked") end
  try(cjson.encode, value)
end
try(cmsgpack.unpack_one, text, #form)
try(cmsgpack.unpack_limit, text, 2, #form)
try(struct.unpack, form, text)
try(struct.unpack, form, text, #form)
try(struct.pack, form, 1, 2, text, 3.5, text, -1)
try(struct.size, form)
try(string.format, form, 1, text, 2.5, text)
try(string.find, text, form)
try(string.gsub, text, form, "%1")
try(string.match, text, form)
try(function() for a in string.gmatch(text, form) do n = n + 1 end end)
try(string.rep, form, 3)
try(redis.sha1hex, text)
try(tonumber, text)
try(tonumber, text, 16)
try(bit.tohex, tonumber(text) or 1, #form)
try(redis.error_reply, text)
try(redis.call, text, form)
return {n, text, form}
"#;

fuzz_target!(|data: &[u8]| {
    let Some((cut, rest)) = data.split_first() else { return };
    let (form, text) = rest.split_at(usize::from(*cut).min(rest.len()));
    LEADER.with_borrow_mut(|(leader, runs)| {
        let words: [&[u8]; 5] = [b"EVAL", BODY.as_bytes(), b"0", text, form];
        leader.request(&words);
        *runs += 1;
        if *runs == RUNS_PER_LEADER {
            (*leader, *runs) = (Leader::new(), 0);
        }
    });
});
