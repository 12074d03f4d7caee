"""Scorers: the built-in graders, and users' services over gRPC and HTTP."""
