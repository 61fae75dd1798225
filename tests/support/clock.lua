--[[
clock: the time that a test has set, in place of the server's, for what is decided and for what
expires. In front of the very bytes that decide in production.

Times to live are kept as deadlines of the test's clock, in milliseconds, in the hash test:deadlines,
and keys are made to persist: else the real time that passes while a test runs would shorten them.
]]

local now = tonumber(redis.call('GET', 'test:clock'))
local now_text = string.format('%.0f', now)

local server = redis
local redis = {}

local function keep(key, millis)
  local deadline = math.floor(now / 1000) + tonumber(millis)
  server.call('HSET', 'test:deadlines', key, string.format('%.0f', deadline))
end

function redis.call(command, key, ...)
  local reply
  if command == 'PEXPIRE' then
    keep(key, (...))
    reply = server.call('EXISTS', key)
  elseif command == 'SET' then
    local value, px, millis, nx = ...
    if px == 'KEEPTTL' then
      assert(server.call('EXISTS', key) == 1)
      server.call('SET', key, value)
    else
      assert(px == 'PX')
      reply = not nx and server.call('SET', key, value) or nx and server.call('SET', key, value, 'NX')
      if reply then
        keep(key, millis)
      end
    end
  elseif command == 'PTTL' then
    reply = server.call('HGET', 'test:deadlines', key) - math.floor(now / 1000)
  elseif command == 'APPEND' or command == 'SETRANGE' then
    -- A key that is gone would be left without a time to live.
    assert(server.call('EXISTS', key) == 1)
    reply = server.call(command, key, ...)
  else
    reply = server.call(command, key, ...)
  end
  -- As with a real key, a time to live does not outlive it.
  if server.call('EXISTS', key) == 0 then
    server.call('HDEL', 'test:deadlines', key)
  end
  return reply
end

function redis.pcall(command, ...)
  if command == 'PEXPIRE' then
    return redis.call(command, ...)
  end
  return server.pcall(command, ...)
end

redis.error_reply = server.error_reply
