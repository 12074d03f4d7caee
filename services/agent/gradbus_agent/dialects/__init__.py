"""The interfaces of model providers, as translations onto one request and one turn."""
