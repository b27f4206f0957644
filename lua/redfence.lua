#!lua name=redfence
-- Built by lua/build from lua/src: change it there.

-- What an operator may change. The two times of retention can be set when the library is built: see README.md.

-- How long the last fence of an idle lock is remembered after the lock's end.
local RETENTION_MS = 600000
-- How long a high-water mark of FENCE.* lives after its last use; 0 = for ever.
local MARK_RETENTION_MS = 0
-- A waiter that has not asked again for this long has left.
local LEASE_MS = 3000
-- How often a waiter must ask again at the latest.
local HEARTBEAT_MS = 1000

-- The limits of the contract.
local RESOURCE_BYTES_MAX = 512
local OWNER_BYTES_MAX = 256
local VALUE_BYTES_MAX = 1024
local LABEL_BYTES_MAX = 256
local PATTERN_BYTES_MAX = 1024
local TTL_MS_MAX = 31536000000
local WAIT_MS_MAX = 3600000
local FENCE_MAX = 9007199254740991
local MULTI_RESOURCES_MAX = 256
local SCAN_COUNT_MAX = 10000
local SCAN_COUNT_DEFAULT = '10'
local WAITERS_MAX = 10000


-- Reading words: strict integers, names within their limits, options in any order, each once. The texts of the errors
-- are those of core/src/grammar/errors.rs, so that every backend says the same.

local function refuse(text)
  return {err = text}
end

