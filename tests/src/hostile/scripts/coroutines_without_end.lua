-- #4 Coroutines in coroutines, and a hundred thousand of them.
local all = {}
for i = 1, 100000 do
  all[i] = coroutine.create(function() while true do coroutine.yield(i) end end)
  coroutine.resume(all[i])
end
local function nest(n) local co = coroutine.wrap(function() return nest(n + 1) end) return co() end
pcall(nest, 1)
while true do for i = 1, #all do coroutine.resume(all[i]) end end
