"""Samples of many turns: the policy acts in an environment."""
