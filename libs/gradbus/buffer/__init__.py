"""The buffer, Redis or Valkey: sampled groups and the experience log, as bytes. It holds no control state."""

from gradbus.buffer.connection import BufferSettings, open_buffer
from gradbus.buffer.functions import load_functions

__all__ = ["BufferSettings", "load_functions", "open_buffer"]
