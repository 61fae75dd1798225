--[[
clock: the time that a test has set, in place of the server's. In front of the very bytes that
decide in production.
]]

local now = tonumber(redis.call('GET', 'test:clock'))
