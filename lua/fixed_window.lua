--[[
fixed_window: one count for each aligned window. Twin of src/algorithm/fixed_window.rs.

KEYS    none
ARGV    none; the caller passes the quota
reply   make_ops, nil, prepare, code, format, length, step
calls   none
server  Redis 5.0

Stored: the generation, the number of the window, its count. After a step back of the clock, the window may be the
next one, the `last` of a quota: its count stays until that window has ended.
]]

local unpack, pack = struct.unpack, struct.pack
local FORMAT, LENGTH = '>ddI4', 20

local rule = {
  parse = function(data)
    if #data == 20 then
      local generation, window, count = unpack(FORMAT, data)
      return { window, count }, generation
    end
  end,

  format = function(numbers, generation)
    return pack(FORMAT, generation, numbers[1], numbers[2])
  end,

  is_after = function(numbers, quota)
    return numbers[1] > quota.last
  end,

  at = function(numbers, quota)
    local stored, current = numbers[1], quota.current
    if not stored or stored < current then
      return { current, 0 }
    elseif stored > quota.last then
      return { quota.last, numbers[2] }
    end
    return numbers
  end,

  used = function(numbers)
    return numbers[2]
  end,

  until_at_most = function(numbers, quota)
    local ahead = numbers[1] - quota.current
    return ahead <= 0 and quota.left or ahead == 1 and quota.next_left or quota.needs
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

-- Charges the stored numbers, or none. Returns the new numbers and those of the quotas that follow; fewer if one
-- refuses or something unusual is stored.
local function step(quota, units, generation, window, counted, ...)
  local current = quota.current
  if window ~= current or counted == 0 then
    if window and window > current then
      return
    end
    generation, counted = now, 0
  end
  counted = counted + units
  if counted > quota.limit then
    return
  end
  local following = quota.following
  if following then
    return generation, current, counted, following.step(following, units, ...)
  end
  return generation, current, counted
end

local function prepare(quota)
  require('aligned')(quota)
  -- After a step back of the clock, a charge counts until the end of the next window.
  quota.last, quota.next_left = quota.current + 1, quota.left + quota.window
  quota.needs = quota.next_left
end

local function make_ops()
  return require('counter')(rule)
end

return make_ops, nil, prepare, string.byte('f'), FORMAT, LENGTH, step
