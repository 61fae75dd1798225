--[[
quota: a quota of a call, as the algorithms take it.

KEYS    none
ARGV    none; the caller passes algorithm, buckets, limit, window and ttl, as numbers or as texts
reply   make_quota
calls   none
server  any

`header` is that of the section in which the count is packed, `last_header` the same with the length of the
last section, and `needs` how long a charge may count, in microseconds. A charge renews a value that expires before the
second `renew_below`.
]]

-- An algorithm whose window is a text: the number that stands for it, and the times at which windows begin.
local CALENDAR = 'calendar_window'

-- The code of a sliding_log, which has no receipts.
local LOG = string.byte('l')

local name, make_ops, attempt, prepare, code, format, length, step

return function(algorithm, buckets, limit, window, ttl)
  if name ~= algorithm then
    name = algorithm
    make_ops, attempt, prepare, code, format, length, step = require(algorithm)
  end
  local starts = false
  if algorithm == CALENDAR then
    local high, low = struct.unpack('>I2I4', window)
    window, starts = high * 4294967296 + low, window
  end
  buckets, window = buckets + 0, window + 0
  -- With most of its fields, since a table that grows is copied.
  local quota = {
    make_ops = make_ops,
    attempt = attempt,
    limit = limit + 0,
    window = window,
    needs = window,
    ttl = ttl,
    header = false,
    last_header = false,
    has_receipt = false,
    renew_below = 0,
    counter = 1,
    extra = 0,
    extras = 0,
    path = false,
    expires = false,
    decide = false,
    is_wide = false,
    starts = starts,
  }
  if code then
    local high = math.floor(window / 4294967296)
    quota.header = struct.pack('>BI2I4I2', code, high, window % 4294967296, buckets)
    quota.last_header = quota.header .. '\0\0'
    quota.has_receipt = code ~= LOG
  end
  if not attempt and code then
    quota.step, quota.format = step, format
    quota.value_length, quota.value_format = length + 15, '>I4c11' .. format
  end
  if prepare then
    prepare(quota, buckets)
  end
  quota.renew_below = (now + quota.needs) / 1000000
  return quota
end