-- Bytes as valid UTF-8; what is not becomes U+FFFD, one for each maximal broken piece, as JSON and error lines need it.
local function lossy_utf8(bytes)
  if not string.find(bytes, '[\128-\255]') then return bytes end
  local out, at = {}, 1
  while at <= #bytes do
    local lead = string.byte(bytes, at)
    local need, low, high = 0, 128, 191
    if lead >= 194 and lead <= 223 then need = 1
    elseif lead >= 224 and lead <= 239 then
      need = 2
      if lead == 224 then low = 160 elseif lead == 237 then high = 159 end
    elseif lead >= 240 and lead <= 244 then
      need = 3
      if lead == 240 then low = 144 elseif lead == 244 then high = 143 end
    end
    local last = at
    while last < at + need do
      local follow = string.byte(bytes, last + 1)
      if not follow or follow < low or follow > high then break end
      low, high, last = 128, 191, last + 1
    end
    local whole = lead < 128 or (need > 0 and last == at + need)
    out[#out + 1] = whole and string.sub(bytes, at, last) or '\239\191\189'
    at = last + 1
  end
  return table.concat(out)
end

-- Client bytes inside an error line: at most 64 of them, no control bytes, always valid text.
local function shown(bytes)
  local text = lossy_utf8(string.sub(bytes, 1, 64))
  return (string.gsub(string.gsub(text, '[%z\1-\31\127]', '?'), '\194[\128-\159]', '?'))
end

-- Texts of the numbers of this call: to write one anew costs as much as a GET. `read_clock` empties it, so a command reads the clock
-- before it writes a number or reads a lock.
local texts = {}

-- Fences and times are whole numbers below 2^53: %.0f writes every one of them exactly, where tostring would not.
local function digits(number)
  local text = texts[number]
  if not text then
    text = string.format('%.0f', number)
    texts[number] = text
  end
  return text
end

local function wrong_arity(command)
  return refuse("ERR wrong number of arguments for '" .. command .. "' command")
end

-- No sign, no blanks, no leading zeros, no exponent; nil for all else and for what lies outside.
local function decimal(word, low, high)
  if #word <= 16 and (word == '0' or string.find(word, '^[1-9]%d*$')) then
    local value = tonumber(word)
    if value >= low and value <= high then return value end
  end
  return nil
end

local function parse_fence(word)
  local fence = decimal(word, 1, FENCE_MAX)
  if not fence then return nil, refuse('ERR fence must be an integer from 1 to 9007199254740991') end
  return fence
end

local function parse_ttl(word, low)
  local ttl_ms = decimal(word, low, TTL_MS_MAX)
  if not ttl_ms then return nil, refuse('ERR ttl must be an integer from 1 to 31536000000 milliseconds') end
  return ttl_ms
end

local function read_tier(word)
  local tier = string.upper(word)
  if tier == 'EFFICIENCY' or tier == 'CORRECTNESS' then return tier end
  return nil, refuse("ERR unknown tier '" .. shown(word) .. "': use EFFICIENCY or CORRECTNESS")
end

local TIER_OPTION = {TIER = read_tier}

local ACQUIRE_OPTIONS = {
  TIER = read_tier,
  WAIT = function(word)
    local wait_ms = decimal(word, 0, WAIT_MS_MAX)
    if not wait_ms then return nil, refuse('ERR WAIT must be an integer from 0 to 3600000 milliseconds') end
    return wait_ms
  end,
  OWNER = function(word)
    if #word < 1 or #word > OWNER_BYTES_MAX then return nil, refuse('ERR owner must be 1 to 256 bytes') end
    return word
  end,
  SESSION = function(word) return word end,
  VALUE = function(word)
    if #word > VALUE_BYTES_MAX then return nil, refuse('ERR VALUE must be at most 1024 bytes') end
    return word
  end,
}

-- LOCK.MACQUIRE has no VALUE.
local MACQUIRE_OPTIONS = {
  TIER = read_tier, WAIT = ACQUIRE_OPTIONS.WAIT, OWNER = ACQUIRE_OPTIONS.OWNER, SESSION = ACQUIRE_OPTIONS.SESSION,
}

local NO_OPTIONS = {}

local KINDS_ELSEWHERE =
  'TIER the efficiency tier has exclusive locks only, without LOCK.CONVERT and LOCK.EXPLAIN; ask a Redfence proxy with TIER CORRECTNESS'

-- The options from args[at] on, as a table by name.
local function parse_options(args, at, known)
  if at > #args then return NO_OPTIONS end
  local options = {}
  while at <= #args do
    local name = string.upper(args[at])
    local read, value = known[name], args[at + 1]
    if not read and known.OWNER and (name == 'SHARED' or (name == 'PERMITS' and known.VALUE)) then
      return nil, refuse(KINDS_ELSEWHERE)
    end
    if not read then return nil, refuse("ERR syntax error: unknown option '" .. shown(args[at]) .. "'") end
    if options[name] then return nil, refuse('ERR syntax error: option ' .. name .. ' is given twice') end
    if not value then return nil, refuse('ERR syntax error: option ' .. name .. ' needs a value') end
    local parsed, err = read(value)
    if err then return nil, err end
    options[name] = parsed
    at = at + 2
  end
  return options
end

local SESSIONS_ELSEWHERE =
  'TIER sessions live in the correctness tier only; ask a Redfence proxy with TIER CORRECTNESS'

-- This library is the efficiency tier and nothing else.
local function refuse_other_tier(options)
  if options.TIER == 'CORRECTNESS' then
    return refuse('TIER correctness is not served here: this is the efficiency tier; ask a Redfence proxy')
  end
  if options.SESSION then return refuse(SESSIONS_ELSEWHERE) end
  return nil
end

-- All a command with nothing but TIER after args[at - 1] has to check. Answers an error or nil.
local function check_tier_option(args, at)
  local options, err = parse_options(args, at, TIER_OPTION)
  return err or refuse_other_tier(options)
end

-- A name with a brace but no hash tag cannot have its side keys in its own slot.
local function is_without_slot(resource)
  if not string.find(resource, '}', 1, true) then return false end
  local open = string.find(resource, '{', 1, true)
  local close = open and string.find(resource, '}', open + 1, true)
  return not (close and close > open + 1)
end

local function in_cluster()
  local info = redis.pcall('CLUSTER', 'INFO')
  return not (type(info) == 'table' and info.err)
end

local function check_resource(resource)
  if #resource < 1 or #resource > RESOURCE_BYTES_MAX then return refuse('ERR resource name must be 1 to 512 bytes') end
  if is_without_slot(resource) and in_cluster() then
    return refuse("CROSSSLOT resource '" .. shown(resource)
      .. "' has a '}' but no hash tag, so its fence cannot be kept in its slot; rename it")
  end
  return nil
end

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

-- One JSON object a change, published on __lock__:<resource>; one for a lost lock, on __lost__:<resource>.

local ESCAPES = {['"'] = '\\"', ['\\'] = '\\\\', ['\n'] = '\\n', ['\r'] = '\\r', ['\t'] = '\\t'}

-- Nearly every name has printable ASCII alone, no quote and no backslash. One anchored match is much cheaper than a search for other bytes.
local function json_string(bytes)
  local _, plain = string.find(bytes, '^[]-~#-Z !%[]*')
  if plain < #bytes then
    bytes = string.gsub(lossy_utf8(bytes), '[%z\1-\31"\\]', function(char)
      return ESCAPES[char] or string.format('\\u%04x', string.byte(char))
    end)
  end
  return '"' .. bytes .. '"'
end

local last_seq = 0

-- `value` and `cause` where there is one.
local function publish(event, resource, fence, owner, value, cause)
  last_seq = last_seq < now_us and now_us or last_seq + 1
  redis.call('PUBLISH', '__lock__:' .. resource, '{"event":"' .. event .. '","resource":' .. json_string(resource)
    .. ',"fence":' .. digits(fence) .. ',"owner":' .. json_string(owner)
    .. ',"tier":"EFFICIENCY","seq":' .. digits(last_seq)
    .. ((value and value ~= '') and ',"value":' .. json_string(value) or '')
    .. (cause and ',"cause":"' .. cause .. '"' or '') .. '}')
end

-- A lock ended without its release. pcall: a user without the right to this channel must not lose the rest of the step.
local function publish_loss(resource, fence, cause, successor)
  redis.pcall('PUBLISH', '__lost__:' .. resource, '{"event":"lock-lost","resource":' .. json_string(resource)
    .. ',"fence":' .. digits(fence) .. ',"cause":"' .. cause .. '","successor":'
    .. (successor and digits(successor) or 'null') .. '}')
end

-- A grant that expired, or was deleted by a plain client, ended when nobody of ours looked. Tell it before the next one,
-- which has the fence `successor`.
local function publish_unseen_end(lock, successor)
  if lock.state ~= 'h' or lock.is_ours then return end
  if has_run_out(lock) then
    publish('expired', lock.resource, lock.fence, lock.owner, lock.attached)
    publish_loss(lock.resource, lock.fence, 'expired', successor)
  else
    publish('released', lock.resource, lock.fence, lock.owner, lock.attached, 'deleted')
    publish_loss(lock.resource, lock.fence, 'deleted', successor)
  end
end

-- The common case in as few steps as it takes: `LOCK.ACQUIRE name ttl OWNER owner` of a lock that is free, awaited by nobody and was
-- released by its last holder, and the release of such a lock. Both answer nil for everything else, wrong words among it, and have
-- changed nothing then: the command itself goes on.

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
local function lock_convert(keys, args)
  if #keys ~= 1 or #args < 2 then return wrong_arity('lock.convert') end
  return refuse(KINDS_ELSEWHERE)
end

local function lock_explain(keys, args)
  if #keys ~= 1 then return wrong_arity('lock.explain') end
  return check_resource(keys[1]) or check_tier_option(args, 1) or refuse(KINDS_ELSEWHERE)
end

-- A script cannot write to a client that has asked nothing.
local function lock_notify(keys, args)
  if #keys ~= 0 or #args < 1 then return wrong_arity('lock.notify') end
  return refuse('TIER LOCK.NOTIFY is not served by this Redis; SUBSCRIBE __lost__:<resource> here, or ask a Redfence proxy')
end

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

local function fence_check(keys, args)
  if #keys ~= 1 or #args ~= 1 then return wrong_arity('fence.check') end
  local err, fence, mark, key = present_fence(keys[1], args[1])
  if err then return err end
  raise_mark(key, fence, mark)
  return fence >= mark and 1 or 0
end

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

redis.register_function{function_name = 'lock_acquire', callback = function(keys, args) return acquire_free(keys, args) or lock_acquire(keys, args) end, flags = {}}
redis.register_function{function_name = 'lock_macquire', callback = lock_macquire, flags = {}}
redis.register_function{function_name = 'lock_cancel', callback = lock_cancel, flags = {'allow-oom'}}
redis.register_function{function_name = 'lock_mcancel', callback = lock_mcancel, flags = {'allow-oom'}}
redis.register_function{function_name = 'lock_release', callback = function(keys, args) return release_held(keys, args) or lock_release(keys, args) end, flags = {'allow-oom'}}
redis.register_function{function_name = 'lock_mrelease', callback = lock_mrelease, flags = {'allow-oom'}}
redis.register_function{function_name = 'lock_renew', callback = lock_renew, flags = {'allow-oom'}}
redis.register_function{function_name = 'lock_forcerelease', callback = lock_forcerelease, flags = {'allow-oom'}}
redis.register_function{function_name = 'lock_info', callback = lock_info, flags = {'no-writes'}}
redis.register_function{function_name = 'lock_queue', callback = lock_queue, flags = {'no-writes'}}
redis.register_function{function_name = 'lock_scan', callback = lock_scan, flags = {'no-writes', 'allow-cross-slot-keys'}}
redis.register_function{function_name = 'lock_session', callback = lock_session, flags = {'no-writes'}}
redis.register_function{function_name = 'lock_convert', callback = lock_convert, flags = {'no-writes'}}
redis.register_function{function_name = 'lock_explain', callback = lock_explain, flags = {'no-writes'}}
redis.register_function{function_name = 'lock_notify', callback = lock_notify, flags = {'no-writes'}}
redis.register_function{function_name = 'fence_check', callback = fence_check, flags = {}}
redis.register_function{function_name = 'fence_get', callback = fence_get, flags = {'no-writes'}}
redis.register_function{function_name = 'fence_call', callback = fence_call, flags = {}}
