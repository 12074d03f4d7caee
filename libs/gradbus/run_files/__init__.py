"""What object storage holds of a run beside its log: its record, its manifests, and the digests of deleted versions."""
