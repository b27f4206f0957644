-- #4 SUNIONSTORE of a set with itself, many times over.
for i = 1, 200 do redis.call("SADD", KEYS[1], "m" .. i, "n" .. i, "o" .. i) end
local words = {"SUNIONSTORE", KEYS[1] .. ":to"}
for i = 1, 900 do words[#words + 1] = KEYS[1] end
local n = 0
for i = 1, 10000 do n = n + redis.call(unpack(words)) end
return n
