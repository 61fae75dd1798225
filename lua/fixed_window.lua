--[[
fixed_window: the plain limit, one count for each window aligned to the epoch. Twin of
src/algorithm/fixed_window.rs.

KEYS    none; is given one
ARGV    none; is given a quota
reply   steps, grant, prepare
calls   those of tally
server  Redis 5.0

Stored: the window, its count.
]]

local steps, grant = need('tally')({
  is_after = function(numbers, quota)
    return numbers[1] > quota.current
  end,

  at = function(numbers, quota)
    local stored, current = numbers[1], quota.current
    if stored == current then
      return numbers
    end
    return { current, stored and stored > current and numbers[2] or 0 }
  end,

  used = function(numbers)
    return numbers[2]
  end,

  until_at_most = function(_, quota)
    return quota.left
  end,

  add = function(numbers, _, cost)
    numbers[2] = numbers[2] + cost
  end,

  receipt = function(numbers)
    return numbers[1]
  end,

  take = function(numbers, _, charge, units)
    local counts = numbers[1] == charge.mark
    if counts then
      numbers[2] = math.max(numbers[2] - units, 0)
    end
    return counts
  end,

  give = function(numbers, _, units)
    numbers[2] = numbers[2] - units
    return numbers
  end,
}, '^(%d+) (%d+) (%d+)$', '%s %d %d')

return steps, grant, need('aligned')
