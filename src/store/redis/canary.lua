-- A key that is there for as long as nothing was lost: a flush changes no identity of the server.
-- ARGV: 1 the value known, '' none yet  2 a new value  3 ttl ms  4 '1' write the new value, whatever is there
-- N written anew, S the same (kept for longer), A absent although one was known, O another one is there; then ms, value.
-- Whatever is found something is written, so that an answer says that the server takes writes: owners can write again.
-- Not after record.lua: it is no record.
local clock = redis.call('TIME')
local now = string.format('%016.0f', math.floor(tonumber(clock[1]) * 1000 + tonumber(clock[2]) / 1000))
local there = redis.call('GETRANGE', KEYS[1], 0, 63)
if ARGV[4] == '1' or (there == '' and ARGV[1] == '') then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  return 'N' .. now .. ARGV[2]
end
-- XX: what is absent stays so
redis.call('SET', KEYS[1], there, 'XX', 'PX', ARGV[3])
if there == '' then return 'A' .. now end
return (there == ARGV[1] and 'S' or 'O') .. now .. there
