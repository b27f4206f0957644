-- #3 Key names of a megabyte.
for i = 1, 20 do redis.pcall("SET", string.rep("n", 1000000) .. i, "v") end
return redis.call("SET", string.rep("n", 70000), "v")
