-- #4 An __index that asks itself, a chain of a hundred thousand, an __eq that never says so.
local loop = {} setmetatable(loop, {__index = function(t, k) return t[k + 1] end})
local a = pcall(function() return loop[1] end)
local chain = {}
for _ = 1, 100000 do chain = setmetatable({}, {__index = chain}) end
local b = pcall(function() return chain.x end)
local c = pcall(function() return #setmetatable({}, {__concat = function(x, y) return x .. y end}) .. {} end)
return tostring(a) .. tostring(b) .. tostring(c)
