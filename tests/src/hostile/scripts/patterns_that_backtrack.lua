-- #4 find, match, gmatch and gsub with patterns that try everything.
local s = string.rep("a", 5000)
local n = 0
for _ = 1, 100 do
  if s:find(string.rep("a-", 20) .. "b") then n = n + 1 end
  if s:match(".-.-.-.-.-.-.-.-b") then n = n + 1 end
  for _ in s:gmatch("a*a*a*a*a*b") do n = n + 1 end
  s:gsub("(a*)*b", "x")
end
return n
