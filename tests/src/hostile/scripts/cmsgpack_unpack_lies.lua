-- #3 Lengths that lie: an array of four thousand million, in five bytes.
local n = 0
for _ = 1, 1000 do
  pcall(cmsgpack.unpack, "\221\255\255\255\255")
  pcall(cmsgpack.unpack, "\223\255\255\255\255")
  pcall(cmsgpack.unpack, string.rep("\145", 100000))
  n = n + 1
end
return n
