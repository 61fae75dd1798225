--[[
refusals: counts refusals of keys, and blocks those that were refused too often. A script of its own behind the clock
and block_list. Twin of src/algorithm/refusal_record.rs.

KEYS    the block list; then the record of each key
ARGV    for each record: member, count, age, refusals, width, first, longest, doubles, quiet
reply   for each record: outcome, blocks, micros
calls   GET, SET; ZADD; if the list is large ZRANGE; those of block_list
server  Redis 5.0

`member` is the key in the block list. `count` refusals happened at most `age` ago; 0 only looks. The rest is the rule:
the number of refusals, and in microseconds the length of a tenth of the time within which they count, the first and
the longest block, and the time after which earlier blocks are forgotten. `doubles` is 1 if blocks double, or 0.

`outcome` is one of these. `blocks` is how often the key was blocked, if it is; `micros` is for outcomes 1 and 2.

  0  no block is due
  1  the key is blocked now, for `micros`
  2  the key was blocked before by this script, and stays so for `micros`; the refusals do not count
  3  a block is due, but the list has no room for a key of this limiter
]]

-- A flood at one limiter leaves room for others.
local MAX_PER_LIMITER = 1000
local PARTS = 10
-- The length of a part, the number of the newest part, the end of the last block, the blocks, and the refusals in
-- each part, oldest first.
local FORMAT = '>dddI4' .. string.rep('I4', PARTS)

local list, version, has_blocked, reply = KEYS[1], nil, false, {}
-- The blocked keys of each limiter, once they are counted.
local blocked_of = {}

-- Whether the list has room for a member.
local function has_room(limiter)
  if not is_full(list, MAX_PER_LIMITER) then
    return true
  end
  if not blocked_of[limiter] then
    local blocked = 0
    for _, member in ipairs(call('ZRANGE', list, '1', '-1')) do
      if string.sub(member, 1, #limiter) == limiter then
        blocked = blocked + 1
      end
    end
    blocked_of[limiter] = blocked
  end
  -- The rest of the list is for operators.
  return blocked_of[limiter] < MAX_PER_LIMITER and not is_full(list, 9000)
end

local function count_refusals(key, at)
  local member, count, age = ARGV[at], ARGV[at + 1] + 0, ARGV[at + 2] + 0
  local refusals, width, quiet = ARGV[at + 3] + 0, ARGV[at + 4] + 0, ARGV[at + 8] + 0
  local stored = call('GET', key)
  if stored and #stored ~= 28 + 4 * PARTS then
    -- Another program has written this text.
    error('WRONGTYPE this key holds no refusals', 0)
  end
  local record = stored and { struct.unpack(FORMAT, stored) } or { width, 0, 0, 0 }
  local blocked_until, blocks = record[3], record[4]
  if blocked_until > now then
    return 2, blocks, blocked_until - now
  end
  if count == 0 then
    return 0, 0, 0
  end
  if now >= blocked_until + quiet then
    blocked_until, blocks = 0, 0
  end
  local current, refused_at, sum = math.floor(now / width), math.max(now - age, 0), 0
  -- How many parts have ended since; all, if the rule has changed or the clock has stepped back.
  local passed = record[1] == width and current >= record[2] and current - record[2] or PARTS
  local counts = {}
  for index = 1, PARTS do
    counts[index] = index + passed <= PARTS and record[4 + index + passed] or 0
  end
  local part = PARTS - (current - math.floor(refused_at / width))
  if refused_at >= blocked_until and part > 0 then
    counts[part] = math.min(counts[part] + count, 4294967295)
  end
  for index = 1, PARTS do
    sum = sum + counts[index]
  end
  local outcome, length = 0, 0
  if sum >= refusals then
    length = math.min(ARGV[at + 5] * 2 ^ (ARGV[at + 7] * blocks), ARGV[at + 6] + 0)
    version = version or begin_change(list)
    -- With its comma, as names of limiters have none.
    local limiter = string.match(member, '^[^,]*,')
    if not has_room(limiter) then
      outcome = 3
    -- Not if an operator has blocked the key.
    elseif call('ZADD', list, 'NX', now + length, member) == 1 then
      -- Even if the record cannot be written, the list needs a new version and a time to live.
      has_blocked = true
      blocked_of[limiter] = blocked_of[limiter] and blocked_of[limiter] + 1
      outcome, blocks, blocked_until = 1, blocks + 1, now + length
      counts, sum = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }, 0
    end
  end
  local needed = math.max(sum > 0 and (current + PARTS) * width or 0, blocks > 0 and blocked_until + quiet or 0)
  if needed > now then
    local value = struct.pack(FORMAT, width, current, blocked_until, blocks, (table.unpack or unpack)(counts))
    call('SET', key, value, 'PX', math.ceil((needed - now) / 1000) + 1000)
  end
  return outcome, blocks, length
end

for index = 2, #KEYS do
  local done, outcome, blocks, micros = pcall(count_refusals, KEYS[index], 9 * (index - 2) + 1)
  if not done then
    -- An error is a table since Redis 7.0, a text before.
    outcome, blocks, micros = type(outcome) == 'table' and outcome.err or tostring(outcome), 0, 0
  end
  reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = outcome, blocks, micros
end
if has_blocked then
  end_change(list, version)
end
return reply
