--[[
clock: the time that a test has set, in place of the server's, for what is decided and for what
expires. In front of the very bytes that decide in production.

Times to live are kept in the hash test:deadlines, in milliseconds of the test's own time, and keys
are made to persist: else the real time that passes while a test runs would shorten them as well.
]]

local now = tonumber(redis.call('GET', 'test:clock'))

local server = redis
local redis = {}

function redis.call(command, key, ...)
  local reply
  if command == 'PEXPIRE' then
    local deadline = tonumber(server.call('GET', 'test:elapsed')) + tonumber((...))
    server.call('HSET', 'test:deadlines', key, string.format('%.0f', deadline))
    reply = server.call('EXISTS', key)
  else
    reply = server.call(command, key, ...)
  end
  -- As with a real key, a time to live does not outlive it.
  if server.call('EXISTS', key) == 0 then
    server.call('HDEL', 'test:deadlines', key)
  end
  return reply
end
