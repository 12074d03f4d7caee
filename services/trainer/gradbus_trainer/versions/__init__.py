"""Published policy versions: weights to files, files to object storage."""
