-- #3 3 GB of writes to one key in one script.
local s = string.rep("w", 1000 * 1000)
for i = 1, 3000 do redis.call("SET", KEYS[1], s .. i) end
return 1
