-- #1 A comparison that contradicts itself: which error, after how many calls.
local t, calls = {}, 0
for i = 1, 200 do t[i] = (i * 7919) % 211 end
local ok, err = pcall(table.sort, t, function(a, b) calls = calls + 1 return true end)
redis.call("SET", KEYS[1], tostring(ok) .. tostring(err) .. calls .. table.concat(t, ","))
return calls
