"""The weight store: versions, checkpoints, attestations and retention."""
