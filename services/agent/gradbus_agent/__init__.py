"""The agent service: users' own agents play the episodes of a run by `base_url` and key."""
