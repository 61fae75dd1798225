--[[
refund: takes back units that one check charged, from each of its counts, as far as they still count.
In place of decide behind the same files.

KEYS    the stored counts of the check, each once
ARGV    count: algorithm, parts, limit, window, units, time, stamp, mark, back, used
reply   1
calls   those of the algorithms
server  Redis 5.0

Limit and window are those of the strictest quota of a count; units is how many to take back; the
rest is what decide replied when it charged them.
]]

local at = 1
for _, key in ipairs(KEYS) do
  local algorithm = algorithm_of(ARGV[at])
  local quota = {
    key = key,
    parts = tonumber(ARGV[at + 1]),
    limit = tonumber(ARGV[at + 2]),
    window = tonumber(ARGV[at + 3]),
  }
  if algorithm.prepare then
    algorithm.prepare(quota)
  end
  local units = tonumber(ARGV[at + 4])
  local charge = {
    time = tonumber(ARGV[at + 5]),
    stamp = tonumber(ARGV[at + 6]),
    mark = tonumber(ARGV[at + 7]),
    back = tonumber(ARGV[at + 8]),
    used = tonumber(ARGV[at + 9]),
  }
  algorithm.refund(quota, charge, units)
  at = at + 10
end
return 1
