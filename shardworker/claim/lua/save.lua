-- Move a slot's checkpoint, for the current holder only, and extend the lease.
-- KEYS[1] meta [2] open [3] slot [4] lease [5] totals [6] failed
-- ARGV[1] uid [2] name [3] token [4] seq [5] ttl in ms [6] last id [7] tally [8] MAX_FAILED_ROWS [9..] counts and
--   failed rows, see room_if_too_many
-- Returns {'ok'}; {'repeated'}: it was in already; {'too many', how many more failed rows fit}: nothing was written;
--   {'lost'}; {'state lost'}.
local no = refused(KEYS[1], KEYS[3], KEYS[4], ARGV[1], ARGV[3], ARGV[4])
if no then return no end
local room = room_if_too_many(KEYS[6], ARGV[8], 9)
if room then return {'too many', room} end
redis.call('PEXPIRE', KEYS[4], ARGV[5])
redis.call('ZADD', KEYS[2], 'XX', number(now_ms() + tonumber(ARGV[5])), ARGV[2])
redis.call('HSET', KEYS[3], 'last_id', ARGV[6], 'seq', ARGV[4], 'tally', ARGV[7], 'attempts', 0)
count(KEYS[5], KEYS[6], 9)
return {'ok'}
