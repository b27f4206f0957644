-- LOCK.ACQUIRE and LOCK.MACQUIRE, and how a waiter of theirs leaves. Keys: the resources. Args: the words behind them.

local function parse_acquire(args, known)
  local ttl_ms, err = parse_ttl(args[1], 0)
  if err then return nil, nil, err end
  local options
  options, err = parse_options(args, 2, known)
  if err then return nil, nil, err end
  if ttl_ms == 0 and not options.SESSION then
    return nil, nil, refuse('ERR ttl 0 (as long as the session lives) needs SESSION; otherwise ttl must be an integer'
      .. ' from 1 to 31536000000 milliseconds')
  end
  return ttl_ms, options, refuse_other_tier(options)
end

-- An owner nobody else can have: the fence of any grant so far is smaller.
local function made_up_owner(locks)
  local number = now_us
  for _, lock in ipairs(locks) do number = math.max(number, next_fence(lock)) end
  return 'anonymous:' .. digits(number)
end

--@command LOCK.ACQUIRE lock_acquire
local function lock_acquire(keys, args)
  local resource = keys[1]
  if #keys ~= 1 or #args < 1 then return wrong_arity('lock.acquire') end
  local err = check_resource(resource)
  if err then return err end
  local ttl_ms, options
  ttl_ms, options, err = parse_acquire(args, ACQUIRE_OPTIONS)
  if err then return err end

  read_clock()
  local lock
  lock, err = read_lock(resource)
  if err then return err end
  local owner, value = options.OWNER or made_up_owner({lock}), options.VALUE or ''
  if lock.value == owner then
    local left_ms = grant_again(lock, ttl_ms, value)
    return {lock.fence, left_ms}
  end

  local entry = 's' .. owner
  if not lock.value then
    local first = serve(lock, entry)
    if not first then
      grant(lock, owner, ttl_ms, value)
      return {lock.fence, ttl_ms}
    end
    if first.entry == entry and first.fences then return {first.fences[1], first.ttl_ms} end
  end

  local wait_ms = options.WAIT or 0
  if wait_ms == 0 then return false end
  local wish = value == '' and digits(ttl_ms) or digits(ttl_ms) .. '=' .. value
  return stand_in_line({lock}, resource, entry, owner, wish, wait_ms)
end

-- Reads all locks of a multi-lock; answers them and the name that is first in byte order.
local function read_locks(resources)
  local locks, home = {}, resources[1]
  for i, resource in ipairs(resources) do
    local lock, err = read_lock(resource)
    if err then return nil, nil, err end
    locks[i] = lock
    if precedes(resource, home) then home = resource end
  end
  return locks, home
end

local function check_resources(resources)
  if #resources < 1 or #resources > MULTI_RESOURCES_MAX then
    return refuse('ERR count must be an integer from 1 to 256')
  end
  for _, resource in ipairs(resources) do
    local err = check_resource(resource)
    if err then return err end
  end
  return nil
end

local function check_distinct(resources)
  local seen = {}
  for _, resource in ipairs(resources) do
    if seen[resource] then return refuse("ERR resource '" .. shown(resource) .. "' is given twice") end
    seen[resource] = true
  end
  return nil
end

-- Whether all locks may be taken now: free and awaited by nobody, or held by this owner. Free ones that are awaited go
-- to whom they belong; where that is the caller itself, its waiter is the second answer.
local function may_take_all(locks, owner, entry)
  local may = true
  for _, lock in ipairs(locks) do
    if not lock.value then
      local first = serve(lock, entry)
      if first and first.entry == entry and first.fences then return false, first end
      if first then may = false end
    elseif lock.value ~= owner then
      may = false
    end
  end
  return may
end

--@command LOCK.MACQUIRE lock_macquire
local function lock_macquire(keys, args)
  if #args < 1 then
    if #keys < 2 then return wrong_arity('lock.macquire') end
    return refuse('ERR count does not match the number of resources given')
  end
  local err = check_resources(keys) or check_distinct(keys)
  if err then return err end
  local ttl_ms, options
  ttl_ms, options, err = parse_acquire(args, MACQUIRE_OPTIONS)
  if err then return err end

  read_clock()
  local locks, home
  locks, home, err = read_locks(keys)
  if err then return err end
  local owner = options.OWNER or made_up_owner(locks)
  local entry = multi_entry(home, owner)
  local may, served = may_take_all(locks, owner, entry)
  if served then return {served.fences, served.ttl_ms} end
  if may then
    local fences, given_ms = grant_all(locks, owner, ttl_ms, '')
    return {fences, given_ms}
  end

  local wait_ms = options.WAIT or 0
  if wait_ms == 0 then return false end
  local wish = digits(ttl_ms) .. ' ' .. cmsgpack.pack(keys)
  return stand_in_line(locks, home, entry, owner, wish, wait_ms)
end

local function parse_cancel(command, keys, args)
  if #args ~= 1 then return nil, wrong_arity(command) end
  local err = check_resources(keys)
  if err then return nil, err end
  return ACQUIRE_OPTIONS.OWNER(args[1])
end

-- A grant already made stands, and is the answer; else nil, and the waiter has left the queue.
--@command LOCK.CANCEL lock_cancel allow-oom
local function lock_cancel(keys, args)
  if #keys ~= 1 then return wrong_arity('lock.cancel') end
  local owner, err = parse_cancel('lock.cancel', keys, args)
  if err then return err end
  read_clock()
  local lock
  lock, err = read_lock(keys[1])
  if err then return err end
  if lock.is_ours and lock.value == owner then return {lock.fence, redis.call('PTTL', keys[1])} end
  leave_line({lock}, keys[1], 's' .. owner, owner)
  return false
end

--@command LOCK.MCANCEL lock_mcancel allow-oom
local function lock_mcancel(keys, args)
  local owner, err = parse_cancel('lock.mcancel', keys, args)
  if err then return err end
  read_clock()
  local locks, home
  locks, home, err = read_locks(keys)
  if err then return err end
  local fences, least_ms, has_all = {}, TTL_MS_MAX, true
  for i, lock in ipairs(locks) do
    if not lock.is_ours or lock.value ~= owner then has_all = false break end
    fences[i] = lock.fence
    least_ms = math.min(least_ms, redis.call('PTTL', lock.resource))
  end
  if has_all then return {fences, least_ms} end
  leave_line(locks, home, multi_entry(home, owner), owner)
  return false
end
