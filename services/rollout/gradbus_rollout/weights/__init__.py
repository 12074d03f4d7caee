"""Policy versions on a worker: their shards, the cache of shards, and loading with attestation."""
