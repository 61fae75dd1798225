--[[
refund: takes back units that one check charged, from each of its counts, as far as they still count.
In place of decide behind the same files.

KEYS    the stored counts of the check, each once
ARGV    count: algorithm, parts, limit, window, life, units, time, stamp, mark, cost, held
reply   1
calls   those of the algorithms
server  Redis 5.0

Limit, window and life are those of the strictest quota of a count; units is how many to take back, of
how many that were charged (`cost`); the rest is what decide replied when it charged them.
]]

local at = 1
for _, key in ipairs(KEYS) do
  local steps, _, prepare = need(ARGV[at])
  local quota = {
    key = key,
    limit = tonumber(ARGV[at + 2]),
    window = tonumber(ARGV[at + 3]),
    life = ARGV[at + 4],
  }
  if prepare then
    prepare(quota, tonumber(ARGV[at + 1]))
  end
  local units = tonumber(ARGV[at + 5])
  local charge = {
    time = tonumber(ARGV[at + 6]),
    stamp = ARGV[at + 7],
    mark = tonumber(ARGV[at + 8]),
    cost = tonumber(ARGV[at + 9]),
    held = tonumber(ARGV[at + 10]),
  }
  steps().refund(quota, charge, units)
  at = at + 11
end
return 1
