//! Scripts to compare: what lock libraries send, and corners of the conversions. Each runs with two keys and three arguments
//! drawn at random.

/// Placeholders of [`super::generate`] for two keys and three arguments.
pub(crate) const CALLS: &[&str] =
    &["{s} {s} {v} {t} {n}", "{h} {l} {f} {t} {m}", "{k} {k} {v} {i} {d}", "{z} {l} {m} {d} {i}"];

pub(crate) const BODIES: &[&str] = &[
    // Redlock: release, extend.
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end",
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], 900000) else return 0 end",
    // redis-py: extend.
    "local token = redis.call('get', KEYS[1])
     if not token or token ~= ARGV[1] then return 0 end
     local expiration = redis.call('pttl', KEYS[1])
     if not expiration then expiration = 0 end
     if expiration < 0 then return 0 end
     redis.call('pexpire', KEYS[1], 900000)
     return 1",
    // node-redlock: acquire and release of several.
    "for i, key in ipairs(KEYS) do if redis.call('exists', key) == 1 then return 0 end end
     for i, key in ipairs(KEYS) do redis.call('set', key, ARGV[1], 'PX', 900000) end
     return #KEYS",
    "local count = 0
     for i, key in ipairs(KEYS) do
       if redis.call('get', key) == ARGV[1] then redis.pcall('del', key) count = count + 1 end
     end
     return count",
    // aioredlock.
    "local identifier = redis.call('get', KEYS[1])
     if not identifier or identifier == ARGV[1] then
       return redis.call('set', KEYS[1], ARGV[1], 'PX', 900000)
     else return redis.error_reply('ERROR') end",
    // redsync: release.
    "local val = redis.call('GET', KEYS[1])
     if val == ARGV[1] then return redis.call('DEL', KEYS[1]) elseif val == false then return -1 else return 0 end",
    // bsm/redislock: obtain.
    "local values = redis.call('mget', unpack(KEYS))
     for i, _ in ipairs(KEYS) do if values[i] and values[i] ~= ARGV[1] then return false end end
     for _, key in ipairs(KEYS) do redis.call('set', key, ARGV[1], 'px', 900000) end
     return redis.status_reply('OK')",
    // Redisson: lock and unlock, the command's name from an argument.
    "if (redis.call('exists', KEYS[1]) == 0) or (redis.call('hexists', KEYS[1], ARGV[1]) == 1) then
       redis.call('hincrby', KEYS[1], ARGV[1], 1); redis.call('pexpire', KEYS[1], 900000); return nil; end;
     return redis.call('type', KEYS[1]).ok;",
    "if (redis.call('hexists', KEYS[1], ARGV[3]) == 0) then return nil; end;
     local counter = redis.call('hincrby', KEYS[1], ARGV[3], -1);
     if (counter > 0) then redis.call('pexpire', KEYS[1], 900000); return 0;
     else redis.call('del', KEYS[1]); redis.call('PUBLISH', KEYS[2], '0'); return 1; end; return nil;",
    // Symfony: sorted sets and TIME.
    "local now = redis.call('TIME') local t = now[1] * 1000 + now[2] / 1000
     redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', 1) return type(t) .. #now",
    // Lua itself: walks, sorting, texts, libraries.
    "local n, s = 0, 0 for k, v in pairs({a = 1, b = 2, [3] = 3, [{}] = 4}) do n = n + 1 s = s + v end return {n, s}",
    "local t = {} for k in pairs({x = 1, y = 2, z = 3}) do t[#t + 1] = k end table.sort(t) return t",
    "local t = {} for i = 1, 40 do t[i] = i * 7919 % 41 end table.sort(t, function(a, b) return a > b end) return t",
    "local t = {ARGV[1], ARGV[2], ARGV[3], 'm', ''} table.sort(t) return t",
    "local k, n = nil, 0 local t = {1, 2, x = 3} repeat k = next(t, k) if k then n = n + 1 end until not k return n",
    "return {string.find(ARGV[1] .. 'needle', 'needle', 1, true)}",
    "return {string.find('a.b.c', '.', 3, true)}",
    "return {string.find('hello world', 'o w'), string.find('hello', 'l', -2), string.find('', ''), string.find('x', '', 5)}",
    "return {('x'):rep(3), ('abc'):rep(0), ('ab'):rep(-1), #('abc'):rep(100)}",
    "return {string.gsub('hello world', 'o', '0'), (string.gsub('abc', '%w', '%0%0')), (string.gsub('abc', 'b', {b = 'X'}))}",
    "local t = {} for w in string.gmatch('one two  three', '%a+') do t[#t + 1] = w end return t",
    "return {string.format('%5d|%-5s|%05.1f|%x|%c|%q', 42, 'ab', 3.14159, 255, 65, 'a\\nb'), ('%s %s'):format(1, 0.5)}",
    "return {string.byte('abc', 1, -1), string.char(72, 105), ('abc'):upper(), ('ABC'):lower(), ('abc'):reverse(), ('abc'):sub(-2)}",
    "return {table.concat({1, 2, 3}, ', '), table.concat({}, 'x'), table.concat({'a', 'b', 'c'}, '-', 2, 3)}",
    "local t = {1, 2, 3} table.insert(t, 4) table.insert(t, 1, 0) table.remove(t, 2) return {#t, t[1], t[2], table.remove(t)}",
    "return cjson.encode({1, 'two', {3}, true, cjson.null})",
    "return {cjson.encode({n = 0.1}), cjson.encode({}), cjson.encode('\\1/\"'), cjson.encode(1e15), cjson.encode({[1] = 1, [2] = 2})}",
    "local v = cjson.decode('{\"a\":[1,2.5,\"x\",null,true],\"b\":{}}') return {v.a[1], tostring(v.a[2]), v.a[3], v.a[4] == cjson.null, v.a[5], #v.a}",
    "return {cmsgpack.unpack(cmsgpack.pack(ARGV[1], 1, -1, 1.5, true, {1, 2}))}",
    "return {redis.sha1hex(ARGV[1]), redis.sha1hex(''), bit.band(12, 10), bit.tohex(65535), struct.unpack('>I2', struct.pack('>I2', 258))}",
    "local ok, e = xpcall(function() error({err = 'MY err'}) end, function(e) return e.err end) return {tostring(ok), e}",
    "local co = coroutine.create(function(a) local b = coroutine.yield(a + 1) return b * 2 end) local _, x = coroutine.resume(co, 1) local _, y = coroutine.resume(co, 5) return {x, y, coroutine.status(co)}",
    "return {math.floor(2.7), math.ceil(2.1), math.max(1, 5, 3), math.min(4, 2), math.fmod(7, 3), math.abs(-4), select('#', 1, nil, 3)}",
    "return {tostring(1e15), tostring(2 ^ 53), tostring(0.1), tostring(-0.0), tostring(1e100), tostring(nil), tostring(true)}",
    "return {tonumber('0x10'), tonumber('10', 2), tonumber('  5  '), tonumber('5x') == nil, tonumber('1e2')}",
    "local t = setmetatable({}, {__index = function(_, k) return k .. '!' end, __call = function(_, x) return x + 1 end}) return {t.a, t(4)}",
    "return {type(ARGV), type(1), type('x'), type(nil), type(redis.call)}",
    // Conversions.
    "return {1, 2.9, 'x', true, false, {ok='fine'}, {err='MY err'}, {}, {{1}}}",
    "return {1, nil, 3}",
    "return redis.call(unpack({'set', KEYS[1], ARGV[1]}))",
    "return redis.call('get', KEYS[1])",
    "return redis.call('hgetall', KEYS[1])",
    "return redis.call('lrange', KEYS[2], 0, -1)",
    "return redis.call('zrange', KEYS[1], 0, -1, 'withscores')",
    "return redis.call('zscore', KEYS[1], ARGV[1])",
    "return redis.pcall('incr', KEYS[1])",
    "return redis.call('incr', KEYS[1])",
    "local r = redis.pcall('lpush', KEYS[1], ARGV[1]) if type(r) == 'table' then return r.err end return r",
    "redis.setresp(3) return redis.call('hgetall', KEYS[1]).map[ARGV[1]]",
    "redis.setresp(3) return redis.call('zscore', KEYS[1], ARGV[1])",
    "redis.setresp(3) return {redis.call('get', 'none'), true, false}",
    "redis.setresp(3) return redis.call('zrange', KEYS[1], 0, -1, 'withscores')",
    "return redis.call('set', KEYS[1], ARGV[1], 'NX')",
    "return redis.call('blpop', KEYS[2], 0)",
    "return tostring((tonumber(ARGV[2]) or 7) + 0)",
    "return ARGV[1] .. ':' .. #ARGV[1]",
    "redis.call('set', KEYS[1], 1.1) return redis.call('get', KEYS[1])",
    "redis.call('set', KEYS[1], 2^53) return redis.call('get', KEYS[1])",
    "return redis.call('zadd', KEYS[1], 0.1, 'a', 1e20, 'b', 3, 'c')",
    // Errors.
    "return redis.call('nosuch', ARGV[1])",
    "return redis.call('get')",
    "return redis.call()",
    "return redis.call('get', {})",
    "return redis.call('multi')",
    "return redis.pcall('subscribe', 'x')",
    "error('boom ' .. ARGV[1])",
    "error({err='MY own error'})",
    "local ok, err = pcall(redis.call, 'incr', KEYS[1]) return err",
    "redis.call('set', KEYS[1], ARGV[1])\nerror('half-way')",
    "x = 1",
    "return nosuchvariable",
    "\n\nreturn redis.call('nosuch')",
    "return redis.error_reply('one')",
    "return redis.error_reply('TWO words')",
    "return redis.error_reply()",
    "return redis.status_reply('a\\nb')",
    "return redis.log(redis.LOG_WARNING)",
    "return redis.setresp(7)",
    "return cjson.decode('[1,')",
    // Libraries.
    "return cjson.encode({ARGV[1], #ARGV, 0.1, 1e20, 3, true, {}, {a={}}})",
    "return cjson.encode({[1]=1, [4]=4})",
    "return cjson.encode({1/3, -0.5, 100000000000000, 1e15})",
    "local t = cjson.decode('{\"a\":[1,2,{\"b\":null}],\"c\":\"\\\\u00e9\\\\n\"}') return {t.a[1], t.a[3].b == cjson.null, t.c}",
    "return cmsgpack.pack(1, -1, 200, -200, 70000, -70000, 5e9, -5e9, 0.5, 0.1, 'abc', {1, 2, {3}}, true, false, nil)",
    "return {cmsgpack.unpack(cmsgpack.pack({1, 2, 3}, 'x', 3.5))}",
    "return struct.pack('>I2hbBd', 1, -2, -3, 4, 0.5) .. struct.pack('<i4Ls', -1, 7, 'z')",
    "return {bit.band(7, 3), bit.bxor(5, 1), bit.bnot(1), bit.rshift(-1, 28), bit.arshift(-8, 1), bit.tohex(48879, 4), bit.rol(1, 33)}",
    "math.randomseed(7) return {math.random(100), math.random(1, 6), math.floor(math.random() * 1e6)}",
    "math.randomseed(42) return math.random(1000000)",
    "return redis.sha1hex(ARGV[1])",
    "return {string.format('%5.2f|%d|%s|%x|%q', 3.14159, 42, 0.1, 255, 'a\"b'), tostring(1e15), tostring(1e14), tostring(123456789.123), tostring(-0.5)}",
    "return {tostring(nil), tostring(true), tonumber('0x10'), tonumber('  5 '), tonumber('5x') or 'none', tonumber('10', 2)}",
    "local t = {5, 2, 8, 1} table.sort(t) return {table.concat(t, ','), table.concat({1, 2.5, 'x'}), #t, table.getn(t), table.maxn({1, 2, nil, 4})}",
    "local s = 'key=value, k2=v2' local r = {} for k, v in string.gmatch(s, '(%w+)=(%w+)') do r[#r + 1] = k .. v end return r",
    "return {string.gsub('hello world', 'o', '0'), string.find('abc', 'b', 1, true), string.rep('ab', 3), string.reverse('abc'), string.byte('A'), ('x'):upper()}",
    "local r = {} for i = 10, 1, -3 do r[#r + 1] = i end local n = 0 repeat n = n + 1 until n >= 3 while n < 5 do n = n + 1 end r[#r + 1] = n return r",
    "return {7 % 3, -7 % 3, 7 / 2, 2 ^ 10, 10 - 3 * 2, 1e3, 0x1f}",
    "return select('#', unpack({1, nil, 3}, 1, 3))",
    "local t = setmetatable({}, {__index = function(_, k) return k .. '!' end, __call = function(_, a) return a end}) return {t.x, t(5)}",
    "return #KEYS + #ARGV",
    "return _VERSION",
    "return type(redis.call('time')[1])",
    "return tostring(redis.REPL_ALL) .. redis.LOG_NOTICE .. redis.REDIS_VERSION",
    "return {redis.replicate_commands(), redis.set_repl(redis.REPL_ALL)}",
];
