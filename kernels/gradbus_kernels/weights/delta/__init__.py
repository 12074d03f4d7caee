"""Weight deltas: a version as its difference from the one before, to the bit.

`api`: on torch tensors. `file`: on safetensors files, without torch. `format`: the bytes of a delta. Below it, one codec each: `chunk`
(elements), `subset` (sets of indices), `bytes` (integers and bits). Their loops over many elements are in `numpy_loops` and, compiled, in
`numba_loops`; `loops` chooses.
"""
