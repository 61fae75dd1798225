--[[
tally: what the algorithms have in common that keep a few numbers rather than each unit. They are
stored as a text of whole numbers, as last charged; what time has made of them since is worked out
when they are asked. So a refusal writes nothing.

KEYS    none; is given one by decide
ARGV    none; is given a count and its quotas by decide
reply   none; answers decide
calls   GET; to charge, or after a step back of the clock, SET; to refund SET
server  Redis 5.0

A kind of tally has a `size`, how many numbers it has, unless it has any number of pairs, and is a
table of functions of its numbers, which are a list, and a quota: `is_after`,
`at`, `used`, `until_at_most`, `add`, `mark`, `take` and, where a kind needs them, `back` and `is_of`
mean what `Tally` says in src/algorithm/tally.rs.
]]

-- The numbers in a stored text of any number of them, as texts; none where it holds anything else.
local function numbers_in(stored)
  local numbers = {}
  if string.find(stored, '^[%d ]+$') then
    for digits in string.gmatch(stored, '%d+') do
      numbers[#numbers + 1] = digits
    end
  end
  return numbers
end

local function tally(kind)
  local call, min = redis.call, math.min
  local at, used_of, until_at_most = kind.at, kind.used, kind.until_at_most
  local is_after, is_of, back_of, mark_of = kind.is_after, kind.is_of, kind.back, kind.mark
  local match, concat = string.match, table.concat
  local size = kind.size
  local pattern = size and '^(%d+)' .. string.rep(' (%d+)', size) .. '$'
  local texts = {}

  -- The numbers of a stored text, and when the tally began, as text.
  local function parse(stored)
    local numbers = pattern and { match(stored, pattern) } or numbers_in(stored)
    local born, count = numbers[1], size and size + 1 or #numbers
    if not born or not size and count % 2 == 0 then
      -- A text that somebody else has put there is no count.
      error('WRONGTYPE this key holds no count', 0)
    end
    for index = 2, count do
      numbers[index - 1] = numbers[index] + 0
    end
    numbers[count] = nil
    return numbers, born
  end

  -- The numbers, and when the tally began: one that was empty in between is another, whose units are
  -- not those of charges before.
  local function load(key)
    local stored = call('GET', key)
    if stored then
      return parse(stored)
    end
    return {}, '0'
  end

  local function store(count, numbers, born)
    local length = #numbers
    texts[1] = born
    for index = 1, length do
      texts[index + 1] = text(numbers[index])
    end
    count.life = count.life or time_to_live(count.window)
    call('SET', count.key, concat(texts, ' ', 1, length + 1), 'PX', count.life)
  end

  local function read(count, cost)
    local stored, born = load(count.key)
    if cost > 0 and #stored > 0 and is_after(stored, count.first) then
      stored, born = at(stored, count.first), text(now)
      store(count, stored, born)
    end
    count.numbers, count.born = stored, born
  end

  local function judge(count, quota, cost)
    local limit = quota.limit
    local numbers = at(count.numbers, quota)
    local used = used_of(numbers, quota)
    local wait = 0
    if cost > limit then
      wait = -1
    elseif used + cost > limit then
      wait = until_at_most(numbers, quota, limit - cost)
    end
    -- One unit more is left when one fewer counts, or one fewer than a limit that was lowered.
    local fewer = min(used, limit) - 1
    quota.used, quota.wait, quota.numbers = used, wait, numbers
    quota.reset = fewer < 0 and 0 or until_at_most(numbers, quota, fewer)
  end

  -- Charges what the strictest of its quotas admitted.
  local function charge(count, cost)
    local quota = count.strictest
    if quota.used == 0 or is_of and not is_of(count.numbers, quota) then
      count.born = text(now)
    end
    kind.add(quota.numbers, quota, cost)
    count.numbers = quota.numbers
  end

  local function write(count)
    store(count, count.numbers, count.born)
  end

  local function receipt(count, quota)
    return count.born + 0, mark_of(quota.numbers, quota), back_of and back_of(quota.numbers) or 0
  end

  -- Where one quota alone decides: the same as judging, charging and writing one check after the
  -- other, in one go. Tells how many are admitted, and appends what the quota says after each.
  local function grant(count, quota, cost, checks, reply, size)
    read(count, cost)
    local numbers = at(count.numbers, quota)
    local used, granted = used_of(numbers, quota), 0
    while granted < checks and used + cost <= quota.limit do
      quota.used, quota.numbers = used, numbers
      charge(count, cost)
      used, granted = used_of(numbers, quota), granted + 1
      reply[size + 1], reply[size + 2] = used, until_at_most(numbers, quota, used - 1)
      reply[size + 3], reply[size + 4], reply[size + 5] = receipt(count, quota)
      size = size + 5
    end
    if granted > 0 then
      write(count)
    end
    return granted, size
  end

  -- After a step back of the clock, where units were charged is no longer where they stand: nothing is
  -- found again. What time makes of the rest stays as it is.
  local function refund(quota, made, units)
    local stored, born = load(quota.key)
    if #stored == 0 or born ~= text(made.stamp) or is_after(stored, quota) then
      return
    end
    if used_of(at(stored, quota), quota) > 0 and kind.take(stored, quota, made, units) then
      store(quota, stored, born)
    end
  end

  return {
    prepare = kind.prepare,
    read = read,
    judge = judge,
    charge = charge,
    write = write,
    grant = grant,
    receipt = receipt,
    refund = refund,
  }
end
