-- #1 LOCK.* that write are refused inside scripts; nothing else may follow from trying.
local words = {}
for i = 1, 50 do
  local r = redis.pcall("LOCK.ACQUIRE", KEYS[1] .. i, "100000", "OWNER", "script" .. i, "WAIT", "100")
  words[i] = type(r) == "table" and r.err or tostring(r)
end
redis.pcall("LOCK.RELEASE", KEYS[1], "1")
redis.pcall("LOCK.FORCERELEASE", KEYS[1])
redis.pcall("LOCK.SESSION", "OPEN", "1000")
redis.pcall("FENCE.CHECK", KEYS[1], "1")
return words
