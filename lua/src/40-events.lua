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
