-- #3 Each level holds the level below ten times.
local t = string.rep("x", 10000)
for _ = 1, 7 do t = {t, t, t, t, t, t, t, t, t, t} end
return t
