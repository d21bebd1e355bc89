-- Find a slot that may be claimed and put it into `open` with a provisional end, the ticket: a worker that dies before
-- its claim leaves nothing behind but an expired entry.
-- KEYS[1] meta [2] open [3] ready [4] parked [5] done [6] gaps [7] totals [8] failed [9] wake
-- ARGV[1] uid [2] provisional time in ms [3] KEEP_RUN in ms
-- Returns {'slot', name, ticket}; {'wait', ms until something may be free (-1: unknown), open slots};
--   {'parked', how many}: only those are left; {'finished', time, found now (1) or before (0)}; {'state lost'}.
-- Finished is counted, not concluded from absence: an evicted `open` would look like a finished run.
if foreign(KEYS[1], ARGV[1]) then return {'state lost'} end
local finished_at = redis.call('HGET', KEYS[1], 'finished_at')
if finished_at then return {'finished', finished_at, 0} end

local now = now_ms()
local frontier = tonumber(redis.call('HGET', KEYS[1], 'frontier'))
local slots = tonumber(redis.call('HGET', KEYS[1], 'slots'))
local passed = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 1)[1]
local due = not passed and redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, 1)[1]
local name = passed or due or (frontier < slots and number(frontier))

if name then
  -- A fraction from a counter, never 0, makes each ticket unlike all others within one millisecond, and unlike the ends
  -- of leases. 1/1024 is exact.
  local picks = redis.call('HINCRBY', KEYS[1], 'picks', 1)
  redis.call('ZADD', KEYS[2], string.format('%.10f', now + tonumber(ARGV[2]) + (picks % 1023 + 1) / 1024), name)
  if due then redis.call('ZREM', KEYS[3], name) end
  if not passed and not due then redis.call('HSET', KEYS[1], 'frontier', number(frontier + 1)) end
  return {'slot', name, redis.call('ZSCORE', KEYS[2], name)}
end

local open, ready = redis.call('ZCARD', KEYS[2]), redis.call('ZCARD', KEYS[3])
if open + ready > 0 then
  redis.call('DEL', KEYS[9])   -- whatever they called for is taken: nobody shall wake for it
  local wait = -1
  for i = 2, 3 do
    local first = redis.call('ZRANGE', KEYS[i], 0, 0, 'WITHSCORES')[2]
    if first and (wait < 0 or tonumber(first) - now < wait) then wait = tonumber(first) - now end
  end
  return {'wait', math.ceil(wait), open}
end
local parked = redis.call('ZCARD', KEYS[4])
if parked > 0 then return {'parked', parked} end
local expected = frontier - tonumber(redis.call('HGET', KEYS[1], 'jumped'))
    + tonumber(redis.call('HGET', KEYS[1], 'split_off'))
if redis.call('HLEN', KEYS[5]) ~= expected then return {'state lost'} end

redis.call('HSET', KEYS[1], 'finished_at', number(now))
wake_one(KEYS[9])
for i = 1, 9 do redis.call('PEXPIRE', KEYS[i], ARGV[3]) end
return {'finished', number(now), 1}
