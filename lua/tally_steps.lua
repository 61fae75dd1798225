--[[
tally_steps: the steps of the algorithms that keep a few numbers.

KEYS    none; is given one
ARGV    none; is given a count and its quotas
reply   steps of a kind
calls   those of tally; where a gift leaves nothing, UNLINK; to undo a write SET or UNLINK
server  Redis 5.0
]]

return function(kind, read, store, verdict)
  return {
    read = function(count, cost)
      count.numbers, count.born, count.stored = read(count.key, count.quota, cost)
    end,

    judge = function(count, quota, cost)
      quota.numbers = kind.at(count.numbers, quota)
      quota.used, quota.wait, quota.reset = verdict(quota.numbers, quota, cost)
    end,

    -- Charges what the strictest of its quotas admitted.
    charge = function(count, cost)
      local quota = count.strictest
      if kind.add(quota.numbers, quota, cost) or quota.used == 0 then
        count.born = present
      end
      count.numbers = quota.numbers
    end,

    write = function(count)
      store(count.key, count.quota, count.numbers, count.born)
    end,

    -- Puts the text from before the write back. It lives as long as after any write.
    undo = function(count)
      if count.stored then
        redis.call('SET', count.key, count.stored, 'PX', count.life)
      else
        redis.call('UNLINK', count.key)
      end
    end,

    receipt = function(count, quota)
      return count.born + 0, kind.receipt(quota.numbers, quota)
    end,

    -- After a step back of the clock, where units were charged is no longer where they stand: nothing
    -- is found again. What time makes of the rest stays as it is.
    refund = function(quota, charge, units)
      local key = quota.key
      local numbers, born = read(key, quota, 0)
      if #numbers == 0 or born ~= charge.stamp or kind.is_after(numbers, quota) then
        return
      end
      local counts = kind.used(kind.at(numbers, quota), quota) > 0
      if counts and kind.take(numbers, quota, charge, units) then
        store(key, quota, numbers, born)
      end
    end,

    -- After a step back of the clock too: it does not matter where units stand. What is left is the
    -- same tally, in which charges before are found again.
    give = function(count, units)
      local numbers, quota = count.numbers, count.quota
      local used = kind.used(kind.at(numbers, quota), quota)
      if units < used then
        store(count.key, quota, kind.give(numbers, quota, units), count.born)
      elseif used > 0 then
        redis.call('UNLINK', count.key)
      end
    end,
  }
end
