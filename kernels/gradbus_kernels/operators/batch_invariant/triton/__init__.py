"""Triton kernels of the batch-invariant operators, one module for each module above."""
