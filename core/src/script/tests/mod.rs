//! Scripts from a client's side. The random comparison with a real server is `core/tests/differential`.

mod forms;
mod limits;
mod rights;

use super::*;
use crate::keyspace::tests::shown;
use crate::keyspace::Resp;
use crate::machine::{Applied, Command, Machine};
use crate::reply::Reply;
use crate::types::{Member, Origin, RequestId, Stamp};

/// An eighth of the time that passes, so that a busy machine stops no script that is within its limits.
#[allow(clippy::disallowed_methods)] // A test may look at a clock.
struct Slow(std::time::Instant);

#[allow(clippy::disallowed_methods)]
impl Slow {
    fn new() -> Slow {
        Slow(std::time::Instant::now())
    }
}

impl CpuMeter for Slow {
    fn elapsed_us(&mut self) -> u64 {
        self.0.elapsed().as_micros() as u64 / 8
    }
}

/// A leader and its log.
struct Bench {
    machine: Machine,
    engine: Engine,
    stamp: Stamp,
    seq: u64,
    member: Option<Member>,
    /// Whether recognised scripts are run all the same.
    always_run: bool,
}

impl Bench {
    fn new() -> Bench {
        let stamp = Stamp { term: 1, logical_ms: 5_000, wall_us: 1_700_000_000_123_456 };
        let (machine, engine) = (Machine::new(), Engine::new());
        Bench { machine, engine, stamp, seq: 0, member: None, always_run: false }
    }

    /// What goes into the log for a request.
    fn logged(&mut self, command: &Command<'_>) -> Vec<u8> {
        let mut blob = Vec::new();
        command.encode(&mut blob);
        match self.engine.prepare(&self.machine, &blob) {
            Preparation::AsIs => blob,
            Preparation::Native(native) if !self.always_run || !command.is_request() => native.to_vec(),
            Preparation::Native(_) | Preparation::Run => {
                self.engine.run(&self.machine, self.stamp, &blob, &mut Slow::new()).blob.to_vec()
            }
        }
    }

    fn apply(&mut self, command: &Command<'_>) -> Reply {
        assert!(!self.machine.has_due(self.stamp), "the tests here let nothing expire");
        let blob = self.logged(command);
        let logged = Command::decode(&blob).expect("what is logged can be read");
        assert!(!logged.is_request(), "{logged:?}");
        self.seq += 1;
        let id = RequestId { origin: Origin { node: 1, incarnation: 1 }, seq: self.seq };
        let mut out = Applied::default();
        self.machine.apply(self.stamp, Some(id), logged, &mut out);
        self.machine.check_invariants().expect("the invariants hold");
        assert_eq!(self.machine.stats().differing_effects, 0);
        out.replies.pop().expect("an answer").1
    }

    fn reply(&mut self, argv: &[&[u8]]) -> Reply {
        let argv = argv.iter().copied().collect();
        self.apply(&Command::Redis { db: 0, resp: Resp::Two, member: self.member, argv })
    }

    fn run(&mut self, argv: &[&[u8]]) -> String {
        shown(&self.reply(argv))
    }

