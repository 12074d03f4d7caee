"""Control state: the values of the key-value buckets about runs and workers."""
