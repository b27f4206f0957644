-- #4 Comparing two long strings that are equal up to the end.
local a, b = string.rep("c", 4 * 1000 * 1000) .. "a", string.rep("c", 4 * 1000 * 1000) .. "b"
local n = 0
for i = 1, 1e7 do if a < b then n = n + 1 end if a <= b then n = n + 1 end end
return n
