--[[
sliding_buckets: the sliding window in steps. Counts short aligned buckets, each in full until its last
moment is a window ago. Twin of src/algorithm/sliding_buckets.rs.

KEYS    none
ARGV    none; the caller passes the quota
reply   make_ops, attempt, prepare, code
calls   none
server  Redis 5.0

Stored: the generation; the number of a bucket since the epoch; the sum of all counts; then for each bucket
that is not empty, oldest first, how many buckets later it is, and its count.
]]

local unpack, pack, sub = struct.unpack, struct.pack, string.sub

-- The most buckets that one may be later than the first.
local MAX_LATER = 65535

local function prepare(quota, buckets)
  -- Rounded up, so that `buckets` + 1 of them cover the window.
  quota.length = math.ceil(quota.window / buckets)
  quota.current = math.floor(now / quota.length)
  quota.needs = quota.window + quota.length
  quota.oldest = math.floor((now - quota.window + 1) / quota.length)
end

-- Returns when the units of a bucket expire: a window after its last moment.
local function expires_at(quota, index)
  return (index + 1) * quota.length - 1 + quota.window
end

local function add_to(numbers, index, count)
  local last = #numbers - 1
  if numbers[last] == index then
    numbers[last + 1] = numbers[last + 1] + count
  else
    numbers[last + 2], numbers[last + 3] = index, count
  end
end

local function used(numbers)
  local sum = 0
  for at = 2, #numbers, 2 do
    sum = sum + numbers[at]
  end
  return sum
end

local rule = {
  parse = function(data)
    if #data < 20 or (#data - 20) % 6 ~= 0 then
      return
    end
    local numbers, generation, first = {}, unpack('>dd', data)
    for at = 21, #data, 6 do
      local later, count = unpack('>I2I4', data, at)
      numbers[#numbers + 1], numbers[#numbers + 2] = first + later, count
    end
    numbers.base = first
    return numbers, generation
  end,

  format = function(numbers, generation)
    local first, parts = numbers.base or numbers[1] or 0, { '' }
    if numbers[1] and (numbers[1] < first or numbers[#numbers - 1] - first > MAX_LATER) then
      first = numbers[1]
    end
    for at = 1, #numbers, 2 do
      parts[#parts + 1] = pack('>I2I4', numbers[at] - first, numbers[at + 1])
    end
    parts[1] = pack('>ddI4', generation, first, used(numbers) % 4294967296)
    return table.concat(parts)
  end,

  is_after = function(numbers, quota)
    return numbers[#numbers - 1] > quota.current
  end,

  at = function(numbers, quota)
    local count, current = #numbers, quota.current
    if count > 0 and numbers[count - 1] <= current and expires_at(quota, numbers[1]) > now then
      return numbers
    end
    local counting = {}
    for at = 1, count, 2 do
      if expires_at(quota, numbers[at]) > now then
        add_to(counting, math.min(numbers[at], current), numbers[at + 1])
        counting.base = numbers.base
      end
    end
    return counting
  end,

  used = used,

  until_at_most = function(numbers, quota, target)
    local left = used(numbers)
    for at = 1, #numbers, 2 do
      left = left - numbers[at + 1]
      if left <= target then
        return expires_at(quota, numbers[at]) - now
      end
    end
    return 0
  end,

  add = function(numbers, quota, cost)
    add_to(numbers, quota.current, cost)
  end,

  position = function(_, quota)
    return quota.current
  end,

  take = function(numbers, _, charge, units)
    for at = 1, #numbers, 2 do
      if numbers[at] == charge.position then
        numbers[at + 1] = math.max(numbers[at + 1] - units, 0)
        if numbers[at + 1] == 0 then
          table.remove(numbers, at)
          table.remove(numbers, at)
        end
        return true
      end
    end
    return false
  end,

  -- Takes the oldest units first: they would expire soonest, and refunds of recent charges still find the
  -- newest.
  credit = function(numbers, quota, units)
    local left, size = { base = numbers.base }, 0
    for at = 1, #numbers, 2 do
      local index, count = numbers[at], numbers[at + 1]
      if expires_at(quota, index) > now then
        local taken = math.min(count, units)
        count, units = count - taken, units - taken
      end
      if count > 0 then
        left[size + 1], left[size + 2] = index, count
        size = size + 2
      end
    end
    return left
  end,
}

-- Charges a quota of which nothing unusual is stored. Returns the new data, or nothing.
local function attempt(quota, stored, from, to, cost, count, reply, size)
  local current, units = quota.current, cost * count
  local generation, base, used, first, buckets = now, current, 0, current, ''
  if stored and to - from > 19 then
    local began, since, sum = unpack('>ddI4', stored, from)
    local newest, in_newest = unpack('>I2I4', stored, to - 5)
    if since + newest > current or current - since > MAX_LATER then
      return
    end
    local oldest, at = quota.oldest - since, from + 20
    local later, counted = unpack('>I2I4', stored, at)
    while later < oldest and at + 6 < to do
      sum, at = sum - counted, at + 6
      later, counted = unpack('>I2I4', stored, at)
    end
    if later >= oldest then
      used = sum < 0 and sum + 4294967296 or sum
      generation, base, first = began, since, since + later
      if since + newest == current then
        buckets, counted = sub(stored, at, to - 6), in_newest
      else
        buckets, counted = sub(stored, at, to), 0
      end
      units = units + counted
    end
  end
  local charged = cost * count
  if used + charged > quota.limit then
    return
  end
  local reset = expires_at(quota, first) - now
  for _ = 1, count do
    used = used + cost
    reply[size + 1], reply[size + 2], reply[size + 3], reply[size + 4] = used, reset, generation, current
    size = size + 4
  end
  return pack('>ddI4', generation, base, used) .. buckets .. pack('>I2I4', current - base, units), size
end

local function make_ops()
  return require('counter')(rule)
end

return make_ops, attempt, prepare, string.byte('b')
