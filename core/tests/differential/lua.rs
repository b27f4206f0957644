//! Random Lua programs that must answer the same in Redis and here: typed, so that nearly every line does something, and written
//! down by the program itself in a form that two runs can be compared in.
//!
//! Redis adds `ignore_error_stats_update` to tables of errors: not shown. Left out are the documented differences: numbers with a fraction joined by `..`, texts of Lua's own errors, orders of `pairs`,
//! sets and random picks, times left, `-0` as a constant (one with 0 in Lua 5.1), escapes that Lua 5.1 does not know.

use super::generate::{self, Dice};
use std::fmt::Write;

/// Writes values down: numbers as Redis prints them, strings byte by byte, maps in the order of their keys.
const PRELUDE: &str = r"local out, n1, n2, n3, s1, s2, t, u = {}, 3, -2, 0.5, 'abc', ARGV[1], {4, 1, 3}, {'x', 'yy', ''}
local function show(v, d)
  d = d or 0
  local k = type(v)
  if k == 'number' then if v ~= v then return 'nan' end if v == 0 then return '0' end return string.format('%.14g', v) end
  if k == 'string' then return (string.gsub(v, '[^%w ]', function(c) return string.format('<%d>', string.byte(c)) end)) end
  if k ~= 'table' then return k .. ((k == 'boolean') and tostring(v) or '') end
  if d > 4 then return '...' end
  local p, keys = {}, {}
  for i = 1, #v do p[#p + 1] = show(v[i], d + 1) end
  for key in pairs(v) do if type(key) == 'string' and key ~= 'ignore_error_stats_update' then keys[#keys + 1] = key end end
  table.sort(keys)
  for _, key in ipairs(keys) do p[#p + 1] = show(key) .. '=' .. show(v[key], d + 1) end
  return '{' .. table.concat(p, ',') .. '}'
end
local function put(...) if #out < 60 then for i = 1, select('#', ...) do out[#out + 1] = show((select(i, ...))) end end end
local function num(x) x = tonumber(x) or 5 if x ~= x or x > 1e6 or x < -1e6 then return 7 end if x == 0 then return 0 end return x end
local function int(x) return math.floor(num(x)) end
local function str(x) return string.sub(x, 1, 60) end
";

/// Answers in no order, at random, or of times.
const UNORDERED: &[&str] = &[
    "KEYS",
    "SCAN",
    "SSCAN",
    "HSCAN",
    "ZSCAN",
    "SMEMBERS",
    "SUNION",
    "SINTER",
    "SDIFF",
    "SPOP",
    "SRANDMEMBER",
    "TTL",
    "PTTL",
    "EXPIRETIME",
    "PEXPIRETIME",
];

pub(crate) fn program(dice: &mut Dice, now_ms: u64) -> String {
    let mut program = PRELUDE.to_owned();
    for _ in 0..3 + dice.roll(8) {
        statement(dice, 3, now_ms, &mut program);
    }
    program.push_str("put(n1, n2, n3, s1, s2, t, u)\nreturn out");
    program
}

fn statement(dice: &mut Dice, depth: usize, now_ms: u64, out: &mut String) {
    let choice = if depth == 0 { dice.roll(8) } else { dice.roll(20) };
    match choice {
        0 => line(out, format!("{} = num({})", dice.pick(&["n1", "n2", "n3"]), number(dice, 2))),
        1 => line(out, format!("{} = str({})", dice.pick(&["s1", "s2"]), text(dice, 2))),
        2 => line(out, format!("put({}, {})", number(dice, 2), text(dice, 1))),
        3 => line(out, format!("put({})", condition(dice, 2))),
        4 => on_numbers(dice, out),
        5 => on_texts(dice, out),
        6..=9 => call(dice, now_ms, out),
        10 => {
            line(out, format!("if {} then", condition(dice, 2)));
            block(dice, depth, now_ms, out);
            out.push_str("else\n");
            block(dice, depth, now_ms, out);
            out.push_str("end\n");
        }
        11 => {
            line(
                out,
                format!(
                    "for i = {}, {}, {} do n1 = num(n1 + i)",
                    dice.roll(5),
                    dice.roll(9),
                    dice.pick(&["1", "2", "-1", "0.5"])
                ),
            );
            block(dice, depth, now_ms, out);
            out.push_str("end\n");
        }
        12 => {
            out.push_str("for i, v in ipairs(t) do if i > 6 then break end n2 = num(n2 + v * i)\n");
            block(dice, depth - 1, now_ms, out);
            out.push_str("end\n");
        }
        13 => {
            line(out, format!("do local w = {} while w > 0 do w = w - 1", dice.roll(5)));
            block(dice, depth, now_ms, out);
            out.push_str("end end\n");
        }
        14 => {
            line(out, format!("do local w = 0 repeat local last = w >= {} w = w + 1", dice.roll(4)));
            block(dice, depth, now_ms, out);
            out.push_str("until last end\n");
        }
        15 => {
            out.push_str("put(pcall(function()\n");
            block(dice, depth, now_ms, out);
            line(
                out,
                format!(
                    "{} end))",
                    dice.pick(&[
                        "error({err = s1})",
                        "error(s1, 0)",
                        "return n1, s1",
                        "error()",
                        "return",
                        "error(nil)"
                    ])
                ),
            );
        }
        16 => {
            out.push_str("put(select(2, xpcall(function()\n");
            block(dice, depth, now_ms, out);
            out.push_str("error({code = n1}) end, function(e) return type(e) == 'table' and e.code end)))\n");
        }
        17 => {
            line(out, format!("do local function f(a, ...) local b = select('#', ...) if a <= 0 then return b, ... end return f(a - 1, {}, ...) end", number(dice, 1)));
            line(out, format!("put(f({})) end", dice.roll(5)));
        }
        18 => line(out, dice.pick(SNIPPETS).to_owned()),
        _ => {
            line(
                out,
                format!(
                    "do local up = {} local function g(x) up = num(up + x) return up end",
                    number(dice, 1)
                ),
            );
            line(out, format!("put(g(1), g({}), g(up)) end", number(dice, 1)));
        }
    }
}

/// Things that are not worth a grammar.
const SNIPPETS: &[&str] = &[
    "do local m = setmetatable({}, {__index = function(_, k) return #k end, __newindex = function(o, k, v) rawset(o, k, v .. '!') end}) m.a = s1 put(m.a, m.abc, rawget(m, 'zz')) end",
    "do local m = setmetatable({v = int(n1)}, {__add = function(a, b) return a.v + b end, __eq = function() return true end, __lt = function(a, b) return a.v < b.v end, __concat = function(a, b) return a.v .. b end, __call = function(o, x) return o.v * x end, __unm = function(o) return -o.v end, __tostring = function(o) return 'm' .. o.v end}) put(m + 2, m .. 'x', m(3), -m, tostring(m)) end",
    "do local co = coroutine.wrap(function(a) while true do a = coroutine.yield(a + n1) end end) put(co(1), co(2)) end",
    "do local co = coroutine.create(function() error({x = 1}) end) local ok, e = coroutine.resume(co) put(ok, e, coroutine.status(co)) end",
    "for k, v in string.gmatch('a=1, b=2,c=' .. int(n1), '(%w+)=(%w+)') do put(k, v) end",
    "put(string.gsub(s1, '%w', {a = '1', b = true, x = false}))",
    "put(string.gsub(s1 .. 'hello', '(l)(l?)', '%2-%1-%0'))",
    "put(string.find(s1 .. '[x]y', '[x]', 1, true), string.find('abc', '()b()'))",
    "put(string.match('2024-01-02', '(%d+)-(%d+)-(%d+)'), string.match(s1, '^(%a-)(.)$'))",
    "put(string.match('x (a(b)c) y', '%b()'), string.match('THE (quick) fox', '%f[%a]%a+', 3))",
    "put(string.byte(s1, 1, -1))",
    "put(string.format('%5d|%-6s|%05.1f|%x|%X|%o|%c|%e|%g|%i|%u|%%', int(n1), s1:sub(1, 5), n2, math.abs(int(n2)), 255, 8, 65, n1, n2, int(n3), 7))",
    "put(string.format('%q', s1), string.format('%.3s|%10.2s|', s1, s1))",
    "put(cjson.encode({int(n1), s1:gsub('[^%w]', ''), true, cjson.null, {}, {a = int(n2)}}))",
    "put(cjson.decode('{\"a\":[1,2.5,\"x\",null,true,{}],\"b\":{\"c\":-1e3}}').a, cjson.decode('[]'), cjson.decode('\"\\\\u00e9\\\\n\"'))",
    "put(pcall(cjson.decode, '[1,') == false, pcall(cjson.decode, s1) == true)",
    "put(cmsgpack.pack(int(n1), s1, {1, {2}}, true, n3))",
    "put(cmsgpack.unpack(cmsgpack.pack({int(n1), s1, {k = s1}}, int(n2), n3)))",
    "put(struct.unpack('>I2i4b', struct.pack('>I2i4b', math.abs(int(n1)) % 60000, int(n2), int(n3) % 100)))",
    "put(struct.pack('<dfs', n1, 0.5, 'z'), struct.size('>I2i8b'))",
    "put(bit.band(int(n1), 255), bit.bor(int(n2), 1), bit.bxor(int(n1), int(n2)), bit.bnot(int(n1)), bit.lshift(1, math.abs(int(n2)) % 40), bit.arshift(int(n1), 1), bit.tohex(int(n1)), bit.rol(int(n1), 3), bit.bswap(int(n1)))",
    "put(redis.sha1hex(s1), redis.status_reply('fine'), redis.error_reply('MY text'), redis.error_reply('no code'))",
    "put(tonumber('0x1F'), tonumber('10', 2), tonumber('zz', 36), tonumber(' 7 '), tonumber('1e2'), tonumber('1e'), tonumber(''), tonumber('8', 8))",
    "put(math.fmod(-7, 3), -7 % 3, 7 % -3, math.modf(-2.5), math.pow(2, 10), math.sqrt(16), math.ldexp(1, 4), math.frexp(8))",
    "put(unpack({1, 2, nil, 4}, 1, 4))",
    "put(select(-1, 1, 2, 3), select('#'), (select(2, 'a', 'b', 'c')))",
    "put(#'a\\0b', 'a\\0b' == 'a', '\\65\\10\\'', [[long\nstring]])",
    "put(next({}), next({5}), type(next), rawequal(s1, s1), rawlen == nil)",
    "put(1 == '1', '10' + 5, '3' * '4', 10 .. '', -2 ^ 2, not nil == true, 1 and nil, false or 'x')",
    "put('a' < 'b', 'a' < 'B', 'Z' < 'a', '' < 'a', 'a\\0a' < 'a\\0b', '10' < '9')",
    "put(table.concat({1, 'x', 2}, '-'), pcall(table.concat, {1, {}}) == false, table.maxn({1, 2, [10] = 3}))",
    "redis.setresp(3) put(redis.pcall('HGETALL', 'h0'), redis.pcall('GET', 'none'), redis.pcall('ZSCORE', 'z0', 'a')) redis.setresp(2)",
    "put(redis.pcall('SET', 's0', n3), redis.pcall('GET', 's0'), redis.pcall('SET', 's1', 1e15), redis.pcall('GET', 's1'), redis.pcall('APPEND', 's1', 2 ^ 60), redis.pcall('GET', 's1'))",
    "put(pcall(redis.call, 'INCR', 'l0'), redis.pcall('NOSUCH', 'x'), redis.pcall('GET'), redis.pcall('GET', 'a', 'b'))",
    "put(pcall(redis.call), pcall(redis.call, {}), pcall(redis.pcall, 'GET', true))",
    "do local a, b, c = (function() return 1, 2, 3 end)() local x = {(function() return 4, 5 end)(), (function() return 6, 7 end)()} a, b = b, a put(a, b, c, x) end",
    "do local q = {} for i = 1, 20 do q[i] = (i * 7919) % 23 end table.sort(q, function(a, b) return a > b end) put(q) end",
    "do local q = {n = 1, 2, 3, [5] = 5, ['6'] = 6} local c, s = 0, 0 for k, v in pairs(q) do c = c + 1 s = s + v end put(c, s) end",
];

fn line(out: &mut String, text: String) {
    out.push_str(&text);
    out.push('\n');
}

fn block(dice: &mut Dice, depth: usize, now_ms: u64, out: &mut String) {
    for _ in 0..dice.roll(3) {
        statement(dice, depth.saturating_sub(1), now_ms, out);
    }
}

fn number(dice: &mut Dice, depth: usize) -> String {
    let choice = if depth == 0 { dice.roll(5) } else { dice.roll(18) };
    let depth = depth.saturating_sub(1);
    match choice {
        0 => dice.roll(40).to_string(),
        1 => format!("-{}", 1 + dice.roll(9)),
        2 => dice.pick(&["0.5", "1e3", "0x10", ".25", "3."]).to_owned(),
        3 | 4 => dice.pick(&["n1", "n2", "n3", "#t", "#u", "#s1", "#ARGV", "#KEYS"]).to_owned(),
        5..=8 => format!(
            "({} {} {})",
            number(dice, depth),
            dice.pick(&["+", "-", "*", "%", "/"]),
            number(dice, depth)
        ),
        9 => format!("math.{}({})", dice.pick(&["floor", "ceil", "abs"]), number(dice, depth)),
        10 => {
            format!("math.{}({}, {})", dice.pick(&["max", "min"]), number(dice, depth), number(dice, depth))
        }
        11 => format!("(tonumber({}) or 9)", text(dice, depth)),
        12 => format!("#({})", text(dice, depth)),
        13 => format!(
            "(string.find({}, {}) or 0)",
            text(dice, depth),
            dice.pick(&["'a'", "'[%w]+'", "'.-b'", "'$'", "'^x*'", "'%d'"])
        ),
        14 => format!("({} and {} or {})", condition(dice, depth), number(dice, depth), number(dice, depth)),
        15 => format!("(t[int({})] or 1)", number(dice, depth)),
        16 => format!("num({}) ^ 2", number(dice, depth)),
        _ => format!("(string.byte({}) or 0)", text(dice, depth)),
    }
}

fn text(dice: &mut Dice, depth: usize) -> String {
    let choice = if depth == 0 { dice.roll(3) } else { dice.roll(15) };
    let depth = depth.saturating_sub(1);
    match choice {
        0 => dice.pick(&["'a'", "''", "'x,y z'", "'10'", "'\\0\\255'", "\"q'\"", "[[b]]"]).to_owned(),
        1 => dice.pick(&["s1", "s2", "ARGV[1]", "KEYS[1]", "KEYS[2]"]).to_owned(),
        2 => format!("tostring(int({}))", number(dice, 0)),
        3 | 4 => format!("({} .. {})", text(dice, depth), text(dice, depth)),
        5 => format!("string.rep({}, {})", text(dice, depth), dice.roll(4)),
        6 => format!(
            "string.sub({}, {}, {})",
            text(dice, depth),
            dice.roll(5),
            dice.pick(&["-1", "2", "3", "-2", "0"])
        ),
        7 => format!("string.{}({})", dice.pick(&["upper", "lower", "reverse"]), text(dice, depth)),
        8 => format!(
            "(string.gsub({}, {}, {}))",
            text(dice, depth),
            dice.pick(&["'a'", "'%s'", "'.'", "'%w+'", "'^.'", "''"]),
            dice.pick(&["'z'", "''", "'%%'", "'<%0>'"])
        ),
        9 => format!("string.format('%d', int({}))", number(dice, depth)),
        10 => format!("string.format('%5.2f', num({}))", number(dice, depth)),
        11 => "table.concat(u, ',')".to_owned(),
        12 => format!("tostring(num({}))", number(dice, depth)),
        13 => format!("({} and {} or {})", condition(dice, depth), text(dice, depth), text(dice, depth)),
        _ => format!("(u[int({})] or 'none')", number(dice, depth)),
    }
}

fn condition(dice: &mut Dice, depth: usize) -> String {
    let choice = if depth == 0 { dice.roll(2) } else { dice.roll(7) };
    let depth = depth.saturating_sub(1);
    match choice {
        0 => format!(
            "({} {} {})",
            number(dice, depth),
            dice.pick(&["<", "<=", ">", ">=", "==", "~="]),
            number(dice, depth)
        ),
        1 => format!("({} {} {})", text(dice, depth), dice.pick(&["<", "==", "~=", ">="]), text(dice, depth)),
        2 => format!("(not {})", condition(dice, depth)),
        3 => format!("({} and {})", condition(dice, depth), condition(dice, depth)),
        4 => format!("({} or {})", condition(dice, depth), condition(dice, depth)),
        5 => "(redis.call('EXISTS', KEYS[1]) == 1)".to_owned(),
        _ => "(t[1] ~= nil)".to_owned(),
    }
}

fn on_numbers(dice: &mut Dice, out: &mut String) {
    let value = number(dice, 1);
    let text = match dice.roll(6) {
        0 => format!("if #t < 12 then table.insert(t, num({value})) end"),
        1 => format!("if #t < 12 then table.insert(t, 1, num({value})) end"),
        2 => "put(table.remove(t))".to_owned(),
        3 => "put(table.remove(t, 1))".to_owned(),
        4 => "table.sort(t)".to_owned(),
        _ => format!("if #t > 0 then t[#t] = num({value}) end put(unpack(t))"),
    };
    line(out, text);
}

fn on_texts(dice: &mut Dice, out: &mut String) {
    let value = text(dice, 1);
    let text = match dice.roll(5) {
        0 => format!("if #u < 12 then u[#u + 1] = str({value}) end"),
        1 => "put(table.remove(u))".to_owned(),
        2 => "table.sort(u)".to_owned(),
        3 => "table.sort(u, function(a, b) return #a > #b or (#a == #b and a < b) end)".to_owned(),
        _ => "for i, v in ipairs(u) do s1 = str(s1 .. v) end".to_owned(),
    };
    line(out, text);
}

/// A command from the templates, its words as Lua texts.
fn call(dice: &mut Dice, now_ms: u64, out: &mut String) {
    let argv = generate::command(dice, now_ms);
    if UNORDERED.iter().any(|name| argv[0].eq_ignore_ascii_case(name.as_bytes())) {
        return;
    }
    let mut words = String::new();
    for (at, word) in argv.iter().enumerate() {
        words.push_str(if at == 0 { "'" } else { ", '" });
        for byte in word {
            match byte {
                b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => words.push(char::from(*byte)),
                _ => write!(words, "\\{byte:03}").expect("a string takes it"),
            }
        }
        words.push('\'');
    }
    line(out, format!("put(redis.pcall({words}))"));
}
