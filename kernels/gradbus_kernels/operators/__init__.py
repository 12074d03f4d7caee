"""Operators of RL post-training on torch tensors: small in memory, exact, and usable without the rest of Gradbus.

One file an operator, its torch reference beside it with the same signature; `gpu` holds the Triton kernels and their
launch table. `dispatch` says which implementation runs, and which one did.
"""

from gradbus_kernels.operators.dispatch import Ran, provenance, using
from gradbus_kernels.operators.prefix_layout import PrefixLayout
from gradbus_kernels.operators.prefix_packing import PackedGroups, pack_groups
from gradbus_kernels.operators.prefix_shared_attention import prefix_shared_attention, prefix_shared_attention_reference

__all__ = [
    "PackedGroups",
    "PrefixLayout",
    "Ran",
    "pack_groups",
    "prefix_shared_attention",
    "prefix_shared_attention_reference",
    "provenance",
    "using",
]
