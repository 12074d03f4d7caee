"""Log-probabilities and entropies from hidden states and the LM head, without the `[N, V]` logits.

`api`: the function, its autograd and its reference. `head`: the types that all implementations share. `cpu`, `triton`.
"""
