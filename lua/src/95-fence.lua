-- FENCE.*: the high-water mark that keeps a holder from the past away from what the lock guards.

local function read_mark(resource)
  local key = side_key('__hwm__', resource)
  local word = redis.call('GET', key)
  local mark = word and decimal(word, 0, FENCE_MAX) or 0
  if word and mark == 0 and word ~= '0' then
    return nil, nil, refuse('ERR the high-water mark of this resource is damaged: its key holds no integer')
  end
  return mark, key
end

-- Raises the mark to the fence in the first word where it is not stale. Answers an error, or the fence and the mark
-- there was.
local function present_fence(resource, word)
  local err = check_resource(resource)
  if err then return err end
  local fence, mark, key
  fence, err = parse_fence(word)
  if err then return err end
  mark, key, err = read_mark(resource)
  if err then return err end
  if fence >= mark and MARK_RETENTION_MS > 0 then
    redis.call('SET', key, digits(fence), 'PX', MARK_RETENTION_MS)
  elseif fence > mark then
    redis.call('SET', key, digits(fence))
  end
  return nil, fence, mark
end

--@command FENCE.CHECK fence_check
local function fence_check(keys, args)
  if #keys ~= 1 or #args ~= 1 then return wrong_arity('fence.check') end
  local err, fence, mark = present_fence(keys[1], args[1])
  if err then return err end
  return fence >= mark and 1 or 0
end

--@command FENCE.GET fence_get no-writes
local function fence_get(keys, args)
  if #keys ~= 1 or #args ~= 0 then return wrong_arity('fence.get') end
  local err = check_resource(keys[1])
  if err then return err end
  local mark, _
  mark, _, err = read_mark(keys[1])
  return err or mark
end

-- Keys: the resource, then, for a cluster, the keys of the guarded command. The mark stays raised where the command
-- itself fails: a newer holder has shown itself.
--@command FENCE.CALL fence_call
local function fence_call(keys, args)
  if #keys < 1 or #args < 2 then return wrong_arity('fence.call') end
  local err, fence, mark = present_fence(keys[1], args[1])
  if err then return err end
  if fence < mark then return refuse('STALE fence ' .. digits(fence) .. ' is behind ' .. digits(mark)) end
  return redis.pcall(unpack(args, 2))
end
