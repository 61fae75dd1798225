--[[
counter_ops: the operations of the algorithms that store a few numbers.

KEYS    none; the caller passes the key
ARGV    none; the caller passes the state and its quotas
reply   ops, for a counting rule
calls   those of counter; where a credit leaves nothing, UNLINK; to undo a write SET or UNLINK
server  Redis 5.0
]]

return function(rule, read, store, verdict)
  return {
    read = function(state, cost)
      state.numbers, state.generation, state.stored = read(state.key, state.quota, cost)
    end,

    judge = function(state, quota, cost)
      quota.numbers = rule.at(state.numbers, quota)
      quota.used, quota.wait, quota.reset = verdict(quota.numbers, quota, cost)
    end,

    -- Charges by the strictest quota of the key.
    charge = function(state, cost)
      local quota = state.strictest
      if rule.add(quota.numbers, quota, cost) or quota.used == 0 then
        state.generation = now_text
      end
      state.numbers = quota.numbers
    end,

    write = function(state)
      store(state.key, state.quota, state.numbers, state.generation)
    end,

    -- Restores the text from before the write, with the time to live of any write.
    undo = function(state)
      if state.stored then
        redis.call('SET', state.key, state.stored, 'PX', state.ttl)
      else
        redis.call('UNLINK', state.key)
      end
    end,

    receipt = function(state, quota)
      return state.generation + 0, rule.position(quota.numbers, quota)
    end,

    -- After a step back of the clock, units are no longer where they were charged, so none is found. The
    -- rest is written as it was stored, not as of now.
    refund = function(quota, charge, units)
      local key = quota.key
      local numbers, generation = read(key, quota, 0)
      if #numbers == 0 or generation ~= charge.generation or rule.is_after(numbers, quota) then
        return
      end
      local counts = rule.used(rule.at(numbers, quota), quota) > 0
      if counts and rule.take(numbers, quota, charge, units) then
        store(key, quota, numbers, generation)
      end
    end,

    -- Works after a step back of the clock too: it does not matter where units are. What is left stays
    -- the same generation, so receipts of earlier charges still find their units.
    credit = function(state, units)
      local numbers, quota = state.numbers, state.quota
      local used = rule.used(rule.at(numbers, quota), quota)
      if units < used then
        store(state.key, quota, rule.credit(numbers, quota, units), state.generation)
      elseif used > 0 then
        redis.call('UNLINK', state.key)
      end
    end,
  }
end
