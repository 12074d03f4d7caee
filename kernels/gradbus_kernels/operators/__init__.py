"""Operators of RL post-training on torch tensors: small in memory, exact, and usable without the rest of Gradbus.

One file an operator, its torch reference beside it with the same signature; `gpu` holds the Triton kernels and their
launch table. `dispatch` says which implementation runs, and which one did.
"""

from gradbus_kernels.operators.dispatch import Ran, provenance, using
from gradbus_kernels.operators.invariant_attention import invariant_attention, invariant_attention_reference
from gradbus_kernels.operators.invariant_layers import invariant_rms_norm, invariant_rotation, invariant_swiglu
from gradbus_kernels.operators.invariant_logprob import invariant_logprob, invariant_logprob_reference
from gradbus_kernels.operators.invariant_matmul import invariant_matmul, invariant_matmul_reference

__all__ = [
    "Ran",
    "invariant_attention",
    "invariant_attention_reference",
    "invariant_logprob",
    "invariant_logprob_reference",
    "invariant_matmul",
    "invariant_matmul_reference",
    "invariant_rms_norm",
    "invariant_rotation",
    "invariant_swiglu",
    "provenance",
    "using",
]
