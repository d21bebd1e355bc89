-- Enter a slot into the ledger: every row of it is done. May move the frontier over a hole that its holder has proven.
-- KEYS[1] meta [2] open [3] slot [4] lease [5] done [6] gaps [7] totals [8] failed [9] wake
-- ARGV[1] uid [2] name [3] token [4] seq [5] the end that was worked to [6] tally [7] MAX_FAILED_ROWS
--   [8] number of the slot to jump to, '' for none; never beyond the end that the prober knew [9] unused
--   [10..] counts and failed rows
-- Returns {'ok'}; {'repeated'}; {'too many', room}; {'other end', the stored one}; {'lost'}; {'state lost'}.
if not foreign(KEYS[1], ARGV[1]) then
  local entry = redis.call('HGET', KEYS[5], ARGV[2])
  if entry and string.sub(entry, -#ARGV[3]) == ARGV[3] then return {'repeated'} end
end
local no = refused(KEYS[1], KEYS[3], KEYS[4], ARGV[1], ARGV[3], ARGV[4])
if no then return no end
local first, last = unpack(redis.call('HMGET', KEYS[3], 'first', 'last'))
if last ~= ARGV[5] then return {'other end', last} end
local room = room_if_too_many(KEYS[8], ARGV[7], 10)
if room then return {'too many', room} end

redis.call('HSET', KEYS[5], ARGV[2], first .. ' ' .. last .. ' ' .. ARGV[6] .. ' ' .. ARGV[3])
count(KEYS[7], KEYS[8], 10)
if ARGV[8] ~= '' then
  local frontier, jump = tonumber(redis.call('HGET', KEYS[1], 'frontier')), tonumber(ARGV[8])
  if jump > frontier then
    redis.call('HSET', KEYS[6], number(frontier), number(jump - 1))
    redis.call('HINCRBY', KEYS[1], 'jumped', number(jump - frontier))
    redis.call('HSET', KEYS[1], 'frontier', number(jump))
  end
end
redis.call('DEL', KEYS[3], KEYS[4])
redis.call('ZREM', KEYS[2], ARGV[2])
wake_one(KEYS[9])
return {'ok'}
