"""The contract's model and server, for what only the real one can show."""

from sglang_lab import model, sglang_url, weights  # noqa: F401
