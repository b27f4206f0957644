-- #1 The order of pairs over table keys, written as an owner.
local t = {}
for i = 1, 50 do t[{}] = i end
local order = {}
for _, v in pairs(t) do order[#order + 1] = v end
redis.call("SET", KEYS[1], table.concat(order, ","))
return order
