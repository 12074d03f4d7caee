"""Arithmetic of the algorithms that needs no tensors: the conductor and the trainer share it."""

from gradbus.algorithms.advantages import GroupAdvantages, ScoredSample, compute_advantages

__all__ = ["GroupAdvantages", "ScoredSample", "compute_advantages"]
