-- Create a run, or find the one that is there: the first one's bounds, slots and as_of hold for all.
-- KEYS[1] meta   ARGV field, value, ... of a new run
-- Returns the fields and values of meta, or {'resetting'}.
if redis.call('HEXISTS', KEYS[1], 'resetting') == 1 then return {'resetting'} end
if redis.call('HEXISTS', KEYS[1], 'uid') == 0 then redis.call('HSET', KEYS[1], unpack(ARGV)) end
return redis.call('HGETALL', KEYS[1])
