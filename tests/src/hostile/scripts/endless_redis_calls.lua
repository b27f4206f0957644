-- #4 Calls that fail, without end.
while true do redis.pcall("GET") redis.pcall("NOSUCH") redis.pcall("INCR", KEYS[1]) end
