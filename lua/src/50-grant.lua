-- Giving a lock: fresh, or again to the owner who has it.

local function next_fence(lock)
  return lock.fence < now_us and now_us or lock.fence + 1
end

-- The lock is free. `value` is its VALUE, '' where it has none. Answers the milliseconds given.
local function grant(lock, owner, ttl_ms, value)
  local deadline_ms, fence = now_ms + ttl_ms, next_fence(lock)
  set_until(lock.resource, owner, deadline_ms)
  publish_unseen_end(lock, fence)
  note_end(lock)
  lock.fence, lock.attached = fence, value
  lock.state, lock.deadline_ms, lock.owner, lock.value, lock.is_ours = 'h', deadline_ms, owner, owner, true
  write_companion(lock, deadline_ms + RETENTION_MS)
  publish('acquired', lock.resource, lock.fence, owner, value)
  return ttl_ms
end

-- The owner asks again for what it has: same fence and VALUE, time stretched to at least what is asked. Where a plain client
-- took the key under this very value, it gets its first fence now; a key without expiry stays so. Answers the
-- milliseconds left. A retry is no news: nothing is published of it, as by the module and the proxies.
local function grant_again(lock, ttl_ms, value)
  local left_ms = redis.call('PTTL', lock.resource)
  local is_endless = left_ms < 0
  local is_stretched = not is_endless and left_ms < ttl_ms
  if is_endless then left_ms = ttl_ms end
  if lock.is_ours and not is_stretched then return left_ms end
  if is_stretched then
    left_ms = ttl_ms
    redis.call('PEXPIREAT', lock.resource, digits(now_ms + ttl_ms))
  end
  if not lock.is_ours then
    local fence = next_fence(lock)
    publish_unseen_end(lock, fence)
    note_end(lock)
    lock.fence, lock.attached = fence, value
  end
  lock.state, lock.owner, lock.is_ours = 'h', lock.value, true
  lock.deadline_ms = is_endless and 0 or now_ms + left_ms
  write_companion(lock, (is_endless and now_ms or lock.deadline_ms) + RETENTION_MS)
  return left_ms
end

-- Byte order. The server's locale decides what `<` does with strings.
local function precedes(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- Several locks that are free or have this owner already, in one step and in the order of their names. Answers the
-- fences in the order asked, and the milliseconds all of them have.
local function grant_all(locks, owner, ttl_ms, value)
  local sorted, fences, least_ms = {}, {}, TTL_MS_MAX
  for i, lock in ipairs(locks) do sorted[i] = lock end
  table.sort(sorted, function(a, b) return precedes(a.resource, b.resource) end)
  for _, lock in ipairs(sorted) do
    local given_ms = lock.value and grant_again(lock, ttl_ms, value) or grant(lock, owner, ttl_ms, value)
    least_ms = math.min(least_ms, given_ms)
  end
  for i, lock in ipairs(locks) do fences[i] = lock.fence end
  return fences, least_ms
end
