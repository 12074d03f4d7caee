"""Triton kernels, one file an operator, and `launch`, the table of their block sizes. Imported only where they run."""
