"""Control state: what the key-value buckets hold about runs and workers, and how failed attempts at a run are counted."""
