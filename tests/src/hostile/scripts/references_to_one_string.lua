-- #3 2,000 references to one string of 8 MB.
local s = string.rep("x", 8 * 1024 * 1024)
local t = {}
for i = 1, 2000 do t[i] = s end
return t
