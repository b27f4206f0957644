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
