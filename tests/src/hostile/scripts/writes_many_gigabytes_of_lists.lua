-- #3 The same value pushed on and on, and trimmed.
local s = string.rep("w", 60000)
for i = 1, 50000 do
  redis.call("RPUSH", KEYS[1], s, s, s, s, s, s, s, s)
  redis.call("LTRIM", KEYS[1], -1, -1)
end
return 1
