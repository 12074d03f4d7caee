"""The conductor: one run's data order, admission, scoring and experience log."""
