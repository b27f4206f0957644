-- #3 The same reference again and again, as JSON.
local s = string.rep("x", 4 * 1024 * 1024)
local t = {}
for i = 1, 2000 do t[i] = s end
return #cjson.encode(t)
