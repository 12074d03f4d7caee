"""Where environments run: in children of this service, or behind a user's address."""
