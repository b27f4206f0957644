-- #4 A long list read whole, again and again.
for i = 1, 200 do redis.call("RPUSH", KEYS[1], i, i, i, i, i, i, i, i, i, i) end
local n = 0
for i = 1, 100000 do
  n = n + #redis.call("LRANGE", KEYS[1], 0, -1)
  redis.call("LPOS", KEYS[1], "none", "COUNT", 0)
end
return n
