"""One run: its states, its loop and its status."""
