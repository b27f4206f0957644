-- #4 cmsgpack back and forth.
local t = {}
for i = 1, 20000 do t[i] = {i, "x", {i}} end
local n = 0
for _ = 1, 2000 do n = n + #cmsgpack.unpack(cmsgpack.pack(t)) end
return n
