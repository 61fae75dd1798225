--[[
counters_loop: decides the usual checks of counters. Their row has one counter, which counts at this time, and is not due for a
new time to live. Leaves all others to `decide`.

KEYS    as call
ARGV    as call
reply   1 if it is admitted, or 0; the numbers of the counter
calls   SETRANGE
server  Redis 6.0

The files of the algorithms describe the numbers. A fixed window and a sliding counter are usual while they have a count of
this window; a gcra while it drains at the limit of the quota, and is not above it. A row of one counter has no other length,
so its length field is skipped.
]]

do
  local call, unpack, pack, at, size = redis.call, struct.unpack, struct.pack, args[2], 2
  while args[at] do
    if args[at] == 0 then
      leftover = leftover or {}
      leftover[#leftover + 1], leftover[#leftover + 2] = at, 0
    else
      local list, cost, first = args[at + 8], args[at + 9], args[at + 10]
      local algorithm, limit, window, usual = args[list + 6], args[list + 7], args[list + 8], args[list + 9]
      local current, format, length, remaining, most = (now - now % window) / window, '>I4xxc7ddI4', 33, 0, 0
      -- The second until which the value has to live.
      local lives = (current + 2) * window / 1000000
      if algorithm == 'sliding_counter' then
        -- Up to `most`, products with the window are exact.
        format, length, remaining, most = '>I4xxc7ddI4I4', 37, (current + 1) * window - now, 9007199254740991 / window
      elseif algorithm == 'gcra' then
        format, length, lives = '>I4xxc7ddI4dI4I4', 49, (now + window + (window - window % 100000) / 100000) / 1000000
      end
      for number = first, first + args[at + 2] - 1 do
        local stored, is_usual, numbers = values[number], false, nil
        if stored and #stored == length then
          local expires, found, generation, time, count, rest, inflow, rate = unpack(format, stored)
          if found ~= usual or expires < lives then
            is_usual = false
          elseif length == 33 then
            is_usual = time == current and count > 0
            if is_usual and count + cost <= limit then
              numbers = pack('>ddI4', generation, time, count + cost)
            end
          elseif length == 37 then
            -- `count` belongs to the previous window, `rest` to this one.
            is_usual = time == current and rest > 0 and count <= most and rest <= most
            if is_usual and count * remaining / window <= limit - rest - cost then
              numbers = pack('>ddI4I4', generation, time, count, rest + cost)
            end
          elseif rate == limit and count <= limit and time <= now and inflow + cost <= 4294967295 then
            local parts = count * window + rest - (now - time) * limit
            is_usual, rest = true, parts % window
            count = (parts - rest) / window
            if parts <= 0 then
              generation, count, rest, inflow = now, 0, 0, 0
            end
            if count + cost <= limit and (rest == 0 or count + cost < limit) then
              numbers = pack('>ddI4dI4I4', generation, now, count + cost, rest, inflow + cost, limit)
            end
          end
        end
        if numbers then
          call('SETRANGE', KEYS[number], '13', numbers)
          values[number], reply[size + 1], reply[size + 2], size = true, 1, numbers, size + 2
        elseif is_usual then
          reply[size + 1], reply[size + 2], size = 0, string.sub(stored, 14), size + 2
        else
          leftover = leftover or {}
          reply[size + 1], size, leftover[#leftover + 1], leftover[#leftover + 2] = false, size + 1, at, number
        end
      end
    end
    at = at + args[at + 1]
  end
  if not leftover then
    return cmsgpack.pack(reply)
  end
end
