"""What of the embedded engine is computed in another way on a GPU, where a launch costs as much as a small product.

prefill    prompts in chunks, packed       step       a decode step
graph      both as CUDA graphs
"""
