-- #3 A reply nested 100,000 deep.
local t = {}
for _ = 1, 100000 do t = {t} end
return t
