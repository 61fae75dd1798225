--[[
tally: what the algorithms have in common that keep a few numbers rather than each unit. They are
stored as a text of whole numbers, as last charged; what time has made of them since is worked out
when they are asked. So a refusal writes nothing.

KEYS    the text
ARGV    none; is given a quota
reply   steps, grant of a kind
calls   GET; to charge, or after a step back of the clock, SET
server  Redis 5.0

A kind of tally is a table of functions of its numbers, which are a list, and a quota: `is_after`, `at`,
`used`, `until_at_most`, `add`, `take` and `give` mean what `Tally` says in src/algorithm/tally.rs;
`give` returns the numbers, `add` also tells whether the charge begins another tally, and `receipt` is its
`mark`. With it come the pattern and the format of its text. Where the text may be longer, `base` says of
how many numbers the shortest consists, and `group` how many follow at a time.
]]

return function(kind, pattern, format)
  local call, numbers_in = redis.call, nil
  local is_long = string.format('%d', now) == present

  local function store(key, quota, numbers, born)
    local shape = format
    if not shape or kind.group and #numbers >= kind.base then
      shape = '%s' .. string.rep(' %d', #numbers)
    end
    if not is_long then
      -- The integers of a 32-bit server are too short, and this takes three times as long.
      shape = string.gsub(shape, '%%d', '%%.0f')
    end
    call('SET', key, string.format(shape, born, (table.unpack or unpack)(numbers)), 'PX', quota.life)
  end

  -- Returns the numbers, when the tally began, as text, and the stored text. A tally that was empty in
  -- between is another one, whose units are not those of charges before. A cost of 0 only looks.
  local function read(key, quota, cost)
    local stored = call('GET', key)
    if not stored then
      return {}, '0'
    end
    local numbers = pattern and { string.match(stored, pattern) } or {}
    if kind.group and not numbers[1] then
      numbers_in = numbers_in or need('numbers')
      numbers = numbers_in(stored, kind.base, kind.group)
    end
    local born, last = numbers[1], #numbers
    if not born then
      -- A text that somebody else has put there is no count.
      error('WRONGTYPE this key holds no count', 0)
    end
    for index = 2, last do
      numbers[index - 1] = numbers[index] + 0
    end
    numbers[last] = nil
    if cost > 0 and last > 1 and kind.is_after(numbers, quota) then
      numbers, born = kind.at(numbers, quota), present
      store(key, quota, numbers, born)
    end
    return numbers, born, stored
  end

  -- What a quota says of a cost: what is used, how long to wait, and how long until more is left.
  local function verdict(numbers, quota, cost)
    local limit, used = quota.limit, kind.used(numbers, quota)
    local wait = 0
    if cost > limit then
      wait = -1
    elseif used + cost > limit then
      wait = kind.until_at_most(numbers, quota, limit - cost)
    end
    -- One unit more is left when one fewer counts, or one fewer than a limit that was lowered.
    local fewer = math.min(used, limit) - 1
    return used, wait, fewer < 0 and 0 or kind.until_at_most(numbers, quota, fewer)
  end

  -- Charges as many of so many checks of a cost as are admitted, and tells how many. Appends what the
  -- quota says after each, and of the first that is refused.
  local function grant(quota, first, cost, count, reply, size)
    local key = KEYS[first]
    local numbers, born = read(key, quota, cost)
    numbers = kind.at(numbers, quota)
    local used, granted = kind.used(numbers, quota), 0
    while granted < count and used + cost <= quota.limit do
      if kind.add(numbers, quota, cost) or used == 0 then
        born = present
      end
      used, granted = kind.used(numbers, quota), granted + 1
      reply[size + 1], reply[size + 2] = used, kind.until_at_most(numbers, quota, used - 1)
      reply[size + 3], reply[size + 4] = born + 0, kind.receipt(numbers, quota)
      size = size + 4
    end
    if granted > 0 then
      store(key, quota, numbers, born)
    end
    if granted < count then
      reply[size + 1], reply[size + 2], reply[size + 3] = verdict(numbers, quota, cost)
      size = size + 3
    end
    return granted, size
  end

  local function steps()
    return need('tally_steps')(kind, read, store, verdict)
  end

  return steps, grant
end
