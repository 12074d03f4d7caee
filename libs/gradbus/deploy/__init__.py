"""Deployments: the table of roles, their secrets, the servers' configuration, the buffer's functions and the bucket."""
