--[[
algorithms: the algorithms by the names that calls give them, which are those of their files.

KEYS    none
ARGV    none
reply   none; defines algorithm_of
calls   none
server  any
]]

-- Each is made when it is first asked for: to make all would take longer than most calls do.
local algorithm_of
do
  local makers = {
    sliding_log = sliding_log,
    sorted_set_log = sorted_set_log,
    sliding_counter = sliding_counter,
    sliding_buckets = sliding_buckets,
    fixed_window = fixed_window,
    gcra = gcra,
  }
  local made = {}

  function algorithm_of(name)
    made[name] = made[name] or makers[name]()
    return made[name]
  end
end
