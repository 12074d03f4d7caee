"""Atomic operations on the experience log: a library of functions in the buffer, loaded when the stack starts.

Services call the functions and have no right to load or run scripts. Append, bitmap and term check are one function, so that
no crash can separate them. They run in a full buffer too: to append a group removes its samples, and only appended entries can be
trimmed.
"""

from __future__ import annotations

from typing import Final

from redis.asyncio import Redis

OPEN: Final = "gradbus_open"
APPEND: Final = "gradbus_append"
DELETE: Final = "gradbus_delete"
REOPEN: Final = "gradbus_reopen"

# Keys begin with: term, admitted, experience. Arguments begin with the caller's term.
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

-- Further keys: the assembly of each index. Further arguments: index and record of each.
redis.register_function{function_name='gradbus_append', flags={'allow-oom'}, callback=function(keys, args)
  local refusal = fenced(keys, args)
  if refusal then return refusal end
  local accepted = {}
  for i = 2, #args, 2 do
    if redis.call('SETBIT', keys[2], args[i], 1) == 0 then
      redis.call('XADD', keys[3], '*', 'i', args[i], 'r', args[i + 1])
      accepted[#accepted + 1] = tonumber(args[i])
    end
    redis.call('DEL', keys[3 + i / 2])
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
"""


async def load_functions(client: Redis) -> None:
    """Loads the library into the buffer, in place of an older one. The buffer persists it like any record."""
    await client.function_load(_LIBRARY, replace=True)
