-- Nearly every claim finds nothing, or an answer to the same request: told from the raw text, before anything is taken
-- apart. What is answered here the lines after `record.lua` would answer with the same words; they answer all the rest.
local raw = redis.pcall('GETRANGE', KEYS[1], 0, 16473)
if ARGV[6] == '' and ARGV[7] == '' then
  if raw == '' then
    local clock = redis.call('TIME')
    local micros = string.sub('00000' .. clock[2], -6)
    local millis = string.sub(micros, 1, 3)
    local now, last = clock[1] * 1000 + millis, tonumber(ARGV[9])
    if last == 0 or now <= last then
      local ends = now + ARGV[3]
      local seconds = math.floor(ends / 1000)
      local grant = string.format('000%d%03d', seconds, ends - seconds * 1000) .. clock[1] .. micros .. '000001'
      -- NX: an empty string reads like nothing, and is foreign all the same
      if redis.call('SET', KEYS[1], 'I1I' .. ARGV[1] .. grant .. ARGV[2] .. '-' .. ARGV[8], 'NX', 'PX', ARGV[4]) then
        return 'A000' .. clock[1] .. millis .. ARGV[1] .. '00' .. grant .. '-'
      end
      return 'V000' .. clock[1] .. millis
    end
  elseif type(raw) == 'string' and #raw < 16474 and string.sub(raw, 1, 3) == 'I1C' and string.find(raw, ARGV[2], 58, true) == 58 then
    local _, numbers_end = string.find(raw, '^%d+', 20)
    if numbers_end and numbers_end >= 57 then return 'C0000000000000000' .. ARGV[1] .. '00' .. raw end
  end
end
