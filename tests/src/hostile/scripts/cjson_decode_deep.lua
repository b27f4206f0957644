-- #4 A JSON text nested a million deep.
local ok = pcall(cjson.decode, string.rep("[", 1000000))
local fine = pcall(cjson.decode, string.rep('{"a":', 200000) .. "1" .. string.rep("}", 200000))
return tostring(ok) .. tostring(fine)
