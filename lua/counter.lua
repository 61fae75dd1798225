--[[
counter: the part that the algorithms share which store a few numbers instead of every unit. The numbers
are stored as of the last charge. What time has changed since is computed on reading, so a refusal writes
nothing.

KEYS    none
ARGV    none; the caller passes the state and its quotas
reply   ops, for a counting rule
calls   none
server  Redis 5.0

A counting rule is a table of functions of the numbers, a list, and a quota. `is_after`, `at`, `used`,
`until_at_most`, `add`, `take` and `credit` mean what `CountingRule` says in
src/algorithm/counter_state.rs. `credit` returns the numbers; `add` also returns whether the charge begins
a new generation; `position` returns that of the last charge. `parse` returns the numbers and the
generation of the stored data, or nothing if the data are not of this algorithm; `format` returns the data.

The generation is the time at which the counter began. A counter that was empty in between is a new
generation: no receipt of an earlier charge finds its units.
]]

return function(rule)
  -- Returns the units used, the wait for a cost, and the time until more units are left.
  local function verdict(numbers, quota, cost)
    local limit, used = quota.limit, rule.used(numbers, quota)
    local wait = 0
    if cost > limit then
      wait = -1
    elseif used + cost > limit then
      wait = rule.until_at_most(numbers, quota, limit - cost)
    end
    -- More is left when one unit fewer counts, or one fewer than a limit that was lowered.
    local fewer = math.min(used, limit) - 1
    return used, wait, fewer < 0 and 0 or rule.until_at_most(numbers, quota, fewer)
  end

  return {
    -- Takes the stored data, if there are any. A cost rewinds what is later than now.
    load = function(state, data, cost)
      local numbers, generation = {}, 0
      state.is_stored, state.is_cleared = data ~= nil, false
      if data then
        numbers, generation = rule.parse(data, state.quota)
        if not numbers then
          local _, _, wrong_type = require('value')
          wrong_type()
        end
        if cost > 0 and numbers[1] and rule.is_after(numbers, state.quota) then
          numbers, generation = rule.at(numbers, state.quota), now
          state.tidied = true
        end
      end
      state.numbers, state.generation = numbers, generation
    end,

    judge = function(state, quota, cost)
      quota.numbers = rule.at(state.numbers, quota)
      quota.used, quota.wait, quota.reset = verdict(quota.numbers, quota, cost)
    end,

    -- Charges by the strictest quota of the state.
    charge = function(state, cost)
      local quota = state.strictest
      if rule.add(quota.numbers, quota, cost) or quota.used == 0 then
        state.generation = now
      end
      state.numbers, state.charged = quota.numbers, true
    end,

    -- Returns the data to store, unless nothing is left.
    save = function(state)
      return not state.is_cleared and rule.format(state.numbers, state.generation) or nil
    end,

    -- Returns whether there was anything to forget.
    clear = function(state)
      state.is_cleared = true
      return state.is_stored
    end,

    receipt = function(state, quota)
      return state.generation, rule.position(quota.numbers, quota)
    end,

    -- Returns whether units were given back. After a step back of the clock, units are no longer where they
    -- were charged, so none is found. The rest is written as it was stored, not as of now.
    refund = function(state, charge, units)
      local numbers, quota = state.numbers, state.quota
      if #numbers == 0 or state.generation ~= charge.generation or rule.is_after(numbers, quota) then
        return false
      end
      return rule.used(rule.at(numbers, quota), quota) > 0 and rule.take(numbers, quota, charge, units)
    end,

    -- Returns whether units were taken. Works after a step back of the clock too: it does not matter where
    -- units are. What is left stays the same generation, so receipts of earlier charges still find their
    -- units.
    credit = function(state, units)
      local numbers, quota = state.numbers, state.quota
      local used = rule.used(rule.at(numbers, quota), quota)
      if units < used then
        state.numbers = rule.credit(numbers, quota, units)
      else
        state.is_cleared = true
      end
      return used > 0
    end,
  }
end
