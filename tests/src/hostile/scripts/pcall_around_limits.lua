-- #4 Every error is caught and it begins again.
while true do
  pcall(function() while true do end end)
  xpcall(function() local t = {} while true do t[#t + 1] = string.rep("x", 1000) end end, function() while true do end end)
  coroutine.resume(coroutine.create(function() while true do end end))
end
