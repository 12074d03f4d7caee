"""Runs in the key-value bucket `runs`, and the idempotency keys of their submissions."""
