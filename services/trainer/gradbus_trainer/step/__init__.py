"""From the experience log to the batch of a step."""
