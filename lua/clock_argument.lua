--[[
clock_argument: takes the time from the caller, for servers that refuse TIME in scripts. First in a script, in place of clock.

KEYS    the values of the call
ARGV    behind all others: time
reply   none; defines `now` and `now_text`, as clock does
calls   GET, GETRANGE, ZRANGE
server  Redis 6.0

`time` is the time of the server as the caller has estimated it when it sent the call. The estimates of two callers differ,
and calls arrive in another order than they were sent, after a lost packet much later. So a call has the time of the newest value
that it reads, if that is later than its own. A value that is later by 1 000 seconds tells that the clock of the server has
stepped back: TCP delivers nothing after so long. Then it is moved back, as after a step of TIME.
]]

local now = ARGV[#ARGV] + 0

do
  local call, unpack, sub, match, sent = redis.pcall, struct.unpack, string.sub, string.match, now

  local function at_least(time)
    if time > now and time - sent < 1000000000 then
      now = time
    end
  end

  -- By kind of value. What is no such value makes a function fail, and says nothing about the time.
  local newest_in = {}

  -- A bucket began before the last moment, which is the time of its run.
  function newest_in.log(key, bucket)
    local head = call('GETRANGE', key, '12', '25')
    local width = 12 + (sub(head, 1, 1) == 's' and 4 * string.byte(head, 14) or 0)
    local run = call('GETRANGE', key, -width, 7 - width)
    at_least(unpack('>d', run) - math.max(bucket - 1, 0))
  end

  newest_in.buckets = newest_in.log

  function newest_in.set(key)
    at_least(call('ZRANGE', key, '-1', '-1', 'WITHSCORES')[2] + 0)
  end

  function newest_in.held(key)
    local text = call('GET', key)
    for at = 2, #text - 47, 48 do
      local lease, _, ends = unpack('>I4dd', text, at + 28)
      at_least(ends - 1000 * lease)
    end
  end

  newest_in.slots = newest_in.held

  -- The window of a fixed window may be the next one: the time of its first charge tells. A sliding counter has no time but
  -- that of its window.
  function newest_in.row(key)
    local text = call('GET', key)
    local numbers = 7 + unpack('>I2', text, 5)
    for at = 7, numbers - 7, 7 do
      local code, window = unpack('>c1I6', text, at)
      local begin, time = unpack('>dd', text, numbers)
      at_least(code == 'g' and time or code == 'c' and time * window or begin)
      numbers = numbers + (code == 'f' and 20 or code == 'c' and 24 or 36)
    end
  end

  for number = 1, #KEYS do
    local key = KEYS[number]
    local kind, bucket = match(match(key, ';(.+)$') or match(key, '}:([^,]+)$') or '', '^([%l_]+):?(%d*)')
    pcall(newest_in[kind or 'row'] or newest_in.row, key, kind == 'buckets' and bucket + 0 or 0)
  end
end

local now_text = string.format('%.0f', now)
