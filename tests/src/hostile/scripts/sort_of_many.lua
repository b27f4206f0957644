-- #4 table.sort of long strings that differ at their end.
local t, s = {}, string.rep("s", 2000)
for i = 1, 5000 do t[i] = s .. (5000 - i) end
for _ = 1, 500 do table.sort(t) table.sort(t, function(a, b) return a > b end) end
return t[1]
