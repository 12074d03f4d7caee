"""Linear layers of many rows."""
