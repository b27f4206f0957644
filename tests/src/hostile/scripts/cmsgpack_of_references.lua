-- #3 The same as MessagePack.
local s = string.rep("x", 4 * 1024 * 1024)
local t = {}
for i = 1, 2000 do t[i] = s end
return #cmsgpack.pack(t, t, t)
