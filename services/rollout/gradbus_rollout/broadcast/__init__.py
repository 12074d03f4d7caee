"""The rollout's end of the weight broadcast."""
