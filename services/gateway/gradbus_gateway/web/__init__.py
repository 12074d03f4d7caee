"""The web UI at the gateway's root: static files that use the REST interface like any other client."""
