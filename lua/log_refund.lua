--[[
log_refund: gives back units of a log, credits them, or forgets the log, for refund.

KEYS    none; the caller passes the number of a key
ARGV    none; the caller passes a list of quotas, and what was charged
reply   the new value; '' if nothing is left; false if nothing changes
calls   as log; of a long value GET
server  Redis 6.0
]]

-- By kind of value: what refund may do. Each returns the new value, '' if nothing is left, or false; or nothing and a problem.
local changes_of = {}

-- Opens a value to change it, and returns the units that count, or nothing and a problem.
local function open_whole(list, number)
  local left, problem = list.room(list, number)
  if not left then
    return nil, problem
  elseif pages then
    text, pages = call('GET', KEYS[number]), nil
  end
  if not columns then
    columns = create_columns()
    columns.set('', 0)
  end
  return (last - list.before) % 4294967296
end

-- Units of a charge have its time and its share. The positions of later runs fall.
local function refund_log(list, number, charged)
  local used, problem = open_whole(list, number)
  local time = list.bucket > 0 and list.position or charged.time
  if not used or used == 0 or time <= now - list.reach or list.bucket > 0 and list.generation ~= generation then
    return false, problem
  end
  local at, found, position = first_after(time - 1)
  if found ~= time then
    return false
  end
  local from, to, own, column = columns.positions_at(at), columns.positions_at(at + 1), nil, columns.column_of(list.share)
  own = column and (to[column] - from[column]) % 4294967296 or (to[1] - from[1]) % 4294967296
  for other = 2, column and 0 or #from do
    own = own - (to[other] - from[other]) % 4294967296
  end
  local taken, parts = min(charged.units, own), { sub(text, 1, columns.head + columns.width * at) }
  for index = at, runs - 1 do
    local _, _, run_time = run_at(index)
    local row = columns.positions_at(index + 1)
    row[1] = (row[1] - taken) % 4294967296
    if column then
      row[column] = (row[column] - taken) % 4294967296
    end
    if row[1] ~= position then
      -- A run without units is left out.
      parts[#parts + 1], position = columns.pack(run_time, row), row[1]
    end
  end
  return at + #parts > 1 and table.concat(parts) or ''
end

-- Takes the newest units, so that every window gets them.
local function credit_log(list, number, charged)
  local used, problem = open_whole(list, number)
  if not used or used == 0 then
    return false, problem
  end
  local left = (last - before) % 4294967296 - min(charged.units, used)
  -- The newest run that keeps units.
  local at, _, position, time = runs, nil, nil, 0
  repeat
    at = at - 1
    _, position, time = run_at(at)
  until at == 0 or (position - before) % 4294967296 < left
  if left == 0 or time <= now - longest then
    return ''
  end
  -- Of the last run, the units of shares are kept first.
  local from, row = columns.positions_at(at), columns.positions_at(at + 1)
  row[1] = (before + left) % 4294967296
  local rest = (row[1] - from[1]) % 4294967296
  for column = 2, #row do
    local own = min((row[column] - from[column]) % 4294967296, rest)
    row[column], rest = (from[column] + own) % 4294967296, rest - own
  end
  return sub(text, 1, 4) .. pack('>d', list.bucket > 0 and now or 0) .. sub(text, 13, columns.head + columns.width * at)
    .. columns.pack(time, row)
end

local function reset_log(list, number)
  local _, problem = list.room(list, number)
  return text and '' or false, problem
end

changes_of.log = { refund = refund_log, credit = credit_log, reset = reset_log }
