"""Checkpoints: the trainer's state, and its commit."""
