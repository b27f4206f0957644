-- #1 Addresses as values.
local words = {}
for i = 1, 20 do words[i] = tostring({}) .. tostring(print) .. tostring(coroutine.create(function() end)) end
redis.call("SET", KEYS[1], table.concat(words, " "))
return words
