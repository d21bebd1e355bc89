-- Extend leases, each for the holder of its token only.
-- KEYS[1] meta [2] open [3..] leases   ARGV[1] uid [2] ttl in ms, then name, token for each lease
-- Returns {'ok', 1 or 0 for each lease} (0: another token, or no key) or {'state lost'}.
if foreign(KEYS[1], ARGV[1]) then return {'state lost'} end
local hint, answer = number(now_ms() + tonumber(ARGV[2])), {'ok'}
for i = 3, #KEYS do
  local at = 3 + 2 * (i - 3)
  if redis.call('GET', KEYS[i]) == ARGV[at + 1] then
    redis.call('PEXPIRE', KEYS[i], ARGV[2])
    redis.call('ZADD', KEYS[2], 'XX', hint, ARGV[at])
    answer[#answer + 1] = 1
  else
    answer[#answer + 1] = 0
  end
end
return answer
