-- #4 Commands that block, from inside a script.
local words = {}
for _, name in ipairs({"BLPOP", "BRPOP", "BZPOPMIN"}) do
  local r = redis.pcall(name, KEYS[1] .. "none", "0")
  words[#words + 1] = type(r) == "table" and (r.err or "table") or tostring(r)
end
redis.pcall("SUBSCRIBE", "x") redis.pcall("MULTI") redis.pcall("EVAL", "return 1", "0") redis.pcall("WATCH", KEYS[1])
return words
