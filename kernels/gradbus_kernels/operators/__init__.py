"""Operators of RL post-training on torch tensors: small in memory, exact, and usable without the rest of Gradbus.

One file an operator, its torch reference beside it with the same signature; `gpu` holds the Triton kernels and their
launch table. `dispatch` says which implementation runs, and which one did.
"""

from gradbus_kernels.operators.counter import counter_uniform
from gradbus_kernels.operators.dispatch import Ran, provenance, using
from gradbus_kernels.operators.sample import sample, sample_at, sample_reference
from gradbus_kernels.operators.sample_linear import linear_sample
from gradbus_kernels.operators.sample_rows import Sampled, Sampling
from gradbus_kernels.operators.selected_logprob import SelectedLogprob, selected_logprob, selected_logprob_reference

__all__ = [
    "Ran",
    "Sampled",
    "Sampling",
    "SelectedLogprob",
    "counter_uniform",
    "linear_sample",
    "provenance",
    "sample",
    "sample_at",
    "sample_reference",
    "selected_logprob",
    "selected_logprob_reference",
    "using",
]
