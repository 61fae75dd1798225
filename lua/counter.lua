--[[
counter: the part that the algorithms share which store a few numbers instead of every unit. The numbers
are stored as a text, as of the last charge. What time has changed since is computed on reading, so a
refusal writes nothing.

KEYS    the key of the entry
ARGV    none; the caller passes the quota
reply   make_ops, fast_path; for a counting rule
calls   GET; to charge, or after a step back of the clock, SET
server  Redis 5.0

A counting rule is a table of functions of the numbers, a list, and a quota. `is_after`, `at`, `used`,
`until_at_most`, `add`, `take` and `credit` mean what `CountingRule` says in
src/algorithm/counter_state.rs. `credit` returns the numbers; `add` also returns whether the charge begins
a new generation; `position` returns that of the last charge. `pattern` and `format` are those of the
stored text. A rule of variable length says in `base` how many numbers the shortest text has, and in
`group` how many each further group has.

The first number of the text is the generation, which is the time at which it began. A counter that was
empty in between is a new generation: no receipt of an earlier charge finds its units.
]]

return function(rule, pattern, format)
  local call, parse_numbers = redis.call, nil
  local is_64_bit = string.format('%d', now) == now_text

  local function store(key, quota, numbers, generation)
    local shape = format
    if not shape or rule.group and #numbers >= rule.base then
      shape = '%s' .. string.rep(' %d', #numbers)
    end
    if not is_64_bit then
      -- The integers of a 32-bit server are too short for `%d`. `%.0f` takes three times as long.
      shape = string.gsub(shape, '%%d', '%%.0f')
    end
    call('SET', key, string.format(shape, generation, (table.unpack or unpack)(numbers)), 'PX', quota.ttl)
  end

  -- Returns the numbers, the generation as text, and the stored text. A cost of 0 writes nothing.
  local function read(key, quota, cost)
    local stored = call('GET', key)
    if not stored then
      return {}, '0'
    end
    local numbers = pattern and { string.match(stored, pattern) } or {}
    if rule.group and not numbers[1] then
      parse_numbers = parse_numbers or require('parse_numbers')
      numbers = parse_numbers(stored, rule.base, rule.group)
    end
    local generation, last = numbers[1], #numbers
    if not generation then
      -- Another program has written this text.
      error('WRONGTYPE this key holds no count', 0)
    end
    for index = 2, last do
      numbers[index - 1] = numbers[index] + 0
    end
    numbers[last] = nil
    if cost > 0 and last > 1 and rule.is_after(numbers, quota) then
      numbers, generation = rule.at(numbers, quota), now_text
      store(key, quota, numbers, generation)
    end
    return numbers, generation, stored
  end

  -- Returns the units used, the wait for a cost, and the time until more units are left.
  local function verdict(numbers, quota, cost)
    local limit, used = quota.limit, rule.used(numbers, quota)
    local wait = 0
    if cost > limit then
      wait = -1
    elseif used + cost > limit then
      wait = rule.until_at_most(numbers, quota, limit - cost)
    end
    -- More is left when one unit fewer counts, or one fewer than a limit that was lowered.
    local fewer = math.min(used, limit) - 1
    return used, wait, fewer < 0 and 0 or rule.until_at_most(numbers, quota, fewer)
  end

  -- Charges as many checks of a cost as are admitted, and returns their number. Appends the reply to
  -- each of them, and to the first that is refused.
  local function fast_path(quota, first_key, cost, count, reply, size)
    local key = KEYS[first_key]
    local numbers, generation = read(key, quota, cost)
    numbers = rule.at(numbers, quota)
    local used, admitted = rule.used(numbers, quota), 0
    while admitted < count and used + cost <= quota.limit do
      if rule.add(numbers, quota, cost) or used == 0 then
        generation = now_text
      end
      used, admitted = rule.used(numbers, quota), admitted + 1
      reply[size + 1], reply[size + 2] = used, rule.until_at_most(numbers, quota, used - 1)
      reply[size + 3], reply[size + 4] = generation + 0, rule.position(numbers, quota)
      size = size + 4
    end
    if admitted > 0 then
      store(key, quota, numbers, generation)
    end
    if admitted < count then
      reply[size + 1], reply[size + 2], reply[size + 3] = verdict(numbers, quota, cost)
      size = size + 3
    end
    return admitted, size
  end

  local function make_ops()
    return require('counter_ops')(rule, read, store, verdict)
  end

  return make_ops, fast_path
end
