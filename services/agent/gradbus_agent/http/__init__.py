"""The HTTP side: routes, keys, bodies, errors."""
