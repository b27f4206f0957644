-- #3 As many writes as one script can make.
for i = 1, 1e7 do redis.call("SET", KEYS[1] .. i, i) end
return 1
