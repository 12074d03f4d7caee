"""What each API key owns, compared with what it may own. All replicas count together, from the bucket `runs`."""
