//! Scripts with the VM on: bytes are turned into Lua by a small grammar, or taken as they are. Whatever a script does, it
//! ends, nothing panics, the bytes to log are bounded, its effects come out of the log as they came out of the overlay, and
//! two engines with different pasts leave machines that are whole.
#![no_main]

use libfuzzer_sys::fuzz_target;
use redfence_core_fuzz::Leader;
use std::cell::RefCell;

thread_local! {
    /// Goes on from script to script, so that scripts meet keys that others left; begun anew now and then.
    static LEADER: RefCell<(Leader, u32)> = RefCell::new((Leader::new(), 0));
}

const RUNS_PER_LEADER: u32 = 200;

struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn pick<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[usize::from(self.next()) % words.len()]
    }
}

const NAMES: &[&str] = &["a", "b", "c", "t", "s"];
const ATOMS: &[&str] = &[
    "1", "0", "-1", "2.5", "1e308", "0/0", "''", "'x'", "'value'", "nil", "true", "false", "{}", "{1,2,3}", "{a=1}", "KEYS",
    "ARGV[1]", "KEYS[1]", "ARGV", "#ARGV", "string.rep('ab', 300)", "function(x) return x end", "...", "math.huge",
];
const CALLS: &[&str] = &[
    "redis.call('GET',KEYS[1])", "redis.call('SET',KEYS[1],ARGV[1])", "redis.pcall('INCR',KEYS[2])", "redis.call('DEL',KEYS[1])",
    "redis.pcall('RPUSH','l','x','y')", "redis.pcall('LPOP','l')", "redis.pcall('LRANGE','l',0,-1)", "redis.pcall('SADD','s','n')",
    "redis.pcall('SPOP','s')", "redis.pcall('HSET','h','f','3')", "redis.pcall('HGETALL','h')", "redis.pcall('ZADD','z',3,'c')",
    "redis.pcall('ZRANGE','z',0,-1,'WITHSCORES')", "redis.pcall('PEXPIRE',KEYS[1],1000)", "redis.pcall('KEYS','*')",
    "redis.pcall('SET',KEYS[1],'v','NX','PX',50)", "redis.pcall('RENAME','k1','k3')", "redis.pcall('COPY','l','l2')",
    "redis.pcall('SUNIONSTORE','u','s','s')", "redis.pcall('EXPIRE','l',1)", "redis.pcall('SCAN','0')", "redis.pcall('FLUSHDB')",
    "redis.pcall('APPEND',KEYS[1],'xyz')", "redis.pcall('SETRANGE',KEYS[1],5,'q')", "redis.pcall('LMOVE','l','l','LEFT','RIGHT')",
    "redis.pcall('GETEX',KEYS[1],'PX',5)", "redis.pcall('PUBLISH','ch','m')", "redis.pcall('TIME')", "redis.pcall('RANDOMKEY')",
    "redis.pcall('SELECT',1)", "redis.pcall('BLPOP','l',0)", "redis.pcall('LOCK.INFO','k1')", "redis.pcall('LOCK.ACQUIRE','q',9)",
    "redis.pcall('PUBLISH','ch',s)", "redis.pcall('SADD','s',s)", "redis.pcall('MSET','k1',s,'k2','x')", "redis.pcall('MSETNX','m1','a','m2','b')",
    "redis.pcall('SET',KEYS[2],s,'KEEPTTL','GET')", "redis.pcall('GETDEL',KEYS[1])", "redis.pcall('PERSIST',KEYS[1])",
    "redis.setresp(3)", "redis.error_reply('E')", "redis.status_reply('S')", "redis.sha1hex('x')", "redis.log(1,'x')",
    "cjson.encode(t)", "cjson.decode('[1,{}]')", "cmsgpack.pack(t)", "cmsgpack.unpack(cmsgpack.pack(1))",
    "struct.pack('>I4',1)", "bit.band(1,3)", "table.concat(t,',')", "table.sort(t)", "table.insert(t,1)", "table.remove(t)",
    "unpack(t)", "select('#',...)", "tostring(t)", "tonumber(s)", "string.format('%s %d',s,1)", "string.find(s,'a*b')",
    "string.gsub(s,'a','b')", "string.byte(s)", "s:rep(10)", "pcall(error,'x')", "pcall(error,{err='x'})", "next(t)", "#t",
    "setmetatable(t,{__index=t})", "math.random(10)", "coroutine.wrap(function() coroutine.yield(1) end)()", "rawget(t,1)",
];
const OPERATORS: &[&str] = &["+", "-", "*", "/", "%", "^", "..", "==", "~=", "<", "<=", " and ", " or "];

