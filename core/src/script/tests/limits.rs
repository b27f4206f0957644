//! Scripts over their limits are refused, say which limit it was, and have changed nothing.

use super::*;
use crate::machine::settings::SettingsCommand;

/// A script that the limits must end, and the word by which the error names the limit.
const STOPPED: &[(&str, &str)] = &[
    ("while true do end", "CPU time"),
    ("while true do pcall(function() while true do end end) end", "CPU time"),
    ("pcall(function() while true do end end) return 1", "CPU time"),
    ("xpcall(function() while true do end end, function() return 1 end) return 1", "CPU time"),
    ("xpcall(function() while true do end end, function() while true do end end) return 1", "CPU time"),
    ("coroutine.resume(coroutine.create(function() while true do end end)) return 1", "CPU time"),
    ("local w = coroutine.wrap(function() while true do end end) pcall(w) return 1", "CPU time"),
    ("return ('x'):rep(1e9)", "memory"),
    ("pcall(string.rep, 'x', 1e9) return 1", "memory"),
    ("local t = {} while true do t[#t + 1] = ('x'):rep(10000) .. #t end", ""),
    ("local s = 'a' while true do s = s .. s end", "memory"),
    ("local s = ('a'):rep(8e6) xpcall(function() local t = {} for i = 1, 100 do t[i] = s .. i end end, function(e) return e .. s end) return 1", ""),
    ("local t = {} pcall(function() for i = 1, 1e9 do t[i] = i end end) redis.call('set', 'after', 1) return 1", ""),
    ("return string.find(('a'):rep(20000), ('a*'):rep(30) .. 'b')", "CPU time"),
    ("for i = 1, 1e9 do redis.call('get', 'k') end", ""),
    ("table.sort({3, 2, 1}, function() while true do end end)", "CPU time"),
    ("local s = ('x'):rep(100000) local n = 0 for i = 1, 1e7 do if s .. 'a' < s .. 'b' then n = n + 1 end end return n", "CPU time"),
    // Issue examples: shared references, cycles, natives over long texts.
    ("local s, t = ('x'):rep(8e6), {} for i = 1, 1500 do t[i] = s end return t", ""),
    ("local s, t = ('x'):rep(1e6), {} for i = 1, 1500 do t[i] = s end return cjson.encode(t)", ""),
    ("local s, t = ('x'):rep(1e6), {} for i = 1, 1500 do t[i] = s end return #cmsgpack.pack(t)", ""),
    ("local s, t = ('x'):rep(1e6), {} for i = 1, 1500 do t[i] = s end return #table.concat(t)", "memory"),
    ("local s = ('x'):rep(7e6) local h for i = 1, 600 do h = redis.sha1hex(s) end return h", "CPU time"),
    ("local t = {} for i = 1, 3000 do redis.call('set', 'b' .. i, ('v'):rep(1000000)) end", ""),
    ("for i = 1, 70 do redis.call('set', 'b' .. i, ('v'):rep(1000000)) end", "writes"),
    ("local t = {} t[1] = t t[2] = t return t", ""),
    ("redis.call('set', 'big', ('v'):rep(1e6)) local k = {} for i = 1, 5000 do k[i] = 'big' end return #redis.call('mget', unpack(k))", "memory"),
    ("redis.call('sadd', 's', 'x') return #redis.call('srandmember', 's', -1e9)", "memory"),
    ("redis.call('hset', 'h', 'f', 'x') return #redis.call('hrandfield', 'h', -1e9)", "memory"),
    ("local s = ('v'):rep(2e6) return redis.pcall('del', s, s, s)", "writes"),
    ("error(('x'):rep(4e6))", "reply"),
    ("return ('x'):rep(3e6)", "reply"),
    ("return redis.error_reply(('x'):rep(3e6))", "reply"),
];

#[test]
#[allow(clippy::disallowed_methods)] // A test may look at a clock.
fn a_script_over_its_limits_is_refused_and_changed_nothing() {
    for (body, limit) in STOPPED {
        let started = std::time::Instant::now();
        let mut bench = Bench::new();
        bench.say("SET k before");
        let hash = bench.machine.state_hash();
        let blob = bench.logged(&Command::Redis {
            db: 0,
            resp: Resp::Two,
            member: None,
            argv: [b"EVAL".as_slice(), format!("redis.call('set', 'k', 'v') {body}").as_bytes(), b"0"]
                .into_iter()
                .collect(),
        });
        assert_eq!(bench.machine.state_hash(), hash, "a run changes nothing");
        let reply = bench.run(&[b"EVAL", format!("redis.call('set', 'k', 'v') {body}").as_bytes(), b"0"]);
        assert!(reply.starts_with("-ERR script stopped"), "{body}: {reply:.200}");
        assert!(blob.len() < 1000, "{body}");
        assert!(reply.contains(limit) && reply.contains("nothing was changed"), "{body}: {reply}");
        assert_eq!(bench.say("EXISTS after b1 big"), ":0", "{body}");
        assert!(started.elapsed().as_secs() < 20, "{body} took {:?}", started.elapsed());
    }
}

