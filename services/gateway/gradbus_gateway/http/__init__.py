"""Checks of every HTTP request (host, size, query parameters), and errors as problem documents."""
