"""Scorers: built-in graders, and the user's own services over gRPC and HTTP."""
