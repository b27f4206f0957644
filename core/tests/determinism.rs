//! Nodes fed the same log hold the same state and give the same answers, whatever their scripts do and whatever each of them
//! went through besides: one never stops, one restarts from its snapshot again and again, one answers reads in between.
//!
//! The leader that made the log is one of them. Scripts never enter it: what they did does.

#![cfg(feature = "scripts")]

mod logged;

use redfence_core::keyspace::Resp;
use redfence_core::machine::{Applied, Command, EntryBuilder, Machine};
use redfence_core::script::Engine;
use redfence_core::types::{Origin, Stamp};

/// What could differ between two nodes: orders, addresses, floats, randomness, clocks, limits, half-done work.
const SCRIPTS: &[&str] = &[
    // Orders.
    "local out = {} for k, v in pairs({b = 1, a = 2, [10] = 3, [1.5] = 4, [-1] = 5, [true] = 6, [false] = 7, c = 8}) do \
     out[#out + 1] = tostring(k) .. '=' .. tostring(v) end redis.call('rpush', 'orders', unpack(out)) return out",
    "local t = {} for i = 1, 400 do t['k' .. i * 7919 % 1009] = i end local s = '' for k in pairs(t) do s = s .. k end \
     redis.call('set', 'walk', redis.sha1hex(s)) return redis.sha1hex(s)",
    "for i = 1, 300 do redis.call('hset', 'h', 'f' .. i * 7919 % 1000, i / 3) redis.call('sadd', 's', i * 31 % 997) end \
     return {redis.call('hgetall', 'h'), redis.call('smembers', 's'), redis.call('keys', '*')}",
    "local t = {a = {b = {c = 1, d = 2}, e = 3}, f = {1, 2, 3}} redis.call('set', 'json', cjson.encode(t)) \
     redis.call('set', 'pack', cmsgpack.pack(t)) return cjson.encode(t)",
    "local k = next({z = 1, y = 2, x = 3}) redis.call('append', 'next', k) return k",
    "local t = {1, 2, nil, 4, [10] = 10, x = 1} redis.call('rpush', 'len', #t, table.maxn(t)) return #t",
    // Sorting, with comparators that contradict themselves.
    "local t = {} for i = 1, 200 do t[i] = i * 7919 % 211 end table.sort(t) redis.call('rpush', 'sorted', unpack(t)) return t",
    "local t = {} for i = 1, 100 do t[i] = i * 31 % 47 end local ok, err = pcall(table.sort, t, function() return true end) \
     redis.call('rpush', 'broken', tostring(ok), unpack(t)) return {tostring(ok), tostring(err)}",
    "local t = {} for i = 1, 100 do t[i] = i * 31 % 47 end table.sort(t, function(a, b) return a % 5 < b % 7 end) \
     redis.call('rpush', 'broken2', unpack(t)) return t",
    "local t, n = {5, 'x', {}, 3}, 0 local ok, err = pcall(table.sort, t) redis.call('set', 'mixed', tostring(err)) return err",
    // Floats.
    "local out = {} for _, x in ipairs({1/3, 1e300, 1e-300, 5e-324, 2^53 + 1, 0.1 + 0.2, -0.0, 1/0, -1/0, 0/0, math.pi}) do \
     out[#out + 1] = string.format('%.17g %g %f %e %5.2f', x, x, x, x, x) .. tostring(x) .. x end \
     redis.call('rpush', 'floats', unpack(out)) return out",
    "redis.call('zadd', 'z', 1/3, 'a', 1e17, 'b', -1e-9, 'c') redis.call('zincrby', 'z', 0.1, 'a') \
     redis.call('incrbyfloat', 'f', 1/3) return redis.call('zrange', 'z', 0, -1, 'withscores')",
    "return {math.sin(1) * 1e15, math.exp(10), math.sqrt(2) * 1e15, 3.99, -3.99, 2^63, 1e400}",
    // Randomness and clocks.
    "local out = {} for i = 1, 20 do out[i] = tostring(math.random(1, 1000000)) end math.randomseed(42) \
     out[21] = tostring(math.random()) redis.call('rpush', 'random', unpack(out)) return out",
    "redis.call('rpush', 'time', unpack(redis.call('time'))) return redis.call('time')",
    "return {tostring(pcall(function() return os.clock() end)), tostring(pcall(function() return os.time() end))}",
    "return {tostring(pcall(function() return io.open('x') end)), tostring(pcall(function() return loadstring('x') end))}",
    "return {redis.call('randomkey') and 1, redis.call('srandmember', 's'), redis.call('spop', 's'), redis.call('hrandfield', 'h')}",
    // Addresses.
    "return tostring({}) .. tostring(redis.call) .. tostring(function() end) .. tostring(coroutine.create(function() end))",
    "local ok, err = pcall(string.format, '%s', {}) redis.call('set', 'address', err) return err",
    "local s = ('%10s|%-30s|'):format(tostring(redis.call), tostring({})) redis.call('set', 'address2', s) return s",
    "error({})",
    "error(function() end)",
    "error(setmetatable({}, {__tostring = function() return 'x' end}))",
    "return redis.error_reply(tostring({}))",
    "local t = {} t[{}] = 1 local ok, err = pcall(function() for k in pairs(t) do end end) return tostring(err)",
    "return {} .. 'x'",
    "return #5",
    "local t = setmetatable({}, {__index = function(t, k) return k .. tostring(t) end}) return t.x",
    // Errors half-way keep what was done before.
    "redis.call('incr', 'before') error('half-way')",
    "redis.call('incr', 'before') redis.call('lpush', 'before', 'x') redis.call('incr', 'after')",
    "redis.call('incr', 'before') redis.pcall('nosuch') local x = nil return x.y",
    "redis.call('incr', 'before') return redis.call('set', 'before')",
    "local function f() return f() + 1 end local ok, err = pcall(f) redis.call('append', 'deep', tostring(ok)) return tostring(err)",
    // Limits: what a script had done is undone.
    "redis.call('incr', 'never') while true do end",
    "redis.call('incr', 'never') pcall(function() while true do end end) redis.call('incr', 'never')",
    "redis.call('incr', 'never') local t = {} for i = 1, 1e9 do t[i] = string.rep('x', 1000) .. i end",
    "local ok, err = pcall(string.rep, 'x', 2^40) redis.call('append', 'big', tostring(ok)) return tostring(err)",
    // Just about at the limit of the shared VM, and long: whether strings are known to the VM already must not matter.
    "local t = {} for i = 1, 1400 do t[i] = 'text' .. i .. string.rep('y', 40) end local n = 0 \
     for i = 1, 500000 do n = n + 1 end redis.call('incr', 'long') return n",
    "local t = {} for i = 1, 1000 do t[i] = 'other' .. i .. string.rep('z', 60) end local n = 0 \
     for i = 1, 900000 do n = n + i % 3 end redis.call('incr', 'long') return n",
    // What once split nodes: errors of memory that a handler swallows, text that two tokenizers read differently, orders and
    // lengths of tables that depend on addresses.
    "local s = string.rep('x', 7e6) local ok, err = xpcall(function() local t = {} for i = 1, 9 do t[i] = s .. i end end, \
     function(e) return e .. #(s .. s) end) redis.call('set', 'split1', tostring(ok) .. #tostring(err)) return 1",
    "local t = {} for i = 1, 50 do t[{}] = i end local s = \"\\\r\n\" local r = '' for k, v in t do r = r .. v .. s end \
     redis.call('set', 'split2', r) return r",
    "local t = {1, 2, 3, nil, 5, nil, nil, 8} for i = 1, 20 do t[{}] = i end redis.call('set', 'split3', #t) return #t",
    "local o = {} for i = 1, 20 do o[{}] = i end local r = {} for k, v in pairs(o) do r[#r + 1] = v end \
     redis.call('rpush', 'split4', unpack(r)) return tostring(o)",
    // Caches: a script that is known, one that is not, one that does not compile.
    "return this does not compile",
];

