"""The rollout worker: samples groups with one engine, at the policy versions that tasks name."""
