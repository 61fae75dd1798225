--[[
decide: reads the checks of one call and decides them one after the other. Each asks all its quotas,
and charges all of them if all admit it, else none. A check that fails, for example on a key of
another type, is answered by the text of the error and leaves its neighbours alone.

KEYS    the stored counts: for each check those of its quotas, each once
ARGV    check: cost, quotas
ARGV    quota: algorithm, key, limit, window
reply   check: an array of its quotas, flat, or the text of an error
reply   quota: used, wait, reset
calls   those of the algorithms
server  Redis 5.0

cost, limit and used are units; window, wait and reset whole microseconds. `quotas` says how many
follow; `key` is an index into KEYS. A wait of 0 admits, one of -1 never ends. A cost of 0 only
looks. Quotas of one check that share a key share its count: it is charged once.
]]

local algorithms = { sliding_log = sliding_log }

local function ask(check)
  local admitted = true
  for _, quota in ipairs(check.quotas) do
    quota.asked = quota.algorithm.ask(quota.key, quota.limit, quota.window, check.cost)
    admitted = admitted and quota.asked.wait == 0
  end
  return admitted
end

local function charge(check)
  local charged = {}
  for _, quota in ipairs(check.quotas) do
    if not charged[quota.key] then
      charged[quota.key] = true
      quota.algorithm.charge(quota.key, quota.window, check.cost, quota.asked)
    end
  end
end

local function decide(check)
  local charged = ask(check) and check.cost > 0
  if charged then
    charge(check)
  end
  local reply = {}
  for _, quota in ipairs(check.quotas) do
    local asked = quota.asked
    reply[#reply + 1] = charged and asked.used + check.cost or asked.used
    reply[#reply + 1] = asked.wait
    reply[#reply + 1] = charged and asked.reset_if_charged or asked.reset
  end
  return reply
end

-- Reads the check whose first argument is at `at`, and where the next one begins.
local function read(at)
  local check = { cost = tonumber(ARGV[at]), quotas = {} }
  local count = tonumber(ARGV[at + 1])
  at = at + 2
  for index = 1, count do
    check.quotas[index] = {
      algorithm = algorithms[ARGV[at]],
      key = KEYS[tonumber(ARGV[at + 1])],
      limit = tonumber(ARGV[at + 2]),
      window = tonumber(ARGV[at + 3]),
    }
    at = at + 4
  end
  return check, at
end

local replies = {}
local at = 1
while at <= #ARGV do
  local check
  check, at = read(at)
  local decided, reply = pcall(decide, check)
  if not decided then
    -- Since Redis 7.0 an error is a table, before that a text.
    reply = type(reply) == 'table' and reply.err or tostring(reply)
  end
  replies[#replies + 1] = reply
end
return replies
