"""From the run's algorithm to the loss."""
