-- Waiting. A script cannot block, so a waiter stands in a sorted set, listens at a wake key of its own, and asks again
-- before its lease runs out (README.md has the protocol). Whoever finds a lock free hands it to the first live waiter.
--
-- An entry of the queue is "s<owner>" for one lock and "m<n>:<home><owner>" for a multi-lock, where home (n bytes) is
-- the first of its names in byte order: waiter and wake key of a multi-lock lie beside its home.

local AGAIN = 'again'

local function queue_key(resource)
  return side_key('__wait__', resource)
end

local function waiter_key(prefix, home, ticket)
  return side_key(prefix, home) .. ':' .. ticket
end

-- Scores come back as text in whatever form the server likes; a ticket has one form.
local function ticket_of(score)
  return digits(tonumber(score))
end

local function multi_entry(home, owner)
  return 'm' .. #home .. ':' .. home .. owner
end

-- Who stands behind an entry: home and owner.
local function read_entry(entry, resource)
  if string.byte(entry) == 115 then return resource, string.sub(entry, 2) end
  local colon = string.find(entry, ':', 1, true)
  local owner_at = colon + 1 + tonumber(string.sub(entry, 2, colon - 1))
  return string.sub(entry, colon + 1, owner_at - 1), string.sub(entry, owner_at)
end

local function drop_entry(lock, entry, owner)
  redis.call('ZREM', queue_key(lock.resource), entry)
  publish('abandoned', lock.resource, lock.fence, owner)
end

-- The first waiter that lives; the dead before it leave the queue. nil where nobody waits.
local function first_waiter(lock)
  local queue = queue_key(lock.resource)
  -- Cheaper than a look into the queue, and nearly always all there is to do.
  if redis.call('EXISTS', queue) == 0 then return nil end
  while true do
    local row = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
    local entry = row[1]
    if not entry then return nil end
    local ticket = ticket_of(row[2])
    local home, owner = read_entry(entry, lock.resource)
    local wish = redis.call('GET', waiter_key('__waiter__', home, ticket))
    if wish then return {entry = entry, ticket = ticket, home = home, owner = owner, wish = wish} end
    drop_entry(lock, entry, owner)
  end
end

local function push_wake(waiter, message)
  local key = waiter_key('__wake__', waiter.home, waiter.ticket)
  redis.call('RPUSH', key, message)
  redis.call('PEXPIRE', key, LEASE_MS)
end

-- What a waiter wants: the ttl in milliseconds, and behind it, for one lock with a VALUE, '=' and that, for a multi-lock a
-- blank and its names.
local function read_wish(wish)
  local ttl_ms, kind, rest = string.match(wish, '^(%d+)(.?)(.*)$')
  return tonumber(ttl_ms), kind == '=' and rest or '', kind == ' ' and rest or nil
end

-- The locks a waiter wants, if it is first for all of them and all are free; nil otherwise.
local function grantable_locks(waiter, lock)
  local _, _, names = read_wish(waiter.wish)
  if not names then return {lock} end
  local locks = {}
  for i, name in ipairs(cmsgpack.unpack(names)) do
    local other = lock
    if name ~= lock.resource then
      other = read_lock(name)
      if not other or (other.value and other.value ~= waiter.owner) then return nil end
      local first = first_waiter(other)
      if not first or first.entry ~= waiter.entry then return nil end
    end
    locks[i] = other
  end
  return locks
end

-- Hands a free lock to the first live waiter, in this very step. Answers nil where nobody waits, else that waiter; its
-- `fences` and `ttl_ms` are set where it got what it wants. A multi-lock that is first here but not yet everywhere keeps
-- the lock free: nobody passes it. `asking` is the entry of the caller, who needs no waking.
local function serve(lock, asking)
  local waiter = first_waiter(lock)
  if not waiter then return nil end
  local locks = grantable_locks(waiter, lock)
  if not locks then return waiter end
  for _, each in ipairs(locks) do
    -- What it holds already is not granted again: there its place in line ends without a grant.
    if each.value then
      drop_entry(each, waiter.entry, waiter.owner)
    else
      redis.call('ZREM', queue_key(each.resource), waiter.entry)
    end
  end
  redis.call('DEL', waiter_key('__waiter__', waiter.home, waiter.ticket))
  local ttl_ms, value = read_wish(waiter.wish)
  waiter.fences, waiter.ttl_ms = grant_all(locks, waiter.owner, ttl_ms, value)
  if waiter.entry ~= asking then
    local message = {digits(waiter.ttl_ms)}
    for i, fence in ipairs(waiter.fences) do message[i + 1] = digits(fence) end
    push_wake(waiter, table.concat(message, ' '))
  end
  return waiter
end