const LOG_ROUNDS: usize = 3;

#[derive(Clone, Copy, PartialEq)]
enum Life {
    /// From the first entry to the last in one go.
    Undisturbed,
    /// A fresh start from a snapshot before every so many entries.
    Restarts(usize),
    /// Reads between all entries.
    Reads,
}

fn log() -> Vec<Vec<u8>> {
    let plain =
        ["SCRIPT FLUSH", "SET k v", "EVALSHA 0000000000000000000000000000000000000000 0", "SCRIPT EXISTS 00"];
    let mut commands: Vec<Vec<Vec<u8>>> = Vec::new();
    for round in 0..LOG_ROUNDS {
        // Another order every time: what ran before a script must not matter to it.
        let count = SCRIPTS.len();
        for at in 0..count {
            let body = SCRIPTS[(at * 17 + round * 5) % count];
            commands.push(vec![b"EVAL".to_vec(), body.into(), b"0".to_vec()]);
            commands.push(vec![b"EVAL".to_vec(), body.into(), b"0".to_vec()]);
        }
        commands.push(plain[round].split(' ').map(Vec::from).collect());
    }
    assert!(!SCRIPTS.len().is_multiple_of(17), "steps of 17 must visit all of them");
    let (mut leader, mut engine) = (Machine::new(), Engine::new());
    let mut log = Vec::new();
    for (index, argv) in commands.iter().enumerate() {
        let argv = argv.iter().map(Vec::as_slice).collect();
        let at_ms = 1_000 + index as u64 * 7;
        let stamp = Stamp { term: 1, logical_ms: at_ms, wall_us: at_ms * 1000 + 123 };
        let command = Command::Redis { db: 0, resp: Resp::Three, member: None, argv };
        let blob = logged::logged(&mut engine, &leader, stamp, &command);
        let mut entry = EntryBuilder::new(stamp);
        entry.push_batch(Origin { node: 1, incarnation: 1 }, index as u64, [(index as u64 + 1, blob)]);
        let entry = entry.finish();
        leader.apply_entry(&entry, &mut Applied::default()).expect("a known entry");
        log.push(entry);
        if index % 11 == 0 {
            // Another leader: a VM without a past.
            engine = Engine::new();
        }
    }
    assert_eq!(leader.stats().differing_effects, 0);
    log
}

