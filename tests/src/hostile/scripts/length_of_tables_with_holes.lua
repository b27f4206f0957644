-- #1 #t of tables with holes and table keys.
local out = {}
for seed = 1, 40 do
  local t = {}
  for i = 1, 60 do
    if (i * seed) % 7 ~= 3 then t[i] = i end
    t[{}] = i
  end
  t[seed] = nil
  out[#out + 1] = #t
end
redis.call("SET", KEYS[1], table.concat(out, ","))
return out
