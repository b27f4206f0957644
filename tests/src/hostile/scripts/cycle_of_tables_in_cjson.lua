-- #4 A cycle through cjson and cmsgpack.
local t = {} t.a = t t.b = {t, t}
local a = pcall(cjson.encode, t)
local b = pcall(cmsgpack.pack, t)
return {tostring(a), tostring(b)}
