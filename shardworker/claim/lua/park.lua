-- Take a slot out at its checkpoint: a row failed beyond MAX_FAILED_ROWS. Others go on; `requeue` brings it back.
-- KEYS[1] meta [2] open [3] parked [4] slot [5] lease [6] totals [7] failed [8] wake
-- ARGV as in release.lua; [8] is not used
-- Returns {'ok'}; {'repeated'}; {'too many', room}; {'lost'}; {'state lost'}.
return give_back(number(now_ms()))
