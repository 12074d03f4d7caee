"""What of the embedded engine is computed in another way on a GPU, where a launch costs as much as a small product.

attention  `Attention` by operators that read positions on the device
cache      keys and values by row           graph      computations as CUDA graphs
prefill    prompts in chunks, packed        step       a decode step
"""
