--[[
sliding_counter_loop: decides the usual checks of sliding counters: those of a row that has one counter, with counts of this
window. Leaves all others to `decide`.

KEYS    those of call
ARGV    those of call
reply   1 if it is admitted, or 0; the numbers of the counter
calls   SETRANGE
server  Redis 6.0
]]

do
  local call, unpack, pack, at, size = redis.call, struct.unpack, struct.pack, args[2], 1
  left = {}
  while args[at] do
    if args[at] == 0 then
      left[#left + 1], left[#left + 2] = at, 0
    else
      local list, cost, first = args[at + 6], args[at + 7], args[at + 9]
      local limit, window, usual = args[list + 6], args[list + 7], '\7' .. args[list + 8]
      local current = (now - now % window) / window
      local below = (current + 2) * window / 1000000
      -- Up to this count, products with the window are exact.
      local remaining, most = (current + 1) * window - now, 9007199254740991 / window
      for number = first, first + args[at + 2] - 1 do
        local stored, is_decided = values[number], false
        if stored and #stored == 36 then
          local expires, found, generation, counting, previous, count = unpack('>I4c8ddI4I4', stored)
          if found == usual and counting == current and count > 0 and expires >= below and previous <= most and count <= most then
            if previous * remaining / window <= limit - count - cost then
              local numbers = pack('>ddI4I4', generation, counting, previous, count + cost)
              call('SETRANGE', KEYS[number], '12', numbers)
              values[number], reply[size + 1], reply[size + 2] = true, 1, numbers
            else
              reply[size + 1], reply[size + 2] = 0, string.sub(stored, 13)
            end
            size, is_decided = size + 2, true
          end
        end
        if not is_decided then
          size, left[#left + 1], left[#left + 2] = size + 1, at, number
          reply[size] = false
        end
      end
    end
    at = at + args[at + 1]
  end
  if not left[1] then
    return cmsgpack.pack(reply)
  end
end
