"""The gateway: the REST interface with server-sent events, and the web UI. It keeps no state of its own."""
