-- #1 The same with pcall: how far it came is written to a key.
local t = {}
local ok = pcall(function() for i = 1, 1e8 do t[i] = {i} end end)
redis.call("SET", KEYS[1], tostring(ok) .. #t)
return #t
