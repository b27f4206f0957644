-- What only looks: LOCK.INFO, LOCK.QUEUE, LOCK.SCAN; and what lives elsewhere: LOCK.SESSION, LOCK.CONVERT, LOCK.EXPLAIN, LOCK.NOTIFY.

-- Keys that make a table of 32 places, each in a place of its own; among these are all places where the names of
-- LOCK.INFO and of its holders would go by their hashes.
local FILLERS = '~lcuts_yjombadefg'

-- Name and value by turns, as a map for a RESP3 client and as a flat array for a RESP2 one: a script does not learn which
-- of them asks. Redis writes the map in the order Lua keeps it. With the fillers in their places, the names line up in
-- the free places from the back, and come out in the contract's order.
local function as_map(flat)
  if not redis.setresp then return flat end
  local map = {}
  for char in string.gmatch(FILLERS, '.') do map[char] = true end
  for i = #flat - 1, 1, -2 do map[flat[i]] = flat[i + 1] end
  for char in string.gmatch(FILLERS, '.') do map[char] = nil end
  return {map = map}
end

-- Since when a plain client holds a lock is not known, and it has no fence. A fence counts microseconds, unless it ran ahead
-- of the clock.
local function show_holder(lock, ttl_ms)
  return as_map({
    'owner', lock.value,
    'fence', lock.is_ours and lock.fence or 0,
    'session', false,
    'ttl', ttl_ms,
    'held_ms', lock.held_ms,
    'permits', false,
    'value', lock.shown_value,
  })
end

--@command LOCK.INFO lock_info no-writes
local function lock_info(keys, args)
  local resource = keys[1]
  if #keys ~= 1 then return wrong_arity('lock.info') end
  local err = check_resource(resource) or check_tier_option(args, 1)
  if err then return err end
  read_clock()
  local lock
  lock, err = read_lock(resource)
  if err then return err end
  local ttl_ms = lock.value and redis.call('PTTL', resource)
  lock.held_ms = lock.is_ours and math.max(0, math.floor((now_us - lock.fence) / 1000))
  lock.shown_value = lock.is_ours and lock.attached ~= '' and lock.attached
  local waiters = 0
  for _, row in ipairs(list_waiters(resource)) do
    if row.is_alive then waiters = waiters + 1 end
  end
  return as_map({
    'resource', resource,
    'tier', 'EFFICIENCY',
    'state', lock.value and 'held' or 'free',
    'fence', lock.fence,
    'owner', lock.value,
    'session', false,
    'ttl', ttl_ms,
    'waiters', waiters,
    'mode', lock.value and 'exclusive',
    'held_ms', lock.held_ms,
    'value', lock.shown_value,
    'max', false,
    'holders', lock.value and {show_holder(lock, ttl_ms)} or {},
  })
end

