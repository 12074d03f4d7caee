"""Atomic operations on the experience log and on journals of episodes: a library of functions in the buffer, loaded as the stack starts.

Services call the functions and have no right to load or run scripts. Append, bitmap and term check are one function, so that
no crash can separate them. They run in a full buffer too: to append a group removes its samples, and only appended entries can be
trimmed. The journals of episodes have no such right.
"""

from __future__ import annotations

from typing import Final

from redis.asyncio import Redis

OPEN: Final = "gradbus_open"
APPEND: Final = "gradbus_append"
DELETE: Final = "gradbus_delete"
REOPEN: Final = "gradbus_reopen"
TAKE_JOURNAL: Final = "gradbus_take_journal"
RECORD: Final = "gradbus_record"
BEGIN_ANEW: Final = "gradbus_begin_anew"

# Of the log: keys begin with term, admitted, experience; arguments begin with the caller's term.
# Of journals: the key is that of a group's journals; arguments begin with the sample's n and the player who holds its journal.
_LIBRARY: Final = """#!lua name=gradbus
local function fenced(keys, args)
  local newest = tonumber(redis.call('GET', keys[1]) or '0')
  if newest > tonumber(args[1]) then return redis.error_reply('FENCED ' .. newest) end
  if newest < tonumber(args[1]) then redis.call('SET', keys[1], args[1]) end
end

-- Checks the term, and nothing else.
redis.register_function{function_name='gradbus_open', flags={'allow-oom'}, callback=function(keys, args)
  return fenced(keys, args) or 0
end}

-- Further keys: of each index as many, all of them removed with it. Further arguments: index and record of each.
redis.register_function{function_name='gradbus_append', flags={'allow-oom'}, callback=function(keys, args)
  local refusal = fenced(keys, args)
  if refusal then return refusal end
  local accepted = {}
  local each = (#keys - 3) / ((#args - 1) / 2)
  for i = 2, #args, 2 do
    if redis.call('SETBIT', keys[2], args[i], 1) == 0 then
      redis.call('XADD', keys[3], '*', 'i', args[i], 'r', args[i + 1])
      accepted[#accepted + 1] = tonumber(args[i])
    end
    local last = 3 + i / 2 * each
    redis.call('DEL', unpack(keys, last - each + 1, last))
  end
  return accepted
end}

-- Further arguments: index and stream id of each.
redis.register_function{function_name='gradbus_delete', flags={'allow-oom'}, callback=function(keys, args)
  local refusal = fenced(keys, args)
  if refusal then return refusal end
  for i = 2, #args, 2 do
    local removed = redis.call('XDEL', keys[3], args[i + 1])
    if removed == 1 and tonumber(args[i]) >= 0 then redis.call('SETBIT', keys[2], args[i], 0) end
  end
  return 0
end}

-- Further arguments: the indexes.
redis.register_function{function_name='gradbus_reopen', flags={'allow-oom'}, callback=function(keys, args)
  local refusal = fenced(keys, args)
  if refusal then return refusal end
  for i = 2, #args do redis.call('SETBIT', keys[2], args[i], 0) end
  return 0
end}

local function held(keys, args)
  local kept = redis.call('HMGET', keys[1], args[1] .. '.holder', args[1] .. '.attempt')
  if kept[1] ~= args[2] then return nil, redis.error_reply('FENCED by ' .. (kept[1] or 'nobody')) end
  return tonumber(kept[2])
end

-- Further argument: the episode's name, of which the first one counts. Gives the name, the attempt and its entries.
redis.register_function{function_name='gradbus_take_journal', callback=function(keys, args)
  local n = args[1]
  redis.call('HSET', keys[1], n .. '.holder', args[2])
  redis.call('HSETNX', keys[1], n .. '.name', args[3])
  redis.call('HSETNX', keys[1], n .. '.attempt', 0)
  local found = redis.call('HMGET', keys[1], n .. '.name', n .. '.attempt')
  while true do
    local entry = redis.call('HGET', keys[1], n .. '.' .. found[2] .. '.' .. (#found - 2))
    if not entry then return found end
    found[#found + 1] = entry
  end
end}

-- Further arguments: attempt, number and record of an entry. An entry that is there is never replaced.
redis.register_function{function_name='gradbus_record', callback=function(keys, args)
  local attempt, refusal = held(keys, args)
  if refusal then return refusal end
  if attempt ~= tonumber(args[3]) then return redis.error_reply('FENCED by attempt ' .. attempt) end
  local name = args[1] .. '.' .. args[3] .. '.' .. args[4]
  if redis.call('HSETNX', keys[1], name, args[5]) == 0 and redis.call('HGET', keys[1], name) ~= args[5] then
    return redis.error_reply('FENCED by another entry ' .. name)
  end
  return 0
end}

-- Further argument: the attempt that failed. Its entries are removed, and no further one of it is taken.
redis.register_function{function_name='gradbus_begin_anew', callback=function(keys, args)
  local attempt, refusal = held(keys, args)
  if refusal then return refusal end
  if attempt ~= tonumber(args[3]) then return attempt end
  redis.call('HSET', keys[1], args[1] .. '.attempt', attempt + 1)
  local number = 0
  while redis.call('HDEL', keys[1], args[1] .. '.' .. args[3] .. '.' .. number) == 1 do number = number + 1 end
  return attempt + 1
end}
"""


async def load_functions(client: Redis) -> None:
    """Loads the library into the buffer, in place of an older one. The buffer persists it like any record."""
    await client.function_load(_LIBRARY, replace=True)
