"""Which workers serve which run."""
