"""Torch's settings for equal bits on a GPU. On a CPU the number of threads is enough."""

from __future__ import annotations

import os

import torch


def fix_order_of_sums(device: torch.device | str) -> None:
    """On a GPU, has torch and cuBLAS add in a fixed order wherever they can; for the whole process, before its first use of the GPU.

    By default `index_add` on a GPU, and with it the gradients of `index_select` and of an embedding in bfloat16, adds in any order. An
    operation without an order of its own is computed all the same, with a warning that names it.
    """
    if torch.device(device).type == "cpu":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # every empty tensor would be written twice
