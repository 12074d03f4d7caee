"""The table as access rules of Redis 7.0 and Valkey."""

from __future__ import annotations

from typing import Final

from gradbus.access.table import BUFFER

_CONNECTION: Final = "+ping +hello +select +client|id +client|setinfo +client|setname"


def buffer_rules(role: str) -> str:
    """The rules of a user that starts without any right."""
    records = BUFFER[role]
    keys = [f"%{records.access}~{{*}}:{pattern}" for pattern in records.keys.split()]
    return " ".join([*keys, *(f"+{command}" for command in records.commands.split()), _CONNECTION])
