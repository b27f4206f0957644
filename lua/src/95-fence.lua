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

-- How far a fence may be ahead of this server's clock: one from the future would make every real one stale.
local FUTURE_US_MAX = 3600 * 1000000

-- Answers an error, or the fence in the word, the mark there is, and the mark's key.
local function present_fence(resource, word)
  local err = check_resource(resource)
  if err then return err end
  local fence, mark, key
  fence, err = parse_fence(word)
  if err then return err end
  read_clock()
  if fence > now_us + FUTURE_US_MAX then
    return refuse('ERR fence ' .. digits(fence) .. " is from the future: more than 1 hour ahead of this server's clock")
  end
  mark, key, err = read_mark(resource)
  if err then return err end
  return nil, fence, mark, key
end

local function raise_mark(key, fence, mark)
  if fence >= mark and MARK_RETENTION_MS > 0 then
    redis.call('SET', key, digits(fence), 'PX', MARK_RETENTION_MS)
  elseif fence > mark then
    redis.call('SET', key, digits(fence))
  end
end

-- Whether a command was refused before it ran: it is unknown, has a wrong number of words, or the server does not let it run.
local function never_ran(reply)
  if type(reply) ~= 'table' or not reply.err then return false end
  for _, text in ipairs({'Unknown Redis command', 'Wrong number of args', 'not allowed from script', 'OOM '}) do
    if string.find(reply.err, text, 1, true) then return true end
  end
  return false
end

--@command FENCE.CHECK fence_check
local function fence_check(keys, args)
  if #keys ~= 1 or #args ~= 1 then return wrong_arity('fence.check') end
  local err, fence, mark, key = present_fence(keys[1], args[1])
  if err then return err end
  raise_mark(key, fence, mark)
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

-- Keys: the resource, then, for a cluster, the keys of the guarded command. The mark rises where the command itself fails:
-- a newer holder has shown itself. It does not where the command could not run at all.
--@command FENCE.CALL fence_call
local function fence_call(keys, args)
  if #keys < 1 or #args < 2 then return wrong_arity('fence.call') end
  -- The mark behind it would be written in that other database.
  if string.upper(args[2]) == 'SELECT' then
    return refuse("ERR FENCE.CALL cannot run 'select': it is about the connection")
  end
  local err, fence, mark, key = present_fence(keys[1], args[1])
  if err then return err end
  if fence < mark then return refuse('STALE fence ' .. digits(fence) .. ' is behind ' .. digits(mark)) end
  local reply = redis.pcall(unpack(args, 2))
  if not never_ran(reply) then raise_mark(key, fence, mark) end
  return reply
end
