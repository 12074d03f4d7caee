"""Policy versions on a worker: shards, their cache, and loading with proof."""
