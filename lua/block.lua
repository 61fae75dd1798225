--[[
block: blocks a key of a limiter for a time, or unblocks it. A script of its own behind the clock.

KEYS    the block list
ARGV    member, duration, automatic, number
reply   1, 0 when the list is full, or 2 when an automatic block finds the key blocked; then number
calls   ZRANGE, ZCOUNT, ZREMRANGEBYRANK; ZREM to unblock; ZADD up to twice; PEXPIRE
server  Redis 5.0

`duration` is in whole microseconds from now, at most 2^52; 0 unblocks. `automatic` is 1 for a block by a rule, or 0.

The list is a sorted set of members, scored by the end of their block. The member `#` holds the version of the
list, which grows with each change. Its score is in milliseconds, so that it sorts before all members, whose
scores are in microseconds. Every process reads the whole list when it has changed, so it has an end.
]]

local call = redis.call
local list, member, ends, is_automatic, number = KEYS[1], ARGV[1], now + ARGV[2], ARGV[3] == '1', ARGV[4]

-- Whether so many keys are blocked.
local function is_full(most)
  return #call('ZRANGE', list, most, most) > 0
end

-- Whether there is room for an automatic block: 1 000 keys of a limiter, so that a flood at it leaves room for others,
-- and 9 000 of all, so that operators have room.
local function has_room()
  -- With its comma, as names of limiters have none.
  local limiter, blocked = string.match(member, '^[^,]*,'), 0
  if is_full(1000) then
    for _, other in ipairs(call('ZRANGE', list, '1', '-1')) do
      blocked = blocked + (string.sub(other, 1, #limiter) == limiter and 1 or 0)
    end
  end
  return blocked < 1000 and not is_full(9000)
end

-- ZREM comes first: a full server accepts it, and then the rest of the script. It refuses ZADD only as the first write.
if ends == now and call('ZREM', list, member) == 0 then
  return { 1, number }
end
local head = call('ZRANGE', list, '0', '0', 'WITHSCORES')
local version = math.max(math.floor(now / 1000), (head[2] or 0) + 1)
local ended = call('ZCOUNT', list, '-inf', now_text)
if ended > 1 then
  call('ZREMRANGEBYRANK', list, '1', ended - 1)
end
if ends > now then
  if is_automatic then
    if not has_room() then
      return { 0, number }
    end
    if call('ZADD', list, 'NX', ends, member) == 0 then
      return { 2, number }
    end
  -- A member that is in the list already needs no room.
  elseif is_full(10000) and call('ZADD', list, 'XX', 'CH', ends, member) == 0 then
    return { 0, number }
  else
    call('ZADD', list, ends, member)
  end
end
call('ZADD', list, version, '#')
local last = call('ZRANGE', list, '-1', '-1', 'WITHSCORES')[2] + 0
-- Five seconds longer than the last block: other processes look for a new version each second.
call('PEXPIRE', list, math.ceil(math.max(last - now, 0) / 1000) + 5000)
return { 1, number }
