-- #4 Recursion without end, and through pcall.
local function down(n) return 1 + down(n + 1) end
local a = pcall(down, 1)
local function through(n) return pcall(through, n + 1) end
local b = through(1)
local function string_of(n) return tostring(setmetatable({}, {__tostring = function() return string_of(n + 1) end})) end
local c = pcall(string_of, 1)
return tostring(a) .. tostring(b) .. tostring(c)
