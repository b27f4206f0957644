-- #4 The same with a pattern that backtracks.
local n = 0
for i = 1, 1000 do
  local found = redis.pcall("KEYS", string.rep("*a", 400) .. "b")
  n = n + (found.err and 0 or #found)
end
return n
