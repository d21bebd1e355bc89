-- Give a slot back at its checkpoint; the token stays behind as `closed`, so that a repeat is recognised.
-- KEYS[1] meta [2] open [3] ready [4] slot [5] lease [6] totals [7] failed [8] wake
-- ARGV[1] uid [2] name [3] token [4] seq [5] last id or '' [6] tally [7] MAX_FAILED_ROWS [8] ms until it may be claimed
--   [9] why [10..] counts and failed rows
-- Returns {'ok'}; {'repeated'}; {'too many', room}; {'lost'}; {'state lost'}.
-- A claim counts as an attempt until last_id moves; who gives back in good order takes its own back.
local answer = give_back(number(now_ms() + tonumber(ARGV[8])))
if answer[1] == 'ok' then
  local attempts = tonumber(redis.call('HGET', KEYS[4], 'attempts') or 0)
  if attempts > 0 then redis.call('HSET', KEYS[4], 'attempts', attempts - 1) end
end
return answer
