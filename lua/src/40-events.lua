-- One JSON object a change, published on __lock__:<resource>.

local ESCAPES = {['"'] = '\\"', ['\\'] = '\\\\', ['\n'] = '\\n', ['\r'] = '\\r', ['\t'] = '\\t'}

local function json_string(bytes)
  if string.find(bytes, '[%z\1-\31"\\\128-\255]') then
    bytes = string.gsub(lossy_utf8(bytes), '[%z\1-\31"\\]', function(char)
      return ESCAPES[char] or string.format('\\u%04x', string.byte(char))
    end)
  end
  return '"' .. bytes .. '"'
end

local last_seq = 0

local function publish(event, resource, fence, owner)
  last_seq = last_seq < now_us and now_us or last_seq + 1
  redis.call('PUBLISH', '__lock__:' .. resource, '{"event":"' .. event .. '","resource":' .. json_string(resource)
    .. ',"fence":' .. digits(fence) .. ',"owner":' .. json_string(owner)
    .. ',"tier":"EFFICIENCY","seq":' .. digits(last_seq) .. '}')
end

-- A grant that expired, or was deleted by a plain client, ended when nobody of ours looked. Tell it before the next one.
local function publish_unseen_end(lock)
  if lock.state == 'h' and not lock.is_ours then
    publish(has_run_out(lock) and 'expired' or 'released', lock.resource, lock.fence, lock.owner)
  end
end