    fn say(&mut self, line: &str) -> String {
        self.run(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
    }

    fn eval(&mut self, body: &str) -> String {
        self.run(&[b"EVAL", body.as_bytes(), b"2", b"k1", b"k2", b"a1", b"a2"])
    }
}

#[track_caller]
fn check(body: &str, expected: &str) {
    assert_eq!(Bench::new().eval(body), expected, "{body}");
}

#[test]
fn values_become_replies() {
    check("return 1", ":1");
    check("return 3.99", ":3");
    check("return -3.99", ":-3");
    check("return 'x'", "$x");
    check("return true", ":1");
    check("return false", "nil");
    check("return nil", "nil");
    check("return", "nil");
    check("return {1, 'two', {3}, false, nil, 5}", "*4 :1 $two *1 :3 nil");
    check("return {ok='fine'}", "+fine");
    check("return {err='MY mistake'}", "-MY mistake");
    check("return redis.status_reply('OK')", "+OK");
    check("return redis.error_reply('ERROR')", "-ERR ERROR");
    check("return redis.error_reply('MY ERR')", "-MY ERR");
    check("return redis.error_reply('-MY ERR')", "-MY ERR");
    check("return {KEYS[1], KEYS[2], ARGV[1], ARGV[2], #KEYS, #ARGV}", "*6 $k1 $k2 $a1 $a2 :2 :2");
    check("return {double=3.5}", ",3.5");
    check("return {map={a=1}}", "%1 $a :1");
    check("return {set={x=true}}", "~1 $x");
}

#[test]
fn replies_become_values() {
    check("return redis.call('set', KEYS[1], 'v')", "+OK");
    check("return redis.call('set', KEYS[1], 'v').ok", "$OK");
    check("return redis.call('get', 'none') == false", ":1");
    check("redis.call('hset', 'h', 'f', 1) return redis.call('hgetall', 'h')", "*2 $f $1");
    check("redis.call('zadd', 'z', 1.5, 'm') return redis.call('zscore', 'z', 'm')", "$1.5");
    check("redis.call('set', 'n', 0.1) return redis.call('get', 'n')", "$0.10000000000000001");
    check("redis.call('set', 'n', 10) return redis.call('incrby', 'n', 2^31)", ":2147483658");
    check("return redis.pcall('incr').err", "$ERR Wrong number of args calling Redis command from script");
    check(
        "redis.setresp(3) redis.call('zadd', 'z', 1.5, 'm') return redis.call('zscore', 'z', 'm').double * 2",
        ":3",
    );
    check("redis.setresp(3) redis.call('hset', 'h', 'f', 1) return redis.call('hgetall', 'h').map.f", "$1");
    check("redis.setresp(3) return redis.call('get', 'none') == nil", "#true");
    check("local t = redis.call('time') return {t[1], t[2]}", "*2 $1700000000 $123456");
    check("redis.call('select', 3) redis.call('set', 'x', 1) redis.call('select', '0') return redis.call('exists', 'x')", ":0");
}

#[test]
fn errors_read_as_in_redis() {
    let sha = |body: &str| scripts::sha_hex(&scripts::sha1(body.as_bytes()));
    for (body, text) in [
        ("error('boom')", "ERR user_script:1: boom"),
        ("return redis.call('incr', 'a', 'b')", "ERR Wrong number of args calling Redis command from script"),
        ("return redis.call('nosuch')", "ERR Unknown Redis command called from script"),
        ("return redis.call('eval', 'return 1', 0)", "ERR This Redis command is not allowed from script"),
        ("return redis.call('blpop', 'none', 0)", "ERR This Redis command is not allowed from script"),
        ("return redis.call()", "ERR Please specify at least one argument for this redis lib call"),
        ("return redis.call('get', {})", "ERR Lua redis lib command arguments must be strings or integers"),
        (
            "redis.call('set', 's', 'x') return redis.call('incr', 's')",
            "ERR value is not an integer or out of range",
        ),
        (
            "redis.call('set', 's', 'x') return redis.call('lpush', 's', 'x')",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
        ),
        (
            "return nosuch",
            "ERR user_script:1: Script attempted to access nonexistent global variable 'nosuch'",
        ),
        ("error({err='MY own'})", "MY own"),
    ] {
        check(body, &format!("-{text} script: {}, on @user_script:1.", sha(body)));
    }
    let body = "local x = 1\n\nreturn redis.call('nosuch')";
    check(
        body,
        &format!("-ERR Unknown Redis command called from script script: {}, on @user_script:3.", sha(body)),
    );
    let reply = Bench::new().eval("return return");
    assert!(reply.starts_with("-ERR Error compiling script (new function): user_script:1:"), "{reply}");
    check(
        "local ok, e = pcall(redis.call, 'nosuch') return {tostring(ok), e}",
        "*2 $false $ERR Unknown Redis command called from script",
    );
    check("local ok, e = pcall(error, 'x') return e", "$x");
    check("local ok, e = pcall(function() error('x') end) return e", "$user_script:1: x");
    check("return select(2, pcall(error, {code=7})).code", ":7");
}

#[test]
fn globals_cannot_be_tampered_with() {
    for body in [
        "x = 1",
        "_G.x = 1",
        "rawset(_G, 'x', 1)",
        "string.sub = 1",
        "redis.call = 1",
        "math.huge = 1",
        "function f() end",
        "getmetatable('').__index = nil",
        "KEYS = nil x = 1",
    ] {
        let reply = Bench::new().eval(body);
        assert!(reply.contains("ttempt to modify a readonly table"), "{body}: {reply}");
    }
    let reply = Bench::new().eval("setmetatable(_G, {})");
    assert!(reply.starts_with("-ERR"), "{reply}");
    for name in [
        "loadstring",
        "load",
        "getfenv",
        "setfenv",
        "collectgarbage",
        "print",
        "debug",
        "require",
        "dofile",
        "newproxy",
        "buffer",
        "vector",
    ] {
        let reply = Bench::new().eval(&format!("return {name}"));
        assert!(reply.contains(&format!("nonexistent global variable '{name}'")), "{name}: {reply}");
    }
    check("return tostring({}) .. tostring(print_) ", &{
        let body = "return tostring({}) .. tostring(print_) ";
        let sha = scripts::sha_hex(&scripts::sha1(body.as_bytes()));
        format!("-ERR user_script:1: Script attempted to access nonexistent global variable 'print_' script: {sha}, on @user_script:1.")
    });
    check(
        "return string.match(tostring({}), '^table: 0x') .. string.match(tostring(tostring), '^function')",
        "$table: 0xfunction",
    );
}

#[test]
fn lua_51_is_there() {
    check("return {unpack({1, 2, 3})}", "*3 :1 :2 :3");
    check("return table.getn({1, 2})", ":2");
    check("local t = {} for w in string.gfind('a b', '%a') do t[#t + 1] = w end return t", "*2 $a $b");
    check("return math.pow(2, 10) + math.mod(7, 4)", ":1027");
    check(
        "return tostring(1e15) .. ' ' .. tostring(2^53) .. ' ' .. tostring(0.1)",
        "$1e+15 9.007199254741e+15 0.1",
    );
    check("return string.format('%s %d %5.2f %q', 0.1, 3, 2.5, 'x')", "$0.1 3  2.50 \"x\"");
    check("return _VERSION", "$Lua 5.1");
    check("local s = 0; for i, v in ipairs({1, 2, 3}) do s = s + v; end; return s;", ":6");
    check("local t, n = {b=1, a=2, [10]=3, [{}]=4, [print_]=5 and nil, [tostring]=6}, 0 for k in pairs(t) do n = n + 1 end return n", &{
        let body = "local t, n = {b=1, a=2, [10]=3, [{}]=4, [print_]=5 and nil, [tostring]=6}, 0 for k in pairs(t) do n = n + 1 end return n";
        let sha = scripts::sha_hex(&scripts::sha1(body.as_bytes()));
        format!("-ERR user_script:1: Script attempted to access nonexistent global variable 'print_' script: {sha}, on @user_script:1.")
    });
    check("local t, n = {b=1, a=2, [10]=3, [{}]=4, [tostring]=6}, 0 for k in pairs(t) do n = n + 1 end return n", ":5");
    check(
        "local t, n = {x=1, y=2}, 0 local k = next(t) while k do n = n + t[k] k = next(t, k) end return n",
        ":3",
    );
    check("return next({}) == nil", ":1");
    check("return ('x'):rep(3) .. ('abc'):upper()", "$xxxABC");
    check("local co = coroutine.wrap(function(a) local b = coroutine.yield(a + 1) return b * 2 end) return {co(1), co(5)}", "*2 :2 :10");
    check("return type(os.clock())", "$number");
    check("return #arg", &{
        let sha = scripts::sha_hex(&scripts::sha1(b"return #arg"));
        format!("-ERR user_script:1: Script attempted to access nonexistent global variable 'arg' script: {sha}, on @user_script:1.")
    });
}

#[test]
fn libraries_are_there() {
    check("return cjson.encode({1, 2, {a='x/y', n=0.1}})", r#"$[1,2,{"a":"x\/y","n":0.1}]"#);
    check("return cjson.encode({})", "${}");
    check("return cjson.encode({[1]=1, [3]=3})", "$[1,null,3]");
    check("local t = cjson.decode('{\"a\": [1, null, \"\\\\u00e9\"], \"b\": true}') return {t.a[1], t.a[2] == cjson.null, t.a[3], t.b}", "*4 :1 :1 $é :1");
    check(
        "local ok, e = pcall(cjson.decode, '[1,') return e",
        "$Expected value but found T_END at character 4",
    );
    check(
        "local ok, e = pcall(cjson.encode, {f=tostring}) return e",
        "$Cannot serialise function: type not supported",
    );
    check(
        "return {bit.band(0xff, 0x0f), bit.bor(1, 6), bit.lshift(1, 31), bit.tohex(255), bit.bnot(0)}",
        "*5 :15 :7 :-2147483648 $000000ff :-1",
    );
    check("return redis.sha1hex('')", "$da39a3ee5e6b4b0d3255bfef95601890afd80709");
    check("return math.random() == math.random()", "nil");
    check(
        "return {cmsgpack.unpack(cmsgpack.pack(1, -200, 'x', {1, 2}, {a=true}, 1.5))}",
        "*6 :1 :-200 $x *2 :1 :2 *0 :1",
    );
    check("return cmsgpack.unpack(cmsgpack.pack({a=70000})).a", ":70000");
    check(
        "return redis.sha1hex(cmsgpack.pack({1, 2, 'abc', 300, -5, 0.1}))",
        "$5c517738dbfc6aa65779095746e1a2fdb9ef2101",
    );
    check("return {struct.unpack('>I2c0i4', struct.pack('>I2c0i4', 3, 'abc', -7))}", "*3 $abc :-7 :10");
    check("return {struct.size('>I2i4d'), struct.size('!8I1d')}", "*2 :14 :16");
}

#[test]
fn ordinary_errors_keep_earlier_writes() {
    let mut bench = Bench::new();
    assert!(bench.eval("redis.call('set', 'k', 'v') error('x')").starts_with("-ERR"));
    assert_eq!(bench.eval("return redis.call('get', 'k')"), "$v");
}

#[test]
fn the_cache_answers_by_sha() {
    let mut bench = Bench::new();
    let sha = scripts::sha_hex(&scripts::sha1(b"return ARGV[1]"));
    assert_eq!(
        bench.run(&[b"EVALSHA", sha.as_bytes(), b"0", b"x"]),
        "-NOSCRIPT No matching script. Please use EVAL."
    );
    assert_eq!(bench.run(&[b"EVALSHA", b"short", b"0"]), "-NOSCRIPT No matching script. Please use EVAL.");
    assert_eq!(bench.run(&[b"script", b"load", b"return ARGV[1]"]), format!("${sha}"));
    assert_eq!(bench.run(&[b"EVALSHA", sha.to_ascii_uppercase().as_bytes(), b"0", b"x"]), "$x");
    assert_eq!(bench.run(&[b"SCRIPT", b"EXISTS", sha.as_bytes(), b"zz"]), "*2 :1 :0");
    assert_eq!(bench.run(&[b"SCRIPT", b"FLUSH"]), "+OK");
    assert_eq!(bench.run(&[b"SCRIPT", b"EXISTS", sha.as_bytes()]), "*1 :0");
    assert_eq!(bench.run(&[b"EVAL", b"return 1", b"-1"]), "-ERR Number of keys can't be negative");
    assert_eq!(
        bench.run(&[b"EVAL", b"return 1", b"2", b"a"]),
        "-ERR Number of keys can't be greater than number of args"
    );
    assert_eq!(bench.run(&[b"EVAL", b"return 1", b"x"]), "-ERR value is not an integer or out of range");
    let reply = bench.run(&[b"EVAL_RO", b"return redis.call('set', KEYS[1], 1)", b"1", b"k"]);
    assert!(reply.starts_with("-ERR Write commands are not allowed from read-only scripts."), "{reply}");
    let reply =
        bench.run(&[b"EVAL", b"#!lua flags=no-writes\nreturn redis.call('set', KEYS[1], 1)", b"1", b"k"]);
    assert!(reply.starts_with("-ERR Write commands are not allowed from read-only scripts."), "{reply}");
}

/// `cargo test --release -- --ignored --nocapture` shows what a small script costs.
#[test]
#[ignore = "measures"]
#[allow(clippy::disallowed_methods)]
fn cost_of_a_small_script() {
    let mut bench = Bench::new();
    let body =
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
    const RUNS: u32 = 200_000;
    let started = std::time::Instant::now();
    for _ in 0..RUNS {
        bench.eval(body);
    }
    println!("{:?} a run", started.elapsed() / RUNS);
}
