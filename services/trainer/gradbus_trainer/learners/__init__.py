"""Learners: they hold weights and optimiser state, and compute a step."""
