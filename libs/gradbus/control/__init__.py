"""Control state: what the key-value buckets hold about runs, workers and published versions."""
