--[[
tally: what the algorithms have in common that keep a few numbers rather than each unit. They are
stored as a text of whole numbers, as last charged; what time has made of them since is worked out
when they are asked. So a refusal writes nothing.

KEYS    none; is given one by decide
ARGV    none; is given a quota by decide
reply   none; answers decide
calls   GET; to charge, or after a step back of the clock, SET
server  Redis 5.0

A kind of tally is a table of functions of its numbers, which are a list, and a quota: `is_after`,
`at`, `used`, `until_at_most` and `add` mean what `Tally` says in src/algorithm/tally.rs.
]]

local function tally(kind)
  local algorithm = {}

  local function read(key)
    local numbers = {}
    for number in string.gmatch(redis.call('GET', key) or '', '%S+') do
      -- A text that somebody else has put there is no count.
      numbers[#numbers + 1] = tonumber(number) or error('WRONGTYPE this key holds no count', 0)
    end
    return numbers
  end

  local function write(key, numbers, window)
    local texts = {}
    for index, number in ipairs(numbers) do
      texts[index] = text(number)
    end
    local millis = math.ceil(2 * window / 1000) + 1000
    redis.call('SET', key, table.concat(texts, ' '), 'PX', text(millis))
  end

  -- What a quota says of numbers as they are now.
  local function judge(numbers, quota, cost)
    local used = kind.used(numbers, quota)
    local wait = 0
    if cost > quota.limit then
      wait = -1
    elseif used + cost > quota.limit then
      wait = kind.until_at_most(numbers, quota, quota.limit - cost)
    end
    -- One unit more is left when one fewer counts, or one fewer than the limit where it was lowered.
    local fewer = math.min(used, quota.limit) - 1
    local reset = fewer < 0 and 0 or kind.until_at_most(numbers, quota, fewer)
    return { used = used, wait = wait, reset = reset, numbers = numbers }
  end

  function algorithm.ask(quota, cost)
    local stored = read(quota.key)
    local numbers = kind.at(stored, quota)
    if cost > 0 and #stored > 0 and kind.is_after(stored, quota) then
      write(quota.key, numbers, quota.window)
    end
    return judge(numbers, quota, cost)
  end

  function algorithm.charge(quota, cost, asked)
    kind.add(asked.numbers, quota, cost)
    write(quota.key, asked.numbers, quota.window)
  end

  -- What a quota says after `charged`, the answer of the strictest quota of its count, was charged.
  function algorithm.look(quota, charged)
    return judge(kind.at(charged.numbers, quota), quota, 0)
  end

  return algorithm
end
