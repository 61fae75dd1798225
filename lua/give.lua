--[[
give: has so many units fewer count, in each of a key's counts, whoever charged them; none where fewer
count than that. In place of decide behind the same files.

KEYS    the stored counts, each once
ARGV    call: units
ARGV    count: algorithm, parts, limit, window, life
reply   1
calls   those of the algorithms
server  Redis 5.0

Limit, window and life are those of the strictest quota of a count. All counts are read before one is
written: where one cannot be read, nothing is given.
]]

local units, counts, at = tonumber(ARGV[1]), {}, 2
for index, key in ipairs(KEYS) do
  local steps, _, prepare = need(ARGV[at])
  local quota = {
    limit = tonumber(ARGV[at + 2]),
    window = tonumber(ARGV[at + 3]),
    life = ARGV[at + 4],
  }
  if prepare then
    prepare(quota, tonumber(ARGV[at + 1]))
  end
  local count = { key = key, quota = quota, window = quota.window, life = quota.life, steps = steps() }
  count.steps.read(count, 0)
  counts[index] = count
  at = at + 5
end
for _, count in ipairs(counts) do
  count.steps.give(count, units)
end
return 1
