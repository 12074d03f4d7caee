"""The decoder of trainer and reference.

`config`: reads config.json. `files`: reads a folder's tensors. `decoder`: the forward, with `rotary`. `invariant_decoder`: the same in the
embedded engine's arithmetic. `causal_lm`: loads a model, runs it on `packing`'s batches. `lora`: adapters.
"""