-- Every waiter in order: rows of {entry, ticket, owner, is_alive}.
local function list_waiters(resource)
  local flat = redis.call('ZRANGE', queue_key(resource), 0, -1, 'WITHSCORES')
  local rows, keys = {}, {}
  for i = 1, #flat, 2 do
    local home, owner = read_entry(flat[i], resource)
    local ticket = ticket_of(flat[i + 1])
    rows[#rows + 1] = {entry = flat[i], ticket = ticket, owner = owner}
    keys[#keys + 1] = waiter_key('__waiter__', home, ticket)
  end
  -- In pieces: a Lua call takes only some thousand arguments.
  for from = 1, #keys, 1000 do
    local found = redis.call('EXISTS', unpack(keys, from, math.min(from + 999, #keys)))
    local is_whole = found == math.min(1000, #keys - from + 1)
    for i = from, math.min(from + 999, #keys) do
      rows[i].is_alive = is_whole or redis.call('EXISTS', keys[i]) == 1
    end
  end
  return rows
end

local function is_full(lock)
  if redis.call('ZCARD', queue_key(lock.resource)) < WAITERS_MAX then return false end
  local alive = 0
  for _, row in ipairs(list_waiters(lock.resource)) do
    if row.is_alive then alive = alive + 1 else drop_entry(lock, row.entry, row.owner) end
  end
  return alive >= WAITERS_MAX
end

-- The ticket of one who stands in every queue already, and whose lease has not run out.
local function standing_ticket(locks, home, entry, wish, lease_ms)
  local ticket
  for _, lock in ipairs(locks) do
    local score = redis.call('ZSCORE', queue_key(lock.resource), entry)
    if not score or (ticket and score ~= ticket) then return nil end
    ticket = score
  end
  ticket = ticket_of(ticket)
  if not set_until(waiter_key('__waiter__', home, ticket), wish, now_ms + lease_ms, 'XX') then return nil end
  return ticket
end

-- A place behind everybody, in all queues from one instant. Answers the ticket, or nil where a queue is full.
local function new_ticket(locks, home, entry, owner, wish, lease_ms)
  local ticket = now_us
  for _, lock in ipairs(locks) do
    local key = queue_key(lock.resource)
    if redis.call('ZREM', key, entry) == 1 then publish('abandoned', lock.resource, lock.fence, owner) end
    if is_full(lock) then return nil end
    local last = tonumber(redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2] or 0)
    if last >= ticket then ticket = last + 1 end
  end
  ticket = digits(ticket)
  for _, lock in ipairs(locks) do
    redis.call('ZADD', queue_key(lock.resource), ticket, entry)
    publish('queued', lock.resource, lock.fence, owner)
  end
  set_until(waiter_key('__waiter__', home, ticket), wish, now_ms + lease_ms)
  return ticket
end

-- How long the waiter may sleep: the first in line sees to it that an expiry of the holder is noticed.
local function sleep_ms(locks, entry, wait_ms)
  local sleep, held_ms = math.min(HEARTBEAT_MS, wait_ms), 0
  for _, lock in ipairs(locks) do
    if redis.call('ZRANGE', queue_key(lock.resource), 0, 0)[1] ~= entry then return sleep end
    local left_ms = redis.call('PTTL', lock.resource)
    if left_ms == -1 then return sleep end
    -- -2: the key is absent, so this one is no reason to wait.
    if left_ms >= held_ms then held_ms = left_ms + 1 end
  end
  if held_ms == 0 then return sleep end
  return math.min(sleep, held_ms)
end

-- Enters the queues, or stays where it stands and renews its lease.
local function stand_in_line(locks, home, entry, owner, wish, wait_ms)
  local lease_ms = math.min(LEASE_MS, wait_ms)
  local ticket = standing_ticket(locks, home, entry, wish, lease_ms)
    or new_ticket(locks, home, entry, owner, wish, lease_ms)
  if not ticket then return refuse('OOM the queue of this lock is full (10000 waiters); retry later') end
  -- The queue outlives every lease, and no more.
  for _, lock in ipairs(locks) do redis.call('PEXPIRE', queue_key(lock.resource), LEASE_MS + HEARTBEAT_MS) end
  return {'queued', owner, waiter_key('__wake__', home, ticket), sleep_ms(locks, entry, wait_ms)}
end

-- Leaves the queues; what it kept free goes to the next.
local function leave_line(locks, home, entry, owner)
  for _, lock in ipairs(locks) do
    local score = redis.call('ZSCORE', queue_key(lock.resource), entry)
    if score then
      redis.call('DEL', waiter_key('__waiter__', home, ticket_of(score)))
      drop_entry(lock, entry, owner)
    end
  end
  for _, lock in ipairs(locks) do
    if not redis.call('GET', lock.resource) then serve(lock) end
  end
end
