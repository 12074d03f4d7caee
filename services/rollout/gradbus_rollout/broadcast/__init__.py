"""The worker's side of weight broadcasts."""
