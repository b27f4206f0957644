-- #4 cjson back and forth.
local t = {}
for i = 1, 20000 do t["k" .. i] = {i, "x", {a = i}} end
local n = 0
for _ = 1, 2000 do n = n + #cjson.encode(cjson.decode(cjson.encode(t))) end
return n