/// The same with the time as it passes: how long the slowest takes is printed, and must be far from a second.
#[test]
#[allow(clippy::disallowed_methods)]
fn no_single_step_runs_on() {
    struct Watch(std::time::Instant);
    impl CpuMeter for Watch {
        fn elapsed_us(&mut self) -> u64 {
            self.0.elapsed().as_micros() as u64
        }
    }
    let slow = [
        "local s = ('x'):rep(7e6) for i = 1, 600 do s = redis.sha1hex(s .. i) .. s end",
        "local t = {} for i = 1, 200000 do t[i] = tostring(i * 7919 % 200003) end for i = 1, 100 do table.sort(t) end",
        "local t = {} for i = 1, 500 do t[i] = ('x'):rep(10000) .. i end for i = 1, 1000 do table.sort(t) end",
        "local t = {} for i = 1, 100000 do t[i] = i end for i = 1, 100000 do table.insert(t, 1, i) end",
        "local s = ('a'):rep(1e6) for i = 1, 1000 do string.find(s, ('a'):rep(5e5) .. 'b', 1, true) end",
        "local s = ('a'):rep(1e6) for i = 1, 1000 do string.find(s, ('a'):rep(5e5) .. 'b') end",
        "local s = ('a'):rep(1e6) for i = 1, 1000 do s:gsub('a*b', 'c') end",
        "local s = ('a'):rep(4e6) for i = 1, 1000 do s:upper() s:reverse() s:lower() end",
        "for i = 1, 1000 do ('x'):rep(15e6) end",
        "local s = '[' .. ('1,'):rep(500000) .. '1]' for i = 1, 100 do cjson.decode(s) end",
        "local s = '[' .. ('[],'):rep(300000) .. '1]' for i = 1, 100 do cjson.decode(s) end",
        "local s = cmsgpack.pack({}) s = s:rep(3000) for i = 1, 10000 do cmsgpack.unpack(s) end",
        "local t = {} for i = 1, 100000 do t[i] = i end for i = 1, 1000 do cmsgpack.pack(t) cjson.encode(t) end",
        "local f = ('x'):rep(1e6) for i = 1, 1000 do struct.size(f) struct.pack(f) end",
        "local s = ('x'):rep(8e6) local a, b = s .. 'a', s .. 'b' for i = 1, 1e6 do local c = a < b end",
        "local s = ('%s'):rep(50) for i = 1, 1e6 do s:format(unpack(('x'):rep(50):rep(1).x or {})) end",
        "local t = {} for i = 1, 300000 do t[i] = 'x' end for i = 1, 1000 do table.concat(t) end",
        "for i = 1, 1e6 do redis.call('keys', '*') end",
        "local a = {} for i = 1, 7000 do a[i] = 'k' .. i end for i = 1, 1e5 do redis.call('exists', unpack(a)) end",
        "for i = 1, 1e5 do redis.call('append', 'k', ('x'):rep(10000)) end",
        "local t = {} t[1] = t t[2] = t return t",
        "local t = {} for i = 1, 100 do t = {t, t} end return t",
        "local t = {} for i = 1, 20 do t = {t, t} end return cjson.encode(t)",
        "local s = ('a'):rep(1e5) for i = 1, 1e5 do for w in s:gmatch('.-b') do end end",
        "return ('x'):rep(1e5, 'y')",
        "local t = setmetatable({}, {__index = function(t, k) return t[k + 1] end}) return t[1]",
        "local s = string.rep('(', 30) .. string.rep(')', 30) for i = 1, 1e6 do string.find(('x'):rep(1000), s) end",
    ];
    let mut worst = (std::time::Duration::ZERO, "");
    for body in slow {
        let mut bench = Bench::new();
        for i in 0..2000 {
            bench.say(&format!("SET key{i} v"));
        }
        let mut blob = Vec::new();
        let argv = [b"EVAL".as_slice(), body.as_bytes(), b"0"].into_iter().collect();
        Command::Redis { db: 0, resp: Resp::Two, member: None, argv }.encode(&mut blob);
        let started = std::time::Instant::now();
        bench.engine.run(&bench.machine, bench.stamp, &blob, &mut Watch(started));
        worst = worst.max((started.elapsed(), body));
        println!("{:?} {body}", started.elapsed());
    }
    println!("the slowest: {worst:?}");
    assert!(worst.0.as_secs() < 2, "{worst:?}");
}