--@command LOCK.QUEUE lock_queue no-writes
local function lock_queue(keys, args)
  if #keys ~= 1 then return wrong_arity('lock.queue') end
  local err = check_resource(keys[1]) or check_tier_option(args, 1)
  if err then return err end
  read_clock()
  local rows = {}
  for _, row in ipairs(list_waiters(keys[1])) do
    local waited_ms = math.max(0, math.floor((now_us - tonumber(row.ticket)) / 1000))
    if row.is_alive then rows[#rows + 1] = {row.owner, waited_ms} end
  end
  return rows
end

-- A class of a glob from behind its '[': whether it holds `char`, and where the pattern goes on.
local function match_class(pattern, at, char)
  local is_negated, hit = string.byte(pattern, at) == 94, false
  if is_negated then at = at + 1 end
  while at <= #pattern do
    local low = string.byte(pattern, at)
    if low == 93 then at = at + 1 break end
    if low == 92 and at < #pattern then
      hit = hit or string.byte(pattern, at + 1) == char
      at = at + 2
    elseif string.byte(pattern, at + 1) == 45 and at + 2 <= #pattern then
      local high = string.byte(pattern, at + 2)
      hit = hit or (char >= math.min(low, high) and char <= math.max(low, high))
      at = at + 3
    else
      hit = hit or low == char
      at = at + 1
    end
  end
  return hit ~= is_negated, at
end

-- Redis's globs. Only the last '*' is ever gone back to, so no pattern makes it explode.
local function matches_glob(pattern, text)
  local p, t, star_p, star_t = 1, 1, nil, nil
  while t <= #text do
    local element, char, next_p = string.byte(pattern, p), string.byte(text, t), nil
    if element == 42 then
      p = p + 1
      star_p, star_t = p, t
    else
      if element == 63 then
        next_p = p + 1
      elseif element == 91 then
        local hit, behind = match_class(pattern, p + 1, char)
        if hit then next_p = behind end
      elseif element == 92 and p < #pattern then
        if string.byte(pattern, p + 1) == char then next_p = p + 2 end
      elseif element == char then
        next_p = p + 1
      end
      if next_p then
        p, t = next_p, t + 1
      elseif star_p then
        star_t = star_t + 1
        p, t = star_p, star_t
      else
        return false
      end
    end
  end
  return not string.find(pattern, '[^*]', p)
end

-- The resource a companion belongs to; nil for a key that only looks like one.
local function resource_of_companion(key)
  local kind, name = string.sub(key, 10, 10), string.sub(key, 11)
  if kind == '{' and string.find(name, '}', 1, true) == #name and #name > 1 then return string.sub(name, 1, -2) end
  if kind == ':' and string.find(name, '}', 1, true) then return name end
  return nil
end

local SCAN_OPTIONS = {
  TIER = read_tier,
  MATCH = function(word)
    if #word < 1 or #word > PATTERN_BYTES_MAX then return nil, refuse('ERR pattern must be 1 to 1024 bytes') end
    return word
  end,
  COUNT = function(word)
    if decimal(word, 1, SCAN_COUNT_MAX) then return word end
    -- Any positive number, as for SCAN.
    if string.find(word, '^[1-9]%d*$') and (#word < 19 or #word == 19 and word <= '9223372036854775807') then
      return tostring(SCAN_COUNT_MAX)
    end
    return nil, refuse('ERR COUNT must be an integer from 1 to 10000')
  end,
}

--@command LOCK.SCAN lock_scan no-writes allow-cross-slot-keys
local function lock_scan(keys, args)
  local cursor = args[1]
  if #keys ~= 0 or #args < 1 then return wrong_arity('lock.scan') end
  if #cursor > 20 or not (cursor == '0' or string.find(cursor, '^[1-9]%d*$')) then return refuse('ERR invalid cursor') end
  local options, err = parse_options(args, 2, SCAN_OPTIONS)
  err = err or refuse_other_tier(options)
  if err then return err end
  local count = options.COUNT or SCAN_COUNT_DEFAULT
  local page = redis.pcall('SCAN', cursor, 'MATCH', '__fence__*', 'COUNT', count)
  if page.err then return page end
  local resources = {}
  for _, key in ipairs(page[2]) do
    local resource = resource_of_companion(key)
    if resource and (not options.MATCH or matches_glob(options.MATCH, resource)) then
      -- One by one, because in a cluster they lie in different slots. pcall: a key of another type is no lock.
      if type(redis.pcall('GET', resource)) == 'string' then resources[#resources + 1] = resource end
    end
  end
  return {page[1], resources}
end

local POLICIES = {detect = true, ['wait-die'] = true, ['wound-wait'] = true}

local SESSION_OPTIONS = {
  POLICY = function(word)
    if POLICIES[string.lower(word)] then return word end
    return nil, refuse("ERR unknown policy '" .. shown(word) .. "': use detect, wait-die or wound-wait")
  end,
  AGE = function(word)
    if decimal(word, 0, FENCE_MAX) then return word end
    return nil, refuse('ERR AGE must be an integer from 0 to 9007199254740991')
  end,
  NAME = function(word)
    if #word < 1 or #word > LABEL_BYTES_MAX then return nil, refuse('ERR session name must be 1 to 256 bytes') end
    return word
  end,
}

-- Well formed or not: sessions live in the other tier.
--@command LOCK.SESSION lock_session no-writes
local function lock_session(keys, args)
  if #keys ~= 0 or #args < 2 then return wrong_arity('lock.session') end
  local verb = string.upper(args[1])
  if verb == 'OPEN' then
    local _, err = parse_ttl(args[2], 1)
    if not err then _, err = parse_options(args, 3, SESSION_OPTIONS) end
    if err then return err end
  elseif verb ~= 'KEEPALIVE' and verb ~= 'INFO' and verb ~= 'CLOSE' then
    return refuse("ERR unknown subcommand '" .. shown(args[1]) .. "' of LOCK.SESSION")
  elseif #args > 2 then
    return wrong_arity('lock.session')
  end
  return refuse(SESSIONS_ELSEWHERE)
end

-- Kinds of locks live in the other tier.
--@command LOCK.CONVERT lock_convert no-writes
local function lock_convert(keys, args)
  if #keys ~= 1 or #args < 2 then return wrong_arity('lock.convert') end
  return refuse(KINDS_ELSEWHERE)
end

--@command LOCK.EXPLAIN lock_explain no-writes
local function lock_explain(keys, args)
  if #keys ~= 1 then return wrong_arity('lock.explain') end
  return check_resource(keys[1]) or check_tier_option(args, 1) or refuse(KINDS_ELSEWHERE)
end

-- A script cannot write to a client that has asked nothing.
--@command LOCK.NOTIFY lock_notify no-writes
local function lock_notify(keys, args)
  if #keys ~= 0 or #args < 1 then return wrong_arity('lock.notify') end
  return refuse('TIER LOCK.NOTIFY is not served by this Redis; SUBSCRIBE __lost__:<resource> here, or ask a Redfence proxy')
end
