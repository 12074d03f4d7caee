"""The rollout worker: one engine, kept full, and the policy version it holds."""
