"""The language models of trainer and reference.

`language_model`: what both ask of one. `decoder`: the forward of our families, of the `layer_parts` that they choose from, with `rotary`
and `experts`. `fallback`: transformers' models of others. `files`: reads a folder's tensors. `causal_lm`: loads a model, runs it on
`packing`'s batches. `invariant_decoder`: the forward in the embedded engine's arithmetic. `lora`: adapters. `device_memory`: a device that
trainer and engine share.
"""
