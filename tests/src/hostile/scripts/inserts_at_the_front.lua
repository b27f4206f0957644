-- #4 table.insert at the front: each moves everything.
local t = {}
for i = 1, 1e6 do table.insert(t, 1, i) end
return #t
