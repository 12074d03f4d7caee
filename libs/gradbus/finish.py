"""How a turn of the policy ends, as services and journals write it beside an engine's "stop" and "length"."""

from __future__ import annotations

from typing import Final

WITHDRAWN: Final = "withdrawn"
"""Nobody waits for it any more: it is drawn to no end, and has no tokens."""
