-- #1 What the collector, the clock and chance say, written down.
local words = {}
words[1] = tostring(pcall(function() return collectgarbage("count") end))
words[2] = tostring(pcall(function() return os.clock() end))
words[3] = tostring(math.random()) .. tostring(math.random(1000000))
words[4] = tostring(redis.call("TIME")[1])
local weak = setmetatable({}, {__mode = "k"})
for i = 1, 1000 do weak[{}] = i end
local left = 0
for _ in pairs(weak) do left = left + 1 end
words[5] = tostring(left)
redis.call("SET", KEYS[1], table.concat(words, " "))
return words
