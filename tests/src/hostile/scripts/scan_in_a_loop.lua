-- #4 SCAN with a huge COUNT, again and again.
local n = 0
for i = 1, 10000 do n = n + #redis.call("SCAN", "0", "COUNT", "1000000000")[2] end
return n
