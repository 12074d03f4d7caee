"""All runs: which need a conductor, and what finished ones left behind."""