/// One may show a thousand holders, and takes milliseconds.
#[test]
fn the_meter_is_read_for_each_look_at_a_lock() {
    struct Reads(usize);
    impl CpuMeter for Reads {
        fn elapsed_us(&mut self) -> u64 {
            self.0 += 1;
            0
        }
    }
    let mut bench = Bench::new();
    for look in ["LOCK.INFO", "LOCK.QUEUE", "LOCK.EXPLAIN"] {
        let body = format!("for i = 1, 40 do redis.call('{look}', 'k') end");
        let mut blob = Vec::new();
        let argv = [b"EVAL".as_slice(), body.as_bytes(), b"0"].into_iter().collect();
        Command::Redis { db: 0, resp: Resp::Two, member: None, argv }.encode(&mut blob);
        let mut reads = Reads(0);
        bench.engine.run(&bench.machine, bench.stamp, &blob, &mut reads);
        assert!(reads.0 >= 40, "{look}: {}", reads.0);
    }
}

#[test]
fn what_is_within_the_limits_runs() {
    let mut bench = Bench::new();
    // Deep recursion is an ordinary error.
    let reply = bench.eval("local function f() return 1 + f() end return f()");
    assert!(reply.contains("stack overflow") || reply.starts_with("-ERR script stopped"), "{reply}");
    let reply = bench.eval("return {unpack({}, 1, 5e6)}");
    assert!(reply.contains("too many results to unpack"), "{reply}");
    // A reply that never ends is cut.
    let reply = bench.eval("local t = {} t[1] = t return t");
    assert!(reply.contains("reached lua stack limit"), "{reply}");
    assert_eq!(bench.eval("return #string.rep('x', 1000000)"), ":1000000");
    assert_eq!(
        bench.eval("local t = {} for i = 1, 20000 do t[i] = 'item' .. i end return #table.concat(t)"),
        ":168894"
    );
    let reply = bench.eval("return string.rep('x', 2000000)");
    assert_eq!(reply.len(), 2_000_001);
    // An error handler that fails is an ordinary error, too.
    let reply = bench.eval("local ok = xpcall(error, function() error('again') end) return ok");
    assert_eq!(reply, "nil");
}

/// A body of a megabyte: whether it is known already does not matter.
#[test]
fn a_megabyte_of_script_is_answered_alike_cold_and_warm() {
    let long = format!("local x = '{}' return #x", "y".repeat(1_000_000));
    let code = format!("local x = 0 {} return x", "x = x + 1 ".repeat(100_000));
    for body in [long, code] {
        let mut bench = Bench::new();
        let (cold, warm) = (bench.eval(&body), bench.eval(&body));
        assert_eq!(cold, warm);
        bench.engine = Engine::new();
        assert_eq!(bench.eval(&body), cold);
    }
}

/// A script without room for its writes gets an error that says what there is no room for.
#[test]
fn a_script_without_room_gets_the_error_of_max_memory() {
    let mut bench = Bench::new();
    let set = SettingsCommand::Set { name: b"max-memory", value: b"1mb" };
    assert_eq!(bench.apply(&Command::Settings(set)), Reply::OK);
    while bench.run(&[b"SET", format!("fill{}", bench.seq).as_bytes(), &[b'v'; 10_000]]) == "+OK" {}
    let body = "redis.call('del', 'fill2') return redis.call('set', KEYS[1], ('v'):rep(50000))";
    let reply = bench.run(&[b"EVAL", body.as_bytes(), b"1", b"k"]);
    assert_eq!(reply, "-OOM command not allowed when used memory > 'max-memory'.");
    assert_eq!(bench.say("EXISTS fill2"), ":1", "nothing was changed");
}

/// New scripts are state like any other: where there is no room they are not kept. Those that are run still run, since releases are scripts.
#[test]
fn scripts_without_room_are_run_and_not_kept() {
    let mut bench = Bench::new();
    let set = SettingsCommand::Set { name: b"max-memory", value: b"2mb" };
    assert_eq!(bench.apply(&Command::Settings(set)), Reply::OK);
    let body = |number: u64| format!("return {number} --{}", "x".repeat(300_000));
    let held = |bench: &Bench| bench.machine.memory_used_bytes();
    for number in 0..20 {
        let reply = bench.run(&[b"EVAL", body(number).as_bytes(), b"0"]);
        assert_eq!(reply, format!(":{number}"));
        assert!(held(&bench) <= 2 * 1024 * 1024, "{} bytes after {number}", held(&bench));
    }
    assert!(held(&bench) > 1_500_000, "those that have room are kept");
    let reply = bench.run(&[b"SCRIPT", b"LOAD", body(50).as_bytes()]);
    assert_eq!(reply, "-OOM command not allowed when used memory > 'max-memory'.");
    while bench.run(&[b"SET", format!("fill{}", bench.seq).as_bytes(), &[b'v'; 1_000]]) == "+OK" {}
    // A native form too.
    let release = format!("if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end --{}", "x".repeat(3_000));
    let before = held(&bench);
    assert_eq!(bench.run(&[b"EVAL", release.as_bytes(), b"1", b"none", b"me"]), ":0");
    assert!(held(&bench) <= before + 300, "{} after {before}", held(&bench));
}
