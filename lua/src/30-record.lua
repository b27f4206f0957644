-- The keys of a lock: the only part that knows the layout, which it shares with the Redis module.
--
--   K                 the lock itself: a plain string, value = owner, with a ttl
--   __fence__{K}      companion: "<fence> <h|v|r|f> <deadline_ms> <ended_fence> <r|x|-> <owner>"
--   __hwm__{K}        high-water mark of FENCE.*
--   __wait__{K}       the queue: a sorted set, member = entry, score = ticket
--   __waiter__{K}:t   what the waiter with ticket t wants; alive as long as this key
--   __wake__{K}:t     where it listens
--
-- The companion tells the fence last issued and whether that grant is held (h; v with a VALUE, where the rest is
-- "<owner_len> <owner><value>"), released (r) or released by force (f), and beside it the grant that ended before:
-- released (r), expired (x) or none (-).
--
-- A name that holds a '}' keeps its own hash tag: "__fence__:K". Both forms are in the slot of K.

local function side_key(prefix, resource)
  if string.find(resource, '}', 1, true) then return prefix .. ':' .. resource end
  return prefix .. '{' .. resource .. '}'
end

-- The instant of this call. One reading serves the whole call, so that all it writes agrees.
local now_us, now_ms = 0, 0

local function read_clock()
  local time = redis.call('TIME')
  local seconds, micros = time[1], time[2]
  now_us = tonumber(seconds) * 1000000 + tonumber(micros)
  now_ms = math.floor(now_us / 1000)
  texts = {[now_us] = seconds .. string.sub('00000' .. micros, -6)}
end

-- Absolute times wherever the server knows them (the version number came with 7.0); TIME was read before, so a
-- relative one on an older server ends no earlier than the deadline written down. Answers nil where `condition` (NX, XX) did not hold.
local function set_until(key, value, at_ms, condition)
  local unit, time = 'PXAT', digits(at_ms)
  if not redis.REDIS_VERSION_NUM then unit, time = 'PX', digits(at_ms - now_ms) end
  if condition then return redis.call('SET', key, value, unit, time, condition) end
  return redis.call('SET', key, value, unit, time)
end

-- Answers an error where the key is of another type: Redis's own text.
local function read_lock(resource)
  local value = redis.pcall('GET', resource)
  if type(value) == 'table' then return nil, refuse(value.err) end
  local companion = side_key('__fence__', resource)
  local lock = {resource = resource, companion = companion, value = value,
                fence = 0, state = 'r', deadline_ms = 0, ended_fence = 0, ended_how = '-', owner = '', attached = ''}
  local packed = redis.pcall('GET', companion)
  if type(packed) == 'table' then return nil, refuse(packed.err) end
  if packed then
    local fence_text, state, deadline, ended_text, ended_how, owner =
      string.match(packed, '^(%d+) ([hvrf]) (%d+) (%d+) ([rx%-]) (.*)$')
    -- One below the bound: the next fence must fit too. What nobody of ours wrote counts as no record; the clock carries
    -- the order of the fences over it.
    local fence = fence_text and decimal(fence_text, 1, FENCE_MAX - 1)
    if state == 'v' then
      local owner_len, rest = string.match(owner, '^(%d+) (.*)$')
      owner_len = owner_len and tonumber(owner_len)
      if owner_len and owner_len <= #rest then
        state, owner, lock.attached = 'h', string.sub(rest, 1, owner_len), string.sub(rest, owner_len + 1)
      else
        fence = nil
      end
    end
    if fence then
      lock.fence, lock.state, lock.deadline_ms, lock.owner = fence, state, tonumber(deadline), owner
      lock.ended_fence, lock.ended_how = tonumber(ended_text), ended_how
      texts[fence] = fence_text
    end
  end
  lock.is_ours = value and lock.state == 'h' and lock.owner == value
  return lock
end

-- Whether the time of the grant last issued has run out.
local function has_run_out(lock)
  return lock.state == 'h' and lock.deadline_ms > 0 and now_ms >= lock.deadline_ms
end

-- How the grant last issued ended, where it did. One whose key belongs to somebody else was not released by its holder.
local function end_reason(lock)
  if lock.state == 'f' or has_run_out(lock) then return 'expired' end
  if lock.state == 'h' and lock.value and not lock.is_ours then return 'expired' end
  return 'already_released'
end

-- Before a new fence takes the place of the last one: that grant has ended, and how must stay known.
local function note_end(lock)
  if lock.fence == 0 then return end
  lock.ended_how = end_reason(lock) == 'expired' and 'x' or 'r'
  lock.ended_fence = lock.fence
end

local function write_companion(lock, until_ms)
  local state, owner = lock.state, lock.owner
  if lock.attached ~= '' and state == 'h' then state, owner = 'v', #owner .. ' ' .. owner .. lock.attached end
  local packed = digits(lock.fence) .. ' ' .. state .. ' ' .. digits(lock.deadline_ms) .. ' '
    .. digits(lock.ended_fence) .. ' ' .. lock.ended_how .. ' ' .. owner
  set_until(lock.companion, packed, until_ms)
end

-- The companion outlives the lock by the retention. After an early release it may go earlier, but a few seconds are not
-- worth moving its expiry for.
local function released_until(deadline_ms)
  local until_ms = deadline_ms + RETENTION_MS
  if deadline_ms == 0 or until_ms > now_ms + RETENTION_MS + 60000 or until_ms <= now_ms then
    return now_ms + RETENTION_MS
  end
  return until_ms
end

local function write_released(lock)
  note_end(lock)
  write_companion(lock, released_until(lock.deadline_ms))
end
