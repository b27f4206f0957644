-- #4 string.format with large arguments and widths.
local n, s = 0, string.rep("f", 1000000)
for i = 1, 1e6 do
  pcall(string.format, "%99999999d", 1)
  n = n + #string.format("%99d%s%q", i, s, s)
end
return n
