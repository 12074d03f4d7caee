"""The gateway: REST, server-sent events; keeps no state of its own."""
