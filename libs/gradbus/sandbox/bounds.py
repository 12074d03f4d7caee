"""How much a user's Python may say. Standard library only: the child keeps to it, and the parent does not trust the child."""

from __future__ import annotations

MAX_REASON = 500
MAX_COMPONENTS = 64
MAX_COMPONENT = 1e30
"""Bound of a component's absolute value: the sum over any number of samples stays finite."""
MAX_NAME = 200
MAX_WHERE = 40
"""Characters that name the line of the source, after the reason."""
