-- Nearly every completion finds its own grant: told from the raw text, before anything is taken apart. What is answered
-- here the lines after `record.lua` would answer with the same words; they answer all the rest.
local raw = redis.pcall('GETRANGE', KEYS[1], 0, 89)
if type(raw) == 'string' and string.sub(raw, 1, 19) == 'I1I' .. ARGV[1] and string.sub(raw, 36, 57) == ARGV[3] .. ARGV[4] then
  local _, numbers_end = string.find(raw, '^%d+', 20)
  if numbers_end and numbers_end >= 57 then
    local clock = redis.call('TIME')
    local now = '000' .. clock[1] .. string.sub('00000' .. clock[2], -6, -4)
    redis.call('SET', KEYS[1], 'I1C' .. ARGV[1] .. now .. string.sub(raw, 36, 89) .. '-' .. ARGV[6], 'PX', ARGV[5])
    return 'O' .. now .. ARGV[1]
  end
end
