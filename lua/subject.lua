--[[
subject: the value of a subject while it is decided: which states it holds, and how it is written.

KEYS    none; the caller passes the key
ARGV    none; the caller passes the subject, a table with its packed states
reply   a table of functions of the subject
calls   to write SET; where nothing is left, and to undo a first write, UNLINK; after a step back of the
calls   clock PEXPIRE
server  Redis 6.0

A state that was `charged` renews the time to live of the value if it needs longer than the value has; one
that was `tidied` renews it anyway: rewound, or given units back.
]]

local call, floor, max = redis.call, math.floor, math.max
local parse, join, wrong_type = require('value')
local format_integer = require('format_integer')

-- Takes what is stored, and has each state take its section. A cost of 0, as of looks and refunds, rewinds and
-- trims nothing.
local function open(subject, key, stored, cost)
  local states = subject.states
  local first = states[1]
  subject.key, subject.stored, subject.expires = key, stored, 0
  if not stored then
    subject.sections, subject.order = {}, {}
  elseif #stored > 15 and not states[2] and string.sub(stored, 5, 15) == first.last_header then
    -- The usual value of one state.
    subject.sections, subject.order = { [first.header] = string.sub(stored, 16) }, { first.header }
    subject.expires = struct.unpack('>I4', stored)
  else
    subject.sections, subject.order, subject.expires = parse(stored)
  end
  for index = 1, #states do
    local state = states[index]
    state.ops.load(state, subject.sections[state.header], cost)
  end
end

-- Puts the data of the states that have changed into their sections. Returns the state whose time to live
-- the value needs from now on, if it needs a new one, and whether one was tidied.
local function save(subject)
  local sections, order, longest, is_tidied = subject.sections, subject.order, nil, false
  local left = subject.expires * 1000000 - now
  for index = 1, #subject.states do
    local state = subject.states[index]
    if state.charged or state.tidied then
      local header = state.header
      local data = state.ops.save(state)
      if data and not sections[header] then
        order[#order + 1] = header
      end
      sections[header] = data
      is_tidied = is_tidied or state.tidied
      if data and (state.tidied or left < state.needs) then
        longest = longest and longest.ttl + 0 >= state.ttl + 0 and longest or state
      end
    end
  end
  return longest, is_tidied
end

-- Writes the value, and keeps what was there for `undo`.
local function write(subject)
  local old, key = subject.stored, subject.key
  local longest, is_tidied = save(subject)
  local renewed = false
  if longest then
    local expires = floor((floor(now / 1000) + longest.ttl) / 1000)
    renewed = longest.ttl
    if expires < subject.expires then
      renewed = format_integer(max(subject.expires * 1000 - floor(now / 1000), 1))
    end
    subject.expires = max(expires, subject.expires)
  end
  local text = join(subject.sections, subject.order, subject.expires)
  if not text then
    if old then
      call('UNLINK', key)
    end
    subject.stored = false
    return
  end
  subject.old = old
  if not old then
    -- NX sets nothing if a key of another type is there.
    if not call('SET', key, text, 'PX', renewed, 'NX') then
      wrong_type()
    end
  elseif is_tidied and renewed then
    -- A full server accepts PEXPIRE, and then the rest of the script.
    call('PEXPIRE', key, renewed)
    call('SET', key, text, 'KEEPTTL')
  elseif renewed then
    call('SET', key, text, 'PX', renewed)
  else
    call('SET', key, text, 'KEEPTTL')
  end
  subject.stored = text
end

-- Restores what was stored before.
local function undo(subject)
  if subject.old then
    call('SET', subject.key, subject.old, 'KEEPTTL')
  else
    call('UNLINK', subject.key)
  end
  subject.stored = subject.old
end

-- Writes what a refused check has rewound. That this cannot be written does not fail the check: the next one
-- will.
local function tidy(subject)
  local states, is_tidied = subject.states, false
  for index = 1, #states do
    is_tidied = is_tidied or states[index].tidied
  end
  if is_tidied and pcall(write, subject) then
    for index = 1, #states do
      local ops = states[index].ops
      if states[index].tidied and ops.write and not pcall(ops.write, states[index]) then
        pcall(undo, subject)
      end
    end
  end
end

return { open = open, write = write, undo = undo, tidy = tidy }
