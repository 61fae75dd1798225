--[[
algorithms: the algorithms by the names that calls give them, which are those of their files.

KEYS    none
ARGV    none
reply   none; defines algorithms
calls   none
server  any
]]

local algorithms = {
  sliding_log = sliding_log,
  sorted_set_log = sorted_set_log,
  sliding_counter = sliding_counter,
  sliding_buckets = sliding_buckets,
  fixed_window = fixed_window,
  gcra = gcra,
}
