-- #3 Messages to everybody, without end.
local s = string.rep("p", 1000000)
for i = 1, 3000 do redis.call("PUBLISH", "hostile", s) end
return 1
