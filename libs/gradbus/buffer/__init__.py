"""The buffer: Redis or Valkey. Samples and groups as raw bytes, and the experience log; never control state."""

from gradbus.buffer.connection import BufferSettings, open_buffer
from gradbus.buffer.functions import load_functions

__all__ = ["BufferSettings", "load_functions", "open_buffer"]
