--[[
sliding_buckets: the sliding window in steps. Counts of short aligned buckets, each of which counts
in full until the last moment that it holds is a window back. Twin of
src/algorithm/sliding_buckets.rs.

KEYS    none; is given one
ARGV    none; is given a quota
reply   steps, grant, prepare
calls   those of tally
server  Redis 5.0

Stored: for each bucket that is not empty, oldest first, its number since the epoch and its count.
]]

local function prepare(quota, parts)
  -- Rounded up: so one bucket more than the window has parts covers all that counts.
  quota.length = math.ceil(quota.window / parts)
  quota.current = math.floor(now / quota.length)
end

-- When the units of a bucket have returned: a window after the last of its moments.
local function returned_at(quota, index)
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

local steps, grant = need('tally')({
  base = 1,
  group = 2,

  is_after = function(numbers, quota)
    return numbers[#numbers - 1] > quota.current
  end,

  at = function(numbers, quota)
    local count, current = #numbers, quota.current
    if count > 0 and numbers[count - 1] <= current and returned_at(quota, numbers[1]) > now then
      return numbers
    end
    local counting = {}
    for at = 1, count, 2 do
      if returned_at(quota, numbers[at]) > now then
        add_to(counting, math.min(numbers[at], current), numbers[at + 1])
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
        return returned_at(quota, numbers[at]) - now
      end
    end
    return 0
  end,

  add = function(numbers, quota, cost)
    add_to(numbers, quota.current, cost)
  end,

  receipt = function(_, quota)
    return quota.current
  end,

  take = function(numbers, _, charge, units)
    for at = 1, #numbers, 2 do
      if numbers[at] == charge.mark then
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

  -- Of the oldest first: they would be back soon, and the youngest are those that recent charges find
  -- again.
  give = function(numbers, quota, units)
    local left, size = {}, 0
    for at = 1, #numbers, 2 do
      local index, count = numbers[at], numbers[at + 1]
      if returned_at(quota, index) > now then
        local given = math.min(count, units)
        count, units = count - given, units - given
      end
      if count > 0 then
        left[size + 1], left[size + 2] = index, count
        size = size + 2
      end
    end
    return left
  end,
})

return steps, grant, prepare
