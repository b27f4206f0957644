-- #1 What must not be there, or must not be changed.
local words = {}
local function try(f) words[#words + 1] = tostring((pcall(f))) end
try(function() return loadstring("return 1")() end)
try(function() return load("\27Lua")() end)
try(function() string.rep = nil end)
try(function() redis.call = nil end)
try(function() _G.leak = 1 end)
try(function() leak = 1 end)
try(function() getmetatable("").__index = nil end)
try(function() setfenv(1, {}) end)
try(function() debug.sethook(function() end, "", 1) end)
try(function() rawset(_G, "leak", 1) end)
try(function() return os.execute("true") end)
try(function() return io.open("/etc/passwd") end)
try(function() return require("os") end)
try(function() return string.dump(function() end) end)
redis.call("SET", KEYS[1], table.concat(words, ","))
return words
