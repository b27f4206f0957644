-- #2 One EVAL that makes 70 values of 1 MB: a snapshot of them could be written and not be read.
for i = 1, 70 do redis.call("SET", KEYS[1] .. i, string.rep("s", 1000000)) end
return 70
