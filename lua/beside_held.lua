--[[
beside_held: counts beside which processes hold units, behind the list of these holders. Decided by the rules of the counts in
src/store/counters.rs.

KEYS    none; the caller passes the number of a key
ARGV    none; the caller passes a list of one quota for the holders, and a list for each count
reply   of the holders as holds.lua; of the counts as their kinds, but a message gets the reply to a look
calls   PEXPIRE
server  Redis 6.0

The list of the holders is the first one of its level. The lists behind it count the units of the level: their kinds end with
`_beside`. They have the room that is left beside what is held and what was spent, and with a message they are not charged the
cost. Only the client adds what is held to the used units. The `limit` of the quota is how many lists are behind it: the last
one of them writes the entry, so that a call that fails charges too much, and never too little.
]]

-- The entry that is to be written: its list, number and units, and how many lists are still behind.
local to_write = nil

local function state_later(list, number, units)
  -- A full server accepts PEXPIRE, and then the rest of the script: what was spent can always be charged.
  if values[number] then
    call('PEXPIRE', KEYS[number], 2 * max(longest, list.lease + LONGER) + 1000)
  end
  to_write = { list = list, number = number, units = units, behind = list.behind }
end

kinds.held = function(list)
  kinds.in_flight(list)
  list.behind, list.limit, list.most, list.state = list.limit, EXACT, EXACT, state_later
end

local function room_beside(list, number)
  local left, problem = list.plain_room(list, number)
  return left and (left < 0 and left or max(left - due - held, 0)), problem
end

-- Charges what was spent, and answers.
local function refuse_beside(list, number, cost)
  if due > 0 then
    local before = size
    list.plain_charge(list, number, due)
    while size > before do
      reply[size], size = nil, size - 1
    end
    list.plain_room(list, number)
  end
  list.plain_refuse(list, number, cost)
  local entry = to_write
  if entry then
    entry.behind = entry.behind - 1
    if entry.behind == 0 then
      state(entry.list, entry.number, entry.units)
      to_write = nil
    end
  end
end

-- A message is charged nothing else: it is answered as a look.
local function charge_beside(list, number, units)
  if asking == '' then
    list.plain_charge(list, number, units)
  else
    refuse_beside(list, number, 0)
  end
end

for _, kind in ipairs({ 'log', 'counters' }) do
  local prepare = kinds[kind]
  kinds[kind .. '_beside'] = function(list)
    prepare(list)
    list.plain_room, list.plain_charge, list.plain_refuse = list.room, list.charge, list.refuse
    list.room, list.charge, list.refuse = room_beside, charge_beside, refuse_beside
  end
end
