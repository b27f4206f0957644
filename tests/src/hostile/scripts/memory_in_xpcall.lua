-- #1 Memory runs out inside an xpcall handler: where exactly depends on what the VM has allocated before.
local seen = "none"
local big = {}
local ok, err = xpcall(function()
  for i = 1, 1e7 do big[i] = string.rep("m", 4096) .. i end
end, function(e)
  local more = {}
  local fine = pcall(function() for i = 1, 1e6 do more[i] = {i, tostring(i)} end end)
  seen = tostring(fine) .. #more .. tostring(e)
  return seen
end)
big = nil
redis.call("SET", KEYS[1], seen .. tostring(ok) .. tostring(err))
return redis.call("GET", KEYS[1])
