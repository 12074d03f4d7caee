"""The schedules of a run: what to sample, and what may enter the log."""
