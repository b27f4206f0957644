-- LOCK.RELEASE, LOCK.MRELEASE, LOCK.RENEW, LOCK.FORCERELEASE.

-- What stands against a release or renewal by `fence`; nil where nothing does.
local function refusal_reason(lock, fence)
  if lock.fence == fence then
    if lock.is_ours then return nil end
    return end_reason(lock)
  end
  -- While a grant is held, the one before it is the last that ended.
  if lock.is_ours and lock.ended_fence == fence then
    return lock.ended_how == 'x' and 'expired' or 'already_released'
  end
  return 'not_owner'
end

-- The key goes first: DEL is allowed when memory is short, and what follows a write in a script is too. A grant of
-- ours is remembered as released ('r') or taken by force ('f'); what a plain client held leaves no trace.
local function end_hold(lock, state)
  redis.call('DEL', lock.resource)
  local cause = state == 'f' and 'forced' or nil
  publish('released', lock.resource, lock.fence, lock.value, lock.is_ours and lock.attached or '', cause)
  local was_ours, fence = lock.is_ours, lock.fence
  lock.value, lock.is_ours = false, false
  if was_ours then lock.state, lock.owner, lock.attached = state, '', '' end
  local first = serve(lock)
  if was_ours and not (first and first.fences) then write_released(lock) end
  -- What a plain client held has no fence by which it could be missed.
  if was_ours and cause then publish_loss(lock.resource, fence, cause, lock.fence > fence and lock.fence or nil) end
end

local function release_one(lock, fence)
  local reason = refusal_reason(lock, fence)
  if not reason then
    end_hold(lock, 'r')
    return {1, 'ok'}
  end
  if not lock.value then serve(lock) end
  return {0, reason}
end

--@command LOCK.RELEASE lock_release allow-oom
local function lock_release(keys, args)
  if #keys ~= 1 or #args < 1 then return wrong_arity('lock.release') end
  local err = check_resource(keys[1])
  if err then return err end
  local fence
  fence, err = parse_fence(args[1])
  err = err or check_tier_option(args, 2)
  if err then return err end
  read_clock()
  local lock
  lock, err = read_lock(keys[1])
  return err or release_one(lock, fence)
end

--@command LOCK.MRELEASE lock_mrelease allow-oom
local function lock_mrelease(keys, args)
  if #args < #keys or #args < 1 then
    if #keys < 2 then return wrong_arity('lock.mrelease') end
    return refuse('ERR count does not match the number of resources given')
  end
  local err = check_resources(keys)
  if err then return err end
  local fences, rows = {}, {}
  for i = 1, #keys do
    fences[i], err = parse_fence(args[i])
    if err then return err end
  end
  err = check_tier_option(args, #keys + 1)
  if err then return err end
  read_clock()
  for i, resource in ipairs(keys) do
    local lock, wrong = read_lock(resource)
    if lock then
      rows[i] = release_one(lock, fences[i])
    else
      -- A key of another type is no lock that anybody owns. It does not stop the others.
      rows[i] = string.find(wrong.err, '^WRONGTYPE') and {0, 'not_owner'} or wrong
    end
  end
  return rows
end

--@command LOCK.RENEW lock_renew allow-oom
local function lock_renew(keys, args)
  if #keys ~= 1 or #args < 2 then return wrong_arity('lock.renew') end
  local err = check_resource(keys[1])
  if err then return err end
  local fence, ttl_ms
  fence, err = parse_fence(args[1])
  if err then return err end
  ttl_ms, err = parse_ttl(args[2], 1)
  err = err or check_tier_option(args, 3)
  if err then return err end
  read_clock()
  local lock
  lock, err = read_lock(keys[1])
  if err then return err end
  local reason = refusal_reason(lock, fence)
  if reason then
    if not lock.value then serve(lock) end
    return {0, reason}
  end
  local is_shortened = lock.deadline_ms > now_ms + ttl_ms
  lock.deadline_ms = now_ms + ttl_ms
  redis.call('PEXPIREAT', lock.resource, digits(lock.deadline_ms))
  write_companion(lock, lock.deadline_ms + RETENTION_MS)
  publish('renewed', lock.resource, fence, lock.owner, lock.attached)
  if is_shortened then
    local first = first_waiter(lock)
    -- It sleeps until the old deadline: it must look again.
    if first then push_wake(first, AGAIN) end
  end
  return {1, ttl_ms}
end

local FORCE_OPTIONS = {TIER = read_tier, FENCE = parse_fence}

-- With FENCE, only from the holder of that one.
--@command LOCK.FORCERELEASE lock_forcerelease allow-oom
local function lock_forcerelease(keys, args)
  if #keys ~= 1 then return wrong_arity('lock.forcerelease') end
  local err = check_resource(keys[1])
  if err then return err end
  local options
  options, err = parse_options(args, 1, FORCE_OPTIONS)
  err = err or refuse_other_tier(options)
  if err then return err end
  read_clock()
  local lock
  lock, err = read_lock(keys[1])
  if err then return err end
  if options.FENCE and not (lock.is_ours and lock.fence == options.FENCE) then return 0 end
  if not lock.value then
    serve(lock)
    return 0
  end
  end_hold(lock, 'f')
  return 1
end
