"""One run: its driver, its loop, recovery, admission and status."""
