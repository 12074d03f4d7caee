"""Triton kernels of the batch-invariant operators; imported only where they run."""