fn expression(choices: &mut Choices<'_>, depth: u32) -> String {
    match (choices.next() % 8, depth) {
        (0..=2, _) | (_, 0) => choices.pick(ATOMS).to_string(),
        (3, _) => choices.pick(NAMES).to_string(),
        (4, _) => choices.pick(CALLS).to_string(),
        (5, _) => {
            let left = expression(choices, depth - 1);
            format!("({left}{}{})", choices.pick(OPERATORS), expression(choices, depth - 1))
        }
        (6, _) => format!("{{{},{}}}", expression(choices, depth - 1), expression(choices, depth - 1)),
        (_, _) => format!("select(2,pcall(function() return {} end))", expression(choices, depth - 1)),
    }
}

fn block(choices: &mut Choices<'_>, depth: u32) -> String {
    (0..choices.next() % 4).map(|_| statement(choices, depth)).collect()
}

fn statement(choices: &mut Choices<'_>, depth: u32) -> String {
    if depth == 0 {
        return format!("{}={}\n", choices.pick(NAMES), choices.pick(CALLS));
    }
    let depth = depth - 1;
    match choices.next() % 11 {
        0 => format!("{}={}\n", choices.pick(NAMES), expression(choices, 2)),
        1 => format!("if {} then\n{}else\n{}end\n", expression(choices, 2), block(choices, depth), block(choices, depth)),
        2 => format!("for i=1,{} do\n{}end\n", choices.next(), block(choices, depth)),
        3 => format!("for k,v in pairs(t) do\n{}end\n", block(choices, depth)),
        4 => format!("while {} do\n{}break end\n", expression(choices, 1), block(choices, depth)),
        5 => format!("pcall(function()\n{}end)\n", block(choices, depth)),
        6 => format!("xpcall(function()\n{}end,function(e) {} return e end)\n", block(choices, depth), block(choices, 0)),
        7 => format!("t[{}]={}\n", expression(choices, 1), expression(choices, 2)),
        8 => format!("repeat\n{}until {}\n", block(choices, depth), choices.pick(&["true", "1", "#t>=0"])),
        9 => format!("local function f(...)\n{}return {} end a=f(1)\n", block(choices, depth), expression(choices, 1)),
        _ => format!("a={}\n", choices.pick(CALLS)),
    }
}

fn lua(data: &[u8]) -> Vec<u8> {
    let mut choices = Choices(data);
    if choices.next() % 8 == 0 {
        return choices.0.to_vec();
    }
    let mut body = "local a,b,c,t,s=1,2,nil,{},'str'\n".to_string();
    while !choices.0.is_empty() {
        body += &statement(&mut choices, 3);
        if body.len() > 8_000 {
            break;
        }
    }
    body += &format!("return {}", expression(&mut choices, 3));
    body.into_bytes()
}

fuzz_target!(|data: &[u8]| {
    let body = lua(data);
    LEADER.with_borrow_mut(|(leader, runs)| {
        let words: [&[u8]; 6] = [b"EVAL", &body, b"2", b"k1", b"k2", b"value"];
        match data.first().map_or(0, |byte| byte >> 6) {
            0 => drop(leader.request(&words)),
            1 => leader.gather(None, &words),
            member => leader.gather(Some(u64::from(member)), &words),
        }
        *runs += 1;
        if *runs == RUNS_PER_LEADER {
            leader.check();
            (*leader, *runs) = (Leader::new(), 0);
        }
    });
});
