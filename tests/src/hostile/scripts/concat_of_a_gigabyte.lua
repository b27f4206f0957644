-- #3 table.concat of one large string many times.
local s, t = string.rep("c", 1000000), {}
for i = 1, 2000 do t[i] = s end
return #table.concat(t)
