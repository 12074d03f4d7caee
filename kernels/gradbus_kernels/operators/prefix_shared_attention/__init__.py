"""Attention for packed responses that share a prompt, which is computed once.

`packing`: rows of tokens from prompts and responses. `layout`: which segment shares which prompt. `api`: the attention and its
reference. `cpu`, `triton`.
"""
