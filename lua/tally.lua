--[[
tally: what the algorithms have in common that keep a few numbers rather than each unit. They are
stored as a text of whole numbers, as last charged; what time has made of them since is worked out
when they are asked. So a refusal writes nothing.

KEYS    none; is given one by decide
ARGV    none; is given a quota by decide
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

  -- What a quota says of numbers as they are now.
  local function judge(numbers, born, quota, cost)
    local used = kind.used(numbers, quota)
    local wait = 0
    if cost > quota.limit then
      wait = -1
    elseif used + cost > quota.limit then
      wait = kind.until_at_most(numbers, quota, quota.limit - cost)
    end
    -- One unit more is left when one fewer counts, or one fewer than a limit that was lowered.
    local fewer = math.min(used, quota.limit) - 1
    return {
      used = used,
      wait = wait,
      reset = fewer < 0 and 0 or kind.until_at_most(numbers, quota, fewer),
      stamp = born,
      mark = kind.mark(numbers, quota),
      back = kind.back and kind.back(numbers) or 0,
      numbers = numbers,
    }
  end

  function algorithm.ask(quota, cost)
    local stored, born = read(quota.key)
    local numbers = kind.at(stored, quota)
    if cost > 0 and #stored > 0 and kind.is_after(stored, quota) then
      born = now
      write(quota.key, numbers, born, quota.window)
    end
    local asked = judge(numbers, born, quota, cost)
    asked.anew = asked.used == 0 or kind.is_of ~= nil and not kind.is_of(stored, quota)
    return asked
  end

  function algorithm.charge(quota, cost, asked)
    if asked.anew then
      asked.stamp = now
    end
    kind.add(asked.numbers, quota, cost)
    write(quota.key, asked.numbers, asked.stamp, quota.window)
  end

  -- What a quota says after `charged`, the answer of the strictest quota of its count, was charged.
  function algorithm.look(quota, charged)
    return judge(kind.at(charged.numbers, quota), charged.stamp, quota, 0)
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
