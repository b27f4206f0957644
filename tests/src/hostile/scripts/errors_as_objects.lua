-- #1 Errors that are tables with a __tostring, thrown through coroutines and handlers.
local words = {}
for i = 1, 20 do
  local thrown = setmetatable({}, {__tostring = function() return "thrown " .. i end})
  local co = coroutine.create(function() error(thrown) end)
  local ok, err = coroutine.resume(co)
  words[#words + 1] = tostring(ok) .. tostring(err)
  words[#words + 1] = tostring(select(2, xpcall(function() error(thrown) end, function(e) error(e) end)))
end
redis.call("SET", KEYS[1], table.concat(words, ";"))
return words
