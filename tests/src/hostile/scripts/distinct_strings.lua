-- #4 Millions of different short strings: every one is interned.
local n = 0
for i = 1, 1e8 do local s = "k" .. i n = n + #s end
return n
