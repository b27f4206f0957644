-- #4 struct.pack and unpack with long formats and lying sizes.
local n = 0
for _ = 1, 100000 do
  local packed = struct.pack(">I4I4d" .. string.rep("s", 50), 1, 2, 3, unpack({"a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a"}))
  n = n + #packed
  pcall(struct.unpack, "c2147483647", "abc")
  pcall(struct.pack, "i99999999999999999999", 1)
  pcall(struct.pack, "!99999999c99999999", "x")
end
return n
