-- #4 unpack of a million, and of numbers that lie.
local t = {}
for i = 1, 1000000 do t[i] = i end
local a = pcall(function() return select("#", unpack(t)) end)
local b = pcall(function() return select("#", unpack(t, 1, 1e8)) end)
local c = pcall(function() return select("#", unpack({}, -1e9, 1e9)) end)
return tostring(a) .. tostring(b) .. tostring(c)
