-- The common case in as few steps as it takes: `LOCK.ACQUIRE name ttl OWNER owner` of a lock that is free, awaited by nobody and was
-- released by its last holder, and the release of such a lock. Both answer nil for everything else, wrong words among it, and have
-- changed nothing then: the command itself goes on.

--@shortcut LOCK.ACQUIRE acquire_free
local function acquire_free(keys, args)
  local resource, owner = keys[1], args[3]
  if #keys ~= 1 or #args ~= 3 or args[2] ~= 'OWNER' or #owner < 1 or #owner > OWNER_BYTES_MAX then return nil end
  local ttl_ms = decimal(args[1], 1, TTL_MS_MAX)
  if not ttl_ms or check_resource(resource) then return nil end
  if redis.call('EXISTS', resource, side_key('__wait__', resource)) > 0 then return nil end
  local companion = side_key('__fence__', resource)
  local packed, ended = redis.pcall('GET', companion), '0 -'
  read_clock()
  if packed then
    local last = type(packed) == 'string' and string.match(packed, '^(%d+) r %d+ %d+ [rx%-] ')
    local last_fence = last and decimal(last, 1, FENCE_MAX - 1)
    if not last_fence or last_fence >= now_us then return nil end
    ended = last .. ' r'
  end
  local deadline_ms = now_ms + ttl_ms
  set_until(resource, owner, deadline_ms)
  set_until(companion, digits(now_us) .. ' h ' .. digits(deadline_ms) .. ' ' .. ended .. ' ' .. owner,
    deadline_ms + RETENTION_MS)
  publish('acquired', resource, now_us, owner)
  return {now_us, ttl_ms}
end

--@shortcut LOCK.RELEASE release_held
local function release_held(keys, args)
  local resource, word = keys[1], args[1]
  if #keys ~= 1 or #args ~= 1 then return nil end
  local fence = decimal(word, 1, FENCE_MAX - 1)
  if not fence or check_resource(resource) then return nil end
  local companion = side_key('__fence__', resource)
  local packed = redis.pcall('GET', companion)
  if type(packed) ~= 'string' then return nil end
  local held, deadline, owner = string.match(packed, '^(%d+) h (%d+) %d+ [rx%-] (.*)$')
  if held ~= word or redis.pcall('GET', resource) ~= owner then return nil end
  if redis.call('EXISTS', side_key('__wait__', resource)) > 0 then return nil end
  read_clock()
  local until_ms = released_until(tonumber(deadline))
  redis.call('DEL', resource)
  publish('released', resource, fence, owner)
  set_until(companion, word .. ' r ' .. deadline .. ' ' .. word .. ' r ', until_ms)
  return {1, 'ok'}
end
