"""What must be there before containers start: secrets and the servers' configuration, the buffer's functions, the bucket."""
