--[[
block_list: changes the block list, for the scripts that do. Between the clock and the script.

KEYS    none; the caller passes the key of the list
ARGV    none
reply   none; defines `begin_change`, `is_full` and `end_change`
calls   ZRANGE, ZCOUNT, ZREMRANGEBYRANK; ZADD, PEXPIRE
server  Redis 5.0

The list is a sorted set of members, scored by the end of their block. The member `#` holds the version of the
list, which grows with each change. Its score is in milliseconds, so that it sorts before all members, whose
scores are in microseconds.
]]

local call = redis.call

-- Removes expired blocks. Returns the next version.
local function begin_change(list)
  local head = call('ZRANGE', list, '0', '0', 'WITHSCORES')
  local version = math.max(math.floor(now / 1000), (head[2] or 0) + 1)
  local ended = call('ZCOUNT', list, '-inf', now_text)
  if ended > 1 then
    call('ZREMRANGEBYRANK', list, '1', ended - 1)
  end
  return version
end

-- Whether so many keys are blocked.
local function is_full(list, most)
  return #call('ZRANGE', list, most, most) > 0
end

-- Stores the version, and sets the time to live of the list.
local function end_change(list, version)
  call('ZADD', list, version, '#')
  local last = call('ZRANGE', list, '-1', '-1', 'WITHSCORES')[2] + 0
  -- Five seconds longer than the last block: other processes look for a new version each second.
  call('PEXPIRE', list, math.ceil(math.max(last - now, 0) / 1000) + 5000)
end
