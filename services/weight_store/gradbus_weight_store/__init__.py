"""The weight store: versions, checkpoints and who holds what."""
