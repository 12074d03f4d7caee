"""Log-probabilities of given tokens under given logits, with entropy and the divergence from a second model.

`api`: the function, its autograd and its reference. `rows`: the types that all implementations share. `cpu`, `triton`.
"""
