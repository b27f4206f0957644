-- #4 string.rep of megabytes, and of nothing, without end.
local n = 0
for i = 1, 1e6 do n = n + #string.rep("r", 4000000) n = n + #string.rep("", 2147483647) end
return n
