"""Arithmetic of the algorithms that needs no tensors: the conductor and the trainer share it."""

from gradbus.algorithms.advantages import GroupJudgement, ScoredSample, judge_group

__all__ = ["GroupJudgement", "ScoredSample", "judge_group"]
