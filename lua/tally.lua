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

local function tally(kind)
  local algorithm = {}

  -- The numbers, and when the tally began: one that was empty in between is another, whose units are
  -- not those of charges before.
  local function read(key)
    local numbers = {}
    for number in string.gmatch(redis.call('GET', key) or '', '%S+') do
      -- A text that somebody else has put there is no count.
      numbers[#numbers + 1] = tonumber(number) or error('WRONGTYPE this key holds no count', 0)
    end
    local born = table.remove(numbers, 1)
    if born and #numbers ~= (kind.size or #numbers - #numbers % 2) then
      error('WRONGTYPE this key holds no count', 0)
    end
    return numbers, born or 0
  end

  local function write(key, numbers, born, window)
    local texts = { text(born) }
    for index, number in ipairs(numbers) do
      texts[index + 1] = text(number)
    end
    redis.call('SET', key, table.concat(texts, ' '), 'PX', time_to_live(window))
  end

  function algorithm.read(count, cost)
    local stored, born = read(count.key)
    count.stale = cost > 0 and #stored > 0 and kind.is_after(stored, count)
    if count.stale then
      stored, born = kind.at(stored, count.first), now
    end
    count.numbers, count.born = stored, born
  end

  function algorithm.judge(count, quota, cost)
    local limit = quota.limit
    local numbers = kind.at(count.numbers, quota)
    local used = kind.used(numbers, quota)
    local wait = 0
    if cost > limit then
      wait = -1
    elseif used + cost > limit then
      wait = kind.until_at_most(numbers, quota, limit - cost)
    end
    -- One unit more is left when one fewer counts, or one fewer than a limit that was lowered.
    local fewer = math.min(used, limit) - 1
    quota.used, quota.wait, quota.numbers = used, wait, numbers
    quota.reset = fewer < 0 and 0 or kind.until_at_most(numbers, quota, fewer)
  end

  -- Charges what the strictest of its quotas admitted.
  function algorithm.charge(count, cost)
    local quota = count.strictest
    if quota.used == 0 or kind.is_of and not kind.is_of(count.numbers, quota) then
      count.born = now
    end
    kind.add(quota.numbers, quota, cost)
    count.numbers, count.stale = quota.numbers, true
  end

  function algorithm.write(count)
    if count.stale then
      write(count.key, count.numbers, count.born, count.window)
    end
  end

  function algorithm.receipt(count, quota)
    return count.born, kind.mark(quota.numbers, quota), kind.back and kind.back(quota.numbers) or 0
  end

  -- After a step back of the clock, where units were charged is no longer where they stand: nothing is
  -- found again. What time makes of the rest stays as it is.
  function algorithm.refund(quota, charge, units)
    local stored, born = read(quota.key)
    if #stored == 0 or born ~= charge.stamp or kind.is_after(stored, quota) then
      return
    end
    if kind.used(kind.at(stored, quota), quota) > 0 and kind.take(stored, quota, charge, units) then
      write(quota.key, stored, born, quota.window)
    end
  end

  return algorithm
end
