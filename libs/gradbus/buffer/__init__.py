"""The buffer: Redis or Valkey. Samples and groups as raw bytes, and the experience log; never control state."""

from gradbus.buffer.connection import BufferSettings, open_buffer
from gradbus.buffer.experience import ExperienceLog, StoredEntry
from gradbus.buffer.functions import load_functions
from gradbus.buffer.groups import GroupStore, runs_in

__all__ = ["BufferSettings", "ExperienceLog", "GroupStore", "StoredEntry", "load_functions", "open_buffer", "runs_in"]
