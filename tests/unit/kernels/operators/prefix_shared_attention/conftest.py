"""Small blocks for the Triton kernels."""

from importlib import import_module
from importlib.util import find_spec

import pytest

from gradbus_kernels.operators.base.block_sizes import AttentionBlocks, AttentionLaunch
from gradbus_kernels.operators.prefix_shared_attention import tables


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """So that short segments, too, are of several blocks and fill none, and gradients of keys are sums of several parts."""
    if find_spec("triton") is not None:
        kernels = import_module("gradbus_kernels.operators.prefix_shared_attention.triton")
        blocks = AttentionLaunch(*(AttentionBlocks(*sizes, warps=1, stages=1) for sizes in ((16, 16), (32, 16), (16, 32))))
        monkeypatch.setattr(kernels, "launch", lambda *_: blocks)
        monkeypatch.setattr(tables, "ATTENTION_PART", 32)
