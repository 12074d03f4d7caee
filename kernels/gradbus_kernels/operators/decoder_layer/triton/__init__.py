"""Triton kernels of the operators of a decoder layer, one module for each module above: one pass over memory forward, one backward."""
