"""Operators of RL post-training on torch tensors: small in memory, exact, and usable without the rest of Gradbus.

One file an operator, its torch reference beside it with the same signature; `gpu` holds the Triton kernels and their
launch table. `dispatch` says which implementation runs, and which one did.
"""

from gradbus_kernels.operators.dispatch import Ran, provenance, using
from gradbus_kernels.operators.linear_grpo_loss import linear_grpo_loss
from gradbus_kernels.operators.linear_logprob import linear_logprob
from gradbus_kernels.operators.policy_loss import PolicyLoss, PolicySettings, PolicyTokens, policy_loss, token_weights

__all__ = [
    "PolicyLoss",
    "PolicySettings",
    "PolicyTokens",
    "Ran",
    "linear_grpo_loss",
    "linear_logprob",
    "policy_loss",
    "provenance",
    "token_weights",
    "using",
]
