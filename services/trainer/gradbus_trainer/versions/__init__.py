"""Publishing policy versions: to object storage, then to the weight store."""
