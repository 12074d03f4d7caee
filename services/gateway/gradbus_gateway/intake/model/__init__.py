"""Models: from the caller's upload, a folder of this machine or the hub to checked files in object storage."""