fn image(machine: &mut Machine) -> Vec<Vec<u8>> {
    machine.snapshot_begin();
    std::iter::from_fn(|| machine.snapshot_step(1000)).collect()
}

/// Reads that look at all kinds of keys.
fn look_around(machine: &Machine) {
    for line in
        ["GET k", "KEYS *", "HGETALL h", "ZRANGE z 0 -1 WITHSCORES", "SCAN 0", "PTTL k", "LRANGE orders 0 -1"]
    {
        let argv: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let _ = machine.read(0, Resp::Two, &argv);
    }
}

/// What a node said and was, entry by entry.
fn live(log: &[Vec<u8>], life: Life) -> Vec<String> {
    let chunk = match life {
        Life::Undisturbed | Life::Reads => log.len(),
        Life::Restarts(every) => every,
    };
    let mut pieces = image(&mut Machine::new());
    let mut story = Vec::new();
    for entries in log.chunks(chunk) {
        let from = std::mem::take(&mut pieces);
        let entries = entries.to_vec();
        let started = std::thread::spawn(move || {
            let mut machine = Machine::restore(from).expect("the snapshot is whole");
            let mut story = Vec::new();
            for entry in &entries {
                if life == Life::Reads {
                    look_around(&machine);
                }
                let mut out = Applied::default();
                machine.apply_entry(entry, &mut out).expect("a known entry");
                story.push(format!("{:?} {:?} {:x}", out.replies, out.published, machine.state_hash()));
            }
            (story, image(&mut machine))
        });
        let (told, last) = started.join().expect("the node lives");
        story.extend(told);
        pieces = last;
    }
    story
}

#[test]
fn nodes_with_different_lives_agree_on_every_answer_and_every_state() {
    let log = log();
    let reference = live(&log, Life::Undisturbed);
    assert!(reference.iter().any(|line| line.contains("nothing was changed")), "limits are met");
    for life in [Life::Restarts(1), Life::Restarts(10), Life::Restarts(37), Life::Reads] {
        for (index, (told, expected)) in live(&log, life).iter().zip(&reference).enumerate() {
            assert_eq!(told, expected, "entry {index}: {}", String::from_utf8_lossy(&log[index]));
        }
    }
}
