"""What all operators stand on.

`arguments`: checks. `dispatch`: chooses the implementation and records the choice. `block_sizes`: tiles and launch settings. `counter`:
random numbers. `softcap`: bounded scores and logits. `triton`: functions of kernels.
"""
