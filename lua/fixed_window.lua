--[[
fixed_window: one count for each window aligned to the epoch. Twin of src/algorithm/fixed_window.rs.

KEYS    none
ARGV    none; the caller passes the quota
reply   make_ops, attempt, prepare, code
calls   none
server  Redis 5.0

Stored: the generation, the number of the window, its count.
]]

local unpack, pack = struct.unpack, struct.pack

local rule = {
  parse = function(data)
    if #data == 20 then
      local generation, window, count = unpack('>ddI4', data)
      return { window, count }, generation
    end
  end,

  format = function(numbers, generation)
    return pack('>ddI4', generation, numbers[1], numbers[2])
  end,

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

  position = function(numbers)
    return numbers[1]
  end,

  take = function(numbers, _, charge, units)
    local counts = numbers[1] == charge.position
    if counts then
      numbers[2] = math.max(numbers[2] - units, 0)
    end
    return counts
  end,

  credit = function(numbers, _, units)
    numbers[2] = numbers[2] - units
    return numbers
  end,
}

-- Charges a quota of which nothing unusual is stored. Returns the new data, or nothing.
local function attempt(quota, stored, from, to, cost, count, reply, size)
  local current, used, generation = quota.current, 0, now
  if stored then
    if to - from ~= 19 then
      return
    end
    local began, window, counted = unpack('>ddI4', stored, from)
    if window > current then
      return
    elseif window == current and counted > 0 then
      used, generation = counted, began
    end
  end
  if used + cost * count > quota.limit then
    return
  end
  local left = quota.left
  for _ = 1, count do
    used = used + cost
    reply[size + 1], reply[size + 2], reply[size + 3], reply[size + 4] = used, left, generation, current
    size = size + 4
  end
  return pack('>ddI4', generation, current, used), size
end

local function make_ops()
  return require('counter')(rule)
end

return make_ops, attempt, require('aligned'), string.byte('f')
