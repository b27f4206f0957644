-- #3 Each replacement is a megabyte.
local r = string.rep("g", 1000000)
local s = string.rep("a", 100000)
return #s:gsub("a", r)
