--[[
total: one count of all units that were ever charged. Twin of src/algorithm/total.rs.

KEYS    none
ARGV    none; the caller passes a quota, and a row with the place of a counter in it
reply   none
calls   none
server  Redis 6.0

Numbers: the count 4. No time changes it. The `window` of a quota is the idle time: the value lives at least as long after each
charge. All totals of a key have one header, so that the idle time can be changed.
]]

local function settle_total(_, counters, at)
  return counters[at + 1], false
end

rules.total = function(quota)
  quota.settle, quota.count, quota.needs = settle_total, 1, quota.window
end
