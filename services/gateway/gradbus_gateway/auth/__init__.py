"""API keys, and browser sessions that stand for one."""
